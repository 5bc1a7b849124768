"""The study of who trains and when: its whole path, on a fleet that is made up."""

from __future__ import annotations

import functools
import json
import math
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch

from hubless.data.population import Population
from hubless.errors import DataError
from hubless.simulate import checkpoint
from hubless.simulate.engine.machine import Local
from hubless.study import continual
from hubless.study.continual import ContinualStudy, main, prepare
from hubless.study.grid import Grid
from hubless.study.settings import Settings

pytestmark = pytest.mark.xdist_group("continual")

TINY = """
title = "A test"

[data]
clients = 150
utterances = 15
most = 100
vocabulary = 150
length = 10

[grid]
{grid}

[train]
model = {{ width = 16, layers = 1, heads = 2 }}
cohort = 6
rounds = 3
batch = 64
rates = {{ fedavg = {{ client = 0.5 }}, fedopt = {{ client = 0.5, server = 0.01 }} }}
save_every = 1
"""
SMALL = """
algorithms = ["fedavg"]
selectors = ["activity:1", "activity:log"]
horizons = ["6", "11", "3x2"]
sets = 2
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "cache"))


def written(folder: Path, grid: str) -> Path:
    path = folder / "study.toml"
    path.write_text(TINY.format(grid=grid))
    return path


def results(out: Path) -> list[str]:
    """What cells came to, but for how long they took."""
    records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    return sorted(json.dumps([record["cell"], record["rows"]]) for record in records)


@pytest.mark.timeout(900)
def test_the_paper_s_whole_grid_from_data_to_figures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = written(tmp_path, "sets = 3")
    arguments = [str(settings), "--out", str(out), "--device", "cpu", "--lanes", "0"]
    assert main(arguments) == 0
    frame = polars.read_parquet(out / "results.parquet")
    cells = frame.select("algorithm", "selector", "horizon", "set").unique()
    assert len(cells) == 2 * 7 * 4 * 3
    whole = frame.filter(polars.col("decile").is_null())
    assert len(whole) == 2 * 7 * 3 * 3 + 2 * 7 * 3 * 3
    assert whole["perplexity"].is_between(1, 150 * 10).all()
    trained = whole.filter(horizon="11").group_by("selector").agg(polars.col("trained").mean())
    trained_by = dict(trained.iter_rows())
    assert trained_by["activity:n"] > trained_by["activity:1"] > trained_by["activity:1/log"]
    assert trained_by["heavy"] > trained_by["light"]
    for figure in ("1a", "1b", "2a", "2b", "3a", "3b", "4"):
        for kind in ("png", "svg"):
            assert (out / f"figure-{figure}.{kind}").stat().st_size > 1000
    (page,) = out.glob("*.html")
    assert "A test" in page.read_text()


@pytest.mark.timeout(900)
def test_a_cell_killed_in_the_middle_resumes_to_the_identical_result(tmp_path: Path) -> None:
    grid = 'algorithms = ["fedavg"]\nselectors = ["activity:1"]\nhorizons = ["6", "3x2"]\nsets = 2'
    settings = written(tmp_path, grid)
    # two in each of three periods
    settings.write_text(settings.read_text().replace("rounds = 3", "rounds = 6"))
    common = [str(settings), "--device", "cpu", "--lanes", "0"]
    assert main([*common, "--out", str(tmp_path / "whole")]) == 0
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", _DIES_IN_THE_SECOND_PERIOD, *common, "--out", str(killed)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-2000:]
    finished = Grid(Settings.read(settings).axes, killed).finished()
    assert sorted(finished) == ["fedavg-activity_1-6-0", "fedavg-activity_1-6-1"]
    reached = [
        checkpoint.read(killed / "fedavg-activity_1-3x2-0" / f"period-{number}")[1]["round"]
        for number in (1, 2)
    ]
    assert reached == [2, 1]
    assert main([*common, "--out", str(killed)]) == 0
    assert results(killed) == results(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_are_compiled_ahead_for_lanes_and_widths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    make = torch.compile

    def noted(graph: Any, examples: Any) -> Any:
        seen.append([list(a.shape) for a in examples if isinstance(a, torch.Tensor)])
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(make, backend=noted))
    settings = Settings.read(written(tmp_path, SMALL))
    prepare(settings, None, tmp_path / "data")
    engine = Local(lanes=4, compiled=True, processes=1, device="cpu")
    study = ContinualStudy(settings, tmp_path / "data", engine)
    assert study.ahead() == []  # only a GPU's lanes have tiers of their own
    for lanes, width in ((4, 8), (2, 32)):
        study.compile_ahead(lanes, width)
        # what rows a client's two ticks take
        assert [2, lanes, width] in seen.pop()
        assert not seen


_DIES_IN_THE_SECOND_PERIOD = """
import os, signal, sys
from hubless.study import continual

