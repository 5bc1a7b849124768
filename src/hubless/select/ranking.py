"""Clients ranked by valuation, for Active: the worst dropped, the others ready to be drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import SelectionError
from hubless.select.roster import Floats, Ints, Mask, Roster
from hubless.select.sampling import Part, Table

# valuations are gone through in blocks that stay in the processor's cache
_BLOCK = 1 << 16
# exp of less is lost beside the largest weight, which is 1
_FAINT = -700.0
# of weights down to this, any number is drawn before one that is lost
_SAFE = -600.0
# two Gumbel variates of float64 are never this far apart
_APART = 50.0

Numbers = NDArray[np.signedinteger[Any]]
_NOBODY: Numbers = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Who survives, by their number among `clients` who can be picked.

    `here` are these clients' places in the roster, None where that is everybody. `above` survive
    for certain, None where all do; of those `tied` at the edge `room` do. `table` has the weights
    of those above, then one entry for each place there is room for, and `values` what they are
    worth; `safe` is how many may be drawn from it before lost weights would matter.
    """

    clients: int
    here: Ints | None
    above: Numbers | None
    tied: Numbers
    room: int
    values: Floats
    alpha2: float
    table: Table
    safe: int

    def draw(self, k: int, rng: np.random.Generator) -> Ints:
        """`k` survivors, or all of them if fewer, one after the other by weight."""
        k = min(k, len(self.values))
        if k <= self.safe:
            places = self.table.draw(k, rng)
        else:
            places = hottest(self.values, self.alpha2, k, rng)
        if self.above is None:
            return places
        certain = places < len(self.above)
        level = rng.choice(len(self.tied), k - int(certain.sum()), replace=False, shuffle=False)
        both = np.concatenate([self.above[places[certain]], self.tied[level]])
        return both.astype(np.int64, copy=False)

    def others(self, k: int, taken: Ints, rng: np.random.Generator) -> Ints:
        """`k` of those who can be picked and are not taken, uniformly."""
        rank = rng.choice(self.clients - len(taken), k, replace=False, shuffle=False)
        # the number of a client is its rank among the free ones, and how many taken come before
        free_before = np.sort(taken) - np.arange(len(taken))
        return np.asarray(rank + np.searchsorted(free_before, rank, side="right"), np.int64)

    def places(self, numbers: Ints) -> Ints:
        """Where in the roster these clients are."""
        return numbers if self.here is None else self.here[numbers]

    def shares(self, alpha3: float, clients: int) -> Floats:
        """Everybody's share of single draws, of which alpha3 are uniform."""
        shares = np.zeros(clients)
        if not self.clients:
            return shares
        numbers: Ints | slice = slice(None) if self.here is None else self.here
        if not len(self.values):
            shares[numbers] = 1.0 / self.clients
            return shares
        own = np.full(self.clients, alpha3 / self.clients)
        weights = self.table.weigh(slice(0, len(self.values))) * ((1 - alpha3) / self.table.total)
        if self.above is None:
            own += weights
        else:
            own[self.above] += weights[: len(self.above)]
            if self.room:
                own[self.tied] += weights[len(self.above) :].sum() / len(self.tied)
        shares[numbers] = own
        return shares


def ranked(
    valuations: Floats, here: Ints | None, alpha1: float, alpha2: float, unseen: str | float
) -> Ranking:
    """Rank those who can be picked, whose valuations these are.

    >>> ranking = ranked(np.array([5.0, 1.0, np.nan, 2.0]), None, 0.5, 0.01, "highest")
    >>> ranking.above, ranking.tied, ranking.room
    (array([0, 2], dtype=int32), array([], dtype=int32), 0)
    """
    clients = len(valuations)
    low, high, unknown = _extremes(valuations)
    if math.isinf(low) or math.isinf(high):
        bad = int(np.argmax(np.isinf(valuations)))
        named = bad if here is None else int(here[bad])
        raise SelectionError(
            f"client {named}'s valuation is {valuations[bad]}: it has to be a finite number"
        )
    worth = _worth(valuations, low, high, unseen) if unknown else low
    if unknown == clients:
        low = high = worth
    low, high = min(low, worth), max(high, worth)
    # 0.29 of 100 is 29, although in floating point it is a little less
    drop = math.floor(round(alpha1 * clients, 6))
    if drop:
        kept = _survivors(valuations, drop, unknown, worth)
        if unknown:
            kept.values[np.isnan(kept.values)] = worth
    else:
        values = np.where(np.isnan(valuations), worth, valuations) if unknown else valuations
        kept = _Survivors(None, _NOBODY, 0, values, low)
    values = kept.values
    table = Table.by(partial(_weights, values, alpha2, high), len(values))
    safe = len(values)
    if len(values) and _exponents(np.array([kept.edge]), alpha2, high)[0] < _FAINT:
        safe = int(np.count_nonzero(_exponents(values, alpha2, high) > _SAFE))
    return Ranking(clients, here, kept.above, kept.tied, kept.room, values, alpha2, table, safe)


