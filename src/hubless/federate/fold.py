"""Folding updates together: where their params are read, and how they become the next version.

With a streaming reducer memory does not grow with the number of updates: what is held is one
part per read under way, and the totals of the part being folded. Others, such as the median, hold
a part of each update, and their parts are smaller the more updates there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubless.errors import NotFound, ParamsError, Refused, StoreError
from hubless.federate.keys import Posted, exactly
from hubless.params import Array, scaled
from hubless.signature import BLOCK_BYTES, Block, Signature
from hubless.store import codec
from hubless.store.reliable import Reliable
from hubless.strategy.base import Slots, Strategy

Flat = NDArray[np.uint8]

ABSURD = 1e6
"""Params whose root mean square over a block is beyond this have diverged."""
OUTWEIGH = 10.0
"""An update counts for at most this many times the median number of examples."""
HELD_BYTES = 64 << 20
_LARGEST_INTEGER = 2**53
"""Beyond it a sum in float64 is no longer exact, and no counter ever gets there."""
_ROW = 4096
_ALIGNED = 8
_FOLDING_THREADS = min(2, os.cpu_count() or 1)
_WORTH_THREADS = 4 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """What is read and folded at one time: a run of whole blocks, or a window of a single one."""

    blocks: tuple[Block, ...]
    first: int
    """Where the run begins among the signature's blocks."""
    whole: bool = True

    @property
    def start(self) -> int:
        return self.blocks[0].start

    @property
    def stop(self) -> int:
        return self.blocks[-1].stop


class Source(Protocol):
    """Params that can be read a part at a time.

    What comes back writeable is the caller's to use up; what is read-only is somebody else's.
    """

    def read(self, part: Part, into: memoryview | None = None) -> Flat:
        """The bytes of this part, as they were written."""
        ...

    def checked(self, part: Part, into: memoryview | None = None) -> Flat:
        """The same, and Refused where the values are not finite or absurd."""
        ...


@dataclass(frozen=True)
class Own:
    """The member's own params, in memory.

    Where they are `reusable`, a reduction adds the others to them in place, and nothing else has
    to be held. `renew` copies them from the model again where it has to start over.
    """

    signature: Signature
    flat: Flat
    renew: Callable[[], object]
    reusable: bool = False

    def read(self, part: Part, into: memoryview | None = None) -> Flat:
        """A view of this part."""
        view = self.flat[part.start : part.stop]
        view.flags.writeable = self.reusable
        return view

    def checked(self, part: Part, into: memoryview | None = None) -> Flat:
        """The same: own params were checked before they were shared."""
        return self.read(part)


class Stored:
    """A stored object: its header is held against the signature before any params are read.

    Everything that can be wrong with it raises Refused, naming the client it is from. `says` is
    what its metadata has to say, and `digest` the SHA-256 of its header, where that is known; so
    many bytes of params as `ahead` come along with the header, in one request. Of the metadata
    only `keep` stays in memory.
    """

    def __init__(
        self,
        store: Reliable,
        key: str,
        size: int,
        client: str,
        signature: Signature,
        says: Mapping[str, str] | None = None,
        limit: float = ABSURD,
        ahead: int = 0,
        digest: str = "",
        keep: Sequence[str] = (),
    ) -> None:
        self.store, self.key, self.size, self.client = store, key, size, client
        self.signature, self.limit = signature, limit
        self._body = size - signature.size
        if not 8 < self._body <= codec.header_limit(signature):
            raise self.refused(self._look())
        raw = store.read(key, 0, min(size, self._body + ahead))
        if digest and codec.fingerprint(raw[: self._body]) != digest:
            raise self.refused("its header is not the one that its key announces")
        try:
            metadata = codec.decode_header(raw[: self._body], signature)
        except ValueError as error:
            raise self.refused(str(error)) from None
        if any(metadata.get(name) != value for name, value in (says or {}).items()):
            raise self.refused("its header belongs to another object than its key")
        self._ahead = raw[self._body :]
        # thousands may be open at a time, and nothing else of a header is needed again
        self._digests = metadata["blocks"]
        self.kept = {name: metadata.get(name, "") for name in keep}

    def read(self, part: Part, into: memoryview | None = None) -> Flat:
        """These bytes, held against their digests; a window has none of its own."""
        if part.stop <= len(self._ahead):
            raw = self._ahead[part.start : part.stop].toreadonly()
        else:
            raw = self.store.read(self.key, self._body + part.start, self._body + part.stop, into)
        if part.whole:
            digests = codec.block_digests(self._digests, part.first, len(part.blocks))
            if broken := codec.broken_block(raw, part.start, part.blocks, digests):
                raise self.refused(
                    f"bytes {broken.start} to {broken.stop} of its params do not match their digest"
                )
        return np.frombuffer(raw, np.uint8)

    def checked(self, part: Part, into: memoryview | None = None) -> Flat:
        """The same, with finite values, and plausible ones over a whole block.

        A part of a block may go beyond what its mean may be. Whether an update is bad must not
        depend on how much of it somebody reads at a time.
        """
        flat = self.read(part, into)
        limit = self.limit if part.whole else math.inf
        for block in part.blocks:
            if trouble := implausible(self.signature, flat, part.start, block, limit):
                raise self.refused(trouble)
        return flat

    def verify(self, into: Flat | None = None) -> None:
        """Read everything once, and raise Refused for the first thing that is wrong."""
        everything = range(len(self.signature.blocks))
        for part in parts_of(self.signature, everything, self.store.request_bytes):
            flat = self.checked(part)
            if into is not None:
                into[part.start : part.stop] = flat

    def refused(self, reason: str) -> Refused:
        """What to raise where this object is not to be let in."""
        return Refused(self.client, self.key, reason)

    def _look(self) -> str:
        """What an object that cannot be what it should be is instead."""
        most = min(self.size, codec.header_limit(self.signature))
        raw = self.store.read(self.key, 0, most) if most else b""
        return codec.describe(raw, self.size, self.signature)