seen = []

def watch(self, simulation, row):
    seen.append(self.label)
    # the second round of two, in the second period
    if seen.count("fedavg-activity_1-3x2-0") == 4:
        os.kill(os.getpid(), signal.SIGKILL)

continual.Watch.__call__ = watch
sys.exit(continual.main())
"""


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ("rounds = 4", "rounds 3, and not of rounds 4"),
        ("vocabulary = 160", "data is of vocabulary 150, and not of"),
        ("cohort = 5", "cohort 6, and not of cohort 5"),
    ],
)
def test_results_of_other_settings_are_not_taken_for_these(
    tmp_path: Path, changed: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = 'algorithms = ["fedavg"]\nselectors = ["activity:1"]\nhorizons = ["3"]\nsets = 1'
    path = written(tmp_path, grid)
    arguments = [str(path), "--out", str(tmp_path / "out"), "--device", "cpu", "--lanes", "0"]
    # no baseline is in this grid: there are no figures, and it is finished all the same
    assert main(arguments) == 0
    assert "no figures: neither" in capsys.readouterr().err
    name = changed.partition(" ")[0]
    path.write_text(re.sub(f"(?m)^{name} = .*", changed, path.read_text()))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1 and where in capsys.readouterr().err
    path.write_text(TINY.format(grid=grid.replace('"activity:1"', '"activity:1", "heavy"')))
    assert main(arguments) == 0


def test_data_that_were_not_prepared_to_the_end_are_prepared_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "data.part" / "messages").mkdir(parents=True)
    arguments = [str(written(tmp_path, SMALL)), "--out", str(out), "--prepare"]
    assert main(arguments) == 0
    assert Population.open(out / "data" / "messages").examples
    assert not (out / "data.part").exists()


def test_a_folder_of_data_that_is_somebodys_own_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "messages").mkdir(parents=True)
    (tmp_path / "data" / "mine.parquet").write_text("dear")
    with pytest.raises(SystemExit):
        main([str(written(tmp_path, SMALL)), "--out", str(tmp_path)])
    assert "holds no prepared data: take another --out" in capsys.readouterr().err
    assert (tmp_path / "data" / "mine.parquet").read_text() == "dear"


def test_months_without_examples_are_months_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(Settings.read(written(tmp_path, SMALL)), horizons=("3",))
    people = settings.messages(None)
    times = people.columns["time"]
    months = np.unique(times.astype("datetime64[M]"))

    def without(month: np.datetime64) -> Population:
        kept = times.astype("datetime64[M]") != month
        owner = np.repeat(np.arange(len(people)), people.sizes)
        columns = {name: column[kept] for name, column in people.columns.items()}
        return Population.by(columns, owner[kept])

    monkeypatch.setattr(Settings, "messages", lambda *_: without(months[-2]))
    whole = replace(settings, window=(str(months[0]), str(months[-1])))
    with pytest.raises(DataError, match="no client has an example"):
        prepare(whole, None, tmp_path / "data")
    monkeypatch.setattr(Settings, "messages", lambda *_: without(months[0]))
    with pytest.raises(DataError, match="reaches beyond"):
        prepare(whole, None, tmp_path / "data")
    monkeypatch.setattr(Settings, "messages", lambda *_: without(months[3]))
    prepare(replace(whole, window=(str(months[3]), str(months[-1]))), None, tmp_path / "data")
    timeline, _ = continual._opened(tmp_path / "data")
    assert (timeline.start, timeline.stop) == (months[3], months[-1])


def test_continual_training_goes_on_from_the_segment_before(tmp_path: Path) -> None:
    settings = Settings.read(written(tmp_path, SMALL))
    prepare(settings, None, tmp_path / "data")
    study = ContinualStudy(settings, tmp_path / "data", Local(lanes=0, compiled=False, processes=1))
    cell = {"algorithm": "fedavg", "selector": "activity:1", "horizon": "3x2", "set": "0"}
    rows = study(cell, tmp_path / "cell", math.inf)
    assert rows is not None
    assert [row["period"] for row in rows if row["decile"] is None] == [1, 2, 3]
    perplexities = [row["perplexity"] for row in rows if row["decile"] is None]
    assert len(set(perplexities)) == 3


def test_rates_are_tried_on_months_before_the_test_and_the_best_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = written(tmp_path, ""), tmp_path / "out"
    path.write_text(path.read_text() + "[tune]\ntried = { client = [0.01, 0.5], server = [0.01] }")
    arguments = [str(path), "--out", str(out), "--device", "cpu", "--lanes", "0", "--tune"]
    assert main([*arguments, "--minutes", "0"]) == 3
    assert main(arguments) == 0
    *told, chosen = capsys.readouterr().out.splitlines()
    fedavg = [line for line in told if line.startswith("fedavg client")]
    assert len(fedavg) == 2 and "client 0.5:" in fedavg[0]
    assert "fedavg did best with the most that was tried of client, 0.5: more may" in told[2]
    assert chosen.startswith("rates = { fedavg = { client = 0.5 }, fedopt = { client = ")
    assert tomllib.loads(chosen)["rates"]["fedopt"]["server"] == 0.01
    assert not (out / "results.jsonl").exists()
    settings = Settings.read(path)
    study = ContinualStudy(settings, out / "data", Local(lanes=0, compiled=False, processes=1))
    cell = {"algorithm": "fedavg", "selector": "activity:1", "horizon": "3", "set": "0"}
    earlier = replace(study, tuning=True)(cell, tmp_path / "earlier", math.inf)
    later = study(cell, tmp_path / "later", math.inf)
    assert earlier is not None and later is not None
    assert f"perplexity {earlier[0]['perplexity']:.4g}" in fedavg[0]
    assert earlier[0]["examples"] != later[0]["examples"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tune]\ntried = { momentum = [1] }", "rates are tried for client, server"),
        ("[grid]\nselectors = ['activity:cube']", "f= takes a function, or one of"),
        ("[grid]\nalgorithms = ['fedprox']", "no algorithm 'fedprox'"),
        ("[data]\nsource = 'reddit'", "no source 'reddit'"),
        ("[data]\nclient = 3", r"\[data\] has 'client' .*'clients'.*, where source"),
        ("[training]\nrounds = 3", "has 'training' .*, where"),
        ("[train]\nrounds = 'many'", "rounds cannot be 'many'"),
        ("[train]\nmodel = 'huge'", "no model 'huge'"),
        ("[train]\nrates = { fedavg = {} }", "rates.fedavg lacks client"),
        ("[data]\nwindow = ['2015-07']", "a window is two months"),
        ("rounds = ", "is not TOML"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_file(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        Settings.read(path)
    assert "study.toml" in str(caught.value)


@pytest.mark.parametrize("way", ["MINE:most", "at-most:MINE:most", "refreshed:rounds=2:MINE:most"])
def test_settings_run_no_code_unless_told_to(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from pathlib import Path\nfrom hubless.select import Heavy\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\nmost = Heavy()\n"
    )
    path = tmp_path / "study.toml"
    path.write_text(f"[grid]\nselectors = ['{way.replace('MINE', str(mine))}']")
    with pytest.raises(DataError, match="study.toml: .*mine.py:most.*--run-code"):
        Settings.read(path)
    with pytest.raises(SystemExit):
        main([str(path), "--out", str(tmp_path / "out")])
    assert "--run-code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    Settings.read(path, run_code=True)
    assert (tmp_path / "ran").exists()


def test_a_horizon_past_the_data_is_refused(tmp_path: Path) -> None:
    settings = Settings.read(written(tmp_path, SMALL.replace('"11"', '"12"')))
    with pytest.raises(DataError, match="12"):
        prepare(settings, None, tmp_path / "data")


@pytest.mark.parametrize("lanes", [64, 0])
def test_a_gpu_s_programs_are_compiled_ahead_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    monkeypatch.setattr(Local, "on_gpu", True)
    settings = Settings.read(written(tmp_path, SMALL))
    study = ContinualStudy(settings, tmp_path / "data", Local(lanes=lanes, compiled=True))
    kinds = [need.args for need in study.ahead()]  # type: ignore[attr-defined]
    assert kinds == ([(n, width) for n in (8, 64) for width in (8, 32, 64)] if lanes else [])


def test_what_cannot_be_compiled_ahead_is_said_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.read(written(tmp_path, SMALL))
    settings = replace(settings, rates={"fedavg": {"client": 1e30}})
    prepare(settings, None, tmp_path / "data")
    engine = Local(lanes=4, compiled=False, processes=1, device="cpu")
    ContinualStudy(settings, tmp_path / "data", engine).compile_ahead(4, 8)
    assert "not compiled ahead" in capsys.readouterr().err
