"""Asynchronous simulation, against the papers' formulas worked out by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hubless.data.population import Population
from hubless.errors import SelectionError
from hubless.events import Event, Trained
from hubless.privacy.mechanisms import Gaussian
from hubless.select.activity import Activity
from hubless.select.roster import Ints, Roster
from hubless.select.uniform import Uniform
from hubless.simulate.simulation import Simulation
from hubless.simulate.times import Buffered, Devices, constant, lognormal
from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.fedasync import FedAsync
from hubless.strategy.fedbuff import FedBuff
from hubless.strategy.fedmedian import FedMedian
from hubless.strategy.look import Column, Seen
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Buffer, ByExamples, Decay
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from hubless.train.values import MeanLoss
from tests.simulate.worlds import after, people, simulation


class Weight(nn.Module):
    """One number, whose gradient is the client's own number wherever it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def first(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
    """The first clients that are there."""
    there = np.arange(len(roster)) if roster.available is None else np.flatnonzero(roster.available)
    return there[:k]


def _counting(
    seconds: Sequence[float], strategy: Strategy, pace: Buffered, **changes: Any
) -> Simulation:
    """Client i has the number i + 1, so that it learns -(i + 1) and takes seconds[i] to do so."""
    clients = len(seconds)
    x = np.arange(1, clients + 1, dtype=np.float32)
    speed = 1 / np.array(seconds, float)
    settings: dict[str, Any] = {
        "task": Task(Weight(), lambda output, y: output),
        "population": Population({"x": x, "y": x}, np.arange(clients + 1)),
        "recipe": Recipe(SGD(1.0)),
        "strategy": strategy,
        "cohort": 1,
        "selector": first,
        "devices": Devices(lambda rng, n: speed, constant(1e30), constant(1e30)),
        "pace": pace,
        **changes,
    }
    return simulation(**settings)


def _path(ran: Simulation, rounds: int) -> list[float]:
    """The number after each version."""
    path = []
    for i in range(rounds):
        ran.run(rounds=i + 1)
        path.append(float(ran.flat[0]))
    return path


@dataclass(frozen=True)
class Watched:
    """A weighting that remembers what it was told."""

    inner: Weighting
    told: list[tuple[list[float], list[float], int | None]] = field(default_factory=list)

    def __call__(self, seen: Seen) -> Column:
        self.told.append((seen.examples.tolist(), seen.staleness.tolist(), seen.own))
        return self.inner(seen)


def test_fedbuff_with_a_buffer_of_one_worked_out_by_hand() -> None:
    """Two of three clients at a time, who take 1, 2.5 and 4 seconds.

    0 and 1 start at second 0. Client 0 is back at 1, 2 and 3, each time with the newest version
    but the last, between which client 1 came back at 2.5 with what it had learned two versions
    before.
    """
    ran = _counting([1, 2.5, 4], FedBuff(), Buffered(concurrency=2, buffer=1))
    said: list[Event] = []
    ran.events.listeners.append(said.append)
    path = _path(ran, 4)
    assert [e.staleness for e in said if isinstance(e, Trained)] == [[0], [0], [2], [1]]
    steps = [-1, -1, -2 / np.sqrt(3), -1 / np.sqrt(2)]
    assert path == pytest.approx(np.cumsum(steps).tolist())
    assert ran.history["virtual"].to_list() == pytest.approx([1, 2, 2.5, 3])


def test_fedasync_worked_out_by_hand() -> None:
    pace = Buffered(concurrency=2, buffer=1, adding="params")
    ran = _counting([1, 2.5, 4], FedAsync(share=0.6), pace)
    after_one = 0.4 * 0 + 0.6 * (0 - 1)
    after_two = 0.4 * after_one + 0.6 * (after_one - 1)
    old = 0.6 / np.sqrt(3)
    after_three = (1 - old) * after_two + old * (0 - 2)
    late = 0.6 / np.sqrt(2)
    after_four = (1 - late) * after_three + late * (after_two - 1)
    expected = [after_one, after_two, after_three, after_four]
    assert _path(ran, 4) == pytest.approx(expected)


def test_fedbuff_with_a_buffer_of_two_divides_by_two() -> None:
    """Who comes back before the buffer is full starts again from the version that is there."""
    ran = _counting([1, 2.5, 4], FedBuff(), Buffered(concurrency=2, buffer=2))
    # 0 is back at 1 and at 2; then 1 at 2.5 from version 0, and 0 at 3 from version 1
    expected = [-(1 + 1) / 2]
    expected.append(expected[0] - (2 / np.sqrt(2) + 1) / 2)
    assert _path(ran, 2) == pytest.approx(expected)
    assert ran.history["virtual"].to_list() == pytest.approx([2, 3])


