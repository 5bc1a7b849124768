"""The study of active selection: tuned, resumed, and what its curves come to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from hubless.data import Population
from hubless.errors import DataError, Diverged
from hubless.select.active import Active
from hubless.select.uniform import Uniform
from hubless.simulate import checkpoint
from hubless.study import results
from hubless.study.active import (
    GRIDS,
    ActiveStudy,
    ArmRun,
    choice,
    edges,
    grid,
    main,
    report,
    selection,
)
from hubless.study.figures.savings import draw as draw_figure
from hubless.study.figures.savings import markdown, reached, saving, summary
from hubless.study.messages import SHARE, Reader, Scorer, held_out, prepared, reading
from hubless.study.pooled import Model, Pool, draw
from hubless.study.results import add_line, lines
from hubless.train.values import LabelCount, LossOverRoot

SMALL = ["--sizes", "6", "4", "5", "--length", "8", "--cohort", "6", "--lanes", "0"]
SMALL += ["--device", "cpu"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Messages whose label shows in a letter, of few users with many and many with few."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    user = np.minimum(rng.geometric(0.15, 240), 20)
    label = rng.random(240) < 0.3
    text = ["".join(rng.choice(list("abcd"), 5)) + ("z" if y else "") for y in label]
    when = [datetime(2016, 1, 1) + timedelta(hours=i) for i in range(240)]
    frame = pl.DataFrame({"user": [f"u{u}" for u in user], "timestamp": when, "text": text})
    for source, more in (
        ("git", {"repo": pl.lit("a/b"), "reverted": pl.Series(label.astype(np.int8))}),
        ("chat", {"room": pl.Series(np.where(label, "php", "java").tolist())}),
    ):
        (folder / source).mkdir()
        path = folder / source / "git_active_fl_2014_2019.parquet"
        frame.with_columns(**more).write_parquet(path)
    return str(folder)


@pytest.fixture(scope="module")
def people(data: str) -> Population:
    return prepared("git", Path(data), 8)


def test_a_study_that_was_killed_ends_as_one_that_was_not(data: str, tmp_path: Path) -> None:
    arguments = [*SMALL, "--data", data, "--epochs", "3", "--repetitions", "1"]
    arguments += ["--arms", "active", "uniform", "oversampled"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*arguments, "--out", str(whole)]) == 0
    command = [sys.executable, "-c", _DIES_AT_ROUND_SEVEN, *arguments, "--out", str(killed)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == -9, ran.stderr[-2000:]
    (folder,) = (killed / "git").glob("main-active-*")
    assert checkpoint.read(folder)[1]["round"] == 4
    assert main([*arguments, "--out", str(killed)]) == 0
    for file in ("results.jsonl", "table.json", "table.md"):
        assert (killed / "git" / file).read_text() == (whole / "git" / file).read_text()
    assert not list((killed / "git").rglob("checkpoint.safetensors"))


_DIES_AT_ROUND_SEVEN = """
import os, signal, sys
from hubless.study import active

def watch(self, simulation, row):
    if row["round"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)