def those_with_examples(roster: Roster) -> Ints | None:
    """The places of clients that have something to train on; None where all do."""

    def find() -> Ints | None:
        examples = roster.examples
        everybody = not len(examples) or examples.min() > 0
        return None if everybody else np.flatnonzero(examples > 0)

    return roster.derive("those with examples", ("examples",), find)


def hottest(values: Floats, alpha2: float, k: int, rng: np.random.Generator) -> Ints:
    """`k` different ones, drawn one after the other by exp(alpha2 value), however small that is.

    Each value times alpha2 plus a Gumbel variate is a key, and the largest keys win (Vieira 2014).
    From the largest value down, whoever is further below the last than variates can be apart comes
    later for certain: only within one such group are keys compared, as differences within it.

    >>> hottest(np.array([-1e300, 3.0, 1e300, 2.0]), 1e6, 3, np.random.default_rng(0))
    array([2, 1, 3])
    """
    order = np.argsort(-values, kind="stable")
    falling = values[order]
    with np.errstate(over="ignore"):
        gaps = 2 * alpha2 * -np.diff(falling / 2)
    ends = np.append(np.flatnonzero(gaps > _APART) + 1, len(falling))
    group = int(np.searchsorted(ends, k))
    begin = int(ends[group - 1]) if group else 0
    within = falling[begin : ends[group]]
    keys = alpha2 * (within - within[:1]) + rng.gumbel(size=len(within))
    best = np.argsort(-keys)[: k - begin]
    return np.concatenate([order[:begin], order[begin + best]])


@dataclass(frozen=True, eq=False)
class _Survivors:
    """As in Ranking, and the least that a survivor is worth."""

    above: Numbers | None
    tied: Numbers
    room: int
    values: Floats
    edge: float


def _survivors(valuations: Floats, drop: int, unseen: int, worth: float) -> _Survivors:
    """All but the `drop` least valuable, where so many are NaN and count as `worth`."""
    kept = len(valuations) - drop
    if not kept:
        return _Survivors(_NOBODY, _NOBODY, 0, np.empty(0), worth)
    rank, edge = kept, None
    if unseen:
        edge = _around(worth, valuations)
        if kept > edge.above + edge.level + unseen:
            rank = kept - unseen
    if edge is None or not edge.above < kept <= edge.above + edge.level + unseen:
        edge = _edge(valuations, len(valuations) - unseen, rank)
    value = edge.value
    more = unseen if worth > value else 0
    level = edge.level + (unseen if worth == value else 0)
    room = kept - edge.above - more
    if room == level:
        # nobody has to make room: whoever reaches the edge survives
        test = _not_below(value) if unseen and worth >= value else _at_least(value)
        above, values = _passing(valuations, test, kept, True)
        return _Survivors(above, _NOBODY, 0, values, value)
    above, values = _passing(
        valuations, _not_up_to(value) if more else _above(value), kept - room, True
    )
    tied, _ = _passing(valuations, _at(value, worth == value), level, False)
    return _Survivors(above, tied, room, np.concatenate([values, np.full(room, value)]), value)


@dataclass(frozen=True)
class _Edge:
    """A valuation, how many known ones are above it, and how many the same."""

    value: float
    above: int
    level: int


def _edge(valuations: Floats, givers: int, rank: int) -> _Edge:
    """The `rank`-th largest of those that are known.

    A sample tells between which two values it is, and only those in between are looked at closely.
    Where the sample misleads, counts show it, and all of them are.
    """
    low, high = _bracket(valuations, givers, rank)
    if low == high:
        # so many are the same that a sample shows one value
        edge = _around(low, valuations)
        if edge.above < rank <= edge.above + edge.level:
            return edge
    over, between = 0, [np.empty(0)]
    for part in _blocks(len(valuations)):
        block = valuations[part]
        at_least = block >= high
        over += int(np.count_nonzero(at_least))
        # above the one and not as high as the other, which may be the same
        between.append(block[np.flatnonzero((block > low) > at_least)])
    middle = np.concatenate(between)
    if over < rank <= over + len(middle):
        value = float(np.partition(middle, len(middle) - rank + over)[len(middle) - rank + over])
        above = over + int(np.count_nonzero(middle > value))
        return _Edge(value, above, int(np.count_nonzero(middle == value)))
    for value in (high, low):
        edge = _around(value, valuations)
        if edge.above < rank <= edge.above + edge.level:
            return edge
    everything = valuations[~np.isnan(valuations)]
    return _around(float(np.partition(everything, givers - rank)[givers - rank]), valuations)


