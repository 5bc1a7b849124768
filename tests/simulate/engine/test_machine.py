"""The engine of one machine: it finds out how to run, says what it cannot, and remembers."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hubless.errors import TaskError
from hubless.simulate.engine import tuning
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.engine.machine import Local
from hubless.simulate.job import Cohort
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import CPU, job_of, mlp, people, simulation


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path))
    return tmp_path


def _executor(module: nn.Module, sizes: tuple[int, ...] = (6,) * 8) -> LocalExecutor:
    return LocalExecutor(job_of(Task(module), people(sizes), Recipe(SGD(0.1), batch=2)), CPU)


def _with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class Rooted(nn.Module):
    """Looks at its numbers, which cannot be done for many clients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x if x.sum().item() > 0 else -x)


@pytest.mark.usefixtures("fresh_cache")
def test_a_module_with_running_statistics_is_run_plainly() -> None:
    local = Local(compiled=False, processes=1)
    assert local.choose(_executor(_with_batch_norm()), 4, 10).lanes == 0
    ran = simulation(task=Task(_with_batch_norm()), population=people((8,) * 6), engine=local)
    ran.run(rounds=2)
    assert ran.params["1.running_mean"].abs().sum() > 0


@pytest.mark.usefixtures("fresh_cache")
def test_one_lane_is_tried_where_clients_take_a_single_step() -> None:
    """A module too large for the cache has no more; running plainly would cost a model each."""
    module = nn.Sequential(nn.Linear(4, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.Linear(1500, 3))
    job = job_of(Task(module), people((5,) * 40), Recipe(SGD(0.1, 0.9), batch=10))
    assert Local(compiled=False, processes=1).choose(LocalExecutor(job, CPU), 40, 2).lanes == 1
    twice = job_of(Task(module), people((5,) * 40), Recipe(SGD(0.1, 0.9), batch=10, epochs=2))
    assert Local(compiled=False, processes=1).choose(LocalExecutor(twice, CPU), 40, 2).lanes == 0


def test_a_module_with_running_statistics_in_lanes_is_refused_with_what_to_do() -> None:
    local = Local(lanes=4, compiled=False, processes=1)
    with pytest.raises(TaskError, match=r"lanes=0.*BatchNorm.*GroupNorm"):
        simulation(task=Task(_with_batch_norm()), engine=local).run(rounds=1)


def test_a_module_with_a_constant_buffer_can_share_lanes() -> None:
    """Positions and normalisation constants are usually kept as buffers."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("scale", torch.full((4,), 0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x * self.scale)

    executor = _executor(Scaled())
    start = executor.job.layout.flatten(executor.job.task.module)
    cohort = Cohort(0, np.arange(3), np.full(3, 1 / 3))
    alone, together = (executor.build(Setup(lanes)).run(start, cohort).total for lanes in (0, 3))
    assert alone is not None and together is not None
    assert (alone - together).abs().max() < 1e-5
    assert torch.allclose(together[-4:], torch.full((4,), 0.5))


@pytest.mark.usefixtures("fresh_cache")
def test_what_does_not_vectorise_is_run_plainly_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    local = Local(compiled=False, processes=1)
    with caplog.at_level(logging.WARNING, "hubless"):
        assert local.choose(_executor(Rooted()), 4, 10).lanes == 0
    (record,) = [r for r in caplog.records if "lanes" in r.getMessage()]
    assert "not run in 4 lanes" in record.getMessage()
    assert "vmap" in record.getMessage()


@pytest.mark.usefixtures("fresh_cache")
def test_an_error_of_the_module_itself_is_not_taken_for_one_of_lanes() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 1:
                raise ArithmeticError("that is too much")
            return self.linear(x)

    with pytest.raises(Exception, match="that is too much"):
        Local(compiled=False, processes=1).choose(_executor(Broken()), 4, 10)


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize(("optimizer", "tried"), [(SGD(0.1), {32, 3}), (SGD(0.1, 0.9), {3})])
def test_lanes_that_need_not_keep_large_weights_are_tried_in_larger_numbers(
    monkeypatch: pytest.MonkeyPatch, optimizer: SGD, tried: set[int]
) -> None:
    """With momentum every lane needs a weight of its own, and few of those fit in a cache."""
    monkeypatch.setattr(tuning, "_CACHE_BYTES", 3 * 4 * (4 * 600 + 600 * 600 + 600 * 3 + 1203))
    wide = nn.Sequential(nn.Linear(4, 600), nn.ReLU(), nn.Linear(600, 600), nn.Linear(600, 3))
    recipe = Recipe(optimizer, batch=2)
    executor = LocalExecutor(job_of(Task(wide), people((6,) * 32), recipe), CPU)
    measured: set[int] = set()

    def measure(self: tuning.Tuning, setup: Setup, most: int = 0) -> float:
        measured.add(setup.lanes)
        return 1.0

    monkeypatch.setattr(tuning.Tuning, "_measure", measure)
    Local(compiled=False, processes=1).choose(executor, 32, 10)
    assert measured - {0} == tried


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize(("epochs", "clients"), [(1, 4), (100, 1)])
def test_no_more_of_long_training_is_measured_than_says_enough(
    monkeypatch: pytest.MonkeyPatch, epochs: int, clients: int
) -> None:
    monkeypatch.setattr(tuning, "_LONG_SECONDS", 1e-9)
    calls: list[int] = []

    class Normed(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            calls.append(len(input))
            return super().forward(input)

    task, recipe = Task(nn.Sequential(Normed(4), nn.Linear(4, 3))), Recipe(epochs=epochs, batch=2)
    executor = LocalExecutor(job_of(task, people((6,) * 8), recipe), CPU)
    calls.clear()
    Local(compiled=False, processes=1).choose(executor, 4, 10)
    once_and_again = 2
    assert len(calls) == once_and_again * clients * epochs * 3


@pytest.mark.usefixtures("fresh_cache")
def test_who_asks_for_no_lanes_gets_none_however_long_the_run() -> None:
    assert Local(lanes=0, processes=1).choose(_executor(mlp()), 4, 10**9) == Setup(0, False, 1)


def test_what_was_found_out_of_a_module_does_not_hold_once_its_code_is_another(
    fresh_cache: Path,
) -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    local = Local(processes=1)
    local.choose(_executor(Changing()), 4, 10)
    Changing.forward = Rooted.forward  # type: ignore[assignment,method-assign]
    assert local.choose(_executor(Changing()), 4, 10).lanes == 0
    assert len(list((fresh_cache / "setups").iterdir())) == 2


def test_what_was_found_out_is_remembered(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Local(processes=1)
    first = local.choose(_executor(mlp()), 4, 10)
    (note,) = (fresh_cache / "setups").iterdir()
    assert json.loads(note.read_text())["lanes"] == first.lanes

    def measured(self: Any) -> Setup:
        raise AssertionError("measured again")

    monkeypatch.setattr(tuning.Tuning, "best", measured)
    assert local.choose(_executor(mlp()), 4, 10) == first
    with pytest.raises(AssertionError, match="measured again"):
        local.choose(_executor(nn.Linear(4, 3)), 4, 10)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lanes": 3, "unknown": 1}'])
def test_a_broken_note_is_measured_again(fresh_cache: Path, text: str) -> None:
    local = Local(processes=1)
    first = local.choose(_executor(mlp()), 4, 10)
    (note,) = (fresh_cache / "setups").iterdir()
    note.write_text(text)
    again = local.choose(_executor(mlp()), 4, 10)
    assert again.processes == first.processes
    assert json.loads(note.read_text())["lanes"] == again.lanes


def test_a_cache_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "file"))
    assert Local(processes=1).choose(_executor(mlp()), 4, 10).processes == 1


@pytest.mark.usefixtures("fresh_cache")
def test_without_a_compiler_training_is_eager_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING, "hubless"):
        setup = Local(processes=1).choose(_executor(mlp()), 4, rounds=10_000_000)
    assert not setup.compiled
    (record,) = [r for r in caplog.records if "compiler" in r.getMessage()]
    assert "no C++ compiler here: training is eager" in record.getMessage()


@pytest.mark.usefixtures("fresh_cache")
def test_a_short_run_is_not_compiled() -> None:
    assert not Local(processes=1).choose(_executor(mlp()), 4, rounds=1).compiled


def test_what_is_asked_for_is_done() -> None:
    for wanted in (Setup(0), Setup(5), Setup(3, processes=2), Setup(2, compiled=True)):
        local = Local(wanted.lanes, wanted.compiled, wanted.processes)
        assert local.choose(_executor(mlp()), 4, 10) == wanted


def test_there_are_no_more_processes_than_pairs_of_clients() -> None:
    local = Local(lanes=0, compiled=False)
    assert local.choose(_executor(mlp()), 1, 10).processes == 1
    assert local.choose(_executor(mlp()), 3, 10).processes == 1


@pytest.mark.usefixtures("fresh_cache")
def test_measuring_needs_only_one_client_with_data() -> None:
    sizes = (0,) * 50 + (3,)
    assert Local(processes=1).choose(_executor(mlp(), sizes), 4, 10).processes == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.parametrize("processes", [1, 2])
def test_evaluation_has_the_threads_of_all_who_trained(processes: int) -> None:
    def threads(output: Tensor, y: Tensor) -> Tensor:
        return torch.full(y.shape, torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ran = simulation(
            task=Task(mlp(), metrics={"threads": threads}),
            test=people((5,)),
            engine=Local(lanes=0, compiled=False, processes=processes, device="cpu"),
        )
        ran.run(1)
        assert ran.rows[-1]["threads"] == processes
    finally:
        torch.set_num_threads(before)


def test_a_run_leaves_torchs_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulation().run(rounds=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_was_found_out_for_equal_clients_is_not_taken_for_unequal_ones(
    fresh_cache: Path,
) -> None:
    for sizes in ((8,) * 6, (1, 1, 1, 1, 1, 43)):
        Local(compiled=False, processes=1).choose(_executor(mlp(), sizes), 4, 10)
    assert len(list((fresh_cache / "setups").iterdir())) == 2