active.Watch.__call__ = watch
sys.exit(active.main())
"""


def test_tuning_decides_what_the_other_runs_use(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--data", data, "--out", str(tmp_path), "--epochs", "2"]
    arguments += ["--arms", "uniform", "oversampled"]
    knobs = ["--try", "client=0.3,1", "server=0.01", "lr=0.01", "level=1,2.5"]
    assert main([*arguments, "--tune", *knobs]) == 0
    tried = [ArmRun(**record) for record in lines(tmp_path / "git" / "results.jsonl")]
    assert [run.label for run in tried] == [
        "tune-uniform-client0.3-server0.01-r0",
        "tune-uniform-client1-server0.01-r0",
        "tune-oversampled-lr0.01-level1-r0",
        "tune-oversampled-lr0.01-level2.5-r0",
    ]
    assert "nothing is finished yet" in capsys.readouterr().out
    assert main([*arguments, "--repetitions", "2"]) == 0
    done = [ArmRun(**record) for record in lines(tmp_path / "git" / "results.jsonl")][4:]
    assert sorted(run.label for run in done) == sorted(
        ArmRun(arm, choice(tried, arm), r).label
        for arm in ("uniform", "oversampled")
        for r in (0, 1)
    )
    assert all(len(run.curve) == 2 for run in done)
    found = json.loads((tmp_path / "git" / "table.json").read_text())
    assert found["tuned"]["uniform"] and not found["tuned"]["active"]
    assert found["arms"]["uniform"]["repetitions"] == 2


def test_savings_are_of_the_same_repetition() -> None:
    """While a study is under way, arms may have finished different ones."""
    uniform = {0: [0.5, 0.6], 2: [0.8, 0.9]}
    found = summary({"uniform": uniform, "active": {2: [0.9, 0.9], 1: [0.5, 0.5]}})
    alone = summary({"uniform": {2: uniform[2]}, "active": {2: [0.9, 0.9]}})
    assert found["savings"] == alone["savings"]
    assert found["savings"]["active"]["of"] == 1
    assert summary({"uniform": uniform, "active": {1: [0.5, 0.5]}})["savings"] == {}


def test_a_choice_at_the_edge_of_what_was_tried_is_told() -> None:
    def run(client: float, server: float, auc: float, arm: str = "uniform") -> ArmRun:
        return ArmRun(arm, {"client": client, "server": server}, 0, True, [auc])

    tried = [run(0.1, 0.003, 0.5), run(0.3, 0.003, 0.6), run(1, 0.003, 0.7)]
    assert edges(tried, "uniform") == ["uniform did best with the most that was tried of client, 1"]
    assert edges([*tried, run(3, 0.003, 0.6)], "uniform") == []
    lower = edges([*tried, run(3, 0.003, 0.6), run(1, 0.001, 0.8)], "uniform")
    assert lower == ["uniform did best with the least that was tried of server, 0.001"]
    assert edges(tried, "active") == []


def test_what_is_finished_is_never_run_again(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*SMALL, "--data", data, "--out", str(tmp_path), "--repetitions", "1"]
    arguments += ["--arms", "uniform", "--epochs", "2"]
    assert main([*arguments, "--minutes", "0"]) == 3
    assert main(arguments) == 0
    monkeypatch.setattr(ActiveStudy, "train", lambda *_: pytest.fail("it was run again"))
    assert main(arguments) == 0
    assert main([*arguments, "--table"]) == 0


def test_parts_together_are_the_whole(data: str, tmp_path: Path) -> None:
    arguments = ["--data", data, "--out", str(tmp_path), *SMALL, "--repetitions", "2"]
    arms = ["--arms", "uniform", "active", "--epochs", "1"]
    for part in ("1/3", "2/3", "3/3"):
        assert main([*arguments, *arms, "--part", part]) == 0
    results = (tmp_path / "git" / "results.jsonl").read_text().splitlines()
    labels = [(run["arm"], run["repetition"]) for run in map(json.loads, results)]
    assert sorted(labels) == [("active", 0), ("active", 1), ("uniform", 0), ("uniform", 1)]
    with pytest.raises(SystemExit):
        main([*arguments, "--part", "4/3"])


def test_when_the_time_is_up_nothing_is_lost(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*SMALL, "--data", data, "--out", str(tmp_path), "--repetitions", "1"]
    arguments += ["--arms", "active", "--epochs", "1"]
    monkeypatch.setattr(results.Watch, "__call__", lambda *_: True)
    stops = 0
    while main(arguments) == 3:
        stops += 1
    assert stops == 3
    assert len(lines(tmp_path / "git" / "results.jsonl")) == 1


def test_a_prepared_data_set_is_the_same(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    assert (
        main(["--data", data, "--dataset", "chat-php", "--length", "8", "--prepare", str(ready)])
        == 0
    )
    known, read = prepared("chat-php", Path(data), 8), Population.open(ready / "chat-php")
    assert np.array_equal(known.offsets, read.offsets) and read.rows is None
    assert {name: column.dtype for name, column in read.columns.items()} == {"x": "u1", "y": "u1"}
    assert all(np.array_equal(known.columns[name], read.columns[name]) for name in ("x", "y"))
    monkeypatch.setitem(sys.modules, "polars", None)
    arguments = [
        *SMALL,
        "--dataset",
        "chat-php",
        "--prepared",
        str(ready),
        "--arms",
        "pooled",
        "active",
    ]
    assert main([*arguments, "--out", str(tmp_path), "--epochs", "1", "--repetitions", "1"]) == 0


def test_what_cannot_be_studied_is_explained(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["--dataset", "mnist"], "there is no data set 'mnist'"),
        (["--dataset", "chat-cobol"], "no message of chat-cobol has the label"),
        (["--data", str(tmp_path)], "git_active_fl_2014_2019.parquet: put one there"),
    ):
        with pytest.raises(SystemExit, match="1"):
            main(["--data", data, "--out", str(tmp_path), *arguments])
        assert message in capsys.readouterr().err
    for arguments, message in (
        (["--out", str(tmp_path), "--try", "rate=1"], "there is no knob 'rate'"),
        ([], "say where results are kept"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["--data", data, *arguments])
        assert message in capsys.readouterr().err


def test_parts_that_pool_do_not_start_each_other_anew(
    people: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes on from its own checkpoint, however their turns come."""
    parts = [[ArmRun("pooled", {"lr": lr}, 0)] for lr in (0.001, 0.003)]
    plain = Pool.advance
    taken: list[int] = []

    def stopped(self: Pool) -> None:
        taken.append(self.epoch)
        plain(self)
        object.__setattr__(study, "deadline", 0.0)

    monkeypatch.setattr(Pool, "advance", stopped)
    for _ in range(3):
        for part in parts:
            study = ActiveStudy(people, tmp_path, 6, (6, 4, 5))
            study.complete(part, 3)
    assert taken == [0, 0, 1, 1, 2, 2]
    assert len(study.results()) == 2
    assert not list(tmp_path.glob("pooled-*"))


