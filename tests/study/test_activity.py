"""The picture of whom selection by activity picks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest

from hubless.select.activity import Activity
from hubless.study.activity import FILE, SELECTORS, chances, main
from tests.support.frequencies import inclusion, successive


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """400 authors, a few of them very busy."""
    sizes = np.random.default_rng(0).zipf(1.7, 400).clip(max=300)
    users = np.repeat([f"author {i}" for i in range(400)], sizes)
    (tmp_path / "git").mkdir()
    polars.DataFrame({"user": users}).write_parquet(tmp_path / "git" / FILE)
    return tmp_path


def test_a_picture_and_its_numbers_come_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--data", str(data), "--out", str(out), "--cohort", "20", "--rounds", "100"]
    assert main(arguments) == 0
    assert (out / "activity.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "activity.svg").read_text(encoding="utf-8")
    panels = json.loads((out / "activity.json").read_text(encoding="utf-8"))
    assert [panel["selector"] for panel in panels] == list(SELECTORS)
    for panel in panels:
        for column in ("picked", "expected", "everybody"):
            assert sum(panel[column]) == pytest.approx(1, abs=1e-6)
        assert panel["off"] < 5
    assert capsys.readouterr().out.count("clients") == len(SELECTORS)
    before = (out / "activity.json").read_text(encoding="utf-8")
    assert main(arguments) == 0
    assert (out / "activity.json").read_text(encoding="utf-8") == before


def test_expectations_are_near_the_exact_ones() -> None:
    sizes = [1, 1, 2, 3, 5, 8, 9, 12]
    exact = inclusion(successive([float(n) for n in sizes], 3), 8)
    assert np.abs(chances(Activity("n"), np.array(sizes), 3) - exact).max() < 0.03


def test_data_that_is_not_there_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "git" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_is_drawn_with_before_there_is_something_to_draw() -> None:
    program = "import sys, hubless.study.activity; sys.exit('altair' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
