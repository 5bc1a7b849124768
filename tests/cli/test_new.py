"""`hubless new` writes scripts that run as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hubless.cli import main
from tests.cli.commands import ENVIRONMENT, PATIENCE, events_in, hubless


def test_a_new_simulation_runs_and_leaves_its_events(tmp_path: Path) -> None:
    assert hubless("new", "mine.py", cwd=tmp_path).returncode == 0
    ran = hubless("run", "mine.py", "--out", "kept", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["uniform:", "activity:"]
    events = events_in(tmp_path / "kept" / "events.jsonl")
    ended = [e for e in events if e["event"] == "ended"]
    assert [(e["client"], e["reason"]) for e in ended] == [
        ("uniform", "complete"),
        ("activity", "complete"),
    ]
    last = {e["client"]: e["metrics"] for e in events if e["event"] == "trained"}
    assert all(metrics["accuracy"] > 0.75 for metrics in last.values())
    assert "round 1 of 40" in ran.stderr
    assert "hubless watch kept" in ran.stderr
    assert "hubless report kept" in ran.stderr


def test_a_new_site_runs_with_plain_python_and_meets_another(tmp_path: Path) -> None:
    assert hubless("new", "--kind", "federate", cwd=tmp_path).returncode == 0
    for client in ("site-a", "site-b"):
        ran = subprocess.run(
            [sys.executable, "federate.py", client],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert f"{client}: epoch 20" in ran.stdout
    said = json.loads(hubless("ls", "federation", "--json", cwd=tmp_path).stdout)
    assert [m["client"] for m in said["members"]] == ["site-a", "site-b"]
    # the second one starts where the first one was
    assert said["members"][1]["version"] > said["members"][0]["version"]


def test_what_is_there_is_not_overwritten_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("precious")
    assert main(["new", str(mine)]) == 1
    assert "--force" in capsys.readouterr().err
    assert mine.read_text() == "precious"
    assert main(["new", str(mine), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(mine), "kind": "simulate"}
    assert "hubless.Simulation(" in mine.read_text()


def test_a_place_that_cannot_be_written_to_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / "none" / "mine.py")]) == 1
    assert "cannot write" in capsys.readouterr().err
