"""Who trains where and when: a cohort's local steps laid out on lanes.

Every tick, each lane takes one batch of its current client. Clients are dealt longest first onto
the lane that is free first, so unequal clients cost little idling.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless import rng
from hubless.data.population import Population
from hubless.train.recipe import Recipe

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_OVERHEAD = 8
"""What a tick costs besides its lanes, in lanes."""
_FIXED = 16
"""What a lane costs besides the examples of its batch, in examples."""
_NARROWEST = 8
CHUNK = 64
"""Where a step takes all of a client's examples, its gradient is summed over so many at a time."""


@dataclass(frozen=True)
class Schedule:
    """Arrays over ticks x lanes; rows and shares also over the examples of a batch."""

    rows: Ints
    """Which example; where its share is 0 it only fills the batch up."""
    shares: Floats
    """What each example's loss counts for in its step: 1 / the step's examples."""
    step: Floats
    """The number of the client's step, from 1, where this tick completes it; else 0."""
    client: Ints
    """The position in the cohort of who is on the lane, or -1 where it idles."""
    begins: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    @property
    def ticks(self) -> int:
        return len(self.rows)

    @property
    def busy(self) -> float:
        """The share of lane ticks on which somebody trains."""
        return float((self.client >= 0).mean()) if self.client.size else 1.0

    def widths(self, *, coarse: bool = False) -> Ints:
        """How much of its batches each tick takes: what is filled, of a few widths to choose from.

        One that a single tick would have is not among them.
        """
        filled = np.asarray((self.shares > 0).sum(2).max(1, initial=0))
        taken = width_for(filled, self.rows.shape[2], coarse=coarse)
        different, times = np.unique(taken, return_counts=True)
        kept = different[(times > 1) | (different == taken.max(initial=0))]
        return np.asarray(kept[np.searchsorted(kept, taken)])

    def padded(self, multiple: int) -> Schedule:
        """The same, with ticks at the end on which all lanes idle, up to a multiple."""
        more = -self.ticks % multiple

        def pad(array: NDArray[Any], value: float = 0) -> NDArray[Any]:
            filling = np.full((more, *array.shape[1:]), value, array.dtype)
            return np.concatenate([array, filling])

        return Schedule(
            pad(self.rows),
            pad(self.shares),
            pad(self.step),
            pad(self.client, -1),
            pad(self.begins),
            pad(self.ends),
        )

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Runs of ticks within which no client begins after the first nor ends before the last."""
        if not self.ticks:
            return
        begins, ends = np.asarray(self.begins.any(1)), np.asarray(self.ends.any(1))
        cuts = np.flatnonzero(begins[1:] | ends[:-1]) + 1
        edges = [0, *cuts.tolist(), self.ticks]
        yield from itertools.pairwise(edges)


def lay_out(
    population: Population,
    clients: Ints,
    recipe: Recipe,
    lanes: int,
    seed: int,
    round: int,
    *,
    gathered: bool = False,
) -> Schedule:
    """The schedule of these clients' training, on so many lanes.

    How a client's examples are shuffled depends on the seed, the round and the client alone. Rows
    are the population's, or those of these clients' examples alone where they were `gathered`.
    """
    begun = population.offsets[clients]
    sizes = population.offsets[clients + 1] - begun
    there, examples = population.rows, population.examples
    if gathered:
        begun, there, examples = np.cumsum(sizes) - sizes, None, int(sizes.sum())
    steps = recipe.steps_for(sizes)
    per_epoch = np.ones_like(sizes) if recipe.batch is None else -(-sizes // recipe.batch)
    most = sizes.max(initial=1, keepdims=True)
    width = int(width_for(most, CHUNK)[0]) if recipe.batch is None else recipe.batch
    per_step = -(-sizes // width) if recipe.batch is None else np.ones_like(sizes)
    length = steps * per_step
    lane, begin = deal(length, lanes, sizes)
    ticks = int((begin + length).max(initial=0))

    client, step = np.full((ticks, lanes), -1), np.zeros((ticks, lanes), np.float32)
    owner = np.repeat(np.arange(len(sizes)), length)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
    at, on = begin[owner] + within, lane[owner]
    client[at, on] = owner
    number, part = np.divmod(within, np.maximum(per_step[owner], 1))
    step[at, on] = np.where(part == per_step[owner] - 1, number + 1, 0)
    begins, ends = np.zeros((ticks, lanes), bool), np.zeros((ticks, lanes), bool)
    some = length > 0
    begins[begin[some], lane[some]] = True
    ends[(begin + length - 1)[some], lane[some]] = True

    # one entry per client, epoch and example, shuffled within its client and epoch
    epochs = np.where(sizes > 0, -(-steps // np.maximum(per_epoch, 1)), 0)
    owner = np.repeat(np.arange(len(sizes)), epochs)
    epoch = np.arange(len(owner)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    pair = np.repeat(np.arange(len(owner)), sizes[owner])
    place = np.arange(len(pair)) - np.repeat(np.cumsum(sizes[owner]) - sizes[owner], sizes[owner])
    who = owner[pair]
    example = place
    if recipe.shuffle:
        drawn = rng.keys(seed, "shuffle", round, clients[owner], epoch)
        drawn = rng.further(drawn[pair], place)
        order = np.argsort((pair.astype(np.uint64) << np.uint64(40)) | (drawn >> np.uint64(24)))
        example = place[order]
    batch = sizes[who] if recipe.batch is None else recipe.batch
    inner, slot = np.divmod(place, width)
    number = epoch[pair] * per_epoch[who] + (0 if recipe.batch is None else inner)
    kept = number < steps[who]
    at = begin[who] + number * per_step[who] + (inner if recipe.batch is None else 0)
    share = 1.0 / np.minimum(batch, sizes[who] - (place // batch) * batch)
    # what fills a batch up must be the client's own: another's may not even be finite
    own = np.minimum(begun[client], examples - 1)
    own = own if there is None else there[own]
    rows = np.repeat(own[:, :, None], width, 2)
    shares = np.zeros((ticks, lanes, width), np.float32)
    spot = (at[kept], lane[who[kept]], slot[kept])
    chosen = (begun[who] + example)[kept]
    rows[spot] = chosen if there is None else there[chosen]
    shares[spot] = share[kept]
    return Schedule(rows, shares, step, client, begins, ends)


def deal(length: Ints, lanes: int, sizes: Ints | None = None) -> tuple[Ints, Ints]:
    """The lane and the first tick of each client, longest first onto the lane free first.

    Of those that are equally long the larger go first, so that the batches of a tick are alike.

    >>> lane, begin = deal(np.array([1, 4, 2, 2]), lanes=2)
    >>> lane.tolist(), begin.tolist()
    ([0, 0, 1, 1], [4, 0, 0, 2])
    """
    lane, begin = np.zeros_like(length), np.zeros_like(length)
    if len(length) == 0:
        return lane, begin
    if lanes == 1:
        return lane, np.cumsum(length) - length
    order = np.lexsort((-length if sizes is None else -sizes, -length))
    if length.min() == length.max():
        turn = np.empty_like(length)
        turn[order] = np.arange(len(length))
        return turn % lanes, turn // lanes * length
    free: list[tuple[int, int]] = [(0, i) for i in range(lanes)]
    for client in order.tolist():
        when, where = heapq.heappop(free)
        lane[client], begin[client] = where, when
        heapq.heappush(free, (when + int(length[client]), where))
    return lane, begin


def ticks_of(sizes: Ints, recipe: Recipe) -> Ints:
    """How many ticks clients with so many examples take."""
    chunks = -(-sizes // CHUNK) if recipe.batch is None else 1
    return np.asarray(recipe.steps_for(sizes) * chunks)


class Costs:
    """What it costs to run clients, longest and largest first, in lane ticks of full batches.

    `full` where every batch is filled up to the last example.
    """

    def __init__(
        self, sizes: Ints, recipe: Recipe, *, coarse: bool = False, full: bool = False
    ) -> None:
        length, most = ticks_of(sizes, recipe), recipe.batch or CHUNK
        self.order = np.lexsort((-sizes, -length))
        self.falling = length[self.order]
        filled = np.full(len(sizes), most) if full else np.minimum(sizes[self.order], most)
        wide = width_for(filled, most, coarse=coarse)
        widths = np.unique(wide)[::-1]
        self.alike = not len(sizes) or (len(widths) == 1 and self.falling[0] == self.falling[-1])
        self._before = np.concatenate([[0], np.cumsum(self.falling)]).tolist()
        # what a lane's tick costs of each width, and how many clients are at least so wide
        self.kinds = [
            ((_FIXED + width) / (_FIXED + most), int(np.searchsorted(-wide, -width, "right")))
            for width in widths.tolist()
        ]

    def of(self, lanes: int, start: int = 0, stop: int | None = None) -> float:
        """Those from one to another, on so many lanes."""
        paid, ticks, before = 0.0, 0, self._before
        for price, end in self.kinds:
            if (end := min(end, len(self.order) if stop is None else stop)) > start:
                until = max(int(self.falling[start]), -(-(before[end] - before[start]) // lanes))
                paid, ticks = paid + (until - ticks) * (_OVERHEAD + lanes * price), until
        return paid


def cost_in_one(sizes: Ints, recipe: Recipe) -> float:
    """What it costs, in the same terms, to look at all these clients' examples once."""
    return float(_OVERHEAD + sizes.sum() / (_FIXED + (recipe.batch or CHUNK)))


