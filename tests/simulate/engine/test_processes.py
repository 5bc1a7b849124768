"""Several processes: the same sums, whoever dies on the way, and errors that come through."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from hubless.errors import ClientFailed, HublessError
from hubless.simulate.engine.executor import Setup
from hubless.simulate.engine.machine import Local
from hubless.simulate.engine.processes import Processes, merge, split
from hubless.simulate.job import Cohort, Job, Learned
from hubless.simulate.simulation import Simulation
from hubless.strategy.fedadam import FedAdam
from hubless.strategy.fedmedian import FedMedian
from hubless.train.losses import cross_entropy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import (
    UNEQUAL,
    Deadly,
    Fragile,
    cohort_of,
    executor,
    furthest,
    job_of,
    mlp,
    people,
    simulation,
    trained,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
EVERYBODY = range(len(UNEQUAL))


def _job() -> Job:
    return job_of(Task(mlp()), people(), Recipe(SGD(0.1, momentum=0.9), batch=4))


@contextmanager
def _running(job: Job, processes: int, lanes: int = 0) -> Iterator[Processes]:
    mine = executor(job)
    mine.adopt(Setup(lanes))
    running = Processes(mine, processes)
    try:
        yield running
    finally:
        running.close()


def _workers() -> list[psutil.Process]:
    """Forks of this process; other tests' servers are its children too."""
    mine, found = psutil.Process().cmdline(), []
    for child in psutil.Process().children():
        # one that has just been killed may be gone by now
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if child.cmdline() == mine else []
    return found


@pytest.mark.parametrize("lanes", [0, 3])
@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("each", [False, True])
def test_however_many_processes_the_result_is_the_same(
    processes: int, lanes: int, each: bool
) -> None:
    job = _job()
    start = job.layout.flatten(job.task.module)
    alone = trained(job, EVERYBODY, 0, each=each)
    with _running(job, processes, lanes) as running:
        for _ in range(2):
            learned = running.run(start, cohort_of(EVERYBODY, job.population), each=each)
            assert furthest(learned.losses, alone.losses) < 1e-4
            if each:
                assert furthest(learned.each, alone.each) < 1e-6
            else:
                assert furthest(learned.total, alone.total) < 1e-6


@pytest.mark.parametrize("strategy", [FedAdam(lr=0.01), FedMedian()], ids=["FedAdam", "FedMedian"])
def test_a_simulation_on_two_processes_agrees_with_one(strategy: FedAdam | FedMedian) -> None:
    runs: list[Simulation] = []
    for processes in (1, 2, 2):
        engine = Local(lanes=0, compiled=False, processes=processes)
        runs.append(simulation(strategy=strategy, engine=engine, cohort=6))
        runs[-1].run(rounds=3)
    assert furthest(runs[0].flat, runs[1].flat) < 1e-6
    assert torch.equal(runs[1].flat, runs[2].flat)
    assert not _workers()


def test_more_processes_than_clients_is_no_problem() -> None:
    job = _job()
    start = job.layout.flatten(job.task.module)
    with _running(job, 4) as running:
        learned = running.run(start, cohort_of([3], job.population))
    assert furthest(learned.total, trained(job, [3], 0).total) < 1e-6


def test_a_worker_that_is_killed_while_it_trains_is_replaced_and_its_part_redone(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    task = Task(Deadly(tmp_path))
    runs: list[Simulation] = []
    for deaths in (0, 2):
        for i in range(deaths):
            (tmp_path / str(i)).touch()
        engine = Local(lanes=0, compiled=False, processes=2)
        runs.append(simulation(task=task, engine=engine))
        runs[-1].run(rounds=4)
        assert not list(tmp_path.iterdir())
    assert torch.equal(runs[0].flat, runs[1].flat)


def test_a_worker_that_is_killed_between_rounds_is_replaced() -> None:
    job = _job()
    start = job.layout.flatten(job.task.module)
    with _running(job, 2) as running:
        first = running.run(start, cohort_of(EVERYBODY, job.population))
        (worker,) = _workers()
        worker.send_signal(signal.SIGKILL)
        while worker.status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()
        again = running.run(start, cohort_of(EVERYBODY, job.population))
        (replaced,) = _workers()
        assert replaced.pid != worker.pid
    assert torch.equal(first.total, again.total)  # type: ignore[arg-type]
    assert not _workers()


def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02}").touch()
    engine = Local(lanes=0, compiled=False, processes=2)
    ran = simulation(task=Task(Deadly(tmp_path)), engine=engine)
    with pytest.raises(HublessError, match=r"died 4 times, in round \d+ again.*memory.*processes"):
        ran.run(rounds=5)
    assert not _workers()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_failing_client_is_named_with_its_traceback(processes: int) -> None:
    population = people((4, 4, 4, 4, 4))
    population.columns["x"][population.rows_of(3)] += 1000
    engine = Local(lanes=0, compiled=False, processes=processes)
    ran = simulation(task=Task(Fragile()), population=population, engine=engine, cohort=5)
    with pytest.raises(ClientFailed, match="client 3 failed") as caught:
        ran.run(rounds=1)
    assert caught.value.client == 3
    told = f"{caught.value}\n{caught.value.__cause__!r}"
    assert "ArithmeticError" in told
    assert "that is too much" in told
    assert not _workers()
    if caught.value.__cause__ is None:
        assert "in forward" in str(caught.value)


