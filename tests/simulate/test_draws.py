"""Random numbers by counters, which is how many workers draw the same without talking."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hubless.rng import keys


def test_keys_are_the_same_on_every_machine() -> None:
    drawn = keys(7, "shuffle", 3, np.arange(3))
    assert drawn.dtype == np.uint64
    assert drawn.tolist() == [15821906416593355923, 7244390010779901862, 3622736349610901755]


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20), st.integers(0, 1 << 30))
def test_a_key_depends_on_its_counters_alone(clients: list[int], turn: int) -> None:
    together = keys(7, "client", turn, np.array(clients))
    for client, key in zip(clients, together.tolist(), strict=True):
        assert int(keys(7, "client", turn, client)) == key


def test_other_seeds_purposes_and_counters_give_other_keys() -> None:
    drawn = [
        int(key)
        for key in [
            keys(1, "a", 0, 0),
            keys(2, "a", 0, 0),
            keys(1, "b", 0, 0),
            keys(1, "a", 1, 0),
            keys(1, "a", 0, 1),
            keys(1, "a", 1, 1),
            keys(1, "a", 0),
            keys(1, "a"),
        ]
    ]
    assert len(set(drawn)) == len(drawn)


def test_keys_are_spread_evenly_and_do_not_repeat() -> None:
    drawn = keys(3, "shuffle", np.arange(300)[:, None], np.arange(300)[None, :]).ravel()
    assert len(np.unique(drawn)) == len(drawn)
    for bit in range(64):
        share = ((drawn >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(drawn)), bit
