"""The roster: what is known of every client, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Roster:
    """One column per fact; whoever is not `available` must not be picked."""

    examples: Ints
    available: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.examples)


class Selector(Protocol):
    """A pure function: the same roster, number and generator state give the same clients."""

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        """`k` different clients, by their place in the roster."""
        ...