def tiers(
    sizes: Ints, recipe: Recipe, lanes: int, *, coarse: bool = False
) -> tuple[list[tuple[int, Ints]], float]:
    """Groups of clients, with the lanes that each is run on, and what that costs.

    Everybody, or a few on few lanes first. All lanes tick until the longest client is done, and all
    batches of a tick are as wide as the fullest. Where a few clients take far more steps than the
    others, or fill batches that the others do not, it costs less to run those few apart. Every
    number of lanes and every width has a program of its own: `coarse` makes do with fewer, where
    those are dear.

    >>> sizes = np.array([9] * 100 + [999])
    >>> groups, _ = tiers(sizes, Recipe(batch=32), 16)
    >>> [(count, len(clients)) for count, clients in groups]
    [(2, 32), (16, 69)]
    """
    costs, whole = Costs(sizes, recipe, coarse=coarse), len(sizes)
    together = costs.of(lanes)
    best, few, first = together, lanes, whole
    if not costs.alike:
        for number in _fewer(lanes, coarse=coarse):
            for end in [number << i for i in range(8)] + [end for _, end in costs.kinds]:
                if end < whole:
                    taken = costs.of(number, 0, end) + costs.of(lanes, end)
                    if taken < min(best, 0.85 * together):
                        best, few, first = taken, number, end
    if first == whole:
        return [(lanes, np.arange(whole))], best
    return [(few, np.sort(costs.order[:first])), (lanes, np.sort(costs.order[first:]))], best


