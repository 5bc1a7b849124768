"""Every finding of the attackers' review, played against a folder; `make attacks` has S3, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.__main__ import setting
from tests.attacks.scene import Attack, attacks, played

_PLAYED = [each for each in attacks() if "folder" in each.places]


@pytest.mark.parametrize("each", _PLAYED, ids=[f"{e.number}: {e.title}" for e in _PLAYED])
@pytest.mark.filterwarnings("ignore")
def test_an_attack_achieves_nothing(each: Attack, tmp_path: Path) -> None:
    scene = played(each, setting(each, "folder", tmp_path / "scene", None))
    if not each.open:
        assert not scene.hung
        assert not scene.harm
        assert not scene.fooling
        assert not scene.silence
