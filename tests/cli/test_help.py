"""Asking for help costs next to nothing, and wrong calls are told apart from refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hubless.cli import main, parser
from tests.cli.commands import COMMAND, hubless

COMMANDS = ["demo", "new", "run", "join", "ls", "check", "pull", "policy", "watch", "report", "env"]
HEAVY = {
    "numpy",
    "torch",
    "polars",
    "obstore",
    "ml_dtypes",
    "ray",
    "rich",
    "starlette",
    "uvicorn",
    "altair",
    "sklearn",
    "safetensors",
}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy(command: str) -> None:
    words = [*COMMAND[1:], *([command] if command else []), "--help"]
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *words], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert f"usage: hubless {command}".rstrip() in ran.stdout
    names = re.findall(r"^import time:.*\|\s*([\w.]+)$", ran.stderr, re.MULTILINE)
    imported = {name.partition(".")[0] for name in names}
    assert "hubless" in imported
    assert imported.isdisjoint(HEAVY)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    listed = re.findall(r"^ {4}(\w+) ", said, re.MULTILINE)
    assert listed == COMMANDS


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["ls"],
        ["ls", "folder", "--unknown"],
        ["join", "folder"],
        ["join", "folder", "train.py", "--every", "0"],
        ["join", "folder", "train.py", "--quorum", "some"],
        ["join", "folder", "train.py", "--qourum", "2"],
        ["join", "folder", "train.py", "--member=3"],
        ["new", "--kind", "other"],
        ["watch", "folder", "--port", "1"],
        ["watch", "folder", "--json"],
        ["watch", "folder", "--web", "--once"],
        ["run", "--ou", "folder", "train.py"],
    ],
)
def test_a_wrong_call_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 2
    assert "usage: hubless" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "handed_on"),
    [
        (["train.py"], []),
        (["train.py", "--lr", "0.1", "data"], ["--lr", "0.1", "data"]),
        (["train.py", "--lr=0.1", "--client", "a", "-v"], ["--lr=0.1", "-v"]),
        (["--client", "a", "train.py", "x"], ["x"]),
        (["train.py", "--", "--client", "b", "--", "y"], ["--client", "b", "--", "y"]),
        (["train.py", "--help"], ["--help"]),
        (["train.py", "-1"], ["-1"]),
    ],
)
def test_what_join_does_not_know_goes_to_the_script(words: list[str], handed_on: list[str]) -> None:
    options = parser().parse_args(["join", "folder", *words])
    assert options.url == "folder"
    assert options.script == Path("train.py")
    assert options.arguments == handed_on
    assert options.client == ("a" if "a" in words else None)


def test_a_traceback_is_shown_only_if_asked_for(tmp_path: Path) -> None:
    refused = hubless("ls", tmp_path / "nowhere", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("hubless ls: there is no folder")
    assert "Traceback" not in refused.stderr
    shown = hubless("ls", tmp_path / "nowhere", "--traceback", cwd=tmp_path)
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
