"""Uniform selection: everybody has the same chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.select.roster import Ints, Roster, refuse_shortage, there


@dataclass(frozen=True)
class Uniform:
    """Everybody who is available has the same chance, and nobody is picked twice.

    The cost does not grow with the number of clients, unless some are not available.

    >>> picked = Uniform()(Roster(np.full(1000, 5)), 3, np.random.default_rng(0))
    >>> len(set(picked.tolist()))
    3
    """

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        if roster.available is None:
            return rng.choice(len(roster), k, replace=False, shuffle=False)
        return np.asarray(rng.choice(there(roster), k, replace=False, shuffle=False))
