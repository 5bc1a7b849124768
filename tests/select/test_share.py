"""Heavy and light: uniformly among a share of the clients, ties broken as stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.errors import SelectionError, Shortage
from hubless.select.roster import Roster
from hubless.select.share import Heavy, Light, heaviest, lightest
from tests.support.frequencies import often


@pytest.mark.parametrize("kind", [Heavy, Light])
def test_everyone_in_the_share_has_the_same_chance(kind: type[Heavy] | type[Light]) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.permutation(np.repeat(np.arange(50), 2))
    roster, chances = Roster(sizes), np.zeros(100)
    # 98 have examples: a fifth of them, rounded up
    order = np.argsort(sizes, kind="stable")
    chances[order[-20:] if kind is Heavy else order[2:22]] = 5 / 20
    assert often(lambda: kind()(roster, 5, rng), chances, 1000).max() < 5
    roster.available = np.arange(100) % 2 == 0
    chances = np.where(roster.available, chances, 0)
    chances *= 5 / chances.sum()
    assert often(lambda: kind()(roster, 5, rng), chances, 1000).max() < 5


@given(st.lists(st.integers(0, 5), max_size=50), st.floats(0.01, 0.99))
def test_shares_are_cut_out_of_one_order(sizes: list[int], share: float) -> None:
    examples = np.array(sizes, np.int64)
    order = [i for i in np.argsort(examples, kind="stable").tolist() if sizes[i]]
    heavy, light = heaviest(examples, share).tolist(), lightest(examples, share).tolist()
    assert len(heavy) == len(light) == np.ceil(share * len(order) * (1 - 1e-12))
    assert light == sorted(order[: len(light)])
    assert heavy == sorted(order[len(order) - len(heavy) :])


def test_rounding_does_not_add_a_client() -> None:
    assert len(heaviest(np.ones(10, np.int64), 0.7)) == 7
    assert len(heaviest(np.ones(3, np.int64), 0.01)) == 1


def test_a_share_smaller_than_the_cohort_is_refused() -> None:
    with pytest.raises(Shortage, match="4 clients were asked for, and 2 of 10 can be picked") as e:
        Heavy()(Roster(np.arange(1, 11)), 4, np.random.default_rng(0))
    assert e.value.eligible == [8, 9]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    for kind in (Heavy, Light):
        with pytest.raises(SelectionError, match="share= is a number above 0 and at most 1"):
            kind(share)
