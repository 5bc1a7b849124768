"""Deadlines that follow how long rounds take."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import Adaptive, events
from hubless.errors import QuorumMissed
from hubless.federate.rounds.deadline import Deadline
from hubless.store.memory import MemoryStore

CEILING = 600.0


class Gated:
    """A clock that its owner moves, and on which waiting takes time only where it may."""

    def __init__(self) -> None:
        self.seconds, self.passes = 0.0, False
        self.may_pass: Callable[[], bool] = lambda: self.passes

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        if self.may_pass():
            self.seconds += seconds
        time.sleep(0.002)


def after(took: list[float], deadline: float | Adaptive) -> float:
    """How long after its update, 1 s after the last round, a member waits for the others."""
    clock = Gated()
    limit = Deadline(deadline, clock)
    for number in range(len(took) + 1):
        limit.arrived(number)
        limit.arrived(number)
        clock.seconds += took[number] if number < len(took) else 0.0
    began = clock.seconds + 1
    return limit.due(len(took) + 1, began) - began


def test_a_deadline_follows_the_rounds_that_were_seen() -> None:
    assert after([10.0, 10.0], Adaptive()) == CEILING
    assert after([10.0, 10.0, 10.0], Adaptive()) == pytest.approx(10 + 3 * 1.0 - 1)
    assert after([10.0, 14.0, 12.0, 12.0, 1000.0], Adaptive(k=2)) == pytest.approx(
        12 + 2 * 1.4826 * 2 - 1
    )
    assert after([10.0] * 5 + [100.0] * 5, Adaptive(window=3)) == pytest.approx(100 + 30 - 1)
    assert after([900.0] * 5, Adaptive()) == CEILING
    assert after([10.0] * 5, 60.0) == 60.0


def test_a_round_that_was_missed_tells_nothing_of_how_long_rounds_take() -> None:
    clock = Gated()
    limit = Deadline(Adaptive(), clock)
    for number in (0, 1, 2, 3):
        limit.arrived(number)
        clock.seconds += 10
    clock.seconds += 500
    limit.arrived(9)
    assert limit.due(10, clock.seconds) == pytest.approx(clock.seconds + 13)
    assert limit.due(12, clock.seconds) == clock.seconds + CEILING


class Site:
    """A member with a clock of its own."""

    def __init__(self, store: Any, client: str, quorum: int) -> None:
        self.clock, self.said = Gated(), list[events.Event]()
        pace = hubless.Rounds(["a", "b", "c"], quorum, deadline=Adaptive(ceiling=CEILING))
        self.member = hubless.join(
            store, client, pace=pace, events=self.said.append, clock=self.clock
        )

    def step(self) -> Any:
        self.clock.seconds += 10
        return self.member.step({"w": np.ones(4)}, examples=1)


def is_waited_for(store: MemoryStore, number: int, delivered: int) -> bool:
    """Whether a round is open that so many have delivered for: time passes only then."""
    keys = [entry.key for entry in store.list(f"rounds/{number:08d}/")]
    return sum("/updates/" in key for key in keys) == delivered and not any(
        "/plan-" in key for key in keys
    )


def test_who_is_late_is_waited_for_a_little_longer_than_rounds_take() -> None:
    store = MemoryStore()
    sites = [Site(store, name, quorum=2) for name in "abc"]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            list(pool.map(Site.step, sites))
        a, b, _ = sites
        began = a.clock.seconds, b.clock.seconds
        for site in (a, b):
            site.clock.may_pass = lambda: is_waited_for(store, 4, delivered=2)
        list(pool.map(Site.step, (a, b)))
    closed = [event for event in a.said if isinstance(event, events.Closed)]
    assert closed[-1].included == ["a", "b"]
    assert closed[-1].missing == ["c"]
    # the one of the two who closes the round has waited longer
    waited = max(now.clock.seconds - then for now, then in zip((a, b), began, strict=True))
    # 10 s of training, 3 s more, and the pauses between looks
    assert 13 <= waited < 16


def test_without_a_quorum_everybody_waits_up_to_the_ceiling() -> None:
    store = MemoryStore()
    sites = [Site(store, name, quorum=2) for name in "abc"]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            list(pool.map(Site.step, sites))
    alone = sites[0]
    alone.clock.passes = True
    began = alone.clock.seconds
    with pytest.raises(QuorumMissed, match="1 of the 2"):
        alone.step()
    assert alone.clock.seconds - began >= CEILING