def _around(value: float, valuations: Floats) -> _Edge:
    above, level = 0, 0
    for part in _blocks(len(valuations)):
        block = valuations[part]
        above += int(np.count_nonzero(block > value))
        level += int(np.count_nonzero(block == value))
    return _Edge(value, above, level)


def _bracket(valuations: Floats, givers: int, rank: int) -> tuple[float, float]:
    few = valuations[:: max(1, len(valuations) >> 15)]
    few = np.sort(few[~np.isnan(few)])
    share = 1 - rank / givers
    middle = share * len(few)
    # five standard deviations of a sample's rank
    spread = 5 * math.sqrt(len(few) * share * (1 - share)) + 2
    first, last = math.floor(middle - spread), math.ceil(middle + spread)
    low = float(few[first]) if first >= 0 else -np.inf
    return low, float(few[last]) if last < len(few) else np.inf


Test = Callable[[Floats], Mask]


def _above(value: float) -> Test:
    return lambda block: block > value


def _at_least(value: float) -> Test:
    return lambda block: block >= value


def _not_up_to(value: float) -> Test:
    """Above, or NaN."""
    return lambda block: ~(block <= value)


def _not_below(value: float) -> Test:
    """At least, or NaN."""
    return lambda block: ~(block < value)


def _at(value: float, unseen_too: bool) -> Test:
    if unseen_too:
        return lambda block: (block == value) | np.isnan(block)
    return lambda block: block == value


def _passing(valuations: Floats, test: Test, count: int, valued: bool) -> tuple[Numbers, Floats]:
    """The numbers of the `count` who pass a test, and where asked for their valuations."""
    small = len(valuations) < 1 << 31
    numbers: Numbers = np.empty(count, np.int32 if small else np.int64)
    values, done = np.empty(count if valued else 0), 0
    for part in _blocks(len(valuations)):
        block = valuations[part]
        places = np.flatnonzero(test(block))
        here = slice(done, done + len(places))
        np.add(places, part.start, out=numbers[here], casting="same_kind")
        if valued:
            # a mode other than to raise writes straight into place
            block.take(places, out=values[here], mode="clip")
        done += len(places)
    return numbers, values


def _extremes(valuations: Floats) -> tuple[float, float, int]:
    """The smallest and the largest known, and how many are not; 0 of nobody."""
    low, high, unseen = np.inf, -np.inf, 0
    for part in _blocks(len(valuations)):
        block = valuations[part]
        least = float(block.min())
        if math.isnan(least):
            unseen += int(np.count_nonzero(np.isnan(block)))
            low = float(np.fmin.reduce(block, initial=low))
            high = float(np.fmax.reduce(block, initial=high))
        else:
            low, high = min(low, least), max(high, float(block.max()))
    return (low, high, unseen) if low <= high else (0.0, 0.0, unseen)


def _worth(valuations: Floats, low: float, high: float, unseen: str | float) -> float:
    """What somebody counts as who never gave a valuation; 0 where nobody did."""
    if not isinstance(unseen, str):
        return float(unseen)
    largest = max(-low, high)
    if unseen != "mean" or largest == 0:
        return low if unseen == "lowest" else high
    total, givers = 0.0, 0
    for part in _blocks(len(valuations)):
        # scaled: the sum of large ones may be more than a float holds
        total += float(np.nansum(valuations[part] / largest))
        givers += int(np.count_nonzero(~np.isnan(valuations[part])))
    return total / givers * largest


def _weights(values: Floats, alpha2: float, high: float, part: Part) -> Floats:
    exponents = _exponents(values[part], alpha2, high)
    return np.exp(exponents, out=exponents)


def _exponents(values: Floats, alpha2: float, high: float) -> Floats:
    """alpha2 (value - high): by halves, since a difference may be more than a float holds."""
    halves = values * 0.5
    halves -= high * 0.5
    with np.errstate(over="ignore"):
        halves *= 2 * alpha2
    return halves


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))