def test_the_cohort_is_split_into_parts_of_about_as_many_steps() -> None:
    job = _job()
    clients = np.array(EVERYBODY)
    parts = split(job, clients, 3)
    assert sorted(np.concatenate(parts).tolist()) == clients.tolist()
    steps = [int(job.recipe.steps_for(job.population.sizes[part]).sum()) for part in parts]
    assert max(steps) - min(steps) <= 2
    alone = split(job, clients, 3, alone=True)
    assert sorted(np.concatenate(alone).tolist()) == clients.tolist()
    # the largest goes first, so no part has more than the least and one of the smaller ones
    sizes = job.population.sizes
    loads = [int(sizes[part].sum()) for part in alone]
    assert max(loads) - min(loads) <= max(int(sizes[part].min()) for part in alone if len(part))


def test_clients_that_train_in_one_are_split_by_their_examples() -> None:
    whole = job_of(Task(mlp()), people((50, 0, 10, 40, 1, 30, 8, 1)), Recipe(SGD(0.1), batch=None))
    parts = split(whole, np.arange(8), 2)
    loads = [int(whole.population.sizes[part].sum()) for part in parts]
    assert sum(loads) == 140
    assert max(loads) <= 80


def test_parts_are_put_where_they_belong() -> None:
    learned = [
        Learned(torch.tensor([1.0]), None, torch.tensor([10.0, 30.0])),
        Learned(torch.tensor([2.0]), None, torch.tensor([20.0])),
    ]
    merged = merge(learned, [np.array([0, 2]), np.array([1])], 3)
    assert merged.total is not None
    assert merged.total.tolist() == [3.0]
    assert merged.losses.tolist() == [10, 20, 30]
    kept = [
        Learned(None, torch.tensor([[1.0], [3.0]]), torch.zeros(2)),
        Learned(None, torch.tensor([[2.0]]), torch.zeros(1)),
    ]
    each = merge(kept, [np.array([0, 2]), np.array([1])], 3).each
    assert each is not None
    assert each.tolist() == [[1], [2], [3]]


def test_a_compiled_worker_may_have_nobody_to_train() -> None:
    job = _job()
    start = job.layout.flatten(job.task.module)
    with _running(job, 2) as running:
        running.executor.adopt(Setup(1, compiled=True))
        nobody = Cohort(0, np.array([], np.int64), np.array([]))
        assert running.run(start, nobody).losses.shape == (0,)


def test_an_interrupt_leaves_no_answer_behind_for_the_next_round() -> None:
    """Within a block the workers stay, and with them what they were asked before Ctrl-C."""
    alarm: list[int] = []
    mine = os.getpid()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if alarm and os.getpid() == mine:
            alarm[0] -= 1
            if alarm[0] == 0:
                alarm.clear()
                raise KeyboardInterrupt
        return cross_entropy(output, target)

    runs: list[Simulation] = []
    for interrupted in (False, True):
        engine = Local(lanes=0, compiled=False, processes=2)
        runs.append(simulation(task=Task(mlp(), loss), engine=engine, cohort=6))
        with runs[-1] as ran:
            if interrupted:
                ran.run(rounds=1)
                alarm.append(3)
                with pytest.raises(KeyboardInterrupt):
                    ran.run(rounds=6)
            ran.run(rounds=6)
    assert torch.equal(runs[0].flat, runs[1].flat)
    assert not _workers()