def test_a_folder_keeps_one_study(people: Population, tmp_path: Path) -> None:
    ActiveStudy(people, tmp_path, cohort=6)
    with pytest.raises(DataError, match=r"is of cohort 6, and not of cohort 5"):
        ActiveStudy(people, tmp_path, cohort=5)


def test_rates_that_diverge_are_a_result_and_never_chosen(
    people: Population, tmp_path: Path
) -> None:
    study = ActiveStudy(people, tmp_path, 6, (6, 4, 5))
    wild = ArmRun("uniform", {"client": 1e30, "server": 1e30}, 0, tuning=True)
    tame = ArmRun("uniform", {"client": 0.1, "server": 0.01}, 0, tuning=True)
    pooled = ArmRun("pooled", {"lr": 1e38}, 0, tuning=True)
    assert study.complete([wild, tame, pooled], 2)
    done = study.results()
    assert [done[run.label].diverged for run in (wild, tame, pooled)] == [True, False, True]
    assert choice(done.values(), "uniform") == tame.knobs
    assert done[wild.label].padded(2)[-1] == 0.5


def test_the_choice_is_what_did_best_in_the_second_half() -> None:
    def run(lr: float, repetition: int, curve: list[float]) -> ArmRun:
        return ArmRun("pooled", {"lr": lr}, repetition, True, curve)

    early, late = [0.9, 0.9, 0.5, 0.5], [0.5, 0.5, 0.6, 0.6]
    assert choice([run(1, 0, early), run(2, 0, late)], "pooled") == {"lr": 2}
    better = [run(1, 0, early), run(1, 1, [0.9] * 4), run(2, 0, late), run(2, 1, late)]
    assert choice(better, "pooled") == {"lr": 1}
    once_lucky = [*better, run(3, 0, [0.95] * 4)]
    assert choice(once_lucky, "pooled") == {"lr": 1}
    assert choice([ArmRun("pooled", {"lr": 5}, 0)], "pooled") == {"lr": 1e-3}


def test_arms_select_as_they_say() -> None:
    knobs = {"client": 0.1, "server": 0.1}
    assert selection(ArmRun("uniform", knobs, 0)) == (Uniform(), None)
    usual = Active(alpha1=0.75, alpha2=0.01, alpha3=0.1)
    assert selection(ArmRun("active", knobs, 0)) == (usual, LossOverRoot())
    cold = Active(alpha1=0.75, alpha2=2.0, alpha3=0.1)
    assert selection(ArmRun("positives", {**knobs, "alpha2": 2.0}, 0)) == (cold, LabelCount(1))


def test_grids_are_all_choices_of_an_arm_s_knobs() -> None:
    assert [len(list(grid(arm, {}))) for arm in GRIDS] == [9, 9, 12, 3, 9]
    assert list(grid("pooled", {"lr": [1.0], "client": [2.0]})) == [{"lr": 1.0}]