def open_update(
    store: Reliable,
    posted: Posted,
    signature: Signature,
    limit: float,
    ahead: int = 0,
    keep: Sequence[str] = (),
) -> Stored:
    """A listed update, checked as far as its header goes."""
    says = {
        "client": posted.client,
        "examples": str(posted.examples),
        "sequence": str(posted.sequence),
    }
    if posted.valuation is not None:
        says["valuation"] = exactly(posted.valuation)
    return Stored(
        store, posted.key, posted.size, posted.client, signature, says, limit, ahead, keep=keep
    )


def open_updates(
    store: Reliable, listed: Sequence[Posted], signature: Signature, limit: float, ahead: bool
) -> tuple[dict[str, Stored], list[StoreError | Refused]]:
    """Listed updates by key, each checked as far as its header goes; and what went wrong with some.

    One pass over all of them, whatever some are like. With `ahead`, small ones come whole with
    their header, as long as memory stays bounded.
    """
    room = HELD_BYTES // max(1, len(listed))
    whole = signature.size if ahead and signature.size <= min(store.request_bytes, room) else 0

    def opening(posted: Posted) -> Callable[[], Stored | StoreError | Refused]:
        def opened() -> Stored | StoreError | Refused:
            try:
                return open_update(store, posted, signature, limit, whole)
            except (NotFound, Refused) as trouble:
                return trouble
            except StoreError as error:
                return Refused(posted.client, posted.key, f"it cannot be read: {error}")

        return opened

    opened: dict[str, Stored] = {}
    troubles: list[StoreError | Refused] = []
    for result in store.ahead((opening(posted) for posted in listed), 2 * store.parallel):
        if isinstance(result, Stored):
            opened[result.key] = result
        else:
            troubles.append(result)
    return opened, troubles


def bad_ones(opened: Iterable[Stored]) -> list[StoreError | Refused]:
    """What is wrong with those updates that nobody can use, reading all of them whole."""
    troubles: list[StoreError | Refused] = []
    for stored in opened:
        try:
            stored.verify()
        except (StoreError, Refused) as trouble:
            troubles.append(trouble)
    return troubles


def capped(examples: Sequence[int], outweigh: float) -> list[int]:
    """Numbers of examples, none beyond so many times the median of those that have any.

    >>> capped([100, 120, 10**15 - 1], 10.0)
    [100, 120, 1200]
    """
    counts = [count for count in examples if count > 0]
    if not counts or math.isinf(outweigh):
        return list(examples)
    most = max(1, int(outweigh * median_low(counts)))
    return [min(count, most) for count in examples]


