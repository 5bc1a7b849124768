"""Sampling without replacement by weight: successive draws, or exact inclusion probabilities.

`Table.of(weights)` gets weights ready once; `table.draw(k, rng, available, taken)` then picks as if
clients were drawn one after the other, each time in proportion to the weights of those left. It
returns fewer than `k` where fewer can be picked, in the order in which they were drawn.

`Exact(table).draw(k, rng)` picks everybody with probability min(1, c w), c such that these sum to
`k`: a client's share of the weights is exactly how often it is picked, which successive draws only
come near to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hubless.errors import SelectionError
from hubless.select.roster import Floats, Ints, Mask

Part = slice | Ints
Weigh = Callable[[Part], Floats]

# weights are gone through in blocks that stay in the processor's cache,
BLOCK = 1 << 15
# and summed up for so many clients together: what a line of that cache holds
GROUP = 8
# with replacement is the way to draw while k is at most one in so many of those with a weight,
CLOSE = 4
# and while there were no more draws than one for so many clients: then a key for each costs less
PATIENCE = 64
# all weights below this are multiplied by 2^600: products with them must not lose digits
TINY = 1e-290
NOBODY: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Table:
    """Weights of clients, ready to be drawn from; weight 0 is never picked.

    `sums` are cumulative, one for each group of clients: to make and search so few of them is much
    faster, and who is meant within a group is seen by weighing it again. `weigh` gives the weights
    of a slice or of some places. `positive` counts those above 0, and `peaks` are the largest of
    each block.

    >>> table = Table.of([1, 0, 3])
    >>> table.total, table.positive
    (4.0, 2)
    >>> sorted(table.draw(2, np.random.default_rng(0)).tolist())
    [0, 2]
    """

    sums: Floats
    weigh: Weigh
    clients: int
    positive: int
    peaks: Floats

    @classmethod
    def of(cls, weights: ArrayLike) -> Table:
        """From weights that nobody changes afterwards."""
        values = np.asarray(weights, np.float64)
        return cls.by(values.__getitem__, len(values))

    @classmethod
    def by(cls, weigh: Weigh, clients: int, whose: Callable[[int], str] | None = None) -> Table:
        """From a function that weighs some clients at a time, so that no column has to be kept.

        `whose` says more about a client whose weight is refused.
        """
        sums, peaks = np.empty(-(-clients // GROUP)), np.zeros(-(-clients // BLOCK))
        total, positive = 0.0, 0
        for part in _blocks(clients):
            weights = weigh(part)
            block = sums[part.start // GROUP : -(-part.stop // GROUP)]
            if not weights.min() >= 0:
                _refuse(weights, part.start, whose)
            positive += int(np.count_nonzero(weights > 0))
            peaks[part.start // BLOCK] = weights.max()
            if short := GROUP * len(block) - len(weights):
                weights = np.append(weights, np.zeros(short))
            with np.errstate(over="ignore"):
                # one by one: sums over a short last axis take twice as long
                np.cumsum(sum(weights[i::GROUP] for i in range(GROUP)), out=block)
                block += total
            total = float(block[-1])
        if total == np.inf:
            for part in _blocks(clients):
                _refuse(weigh(part), part.start, whose)
            raise SelectionError("the weights sum to more than a float64 can hold: scale them down")
        if 0 < total < TINY:
            return cls.by(lambda part: np.ldexp(weigh(part), 600), clients, whose)
        return cls(sums, weigh, clients, positive, peaks)

    @property
    def total(self) -> float:
        return float(self.sums[-1]) if len(self.sums) else 0.0

    def __len__(self) -> int:
        return self.clients

    def among(self, available: Mask) -> Table:
        """The same with weight 0 for those who are not available."""
        return Table.by(lambda part: self.weigh(part) * available[part], len(self))

    def draw(
        self,
        k: int,
        rng: np.random.Generator,
        available: Mask | None = None,
        taken: Ints | None = None,
    ) -> Ints:
        """`k` different clients, or all that can be picked if fewer, in the order of drawing.

        Whoever is not `available` or already `taken` is passed over.
        """
        taken = NOBODY if taken is None else taken
        drawn = NOBODY
        if CLOSE * (k + len(taken)) <= self.positive:
            drawn = self._first_seen(k, rng, available, taken)
        if len(drawn) < k:
            # whoever was seen so far stays: starting anew would prefer draws that go quickly
            taken = np.concatenate([taken, drawn])
            more = self._by_keys(k - len(drawn), rng, available, taken)
            drawn = np.concatenate([drawn, more])
        return drawn

    def _first_seen(
        self, k: int, rng: np.random.Generator, available: Mask | None, taken: Ints
    ) -> Ints:
        """Draw with replacement, keep who is seen for the first time; fewer where that is slow."""
        picks, wanted, patience = taken, k + len(taken), 4 * k + len(self) // PATIENCE
        hopeful = 1
        while len(picks) < wanted and patience > 0:
            missing = wanted - len(picks)
            draws = min(hopeful * (missing + missing // 16 + 16), patience)
            hits = self._find(rng.random(draws) * self.total)
            patience, hopeful = patience - draws, 2 * hopeful
            if available is not None:
                hits = hits[available[hits]]
            picks = np.concatenate([picks, hits])
            first = np.unique(picks, return_index=True)[1]
            first.sort()
            picks = picks[first[:wanted]]
        return picks[len(taken) :]

    def _find(self, points: Floats) -> Ints:
        """Whose stretch of the sums each point lies in; a stretch of length 0 has none."""
        # in order, neighbouring searches share what they read of a large table
        order = np.argsort(points)
        ordered = np.minimum(points[order], np.nextafter(self.total, 0))
        group = np.searchsorted(self.sums, ordered, side="right")
        left = ordered - np.where(group > 0, self.sums[group - 1], 0.0)
        places = GROUP * group + np.arange(GROUP)[:, None]
        weights = self.weigh(np.minimum(places, self.clients - 1).ravel()).reshape(places.shape)
        if places[-1, -1] >= self.clients:
            weights = np.where(places < self.clients, weights, 0.0)
        sums = np.cumsum(weights, axis=0)
        passed = sums <= np.minimum(left, np.nextafter(sums[-1], 0))
        owners = np.empty(len(points), np.int64)
        owners[order] = places[passed.sum(axis=0), np.arange(len(points))]
        return owners

    def _by_keys(
        self, k: int, rng: np.random.Generator, available: Mask | None, taken: Ints
    ) -> Ints:
        """Everybody waits for an exponential time at the rate of their weight; the first `k`.

        In logarithms, for which no spread of weights is too large.
        """
        free = np.ones(len(self), np.bool_) if available is None else available.copy()
        free[taken] = False

        def waits() -> Iterator[tuple[Floats, Ints]]:
            for part in _blocks(len(self)):
                weights = self.weigh(part)
                places = np.flatnonzero((weights > 0) & free[part])
                with np.errstate(divide="ignore"):
                    times = np.log(rng.standard_exponential(len(places)))
                yield times - np.log(weights[places]), places + part.start

        return _smallest(k, waits())[1]


class Exact:
    """Inclusion probabilities min(1, c w) that sum to k, by systematic sampling.

    Who is certain (c w >= 1) is in; for the others k points at equal distances and one random
    start are laid over their cumulative weights (Madow 1949). Exactly k are picked. Two clients
    whose weights lie side by side may have no chance to be picked together, so that a variance
    cannot be estimated from one pick; sums weighed by the inverse of the probabilities are
    unbiased all the same.

    >>> exact = Exact(Table.of([8, 1, 1, 2]))
    >>> exact.inclusion(2)
    array([1.  , 0.25, 0.25, 0.5 ])
    >>> len(exact.draw(2, np.random.default_rng(0)))
    2
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._last: tuple[int, _Design] | None = None

    def draw(self, k: int, rng: np.random.Generator) -> Ints:
        """`k` different clients, or all that can be picked if fewer, by their place."""
        design = self._design(k)
        points = min(k, self.table.positive) - len(design.certain)
        while points > 0:
            step, start = design.rest.total / points, rng.random()
            picks = design.rest._find(step * (start + np.arange(points, dtype=np.float64)))
            # a stretch one rounding error below the step may hold two points, or none
            if len(np.unique(picks)) == points:
                return np.sort(np.concatenate([design.certain, picks]))
        return design.certain

    def inclusion(self, k: int, clients: Ints | None = None) -> Floats:
        """How likely each client is to be among `k`; of all of them, or of these."""
        design = self._design(k)
        points = min(k, self.table.positive) - len(design.certain)
        rate = points / design.rest.total if points else 0.0
        if clients is not None:
            chances = rate * design.rest.weigh(clients)
            chances[np.isin(clients, design.certain)] = 1.0
            return chances
        chances = np.empty(len(self.table))
        for part in _blocks(len(chances)):
            np.multiply(design.rest.weigh(part), rate, out=chances[part])
        chances[design.certain] = 1.0
        return chances

    def _design(self, k: int) -> _Design:
        if self._last is None or self._last[0] != k:
            self._last = None
            self._last = (k, _designed(self.table, k))
        return self._last[1]