def test_splits_are_random_by_repetition_and_tuning_sees_no_test_messages(
    people: Population,
) -> None:
    train, test = held_out(people, 0)
    assert test.examples == pytest.approx(SHARE * people.examples, abs=len(people))
    assert np.array_equal(test.rows, held_out(people, 0)[1].rows)
    assert not np.array_equal(test.rows, held_out(people, 1)[1].rows)
    fitted, checked = held_out(people, 0, tuning=True)
    seen = np.concatenate([fitted.rows, checked.rows])
    assert np.array_equal(np.sort(seen), np.sort(train.rows))


def test_the_model_has_the_paper_s_sizes() -> None:
    shapes = {name: tuple(p.shape) for name, p in Reader((64, 32, 64)).named_parameters()}
    assert shapes["embedding.weight"][1] == 64
    assert shapes["lstm.weight_hh_l0_reverse"] == (128, 32)
    assert shapes["hidden.weight"] == (64, 64) and shapes["output.weight"] == (1, 64)


def test_padding_never_counts_among_the_outputs() -> None:
    module = reading((6, 4, 5), 0, 0.3).module
    codes = torch.tensor([[5, 9, 0, 0], [5, 9, 3, 3]], dtype=torch.uint8)
    outputs, _ = module.lstm(module.embedding(codes.long()))
    highest = torch.stack([outputs[0, :2].amax(0), outputs[1].amax(0)])
    expected = module.output(torch.relu(module.hidden(highest)))
    assert torch.equal(module(codes), expected)
    assert torch.isfinite(module(torch.zeros(1, 4, dtype=torch.uint8))).all()


def test_models_start_alike_for_a_repetition_and_leave_torch_s_own_draws_alone() -> None:
    before = torch.random.get_rng_state()
    modules = [reading((6, 4, 5), seed, 0.2).module for seed in (1, 1, 2)]
    one, two, other = (module.output.weight for module in modules)
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert torch.sigmoid(modules[0].output.bias).item() == pytest.approx(0.2)
    assert torch.equal(before, torch.random.get_rng_state())


def test_scores_that_are_not_finite_are_divergence(people: Population) -> None:
    task = reading((6, 4, 5), 0, 0.3)
    size = sum(p.numel() for p in task.module.parameters())
    score = Scorer(task, people, torch.device("cpu"))
    assert score(torch.zeros(size), 1) == 0.5
    with pytest.raises(Diverged, match="not finite after round 3"):
        score(torch.full((size,), float("nan")), 3)


def _model(people: Population, label: str, seed: int = 0, lr: float = 0.02) -> Model:
    return Model(label, *held_out(people, seed), lr, 1.0, seed)


def test_models_side_by_side_learn_what_each_learns_alone(
    people: Population, tmp_path: Path
) -> None:
    cpu, sizes = torch.device("cpu"), (6, 4, 5)
    models = [_model(people, "a"), _model(people, "b", seed=1, lr=0.05)]
    both = Pool(models, sizes, cpu, tmp_path / "both")
    alone = [Pool([model], sizes, cpu, tmp_path / model.label) for model in models]
    for pool in (both, *alone):
        pool.advance()
        pool.advance()
    for at, pool in enumerate(alone):
        assert torch.allclose(both._stacked[at], pool._stacked[0], atol=1e-4)
    assert [len(curve) for curve in both.curves] == [2, 2]


def test_a_pool_goes_on_where_it_stopped(people: Population, tmp_path: Path) -> None:
    cpu, models = torch.device("cpu"), [_model(people, "a"), _model(people, "b", seed=1)]
    whole = Pool(models, (6, 4, 5), cpu, tmp_path / "whole")
    for _ in range(3):
        whole.advance()
        cut = Pool(models, (6, 4, 5), cpu, tmp_path / "cut")
        cut.advance()
    assert cut.epoch == 3 and cut.curves == whole.curves
    assert torch.equal(cut._stacked, whole._stacked)
    others = Pool([_model(people, "c")], (6, 4, 5), cpu, tmp_path / "cut")
    assert others.epoch == 0 and others.curves == [[]]


