"""`hubless ls`, `check` and `pull`: what people and scripts see."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import hubless
from hubless.cli import main
from hubless.store.folder import FolderStore
from tests.support.servers import Server


def params(value: float) -> dict[str, Any]:
    return {"w": np.full((40, 30), value, np.float32), "steps": np.array(7)}


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    for i, name in enumerate(("site-a", "site-b")):
        with hubless.join(tmp_path / "run", name) as joined:
            joined.step(params(float(i)), examples=100 * (i + 1), metrics={"loss": 0.5 - i / 4})
    return tmp_path / "run"


def test_ls_shows_who_is_there(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(federation)]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert "async, 2 parameters, 4.7 KiB" in head
    assert columns.split() == ["CLIENT", "UPDATE", "VERSION", "AGE", "EXAMPLES", "LEFT", "METRICS"]
    assert [row.split()[0] for row in rows] == ["site-a", "site-b"]
    assert rows[1].split()[-4:] == ["200", "left", "loss", "0.25"]


def test_ls_says_who_left(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hubless.join(federation, "site-a") as again:
        again.step(params(1.0), examples=7)
        assert main(["ls", str(federation), "--json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert {m["client"]: m["left"] for m in members} == {"site-a": False, "site-b": True}


def test_ls_as_json(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(federation), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["mode"] == "async"
    assert [(m["client"], m["examples"]) for m in said["members"]] == [
        ("site-a", 100),
        ("site-b", 200),
    ]
    assert said["members"][0]["metrics"] == {"loss": 0.5}
    assert 0 <= said["members"][0]["age"] < 600


def test_ls_as_json_has_nothing_where_a_metric_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hubless.join(tmp_path / "run", "a") as joined:
        joined.step(params(1.0), examples=1, metrics={"loss": float("nan"), "accuracy": 0.5})
    assert main(["ls", str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert said["members"][0]["metrics"].get("loss") is None
    assert said["members"][0]["metrics"]["accuracy"] == 0.5


def test_ls_points_at_what_members_would_refuse(
    federation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry, *_) = FolderStore(federation).list("updates/")
    (federation / entry.key).write_bytes(b"\x80\x04garbage")
    assert main(["ls", str(federation)]) == 0
    assert "refused: it is a pickle" in capsys.readouterr().out


def test_names_in_a_store_cannot_act_on_the_terminal(
    federation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hubless.join(federation, "site-c") as joined:
        joined.step(params(1.0), examples=1, metrics={"\x1b[2Jgone": 1.0})
    assert main(["ls", str(federation)]) == 0
    said = capsys.readouterr().out
    assert "?[2Jgone 1" in said
    assert "\x1b" not in said


def test_pull_writes_the_average_as_safetensors(
    federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model.safetensors"
    assert main(["pull", str(federation), "-o", str(target), "--json"]) == 0
    arrays = load_file(target)
    assert np.allclose(arrays["w"], 2 / 3)
    assert arrays["steps"] == 7
    assert json.loads(capsys.readouterr().out)["clients"] == ["site-a", "site-b"]


def test_pull_from_rounds_gives_the_newest_complete_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def member(index: int) -> None:
        with hubless.join(
            tmp_path / "run",
            f"m{index}",
            pace=hubless.Rounds(members=2),
            strategy=hubless.FedAdam(),
        ) as joined:
            for value in (1.0, 3.0):
                result.append(joined.step(params(value + index), examples=1)["w"])

    result: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(member, range(2)))
    target = tmp_path / "model.safetensors"
    assert main(["pull", str(tmp_path / "run"), "-o", str(target)]) == 0
    assert np.array_equal(load_file(target)["w"], result[-1])
    assert "from 2 clients" in capsys.readouterr().out
    assert main(["ls", str(tmp_path / "run")]) == 0
    assert "sync, 2 parameters" in capsys.readouterr().out


def test_pull_that_fails_leaves_the_old_file(federation: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"precious")
    for entry in FolderStore(federation).list("updates/"):
        (federation / entry.key).write_bytes(b"broken")
    assert main(["pull", str(federation), "-o", str(target)]) == 1
    assert target.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "run"]


def test_check_tries_everything_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path), "--size", "2"]) == 0
    said = capsys.readouterr().out
    assert "good for: async, sync" in said
    assert "one winner, also in a race" in said
    assert FolderStore(tmp_path).list("") == []


@pytest.mark.xdist_group("rclone")
def test_check_tells_that_rclone_ignores_conditions(
    rclone_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--option={key}={value}" for key, value in rclone_server.options.items()]
    url = f"{rclone_server.url}/check"
    assert main(["check", url, "--json", "--size", "1", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["usable"]
    assert not said["creates_if_absent"]
    assert main(["check", url, "--size", "1", *options]) == 0
    assert "good for: async\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "/no/such/folder"], "there is no folder"),
        (["ls", "ftp://x"], "no store for ftp://"),
        (["pull", "EMPTY"], "there is no federation at"),
        (["pull", "EMPTY", "-o", "."], "cannot write .: it is a folder"),
        (["ls", "EMPTY", "--option", "region"], "--option takes KEY=VALUE"),
    ],
)
def test_errors_are_one_paragraph_without_a_traceback(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.replace("EMPTY", str(tmp_path)) for a in arguments]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error(federation: Path) -> None:
    command = f"{sys.executable} -m hubless.cli ls {federation} | head -n 0"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