@dataclass(frozen=True, eq=False)
class _Design:
    """Those who are in for certain, by their place, and the table of the others."""

    certain: Ints
    rest: Table


def _designed(table: Table, k: int) -> _Design:
    if k >= table.positive:
        parts = _blocks(len(table))
        some = [np.flatnonzero(table.weigh(part) > 0) + part.start for part in parts]
        return _Design(np.concatenate([NOBODY, *some]), table)
    certain = np.sort(_certain(table, k))
    if not len(certain):
        return _Design(certain, table)
    return _Design(certain, Table.by(_without(table, certain), len(table)))


def _certain(table: Table, k: int) -> Ints:
    """Who has a probability of 1 among `k`: the heaviest, as long as c w is 1 or more."""
    bar, tries = table.total / max(k, 1), 0
    while True:
        # half of where it starts is nearly always low enough, and above it are only few
        floor = bar / 2 if tries < 4 else 0.0
        weights, places = _heaviest(table, k, floor)
        left = table.total - weights.sum()
        if left < table.total / 2:
            # a difference of nearly equal sums would have no digits left
            rest = _without(table, np.sort(places))
            left = sum(float(rest(part).sum()) for part in _blocks(len(table)))
        # what everybody weighs from each of the heaviest on, added up from the lightest
        onwards = np.cumsum(np.append(left, weights[::-1]))[::-1]
        # a little less, so that rounding does not decide
        capped = weights * (k - np.arange(len(weights))) >= onwards[:-1] * (1 - 1e-12)
        certain = len(weights) if capped.all() else int(np.argmin(capped))
        bar, tries = float(onwards[certain]) / max(k - certain, 1), tries + 1
        if certain == k or bar >= floor:
            return places[:certain]


