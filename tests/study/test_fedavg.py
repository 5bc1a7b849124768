"""McMahan's study: runs that go on where they stopped, and the table they come to."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from hubless.simulate import checkpoint
from hubless.study import fedavg
from hubless.study.fedavg import TARGETS, TableRun, main, module, planned, table
from hubless.study.results import write
from tests.support.digits import written

TWO_CELLS = ["--model", "2nn", "--split", "shards", "--only", "*-e1-*", "--device", "cpu"]
LAST = "2nn-shards-e1-b10-lr0.1"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("data"))


def _kept(out: Path) -> dict[str, str]:
    """The texts that a study leaves: results and tables."""
    found = [path for ending in ("json", "md") for path in out.rglob(f"*.{ending}")]
    return {str(path.relative_to(out)): path.read_text() for path in found}


def _result(out: Path, run: TableRun) -> None:
    write(out / f"{run.cell}-lr{run.lr:g}" / "result.json", json.dumps(asdict(run)))


def _round(folder: Path) -> int:
    return int(checkpoint.read(folder)[1]["round"])


def test_a_study_that_was_killed_ends_as_one_that_was_not(data: str, tmp_path: Path) -> None:
    arguments = [*TWO_CELLS, "--data", data, "--rounds", "40"]
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", _DIES_IN_THE_SECOND_RUN, *arguments, "--out", str(killed)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-2000:]
    assert not (killed / LAST / "result.json").exists()
    assert _round(killed / LAST) == 6
    assert main([*arguments, "--out", str(killed)]) == 0
    assert _kept(killed) == _kept(tmp_path / "whole")
    assert len(json.loads((killed / "table.json").read_text())) == 2


def test_cells_are_run_side_by_side_if_asked(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # other processes have it as it is
    monkeypatch.setattr(fedavg, "complete", lambda *_: pytest.fail("run in this process"))
    arguments = [*TWO_CELLS, "--data", data, "--rounds", "20", "--out", str(tmp_path)]
    arguments += ["--tune", "--workers", "2"]
    assert main([*arguments, "--minutes", "0"]) == 3
    assert not list(tmp_path.glob("2nn-*"))
    assert main(arguments) == 0
    kept = _kept(tmp_path)
    assert sum(name.endswith("result.json") for name in kept) == 2 * 3
    assert len(json.loads(kept["table.json"])) == 2
    assert main(arguments) == 0
    assert _kept(tmp_path) == kept


_DIES_IN_THE_SECOND_RUN = """
import os, signal, sys
from hubless.study import fedavg

def watch(self, simulation, row):
    if self.label.startswith("run 2 of 2") and row["round"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)

