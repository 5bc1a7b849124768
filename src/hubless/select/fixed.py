"""Selection by hand: always these clients, or by these weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hubless.checks import fitting, whole
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
        takes = "a list of clients, such as [7, 2, 4]"
        fits = isinstance(self.clients, Iterable) and not isinstance(self.clients, str)
        fitting("clients", self.clients, fits, takes, error=SelectionError)
        clients = (
            whole("clients", client, least=0, error=SelectionError) for client in self.clients
        )
        object.__setattr__(self, "clients", tuple(clients))
        if len(set(self.clients)) < len(self.clients):
            raise SelectionError("a client is in the fixed list more than once")

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
        try:
            weights = np.array(self.weights, np.float64)
        except (TypeError, ValueError):
            weights = np.empty((0, 0))
        takes = "one number per client, in a list"
        fitting("weights", self.weights, weights.ndim == 1, takes, error=SelectionError)
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