def programs(batch: int, lanes: int) -> list[tuple[int, int]]:
    """Lanes and widths of all programs that `coarse` tiers may take.

    >>> programs(batch=64, lanes=64)
    [(8, 8), (8, 32), (8, 64), (64, 8), (64, 32), (64, 64)]
    """
    widths = np.unique(width_for(np.arange(1, batch + 1), batch, coarse=True)).tolist()
    counts = [*sorted(_fewer(lanes, coarse=True)), lanes]
    return [(count, width) for count in counts for width in widths]


def _fewer(lanes: int, *, coarse: bool) -> set[int]:
    """On how many lanes a few clients may be run apart from the others."""
    counts = {max(lanes // part, 2) for part in ((8,) if coarse else (8, 32))}
    return {count for count in counts if count < lanes}


def width_for(filled: Ints, most: int, *, coarse: bool = False) -> Ints:
    """The least of a few widths that holds so many examples: every width is a program of its own.

    >>> width_for(np.array([1, 9, 30]), most=20)
    array([ 8, 16, 20])
    >>> width_for(np.array([1, 9, 40]), most=64, coarse=True)
    array([ 8, 32, 64])
    """
    apart = 4.0 if coarse else 2.0
    times = np.ceil(np.log2(np.maximum(filled, _NARROWEST) / _NARROWEST) / np.log2(apart))
    return np.asarray(np.minimum(_NARROWEST * apart**times, most).astype(np.int64))