def test_staleness_counts_versions_since_a_client_started() -> None:
    watched = Watched(Buffer(Decay()))
    strategy = Strategy(watched, Mean(), Replace())
    ran = _counting([1, 2.5, 4], strategy, Buffered(concurrency=2, buffer=1))
    ran.run(rounds=4)
    assert [staleness for _, staleness, _ in watched.told] == [[0, 0], [0, 0], [0, 2], [0, 1]]
    assert [own for _, _, own in watched.told] == [0] * 4
    # the current version takes part on no examples of its own
    assert [examples for examples, _, _ in watched.told] == [[0, 1]] * 4


def _reference(
    seconds: Sequence[float], concurrency: int, buffer: int, versions: int
) -> tuple[list[float], list[float], list[list[int]]]:
    """FedBuff as one would write it down: a queue of who is back when."""
    w, now, version, asked = 0.0, 0.0, 0, 0
    queue: list[tuple[float, int, int, int]] = []
    path: list[float] = []
    times: list[float] = []
    cohorts: list[list[int]] = []
    while version < versions:
        total = 0.0
        cohort: list[int] = []
        while len(cohort) < buffer:
            busy = {client for _, _, client, _ in queue}
            free = [c for c in range(len(seconds)) if c not in busy]
            for client in free[: concurrency - len(queue)]:
                heapq.heappush(queue, (now + seconds[client], asked, client, version))
                asked += 1
            now, _, client, began = heapq.heappop(queue)
            total += -(client + 1) / np.sqrt(1 + version - began)
            cohort.append(client)
        w += total / buffer
        version += 1
        path.append(w)
        times.append(now)
        cohorts.append(cohort)
    return path, times, cohorts


@settings(max_examples=25)
@given(
    seconds=st.lists(st.integers(1, 40).map(lambda n: n / 8), min_size=1, max_size=6),
    concurrency=st.integers(1, 8),
    buffer=st.integers(1, 4),
)
def test_whatever_the_devices_it_is_what_a_queue_by_hand_gives(
    seconds: list[float], concurrency: int, buffer: int
) -> None:
    said: list[Event] = []
    pace = Buffered(concurrency=concurrency, buffer=buffer)
    ran = _counting(seconds, FedBuff(), pace, events=[said.append])
    path, times, cohorts = _reference(seconds, concurrency, buffer, versions=5)
    ran.run(rounds=5)
    assert float(ran.flat[0]) == pytest.approx(path[-1], rel=1e-4)
    assert ran.history["virtual"].to_list() == pytest.approx(times)
    assert [event.cohort for event in said if isinstance(event, Trained)] == cohorts


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedBuff": FedBuff,
    "FedAsync": FedAsync,
    "FedMedian": FedMedian,
    "by examples": lambda: Strategy(ByExamples(), Mean(), Replace()),
}


