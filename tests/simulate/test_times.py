"""Virtual time in synchronous rounds: who is waited for, who is dropped, who is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hubless.events import Event, Trained
from hubless.select.roster import Ints, Roster
from hubless.simulate.times import (
    Devices,
    Draw,
    Pace,
    VirtualClock,
    constant,
    keep_in_time,
    lognormal,
    uniform,
)
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from tests.simulate.worlds import after, people, simulation


def exactly(values: Sequence[float]) -> Draw:
    return lambda rng, clients: np.array(values, float)


def first(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
    """The first clients that are there."""
    there = np.arange(len(roster)) if roster.available is None else np.flatnonzero(roster.available)
    return there[:k]


def _timed(seconds: Sequence[float], **changes: Any) -> Any:
    """One example per client, who takes so long for it and no time to send anything."""
    speed = exactly([1 / s for s in seconds])
    settings: dict[str, Any] = {
        "population": people((1,) * len(seconds)),
        "devices": Devices(speed=speed, down=constant(1e30), up=constant(1e30)),
        "recipe": Recipe(SGD(0.1)),
        "selector": first,
        **changes,
    }
    return simulation(**settings)


def test_a_client_takes_as_long_as_it_downloads_trains_and_uploads() -> None:
    devices = Devices(exactly([10, 20]), exactly([1000, 500]), exactly([100, 200]))
    clock = VirtualClock(devices, clients=2, model_bytes=4000, seed=1)
    assert clock.durations(np.array([0, 1]), np.array([30, 10])).tolist() == [
        4 + 40 + 3,
        8 + 20 + 0.5,
    ]


def test_what_devices_can_do_is_drawn_once_and_from_the_seed() -> None:
    one, same, other = (VirtualClock(Devices(), 50, 4000, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.speed, same.speed)
    assert np.array_equal(one.transfer, same.transfer)
    assert not np.array_equal(one.speed, other.speed)
    assert len(set(one.speed.tolist())) == 50


def test_distributions_are_what_they_are_called() -> None:
    rng = np.random.default_rng(1)
    assert (constant(3)(rng, 4) == 3).all()
    drawn = lognormal(10, 0.5)(rng, 20_000)
    assert np.median(drawn) == pytest.approx(10, rel=0.05)
    assert np.log(drawn).std() == pytest.approx(0.5, rel=0.05)
    drawn = uniform(2, 4)(rng, 20_000)
    assert drawn.min() >= 2
    assert drawn.max() <= 4
    assert drawn.mean() == pytest.approx(3, rel=0.05)


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    history = after(_timed([3, 1, 7, 2, 99], cohort=4), 3)
    assert history["virtual"].to_list() == pytest.approx([7, 14, 21])
    assert history["dropped"].to_list() == [0, 0, 0]


def test_time_is_counted_in_examples_trained_on_and_not_only_owned() -> None:
    recipe = Recipe(SGD(0.1), epochs=5)
    history = after(_timed([3, 1, 7, 2], cohort=4, recipe=recipe), 1)
    assert history["virtual"].to_list() == pytest.approx([35])


def test_over_selection_keeps_the_fastest_and_drops_the_rest() -> None:
    said: list[Event] = []
    ran = _timed([3, 1, 7, 2, 5, 4, 99], cohort=4, pace=Pace(over=1.5), events=[said.append])
    history = after(ran, 2)
    assert history["virtual"].to_list() == pytest.approx([4, 8])
    assert history["clients"].to_list() == [4, 4]
    assert history["dropped"].to_list() == [2, 2]
    size = 4 * ran.flat.numel()
    assert history["bytes_down"].to_list() == [6 * size] * 2
    assert history["bytes_up"].to_list() == [4 * size] * 2
    trained = [event for event in said if isinstance(event, Trained)]
    assert trained[0].cohort == [0, 1, 3, 5]
    assert trained[0].virtual == pytest.approx(4)


def test_who_is_dropped_does_not_count() -> None:
    kept = _timed([3, 1, 2, 4, 99, 98], cohort=4, pace=Pace(over=1.5))
    alone = simulation(population=people((1,) * 6), recipe=Recipe(SGD(0.1)), selector=first)
    for run in (kept, alone):
        run.run(rounds=1)
    assert torch.equal(kept.flat, alone.flat)


def test_who_misses_the_deadline_is_dropped_and_the_round_ends_there() -> None:
    history = after(_timed([3, 1, 7, 2], cohort=4, pace=Pace(deadline=2.5)), 2)
    assert history["clients"].to_list() == [2, 2]
    assert history["dropped"].to_list() == [2, 2]
    assert history["virtual"].to_list() == pytest.approx([2.5, 5.0])


def test_a_round_that_is_complete_before_its_deadline_ends_before_it() -> None:
    history = after(_timed([3, 1, 7, 2], cohort=4, pace=Pace(deadline=100)), 1)
    assert history["virtual"].to_list() == pytest.approx([7])


def test_a_round_that_nobody_completes_changes_nothing() -> None:
    ran = _timed([3, 4], cohort=2, pace=Pace(deadline=1))
    before = ran.flat.clone()
    history = after(ran, 2)
    assert torch.equal(ran.flat, before)
    assert history["virtual"].to_list() == [1, 2]
    assert np.isnan(history["train_loss"].to_numpy()).all()


@given(
    st.lists(st.floats(0.1, 100), max_size=12),
    st.integers(1, 12),
    st.none() | st.floats(0.1, 120),
)
def test_whoever_counts_is_faster_than_whoever_does_not(
    durations: list[float], wanted: int, deadline: float | None
) -> None:
    given = np.array(durations)
    kept, seconds = keep_in_time(given, wanted, Pace(deadline=deadline))
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert len(kept) <= min(wanted, len(durations))
    left = np.setdiff1d(np.arange(len(durations)), kept)
    if len(kept) and len(left):
        assert given[kept].max() <= given[left].min()
    in_time = given <= (np.inf if deadline is None else deadline)
    assert len(kept) == min(wanted, int(in_time.sum()))
    assert deadline is None or seconds <= deadline
    assert (given[kept] <= seconds).all()


def test_clients_are_available_as_often_as_they_should_be() -> None:
    shares = [0.0, 0.1, 0.5, 0.9, 1.0]
    clock = VirtualClock(Devices(availability=exactly(shares)), 5, 4, seed=3)
    there = np.array([clock.available(turn) for turn in range(4000)])
    assert there[:, 0].sum() == 0
    assert there[:, 4].all()
    assert there.mean(0) == pytest.approx(shares, abs=5 * np.sqrt(0.25 / 4000))
    # one client's presence says nothing about another's, nor about the next round
    assert abs(np.corrcoef(there[:, 2], there[:, 3])[0, 1]) < 0.08
    assert abs(np.corrcoef(there[1:, 2], there[:-1, 2])[0, 1]) < 0.08


def test_who_is_available_depends_on_the_seed_and_the_round_alone() -> None:
    devices = Devices(availability=constant(0.5))
    one, same, other = (VirtualClock(devices, 100, 4, seed) for seed in (1, 1, 2))
    one.available(0)
    turns = [clock.available(7) for clock in (one, same, other)]
    assert np.array_equal(turns[0], turns[1])  # type: ignore[arg-type]
    assert not np.array_equal(turns[0], turns[2])  # type: ignore[arg-type]


def test_only_who_is_there_is_asked() -> None:
    seen: list[Ints] = []

    def watching(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        assert roster.available is not None
        seen.append(np.flatnonzero(roster.available))
        assert k <= len(seen[-1])
        return first(roster, k, rng)

    said: list[Event] = []
    ran = simulation(
        population=people((3,) * 12),
        devices=Devices(availability=constant(0.3)),
        selector=watching,
        events=[said.append],
    )
    history = after(ran, 10)
    trained = [event for event in said if isinstance(event, Trained)]
    for event, there in zip(trained, seen, strict=True):
        assert set(event.cohort) <= set(there.tolist())
    assert history["clients"].to_list() == [min(4, len(there)) for there in seen]
    assert len({tuple(there.tolist()) for there in seen}) > 5


def test_a_round_in_which_nobody_is_there_passes() -> None:
    ran = simulation(devices=Devices(availability=constant(0.0)))
    history = after(ran, 2)
    assert history["clients"].to_list() == [0, 0]
    assert history["bytes_down"].to_list() == [0, 0]


def test_without_devices_no_time_passes() -> None:
    assert after(simulation(), 2)["virtual"].to_list() == [0, 0]
