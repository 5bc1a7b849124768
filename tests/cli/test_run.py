"""`hubless run` runs a script as Python would, and keeps what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import (
    ENVIRONMENT,
    PATIENCE,
    events_in,
    hubless,
    kinds_in,
    start,
    wait_until,
)

FEDERATION = """
import numpy as np
import hubless

with hubless.join("meeting", "site-a") as federation:
    for _ in range(3):
        federation.step({"w": np.ones(2)}, examples=5, metrics={"loss": 0.5})
"""

FOREVER = """
import numpy as np
import torch
import hubless

people = hubless.Population.by({"x": np.ones((40, 2), np.float32), "y": np.zeros(40, int)},
                               np.arange(40) % 4)
hubless.Simulation(
    hubless.Task(torch.nn.Linear(2, 2)), people, cohort=2,
    engine=hubless.Local(lanes=0, compiled=False, processes=1),
    callbacks=[hubless.Checkpoint("saved")],
).run(10**9)
"""


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_event_is_kept_in_a_folder_of_the_runs_own(tmp_path: Path) -> None:
    script(tmp_path, FEDERATION)
    ran = hubless("run", "script.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("script-2")
    kinds = kinds_in(folder / "events.jsonl")
    assert kinds == ["joined", "sharing", *["pushed", "nothing"] * 3, "left"]
    assert f"9 events in runs/{folder.name}" in ran.stderr
    assert f"hubless watch runs/{folder.name}" in ran.stderr
    assert ran.stdout == ""


def test_a_second_run_goes_elsewhere_or_is_appended_where_it_was_told(tmp_path: Path) -> None:
    script(tmp_path, FEDERATION)
    for _ in range(2):
        assert hubless("run", "script.py", cwd=tmp_path).returncode == 0
        assert hubless("run", "--out", "kept", "script.py", cwd=tmp_path).returncode == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert kinds_in(tmp_path / "kept" / "events.jsonl").count("joined") == 2


def test_a_script_sees_what_it_would_see_under_python(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    script(tmp_path / "below", "NAME = 'beside'", "beside.py")
    told = """
import json, multiprocessing, os, sys
import beside

def work():
    os.write(1, b"worked ")

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start(), process.join()
    same = sys.modules["__main__"].work is work
    print(json.dumps([sys.argv[1:], sys.path, __name__, __file__, same]))
"""
    script(tmp_path / "below", told)
    words = ["--lr", "0.1", "--out=mine"]
    plain = subprocess.run(
        [sys.executable, "below/script.py", *words],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    ran = hubless("run", "below/script.py", "--", *words, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == plain.stdout
    assert "worked" in ran.stdout


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no more')", 1, "no more"),
        ("def broken(:", 1, "SyntaxError"),
    ],
)
def test_a_script_ends_as_it_would_by_itself(
    ending: str, code: int, said: str, tmp_path: Path
) -> None:
    script(tmp_path, f"import sys\n{ending}\n")
    ran = hubless("run", "script.py", cwd=tmp_path)
    assert ran.returncode == code
    assert said in ran.stderr
    assert "runpy" not in ran.stderr
    assert "hubless/cli" not in ran.stderr


def test_errors_of_hubless_are_one_paragraph_in_scripts_too(tmp_path: Path) -> None:
    script(tmp_path, "import hubless\nhubless.join('meeting', 'bad/name')\n")
    ran = hubless("run", "script.py", cwd=tmp_path)
    assert ran.returncode == 1
    assert "hubless run: client name 'bad/name' cannot be used" in ran.stderr
    assert "Traceback" not in ran.stderr
    shown = hubless("run", "--traceback", "script.py", cwd=tmp_path)
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr


def test_a_script_that_says_nothing_leaves_no_folder(tmp_path: Path) -> None:
    script(tmp_path, "print('hello')")
    ran = hubless("run", "script.py", cwd=tmp_path)
    assert ran.returncode == 0
    assert ran.stdout == "hello\n"
    assert "nothing to watch" in ran.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_json_is_the_last_line(tmp_path: Path) -> None:
    script(tmp_path, "print('hello')\n" + FEDERATION)
    ran = hubless("run", "script.py", "--json", "--out", "kept", cwd=tmp_path)
    hello, said = ran.stdout.splitlines()
    assert hello == "hello"
    assert json.loads(said) == {"out": "kept", "events": 9, "exit": 0}


def test_an_interrupted_run_leaves_whole_lines_and_says_where(tmp_path: Path) -> None:
    script(tmp_path, FOREVER)
    process = start("run", "script.py", "--out", "kept", cwd=tmp_path)
    events = tmp_path / "kept" / "events.jsonl"
    wait_until(lambda: events.exists() and events.read_text().count("\n") > 5, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    last = events_in(events)[-1]
    assert (last["event"], last["reason"]) == ("ended", "interrupted")
    assert "hubless watch kept" in said
    assert "Traceback" not in said
    assert list((tmp_path / "saved").iterdir())


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ran = hubless("run", "nothing.py", cwd=tmp_path)
    assert ran.returncode == 1
    assert "there is no file nothing.py" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_study_keeps_its_exit_code_and_its_options(tmp_path: Path) -> None:
    settings = Path(__file__).parents[2] / "studies" / "fleet-tiny.toml"
    ran = hubless("run", settings, "--minutes", "0", "--json", cwd=tmp_path)
    assert ran.returncode == 3, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"out": "runs/fleet-tiny", "exit": 3}
    assert (tmp_path / "runs" / "fleet-tiny" / "data" / "messages").exists()
    wrong = hubless("run", settings, "--nonsense", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--nonsense" in wrong.stderr
