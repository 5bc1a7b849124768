"""Patience: pauses that grow, differ between members, and end when they should."""

from __future__ import annotations

import random
import time

import pytest

from hubless.patience import SharedPatience, SystemClock, pauses


class FakeClock:
    """Time that passes only while somebody sleeps, and notes how long."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.mark.parametrize("patience", [0.01, 1.0, 7.5, 60.0])
def test_it_pauses_for_exactly_its_patience(patience: float) -> None:
    clock = FakeClock()
    left = list(pauses(clock, patience))
    assert sum(clock.slept) == pytest.approx(patience)
    assert left[0] == patience
    assert left[-1] == pytest.approx(0.0, abs=1e-9)
    assert left == sorted(left, reverse=True)
    assert min(left) >= 0
    assert len(clock.slept) == len(left) - 1


def test_without_patience_there_is_one_try_and_no_pause() -> None:
    clock = FakeClock()
    assert list(pauses(clock, 0.0)) == [0.0]
    assert clock.slept == []


def test_pauses_grow_from_the_first_to_the_longest() -> None:
    clock = FakeClock()
    list(pauses(clock, 100.0, first=0.1, longest=3.0))
    whole = clock.slept[:-1]
    assert 0.05 <= whole[0] <= 0.1
    assert max(whole) <= 3.0
    assert min(whole[10:]) >= 1.5
    expected = 0.1
    for pause in whole:
        assert expected / 2 <= pause <= expected
        expected = min(expected * 1.6, 3.0)


def test_members_that_were_refused_together_do_not_return_together() -> None:
    def slept(seed: int) -> list[float]:
        random.seed(seed)
        clock = FakeClock()
        list(pauses(clock, 30.0))
        return clock.slept

    assert len({tuple(slept(seed)) for seed in range(10)}) == 10


def test_time_spent_between_pauses_counts() -> None:
    clock = FakeClock()
    tries = 0
    for _ in pauses(clock, 10.0):
        tries += 1
        clock.time += 6.0
    assert tries == 2
    assert sum(clock.slept) < 4.0 + 1e-9


def test_it_does_not_pause_before_the_first_try_nor_after_success() -> None:
    clock = FakeClock()
    for _ in pauses(clock, 60.0):
        break
    assert clock.slept == []


def test_after_a_first_try_of_ones_own_the_patience_counts_from_its_beginning() -> None:
    clock = FakeClock()
    began = clock.time
    clock.time += 4.0
    tries = sum(1 for _ in pauses(clock, 10.0, failed_since=began))
    assert tries >= 3
    assert clock.time - began == pytest.approx(10.0)
    assert sum(clock.slept) == pytest.approx(6.0)


def test_a_shared_patience_is_used_up_by_all_together_and_then_lets_each_try_once() -> None:
    clock = FakeClock()
    shared = [SharedPatience(clock, 10.0, 1000.0)]
    tries = [sum(1 for _ in pauses(clock, 6.0, at_least=3, shared=shared)) for _ in range(4)]
    assert clock.time == pytest.approx(1010.0)
    assert tries[0] > 3 and tries[1] > 3
    assert tries[2:] == [1, 1]


def test_a_shared_patience_ends_with_its_time() -> None:
    clock = FakeClock()
    shared = [SharedPatience(clock, 60.0, 5.0)]
    assert max(pauses(clock, 600.0, shared=shared)) == 5.0
    assert clock.time == pytest.approx(1005.0)


@pytest.mark.parametrize("seed", range(20))
def test_what_several_lose_at_one_time_counts_once(seed: int) -> None:
    draw = random.Random(seed)
    clock = FakeClock(0.0)
    shared = SharedPatience(clock, 100.0, 1000.0)
    lost: set[int] = set()
    for _ in range(40):
        clock.time += draw.randrange(3)
        now = int(clock.time)
        # a failed try that ends now, or a pause that begins now
        began, ended = (now - draw.randrange(9), now) if draw.random() < 0.5 else (now, now + 2)
        shared.lose(began, ended)
        lost.update(range(began, ended))
    assert shared.left(clock.time + 2) == 100.0 - len(lost)


def test_waiting_while_another_waits_costs_nothing_more() -> None:
    clock = FakeClock(0.0)
    shared = SharedPatience(clock, 2.0, 1000.0)
    shared.lose(0.0, 2.0)
    assert [shared.left(now) for now in (0.5, 2.0, 3.0)] == [1.5, 0.0, 0.0]


def test_the_machines_clock_only_grows_and_sleeps_for_as_long_as_asked() -> None:
    clock = SystemClock()
    before = clock.now()
    started = time.perf_counter()
    clock.sleep(0.01)
    assert clock.now() - before >= 0.009
    assert time.perf_counter() - started >= 0.009
