"""`hubless watch` and `hubless report` over what runs leave behind."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import hubless as package
from hubless.events import to_file
from tests.cli.commands import PATIENCE, hubless, start


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of events, beside the federation that they are about."""
    (tmp_path / "run").mkdir()
    for name in ("site-a", "site-b"):
        listener = to_file(tmp_path / "run" / "events.jsonl")
        with package.join(tmp_path / "meeting", name, events=listener) as joined:
            for loss in (0.5, 0.25):
                joined.step({"w": np.ones(2)}, examples=5, metrics={"loss": loss})
    return tmp_path


def test_watch_once_says_how_things_stand(run: Path) -> None:
    for source in ("run", "run/events.jsonl", "meeting"):
        ran = hubless("watch", source, "--once", cwd=run)
        assert ran.returncode == 0, ran.stderr
        assert "updates" in ran.stdout


def test_watch_once_as_json(run: Path) -> None:
    ran = hubless("watch", "meeting", "--once", "--json", cwd=run)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["name"] == "meeting"
    assert len(said["runs"]) == 1
    assert said["runs"][0]["metrics"] == {"loss": 0.25}


def test_watching_looks_and_leaves_everything_as_it_is(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert hubless("watch", "meeting", "--once", cwd=run).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("command", ["watch", "report"])
def test_a_source_that_is_not_there_is_refused(command: str, tmp_path: Path) -> None:
    now = ["--once"] if command == "watch" else []
    ran = hubless(command, "nowhere", *now, cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"hubless {command}: ")
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interval", ["-1", "0", "nan", "inf"])
def test_an_interval_that_cannot_be_waited_for_is_refused(interval: str, run: Path) -> None:
    ran = hubless("watch", "run", "--interval", interval, cwd=run)
    assert ran.returncode == 2
    assert f"{interval} is not above 0" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_page_is_served_until_interrupted(run: Path) -> None:
    process = start("watch", "run", "--web", "--port", "0", cwd=run)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert found, process.communicate()
    with urllib.request.urlopen(f"{found[0]}state.json", timeout=PATIENCE) as answer:
        assert json.load(answer)["runs"]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    assert "Traceback" not in error


def test_a_report_is_one_page_and_its_size_is_said(run: Path) -> None:
    ran = hubless("report", "run", "meeting", "-o", "page.html", "--no-pictures", cwd=run)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"page\.html: [0-9.]+ [KM]iB\n", ran.stdout)
    assert "site-b" in (run / "page.html").read_text()
    assert sorted(path.name for path in run.iterdir()) == ["meeting", "page.html", "run"]


def test_a_report_as_json_with_its_pictures(run: Path) -> None:
    ran = hubless("report", "run", "--json", cwd=run)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said == {"output": "report.html", "bytes": (run / "report.html").stat().st_size}
    assert list((run / "report").glob("*.png"))
