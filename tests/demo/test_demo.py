"""The demo, small: both parts run, one site is killed and returns, and a report is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hubless.demo.fleet import HORIZONS, SELECTORS, Score, _learned
from hubless.demo.sites import SITES, VICTIM, _of_victim


@pytest.mark.timeout(600)
def test_the_demo_simulates_federates_and_reports(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    command = [sys.executable, "-m", "hubless.demo", "--folder", str(folder)]
    # enough epochs after the one it is killed at: who has finished by then is not killed any more
    command += ["--clients", "150", "--rounds", "6", "--epochs", "30"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert ran.returncode == 0, ran.stderr
    said = _lines(folder / "fleet" / "events.jsonl")
    names = {f"{selector}, {horizon}" for selector in SELECTORS for horizon in HORIZONS}
    assert {event["client"] for event in said} == names
    for name in names:
        rounds = [e["round"] for e in said if e["client"] == name and e["event"] == "trained"]
        assert rounds == [1, 2, 3, 4, 5, 6]
    lives = _lines(folder / "sites" / f"{VICTIM}.jsonl")
    joined = [event["resumed"] for event in lives if event["event"] == "joined"]
    assert joined == [False, True]
    killed = re.search(rf"{VICTIM} was killed after epoch (\d+) and went on from", ran.stdout)
    assert killed is not None
    shown = re.findall(rf"^({'|'.join(SITES)}) .*?([\d.]+)% +([\d.]+)%$", ran.stdout, re.M)
    assert len(shown) == len(SITES)
    page = (folder / "fleet.html").read_text(encoding="utf-8")
    assert all(name in page for name in names)
    assert VICTIM in (folder / "sites.html").read_text(encoding="utf-8")
    assert str(folder / "fleet.html") in ran.stdout and str(folder / "sites.html") in ran.stdout


def test_what_was_learned_follows_from_the_table() -> None:
    accuracies = {"uniform": (0.8, 0.7), "activity": (0.9, 0.8), "active": (0.95, 0.95)}
    found = [
        Score(name, horizon, value, value - 0.1, value, 1)
        for name, values in accuracies.items()
        for horizon, value in zip(HORIZONS, values, strict=True)
    ]
    best, stretch, gap = _learned(found)
    assert "Picked by active" in best and "20.0 points more than by uniform" in best
    assert stretch.startswith("Training once on six months gives 6.7 points more")
    assert "10.0 points behind" in gap


def test_who_had_nothing_left_to_train_is_not_said_to_be_killed() -> None:
    assert "before it could be killed" in _of_victim(killed_at=0, resumed_at=10)
    assert "killed after epoch 3 and went on from epoch 4" in _of_victim(3, 4)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
