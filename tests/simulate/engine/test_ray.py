"""Ray: the same lanes in actors, the same result, and a part redone when an actor dies."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from hubless.errors import ClientFailed, HublessError
from hubless.select.roster import Ints, Roster
from hubless.simulate.engine.ray import Ray
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import (
    UNEQUAL,
    Deadly,
    Fragile,
    cohort_of,
    furthest,
    job_of,
    people,
    simulation,
    trained,
)

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[ModuleType]:
    """One Ray for all of these tests; its socket's path must not be long."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # it kills workers where others have used up the memory, and deaths are counted here
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112
    ray = pytest.importorskip("ray")
    ray.init(
        # not one that somebody else has started on this machine
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()


_SHORT_OF_MEMORY = """
import hubless.simulate.engine.ray as ray
from tests.simulate.worlds import simulation

if __name__ == "__main__":
    ray._MOST_DEATHS = 1
    simulation(engine=ray.Ray(workers=1, lanes=0, compiled=False)).run(rounds=1)
"""


class InTurn:
    """Everybody but the last client, who is picked only after two rounds."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        self.turns += 1
        return np.arange(k) if self.turns <= 2 else np.array([1, len(roster) - 1])


def _ray(workers: int) -> Ray:
    return Ray(workers=workers, lanes=0, compiled=False)


def test_one_worker_agrees_with_no_ray_and_a_failing_client_is_named_with_its_traceback(
    cluster: ModuleType,
) -> None:
    population = people((4, 4, 4, 4, 9))
    population.columns["x"][population.rows_of(4)] += 1000
    torch.manual_seed(0)
    task = Task(Fragile())
    here = simulation(task=task, population=population, selector=InTurn())
    there = simulation(task=task, population=population, selector=InTurn(), engine=_ray(1))
    here.run(rounds=2)
    with pytest.raises(ClientFailed, match=r"(?s)client 4 failed.*in forward") as caught:
        there.run(rounds=5)
    assert caught.value.client == 4
    assert "that is too much" in str(caught.value)
    assert there.round == 2
    assert furthest(here.flat, there.flat) < 1e-6
    losses = [run.history["train_loss"].to_list() for run in (here, there)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    # a Ray that was there before stays there
    assert cluster.is_initialized()


def test_two_workers_agree_with_no_ray_and_one_that_dies_is_replaced_until_too_many_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubless.simulate.engine.ray._MOST_DEATHS", 1)
    torch.manual_seed(0)
    job = job_of(Task(Deadly(tmp_path)), people(), Recipe(SGD(0.1, momentum=0.9), batch=4))
    start = job.layout.flatten(job.task.module)
    cohort = cohort_of(range(len(UNEQUAL)), job.population)
    alone = trained(job, range(len(UNEQUAL)), 0)
    engine = _ray(2).start(job, len(UNEQUAL), rounds=1)
    try:
        before = engine.run(start, cohort)
        assert furthest(before.total, alone.total) < 1e-6
        assert furthest(before.losses, alone.losses) < 1e-4
        each = trained(job, range(len(UNEQUAL)), 0, each=True).each
        assert furthest(engine.run(start, cohort, each=True).each, each) < 1e-6

        (tmp_path / "once").touch()
        with caplog.at_level(logging.WARNING, "hubless"):
            after = engine.run(start, cohort)
        assert not list(tmp_path.iterdir())
        assert "a worker died in round 3: its part is redone" in caplog.text
        assert torch.equal(before.total, after.total)  # type: ignore[arg-type]
        assert torch.equal(before.losses, after.losses)

        (tmp_path / "again").touch()
        with pytest.raises(HublessError, match="workers died 2 times, in round 3 again.*memory"):
            engine.run(start, cohort)
    finally:
        engine.close()


def test_workers_that_are_killed_for_memory_are_replaced_until_too_many_are() -> None:
    strict = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "20"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SHORT_OF_MEMORY],
        cwd=Path(__file__).parents[3],
        # a Ray that is given in the environment is not one of its own
        env={**os.environ, **strict, "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a worker died in round 1: its part is redone" in ran.stderr
    last = ran.stderr.strip().rpartition("hubless.errors.")[2]
    assert re.match("HublessError: workers died 2 times, in round 1 again: .* memory", last), last
