"""Selection by hand: always these clients, or by these weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from hubless.errors import SelectionError
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage
from hubless.select.sampling import Table


@dataclass(frozen=True)
class Fixed:
    """The first k of a list of clients who are available; chance plays no part.

    Args:
        clients: Places in the roster, each once, the most wanted first. A run needs at least k of
            them to be available; `AtMost(Fixed(...))` makes do with fewer.

    >>> Fixed([7, 2, 4])(Roster(np.ones(9)), 2, np.random.default_rng(0))
    array([7, 2])
    """

    clients: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(int(client) for client in self.clients))
        if len(set(self.clients)) < len(self.clients):
            raise SelectionError("a client is in the fixed list more than once")
        if min(self.clients, default=0) < 0:
            raise SelectionError(f"there is no client {min(self.clients)}")

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        listed = np.array(self.clients, np.int64)
        if len(listed) and listed.max() >= len(roster):
            raise SelectionError(
                f"client {listed.max()} is in the fixed list, and there are clients 0 to "
                f"{len(roster) - 1}"
            )
        if roster.available is not None:
            listed = listed[roster.available[listed]]
        refuse_shortage(roster, k, listed)
        return listed[:k]


@dataclass(frozen=True, eq=False, repr=False)
class Weighted:
    """By weights given once; clients are drawn one after the other, nobody twice.

    Args:
        weights: One for each client of the roster, finite and at least 0. Only their proportions
            count, and 0 is never picked.

    >>> Weighted([1, 0, 0, 5])(Roster(np.ones(4)), 2, np.random.default_rng(0)).tolist()
    [3, 0]
    """

    weights: Floats
    _table: Table = field(init=False)

    def __post_init__(self) -> None:
        weights = np.array(self.weights, np.float64)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "_table", Table.of(weights))

    def __repr__(self) -> str:
        digest = hashlib.blake2b(self.weights.tobytes(), digest_size=8).hexdigest()
        return f"Weighted({len(self.weights)} weights, {digest})"

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        if len(roster) != len(self.weights):
            raise SelectionError(
                f"there are {len(self.weights)} weights and {len(roster)} clients: one for each"
            )
        picked = self._table.draw(k, rng, roster.available)
        if len(picked) < k:
            refuse_shortage(roster, k, np.sort(picked))
        return picked
