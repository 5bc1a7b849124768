"""Uniform selection: everybody has the same chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.errors import SelectionError
from hubless.select.roster import Ints, Roster


@dataclass(frozen=True)
class Uniform:
    """Without replacement, from those who are available.

    The cost does not grow with the number of clients, unless some are not available.

    >>> picked = Uniform()(Roster(np.full(1000, 5)), 3, np.random.default_rng(0))
    >>> len(set(picked.tolist()))
    3
    """

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        if roster.available is None:
            if k > len(roster):
                raise SelectionError(f"{k} clients were asked for, and there are {len(roster)}")
            return rng.choice(len(roster), k, replace=False, shuffle=False)
        there = np.flatnonzero(roster.available)
        if k > len(there):
            raise SelectionError(
                f"{k} clients were asked for, and {len(there)} of {len(roster)} are available"
            )
        return np.asarray(rng.choice(there, k, replace=False, shuffle=False))