@pytest.mark.parametrize(("level", "share"), [(1.0, 0.25), (3.0, 0.5), (2.5, 2.5 / 5.5)])
def test_oversampling_draws_label_1_so_many_times_as_often(level: float, share: float) -> None:
    columns = {"x": np.zeros((4000, 1)), "y": (np.arange(4000) % 4 == 0).astype(int)}
    everyone = Population.pooled(columns)
    rows = draw(Model("m", everyone, everyone, 0.1, level, 0), 0, 20_000)
    assert len(rows) == 20_000
    assert columns["y"][rows].mean() == pytest.approx(share, abs=0.02)
    if level == 1:
        assert np.bincount(rows).tolist() == [5] * 4000


def test_a_target_is_reached_between_epochs() -> None:
    assert reached(np.array([0.6, 0.7]), 0.55) == 0.5
    assert reached(np.array([0.6, 0.7]), 0.7) == 2
    assert reached(np.array([0.6, 0.55, 0.7]), 0.65) == pytest.approx(2.6667)
    assert reached(np.array([0.6]), 0.4) == 0
    assert reached(np.array([0.6]), 0.7) == np.inf


def test_epochs_saved_are_counted_by_repetition_and_for_the_means() -> None:
    uniform = np.array([[0.55, 0.6, 0.65, 0.7], [0.55, 0.6, 0.65, 0.6]])
    active = np.array([[0.6, 0.7, 0.7, 0.7], [0.52, 0.53, 0.54, 0.55]])
    found = saving(uniform, active)
    assert found["epochs"] == {"mean": 3.0, "error": 1.0}
    assert (found["reached"], found["of"]) == (1, 2)
    assert found["saved"] == {"mean": 0.25, "error": 0.25}
    assert found["uniform"]["mean"] == 3.0
    assert found["fewer_than_uniform"] == {"mean": 0.0, "error": 2.0}
    assert found["of_means"] == {"uniform": 3.0, "epochs": None, "saved": None}


def test_the_tables_tell_who_selects_what(people: Population, tmp_path: Path) -> None:
    study = ActiveStudy(people, tmp_path)
    finals = {"uniform": 0.6, "active": 0.62, "positives": 0.58, "pooled": 0.7, "oversampled": 0.8}
    for arm, final in finals.items():
        for r in (0, 1):
            curve = [0.5, final - 0.02 * (r == 0), final + 0.02 * r]
            add_line(
                tmp_path / "results.jsonl", asdict(ArmRun(arm, choice([], arm), r, curve=curve))
            )
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"arm": "uniform", "kno')
    text = report(study, "a title")
    assert text == (tmp_path / "table.md").read_text().strip()
    usual = "client 0.3, server 0.003"
    assert f"| uniform | {usual} | 0.6100 ± 0.0100 | 0.6100 ± 0.0100 | 3.0" in text
    assert "± 0.0 (2 of 2 got there)" in text and "(0 of 2 got there)" in text
    assert "active, by positives never gets there (target 0.6100)" in text
    assert "| server selects examples | 0.7100 ± 0.0100 | 0.8100 ± 0.0100 |" in text
    assert "| federation selects clients | 0.6100 ± 0.0100 | 0.5900 ± 0.0100 |" in text


def test_tables_are_made_of_what_there_is() -> None:
    found = summary({"active": {0: [0.5, 0.6]}})
    text = markdown(found, {"active": {"client": 0.1}})
    assert "| active, by loss | client 0.1 | 0.6000 | 0.6000 |  |  |" in text
    assert "| server selects examples |  |  |" in text


def test_a_line_that_was_not_finished_does_not_hide_the_next(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "lines.jsonl"
    assert lines(path) == []
    add_line(path, {"a": 1})
    with open(path, "a") as file:
        file.write('{"a": 2')
    add_line(path, {"a": 3})
    assert lines(path) == [{"a": 1}, {"a": 3}]


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    rng = np.random.default_rng(0)
    arms = ("uniform", "active", "pooled")
    found = summary({arm: dict(enumerate(0.5 + rng.random((3, 4)) / 5)) for arm in arms})
    svg, png = draw_figure(found, "git", tmp_path / "auc")
    assert "active, by loss" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_without_altair_the_figure_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(DataError, match=r"pip install 'hubless\[report\]'"):
        draw_figure(summary({"uniform": {0: [0.5]}}), "git", tmp_path / "auc")
