"""The ledger: what each client has given away so far, and what of that the server still holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hubless.checks import number, whole
from hubless.errors import PrivacyError
from hubless.privacy.accounting import Cost, composed

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_COLUMNS: dict[str, tuple[type, Any]] = {
    "last": (np.float64, np.nan),
    "threshold": (np.float64, np.nan),
    "reports": (np.int32, 0),
    "queries": (np.int32, 0),
    "withheld": (np.int32, 0),
}
_PAID = "paid "


class Ledger:
    """What each client has given away so far, as columns, and the epsilon that it comes to.

        last         what the server holds of a client; NaN for one that never reported
        reports      how many fresh numbers the server was given
        queries      how often a sparse vector asked whether anything changed
        threshold    the noisy threshold it compares with; NaN between questions
        withheld     how many reports were not sent because the budget did not suffice

    Args:
        clients: How many there are.
        budget: The epsilon, above 0, that everything a client gives away stays within. A client
            whose next report would exceed it does not send that, and the server keeps what it has.
            None only counts.
        delta: The probability that the epsilon may not hold with, in [0, 1). At 0 epsilons are
            summed, which is exact and larger.

    >>> ledger = Ledger(3, budget=1.0, delta=0.0)
    >>> report = Cost("laplace", 0.4)
    >>> for _ in range(3):
    ...     some = np.array([0, 1])
    ...     some = some[ledger.afford(some, report)]
    ...     ledger.pay(some, report)
    >>> ledger.spent(), ledger.withheld
    (0.8, array([1, 1, 0], dtype=int32))
    """

    last: Floats
    threshold: Floats
    reports: NDArray[np.int32]
    queries: NDArray[np.int32]
    withheld: NDArray[np.int32]

    def __init__(self, clients: int, *, budget: float | None = None, delta: float = 1e-6) -> None:
        self._clients = whole("clients", clients, least=0, error=PrivacyError)
        if budget is not None:
            number("budget", budget, above=0, most=math.inf, error=PrivacyError)
        number("delta", delta, least=0, below=1, error=PrivacyError)
        self.budget, self.delta = budget, delta
        self._columns: dict[str, NDArray[Any]] = {}
        self._paid: dict[Cost, NDArray[np.int32]] = {}
        self._most: set[tuple[int, ...]] = set()

    def __len__(self) -> int:
        return self._clients

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in _COLUMNS:
            raise AttributeError(f"a ledger has no column {name!r}: it has {sorted(_COLUMNS)}")
        if name not in self._columns:
            dtype, usual = _COLUMNS[name]
            self._columns[name] = np.full(self._clients, usual, dtype)
        return self._columns[name]

    def afford(self, clients: Ints, *costs: Cost) -> Mask:
        """Who of these clients can pay all of these; for the others a report was withheld.

        Args:
            clients: Their numbers, each once.
            costs: What the release costs; several if it is made of several.
        """
        if self.budget is None:
            return np.ones(len(clients), np.bool_)
        for cost in costs:
            self._counts(cost)
        more = np.array([costs.count(cost) for cost in self._paid], np.int32)
        totals, whose = _distinct(self._rows(clients) + more)
        epsilons = np.array([self._epsilon(counts, self.delta) for counts in totals])
        able = np.asarray(epsilons[whose] <= self.budget)
        self.withheld[clients[~able]] += 1
        return able

    def pay(self, clients: Ints, cost: Cost) -> None:
        """These different clients made a release of this cost.

        Args:
            clients: Their numbers, each once.
            cost: Of the one release of each.
        """
        self._counts(cost)[clients] += 1
        self._note(clients)

    def spent(self, delta: float | None = None) -> float:
        """The epsilon of the client that spent most.

        Args:
            delta: At which delta; the ledger's own, unless given.
        """
        at = self.delta
        if delta is not None:
            at = number("delta", delta, least=0, below=1, error=PrivacyError)
        return max((self._epsilon(counts, at) for counts in self._most), default=0.0)

    def state(self) -> dict[str, NDArray[Any]]:
        """All columns that were ever used, for a checkpoint."""
        paid = {f"{_PAID}{cost.kind} {cost.size!r}": n for cost, n in self._paid.items()}
        return {**self._columns, **paid}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave, and forget everything else."""
        self._columns, self._paid, self._most = {}, {}, set()
        for name, values in columns.items():
            if not name.startswith(_PAID):
                getattr(self, name)[:] = values
                continue
            kind, size = name.removeprefix(_PAID).split(" ")
            cost = Cost(cast(Literal["laplace", "gaussian", "pure"], kind), float(size))
            self._counts(cost)[:] = values
        self._note(np.arange(self._clients))

    def _counts(self, cost: Cost) -> NDArray[np.int32]:
        """How often each client paid this."""
        if cost not in self._paid:
            self._paid[cost] = np.zeros(self._clients, np.int32)
            self._most = {(*counts, 0) for counts in self._most}
        return self._paid[cost]

    def _rows(self, clients: Ints) -> NDArray[np.int32]:
        columns = [counts[clients] for counts in self._paid.values()]
        return np.stack(columns, 1) if columns else np.zeros((len(clients), 0), np.int32)

    def _note(self, clients: Ints) -> None:
        """Keep those counts that nobody exceeds in every kind: only they can be the costliest."""
        every = self._most.union(_distinct(self._rows(clients))[0])
        self._most = {a for a in every if not any(a != b and _covers(b, a) for b in every)}

    def _epsilon(self, counts: tuple[int, ...], delta: float) -> float:
        return composed(tuple(zip(self._paid, counts, strict=True)), delta)


def _distinct(rows: NDArray[np.int32]) -> tuple[list[tuple[int, ...]], Ints]:
    """The rows there are, and which of them each is."""
    if not rows.size:
        return [], np.zeros(0, np.int64)
    # as one number each, which sort much faster than rows
    sizes = tuple((rows.max(0) + 1).tolist())
    distinct, whose = np.unique(np.ravel_multi_index(tuple(rows.T), sizes), return_inverse=True)
    return [tuple(row) for row in np.stack(np.unravel_index(distinct, sizes), 1).tolist()], whose


def _covers(more: tuple[int, ...], less: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(more, less, strict=True))