def reduce(
    signature: Signature,
    parts: Sequence[Part],
    sources: Sequence[Source],
    weights: Sequence[float],
    strategy: Strategy,
    store: Reliable,
    limit: float,
    finish: Callable[[Block, Array], None],
    current: Flat | None = None,
) -> None:
    """Fold parts over all sources, and hand `finish` each block's total.

    What the weights leave over of one is the current version's.

    A value that is not finite, or absurd, shows in a mean. So it is the mean that is checked, and
    only where it looks suspicious, each source; other reducers may hide it, and check all.

    Each block is folded in the order of the sources, so that the result is the same bytes
    wherever it is computed.
    """
    least = min((weight for weight in weights if weight > 0), default=1.0)
    everybody = list(zip(sources, weights, strict=True))
    some = [(source, weight) for source, weight in everybody if weight > 0]
    if strategy.partial and current is not None and (rest := 1.0 - sum(weights)) > 0:
        some.append((Own(signature, current, lambda: None), rest))
    folded = {
        real: (reducer, some if reducer.linear else everybody)
        for real in (True, False)
        if (reducer := strategy.reducer_for(real))
    }

    def jobs(part: Part, into: memoryview | None = None) -> Iterator[Callable[[], Flat]]:
        reducer, counted = folded[is_real(part.blocks[0])]
        for source, _ in counted:
            yield partial(source.read if reducer.streaming else source.checked, part, into)

    def fold(part: Part, arrived: Iterator[Flat]) -> None:
        reducer, counted = folded[is_real(part.blocks[0])]
        totals: list[object | None] = [None] * len(part.blocks)
        with np.errstate(over="ignore", invalid="ignore"):
            for source, weight in counted:
                flat = next(arrived)
                # the buffer of reads may be overwritten too, but the next read needs it back
                kept = isinstance(source, Own) and source.reusable
                reusable = flat.flags.writeable and (kept or source is not counted[0][0])
                for i, block in enumerate(part.blocks):
                    values = flat[block.start - part.start : block.stop - part.start]
                    totals[i] = reducer.add(totals[i], values.view(block.dtype), weight, reusable)
        for i, (block, total) in enumerate(zip(part.blocks, totals, strict=True)):
            reduced = reducer.finish(total)
            if reducer.streaming and is_beyond(np.asarray(reduced), limit * least / 2):
                for source, _ in counted:
                    source.checked(Part((block,), part.first + i, part.whole))
            finish(block, reduced)

    if store.parallel > 1:
        # far away: what counts is to have many reads under way
        everything = (job for part in parts for job in jobs(part))
        arrived = store.ahead(everything)
        for part in parts:
            fold(part, arrived)
        return

    # at hand: what counts is the arithmetic, and one buffer per thread serves all its reads
    largest = max(part.stop - part.start for part in parts)

    def fold_share(share: Sequence[Part]) -> None:
        into = memoryview(bytearray(largest))
        for part in share:
            fold(part, (job() for job in jobs(part, into)))

    threads = min(_FOLDING_THREADS, len(parts))
    if threads == 1 or sum(part.stop - part.start for part in parts) < _WORTH_THREADS:
        fold_share(parts)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="hubless-fold") as pool:
        for done in [pool.submit(fold_share, parts[i::threads]) for i in range(threads)]:
            done.result()