fedavg.Watch.__call__ = watch
sys.exit(fedavg.main())
"""


def test_when_the_time_is_up_nothing_is_lost(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", data, "--out", str(tmp_path), "--device", "cpu", "--rounds", "6"]
    arguments += ["--only", "2nn-iid-e1-b10", "--lr", "0.05"]
    assert main([*arguments, "--minutes", "0"]) == 3
    assert not list(tmp_path.glob("2nn-*"))
    monkeypatch.setattr(fedavg.Watch, "__call__", lambda *_: True)
    for rounds in range(1, 6):
        assert main(arguments) == 3
        assert _round(tmp_path / "2nn-iid-e1-b10-lr0.05") == rounds
    assert main(arguments) == 0
    assert "| > 6 |" in capsys.readouterr().out


def test_a_finished_run_is_never_run_again(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lr in (0.1, 0.2):
        _result(tmp_path, TableRun("2nn", "iid", 1, 10, lr, curve=[0.5, 0.98]))
    _result(tmp_path, TableRun("2nn", "iid", 5, 10, 0.1, curve=[0.1], diverged=True))
    monkeypatch.setattr(fedavg, "train", lambda *_: pytest.fail("it was run again"))
    common = ["--data", data, "--out", str(tmp_path), "--model", "2nn", "--split", "iid"]
    assert main([*common, "--only", "*-e1-b10", "--lr", "0.1", "0.2"]) == 0
    assert main([*common, "--only", "*-e5-b10", "--lr", "0.1"]) == 0


def test_a_rate_runs_no_longer_than_a_better_one(data: str, tmp_path: Path) -> None:
    _result(tmp_path, TableRun("2nn", "iid", 1, 10, 0.2, curve=[0.5, 0.6, 0.98]))
    arguments = ["--data", data, "--out", str(tmp_path), "--only", "2nn-iid-e1-b10"]
    assert main([*arguments, "--lr", "0.001", "--device", "cpu"]) == 0
    slow = json.loads((tmp_path / "2nn-iid-e1-b10-lr0.001/result.json").read_text())
    assert len(slow["curve"]) == 3


def test_a_rate_that_diverges_is_a_result(data: str, tmp_path: Path) -> None:
    arguments = ["--data", data, "--out", str(tmp_path), "--only", "2nn-iid-e5-ball"]
    assert main([*arguments, "--lr", "1e30", "--rounds", "9", "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "table.json").read_text())[0]["diverged"]


def test_missing_data_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["--data", str(tmp_path), "--out", str(tmp_path)])
    assert "train-images-idx3-ubyte" in capsys.readouterr().err


def test_rounds_are_counted_on_the_best_accuracy_so_far() -> None:
    assert TableRun("2nn", "iid", 1, 10, 0.1, [0.96, 0.9, 0.98]).rounds == 2.5
    assert TableRun("cnn", "iid", 1, 10, 0.1, [0.96, 0.99, 0.98]).rounds == 2
    assert (
        TableRun("cnn", "iid", 1, 10, 0.1, [0.96]).rounds == TableRun("2nn", "iid", 1, 10, 1).rounds
    )
    assert math.isinf(TableRun("cnn", "iid", 1, 10, 0.1).rounds)


def test_the_table_takes_the_best_rate_and_compares_it_with_fedsgd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _result(tmp_path, TableRun("2nn", "iid", 1, None, 0.5, curve=[0.5, 0.96, 0.96, 0.98]))
    _result(tmp_path, TableRun("2nn", "iid", 5, 10, 0.1, curve=[0.96, 0.98]))
    _result(tmp_path, TableRun("2nn", "iid", 5, 10, 0.2, curve=[0.96, 0.96]))
    _result(tmp_path, TableRun("cnn", "shards", 1, None, 0.1, curve=[0.5] * 30))
    _result(tmp_path, TableRun("cnn", "shards", 20, 10, 0.1, curve=[0.9, 0.985, 0.995]))
    fedsgd, iid, _, bound = table(tmp_path)
    assert (fedsgd["rounds"], fedsgd["speedup"]) == (3.5, 1)
    assert (iid["lr"], iid["rounds"], iid["speedup"]) == (0.1, 1.5, pytest.approx(3.5 / 1.5))
    assert bound["at_least"] and bound["speedup"] == 12
    assert main(["--table", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| 2nn | iid | 5 | 10 | 300 | 0.1 | 2 | 2.3x | 98.00% |" in shown
    assert "| cnn | shards | 1 | all | 1 | 0.1 | > 30 |  | 50.00% |" in shown
    assert "| cnn | shards | 20 | 10 | 1200 | 0.1 | 2 | > 12.0x | 99.50% |" in shown
    assert (tmp_path / "table.md").read_text() in shown


def test_models_have_the_paper_s_sizes() -> None:
    sizes = [sum(p.numel() for p in module(model).parameters()) for model in TARGETS]
    assert sizes == [199_210, 1_663_370]


def test_tuning_tries_rates_around_the_usual_one() -> None:
    assert len(list(planned())) == 24
    assert [run.lr for run in planned(tune=1)][:3] == [0.5, 0.23, 1.1]
    assert {run.lr for run in planned(rates=[0.3])} == {0.3}


def test_a_selector_of_one_s_own_decides_who_trains(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import numpy as np\n"
        "import hubless.select\n\n"
        "@hubless.select.selector\n"
        "def first(roster, k, rng):\n"
        "    return np.arange(k)\n"
    )
    out, cells = tmp_path / "out", [*TWO_CELLS, "--only", "*-e1-ball*", "--data", data]
    assert main([*cells, "--rounds", "2", "--selector", f"{mine}:first", "--out", str(out)]) == 0
    (run,) = json.loads((out / "table.json").read_text())
    assert run["selector"] == f"{mine}:first"
    assert f"shards, {mine}:first" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*cells, "--selector", f"{mine}:last", "--out", str(out)])
    assert "has no 'last': it has first" in capsys.readouterr().err