def _heaviest(table: Table, k: int, floor: float) -> tuple[Floats, Ints]:
    """The weights and places of up to `k` clients above a floor, the heaviest first."""

    def keyed() -> Iterator[tuple[Floats, Ints]]:
        for block in np.flatnonzero(table.peaks >= floor).tolist():
            part = slice(block * BLOCK, min((block + 1) * BLOCK, len(table)))
            weights = table.weigh(part)
            places = np.flatnonzero(weights >= floor)
            yield -weights[places], places + part.start

    negative, places = _smallest(k, keyed())
    return -negative, places


def _without(table: Table, gone: Ints) -> Weigh:
    """The table's weights, but 0 for some clients, who are given in order."""

    def weigh(part: Part) -> Floats:
        weights = table.weigh(part)
        if isinstance(part, slice):
            inside = gone[np.searchsorted(gone, part.start) : np.searchsorted(gone, part.stop)]
            at = inside - part.start
        else:
            near = gone[np.minimum(np.searchsorted(gone, part), len(gone) - 1)]
            at = np.flatnonzero(near == part)
        if len(at):
            weights = weights.copy()
            weights[at] = 0.0
        return weights

    return weigh


def _smallest(k: int, keyed: Iterable[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    """The `k` smallest keys and their places, smallest first, of blocks that come one by one."""
    keys: list[Floats] = [np.empty(0)]
    places: list[Ints] = [NOBODY]
    count, bound = 0, np.inf
    for some, at in keyed:
        if bound < np.inf:
            close = np.flatnonzero(some < bound)
            some, at = some[close], at[close]
        keys.append(some)
        places.append(at)
        count += len(some)
        if count >= 2 * k + BLOCK:
            keys, places = [np.concatenate(keys)], [np.concatenate(places)]
            best = np.argpartition(keys[0], k)[:k]
            keys, places, count = [keys[0][best]], [places[0][best]], k
            bound = float(keys[0].max(initial=-np.inf))
    everything, everyone = np.concatenate(keys), np.concatenate(places)
    order = np.argsort(everything)[:k]
    return everything[order], everyone[order]


def _blocks(clients: int) -> Iterator[slice]:
    for start in range(0, clients, BLOCK):
        yield slice(start, min(start + BLOCK, clients))


def _refuse(weights: Floats, start: int, whose: Callable[[int], str] | None) -> None:
    """Raise for the first weight that is not a finite number of at least 0, if there is one."""
    bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(bad):
        client = start + int(bad[0])
        who = whose(client) if whose else f"client {client}"
        weight = float(weights[bad[0]])
        raise SelectionError(f"{who} has weight {weight}: weights are finite and not below 0")
