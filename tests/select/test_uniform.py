"""Uniform selection: everybody has the same chance, and a million clients cost no more."""

from __future__ import annotations

import tracemalloc

import numpy as np

from hubless.select.roster import Roster
from hubless.select.uniform import Uniform


def test_everybody_is_picked_equally_often() -> None:
    roster, rng = Roster(np.arange(20)), np.random.default_rng(3)
    times = np.zeros(20)
    for _ in range(4000):
        times[Uniform()(roster, 5, rng)] += 1
    # each is picked with probability 1/4: five standard deviations of 4000 draws
    assert np.abs(times - 1000).max() < 5 * np.sqrt(4000 * 0.25 * 0.75)


def test_only_those_who_are_available_share_the_chances() -> None:
    available = np.arange(20) % 2 == 0
    roster, rng = Roster(np.ones(20, np.int64), available), np.random.default_rng(3)
    times = np.zeros(20)
    for _ in range(2000):
        times[Uniform()(roster, 5, rng)] += 1
    assert (times[~available] == 0).all()
    assert np.abs(times[available] - 1000).max() < 5 * np.sqrt(2000 * 0.25)


def test_picking_from_a_million_makes_no_list_of_a_million() -> None:
    roster, rng = Roster(np.ones(1_000_000, np.int64)), np.random.default_rng(3)
    tracemalloc.start()
    try:
        Uniform()(roster, 100, rng)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