@pytest.mark.parametrize("adding", ["deltas", "params"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_can_be_asynchronous(name: str, adding: str) -> None:
    ran = simulation(
        population=people((6,) * 12),
        strategy=STRATEGIES[name](),
        pace=Buffered(concurrency=6, buffer=3, adding=adding),
    )
    history = after(ran, 6)
    assert torch.isfinite(ran.flat).all()
    assert history["clients"].to_list() == [3] * 6
    virtual = history["virtual"].to_list()
    assert virtual[0] > 0
    assert virtual == sorted(virtual)


def test_nobody_is_asked_who_is_still_training() -> None:
    said: list[Event] = []
    asked: list[int] = []

    def recording(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        picked = first(roster, k, rng)
        asked.extend(picked.tolist())
        return picked

    pace = Buffered(concurrency=3, buffer=1)
    seconds = [1, 2, 3, 4, 5, 6, 7, 8]
    ran = _counting(seconds, FedBuff(), pace, selector=recording, events=[said.append])
    ran.run(rounds=20)
    back = [event.cohort[0] for event in said if isinstance(event, Trained)]
    for client in set(back):
        assert asked.count(client) - back.count(client) in (0, 1)
    assert len(asked) - len(back) == 2


def test_bytes_are_counted_when_they_are_sent() -> None:
    ran = _counting([1, 2, 3, 4, 5, 6], FedBuff(), Buffered(concurrency=4, buffer=2))
    history = after(ran, 4)
    # four start, and one more when the first is back; from then on whoever is back is replaced
    assert history["bytes_down"].to_list() == [4 * 5, 4 * 2, 4 * 2, 4 * 2]
    assert history["bytes_up"].to_list() == [4 * 2] * 4


def test_a_try_that_reaches_nobody_sends_nothing() -> None:
    calls = 0

    def reluctant(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        nonlocal calls
        calls += 1
        return first(roster, k, rng) if calls == 1 else np.array([], np.int64)

    pace = Buffered(concurrency=2, buffer=1)
    ran = _counting([1, 2], FedBuff(), pace, selector=reluctant)
    history = after(ran, 2)
    assert history["bytes_down"].to_list() == [4 * 2, 0]


def test_an_empty_client_is_passed_over_for_another() -> None:
    ran = simulation(
        population=people((0, 0, 0, 5, 5, 5)),
        strategy=FedBuff(),
        cohort=1,
        pace=Buffered(concurrency=1, buffer=1),
    )
    history = after(ran, 5)
    assert history["clients"].to_list() == [1] * 5


def test_where_nobody_can_ever_be_reached_it_is_said() -> None:
    devices = Devices(availability=constant(0.0))
    ran = simulation(strategy=FedBuff(), pace=Buffered(concurrency=2, buffer=1), devices=devices)
    with pytest.raises(SelectionError, match="no client with data can be reached"):
        ran.run(rounds=1)


def test_clients_that_come_and_go_keep_a_run_going() -> None:
    devices = Devices(availability=constant(0.4))
    ran = simulation(
        population=people((4,) * 20),
        strategy=FedBuff(),
        pace=Buffered(concurrency=5, buffer=2),
        devices=devices,
    )
    history = after(ran, 10)
    assert history["clients"].to_list() == [2] * 10
    assert history["virtual"].is_sorted()


def test_a_client_that_trains_twice_on_a_version_is_shuffled_anew() -> None:
    """The second time it comes back within a buffer, it brings the same update again."""
    arrived: list[Tensor] = []

    @dataclass(frozen=True)
    class Listening(Mean):
        def add(self, total: Any, array: Any, weight: float, spent: bool = False) -> Any:
            arrived.append(array.clone())
            return super().add(total, array, weight, spent)

    ran = simulation(
        population=people((40,)),
        cohort=1,
        recipe=Recipe(SGD(0.5), batch=2),
        strategy=Strategy(Buffer(Decay()), Listening(), Replace()),
        pace=Buffered(concurrency=1, buffer=2),
    )
    ran.run(rounds=1)
    once, again = arrived
    assert not torch.equal(once, again)


def test_asynchronous_is_faster_on_the_clock_where_some_are_slow() -> None:
    """What the clock is for: the same number of updates, without waiting for the slowest."""
    seconds = [1.0] * 9 + [50.0]
    buffered = _counting(seconds, FedBuff(), Buffered(concurrency=5, buffer=5))
    waiting = simulation(
        population=people((1,) * 10),
        cohort=5,
        devices=Devices(lambda rng, n: 1 / np.array(seconds), constant(1e30), constant(1e30)),
    )
    for run in (buffered, waiting):
        run.run(rounds=10)
    assert buffered.virtual < waiting.virtual / 3


def _busy(**changes: Any) -> Simulation:
    """A few fast clients come back before a version is made."""
    speeds = Devices(speed=lognormal(100.0, 1.0))
    return simulation(
        population=people([5] * 12 + [200] * 3),
        devices=speeds,
        pace=Buffered(concurrency=10, buffer=10),
        **changes,
    )


def test_a_client_that_arrives_twice_counts_and_reports_twice() -> None:
    ran = _busy(value=MeanLoss(), private=Gaussian(sigma=1.0, clip=4.0))
    ran.run(20)
    assert ran.ledger is not None and ran.ledger.spent() > 0
    picked = ran.history["bytes_down"].sum() // (4 * len(ran.flat))
    assert ran.roster.selected.sum() == picked


def test_selectors_count_in_versions_as_the_roster_does() -> None:
    seen: list[tuple[int, int]] = []

    def look(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        seen.append((roster.round, int(roster.last_seen.max())))
        return Uniform()(roster, k, rng)

    _busy(selector=look).run(15)
    assert max(round for round, _ in seen) == 14
    assert all(round >= last for round, last in seen)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_clients_that_are_away_are_asked_again(concurrency: int) -> None:
    ran = simulation(
        population=people([10] * 20),
        devices=Devices(availability=constant(0.1)),
        pace=Buffered(concurrency=concurrency, buffer=1),
    )
    ran.run(100)
    assert ran.round == 100


def test_an_unbiased_selector_is_refused_where_there_are_no_rounds() -> None:
    with pytest.raises(SelectionError, match="Buffered has none"):
        simulation(selector=Activity("n", "exact", unbiased=True), pace=Buffered())
