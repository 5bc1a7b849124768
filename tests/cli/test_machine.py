"""`hubless env` and `hubless demo`."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import hubless as package
from hubless.cli import main
from hubless.cli.parsing import needing
from hubless.errors import HublessError
from tests.cli.commands import hubless


def test_env_names_versions_and_the_machine(tmp_path: Path) -> None:
    ran = hubless("env", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["hubless"] == package.__version__
    assert said["python"] == ".".join(map(str, sys.version_info[:3]))
    assert said["packages"]["numpy"] == version("numpy")
    assert said["packages"]["torch"] == version("torch")
    assert said["cores"] == len(os.sched_getaffinity(0))
    assert said["memory_bytes"] > 1 << 28
    assert "torch" not in said


def test_env_asks_torch_only_if_told(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert main(["env", "--full", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["torch"]["version"] == str(torch.__version__)
    assert len(said["torch"]["devices"]) == torch.cuda.device_count()


def test_env_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert main(["env"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"^numpy +{re.escape(version('numpy'))}$", said, re.MULTILINE)
    assert re.search(r"^compiler +none found$", said, re.MULTILINE)
    assert re.search(r"^memory +[0-9.]+ [MG]iB$", said, re.MULTILINE)


def test_what_is_not_installed_is_one_paragraph() -> None:
    asked = r"hubless demo needs scikit-learn: pip install 'hubless\[demo\]'"
    with pytest.raises(HublessError, match=asked), needing("demo", "demo"):
        raise ModuleNotFoundError("No module named 'sklearn.datasets'", name="sklearn.datasets")
    asked = r"hubless watch needs no_such_thing: pip install 'hubless\[watch\]'"
    with pytest.raises(HublessError, match=asked), needing("watch", "watch"):
        import no_such_thing  # noqa: F401


def test_a_part_of_hubless_that_is_missing_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needing("watch", "watch"):
        import hubless.nothing  # noqa: F401


def test_a_refused_demo_keeps_its_exit_code(tmp_path: Path) -> None:
    ran = hubless("demo", "--no-such-option", cwd=tmp_path)
    assert ran.returncode == 2
    assert "--no-such-option" in ran.stderr