def foldable_parts(
    signature: Signature, blocks: range, strategy: Strategy, sources: int, most: int
) -> list[Part]:
    """How to cut a range of blocks so that folding so many sources takes bounded memory."""
    parts: list[Part] = []
    for real in (True, False):
        chosen = [i for i in blocks if is_real(signature.blocks[i]) == real]
        room = most
        if not strategy.reducer_for(real).streaming:
            room = min(most, HELD_BYTES // max(1, sources))
        if strategy.optimizer.slots:
            # its memory is kept by whole blocks
            room = max(room, BLOCK_BYTES)
        for run in runs(chosen):
            parts += parts_of(signature, run, room)
    return parts


def parts_of(signature: Signature, blocks: range, most: int) -> list[Part]:
    """A range of blocks in parts of at most so many bytes, smaller than a block if need be."""
    parts: list[Part] = []
    run: list[Block] = []
    first = blocks.start
    for i in blocks:
        block = signature.blocks[i]
        if run and block.stop - run[0].start > most:
            parts += _cut(tuple(run), first, most)
            run, first = [], i
        run.append(block)
    return [*parts, *_cut(tuple(run), first, most)]


def parts_within(
    signature: Signature, blocks: range, start: int, stop: int, *, whole: bool
) -> list[Part]:
    """The bytes of some blocks between `start` and `stop`, in parts: as `whole` blocks, or cut."""
    parts: list[Part] = []
    for i in blocks:
        block = signature.blocks[i]
        if block.start >= stop or start >= block.stop:
            continue
        first, last = block.start, block.stop
        if not whole:
            first += max(0, start - first) // _ALIGNED * _ALIGNED
            last = min(last, block.start + -((block.start - stop) // _ALIGNED) * _ALIGNED)
        is_whole = (first, last) == (block.start, block.stop)
        parts.append(Part((Block(first, last, block.dtype),), i, is_whole))
    return parts


def _cut(run: tuple[Block, ...], first: int, most: int) -> Iterator[Part]:
    block = run[0]
    room = max(_ROW, most // _ROW * _ROW)
    if len(run) > 1 or block.stop - block.start <= room:
        yield Part(run, first)
        return
    for start in range(block.start, block.stop, room):
        window = Block(start, min(start + room, block.stop), block.dtype)
        yield Part((window,), first, whole=False)


def runs(numbers: Sequence[int]) -> Iterator[range]:
    """Numbers in order as ranges without gaps."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield range(numbers[start], numbers[i - 1] + 1)
            start = i


class ServerState:
    """The version a member is at, and the optimizer's slots by the first byte of each block."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.step = 0
        self.current: Flat | None = None
        self.slots: dict[int, Slots] = {}

    def advance(self, block: Block, total: Array) -> tuple[NDArray[Any], Slots]:
        """One block's next values and slots, given what the updates were reduced to.

        Changes nothing: a reduction may fail half way and be started again.
        """
        current = None
        if self.strategy.optimizer.needs_current and self.current is not None:
            current = self.current[block.start : block.stop].view(block.dtype)
        following, slots = self.strategy.advance(
            current,
            total,
            np.empty(0, block.dtype),
            self.slots.get(block.start, ()),
            self.step,
        )
        return np.asarray(following), slots

    def arrive(self, version: Flat, slots: Mapping[int, Slots]) -> None:
        """Have taken a step to this version."""
        self.step += 1
        self.slots.update(slots)
        self.start_from(version)

    def start_from(self, version: Flat) -> None:
        """Be at this version, however it was come by."""
        if self.strategy.needs_current:
            # a copy, because the caller may go on to change its arrays in place
            self.current = version.copy()


def is_real(block: Block) -> bool:
    """Whether a block holds real numbers rather than counters or flags."""
    return block.dtype.kind in "fV"


def implausible(signature: Signature, flat: Flat, start: int, block: Block, limit: float) -> str:
    """What is wrong with a block's values, or nothing; `flat` begins at byte `start`.

    A finite sum of squares proves all values finite, so one fast pass mostly settles both
    questions; only where it is too large are they told apart.
    """
    values = flat[block.start - start : block.stop - start].view(block.dtype)
    if not is_beyond(values, limit):
        return ""
    names = ", ".join(signature.names_within(block.start, block.stop)[:3])
    if block.dtype.kind in "iu":
        return f"whole numbers in {names} are beyond {_LARGEST_INTEGER}"
    values = scaled(values, 1.0)
    if np.isfinite(values).all():
        return f"values in {names} are beyond {limit:g} in root mean square: training diverged"
    at = block.start + int(np.argmin(np.isfinite(values))) * block.dtype.itemsize
    name = signature.names_within(at, at + 1)[0]
    return f"parameter {name!r} holds NaN or infinity"


def is_beyond(values: NDArray[Any], limit: float) -> bool:
    """Whether the root mean square is over the limit, or no number at all."""
    if values.dtype.kind in "iu":
        if values.dtype.itemsize < 8 or not len(values):
            return False
        return bool(values.max() > _LARGEST_INTEGER or values.min() < -_LARGEST_INTEGER)
    if values.dtype.kind not in "fV":
        return False
    if values.dtype.itemsize < 4:
        values = scaled(values, 1.0)
    # in rows too short for BLAS to spread over threads, which costs more than it gains
    rows = values.reshape(-1, _ROW) if len(values) % _ROW == 0 else values[None]
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.vecdot(rows, rows).sum())
    return not (math.isfinite(squares) and squares <= limit * limit * len(values))


def check_own(signature: Signature, flat: Flat, limit: float) -> None:
    """Refuse to share params that every peer would refuse."""
    for block in signature.blocks:
        if trouble := implausible(signature, flat, 0, block, limit):
            raise ParamsError(
                f"nothing was shared: {trouble}. The model is untouched; lower the learning rate "
                "or clip gradients, and go on from an earlier version with federation.pull(model)"
            )
