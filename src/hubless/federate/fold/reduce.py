"""Folding sources together, a stretch at a time.

With a streaming reducer memory does not grow with the number of updates: what is held is one
stretch per read under way, and the totals of the stretch being folded. Others, such as the
median, hold a block of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from hubless.federate.fold.ahead import read_ahead
from hubless.federate.fold.source import HELD_BYTES, Flat, Own, Source, is_beyond
from hubless.params import Array
from hubless.signature import Block, Signature
from hubless.store.base import Store
from hubless.strategy.base import Reducer

_FOLDING_THREADS = min(2, os.cpu_count() or 1)
_WORTH_THREADS = 4 << 20


def reduce(
    signature: Signature,
    blocks: range,
    sources: Sequence[Source],
    weights: Sequence[float],
    reducer: Reducer,
    store: Store,
    limit: float,
    finish: Callable[[Block, Array], None],
) -> None:
    """Fold a range of blocks over all sources, and hand `finish` each block's total.

    A value that is not finite, or absurd, shows in a mean. So it is the mean that is checked, and
    only where it looks suspicious, each source; other reducers may hide it, and check all.

    Each block is folded in the order of the sources, so that the result is the same bytes
    wherever it is computed.
    """
    most = store.request_bytes
    if not reducer.streaming:
        most = min(most, HELD_BYTES // len(sources))
    parts = stretches(signature, blocks, most)
    least = min((weight for weight in weights if weight > 0), default=1.0)

    def jobs(part: range, into: memoryview | None = None) -> Iterator[Callable[[], Flat]]:
        for source in sources:
            yield partial(source.stretch if reducer.streaming else source.checked, part, into)

    def fold(part: range, arrived: Iterator[Flat]) -> None:
        chosen = [signature.blocks[i] for i in part]
        start = chosen[0].start
        totals: list[object | None] = [None] * len(chosen)
        with np.errstate(over="ignore", invalid="ignore"):
            for source, weight in zip(sources, weights, strict=True):
                flat = next(arrived)
                # the buffer of reads may be overwritten too, but the next read needs it back
                kept = isinstance(source, Own) and source.spendable
                spent = flat.flags.writeable and (kept or source is not sources[0])
                for i, block in enumerate(chosen):
                    values = flat[block.start - start : block.stop - start].view(block.dtype)
                    totals[i] = reducer.add(totals[i], values, weight, spent)
        for i, block, total in zip(part, chosen, totals, strict=True):
            reduced = reducer.finish(total)
            if reducer.streaming and is_beyond(np.asarray(reduced), limit * least / 2):
                for source in sources:
                    source.checked(range(i, i + 1))
            finish(block, reduced)

    if store.parallel > 1:
        # far away: what counts is to have many reads under way
        everything = (job for part in parts for job in jobs(part))
        arrived = read_ahead(everything, store.parallel, store.parallel + 1)
        for part in parts:
            fold(part, arrived)
        return

    # at hand: what counts is the arithmetic, and one buffer per thread serves all its reads
    largest = max(_bytes(signature, part) for part in parts)

    def fold_share(share: list[range]) -> None:
        into = memoryview(bytearray(largest))
        for part in share:
            fold(part, (job() for job in jobs(part, into)))

    threads = min(_FOLDING_THREADS, len(parts))
    if threads == 1 or _bytes(signature, blocks) < _WORTH_THREADS:
        fold_share(parts)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="hubless-fold") as pool:
        for done in [pool.submit(fold_share, parts[i::threads]) for i in range(threads)]:
            done.result()


def stretches(signature: Signature, blocks: range, most: int) -> list[range]:
    """Cut a range of blocks into stretches of at most so many bytes, or of single blocks."""
    cuts: list[range] = []
    first = blocks.start
    for i in blocks:
        if i > first and _bytes(signature, range(first, i + 1)) > most:
            cuts.append(range(first, i))
            first = i
    return [*cuts, range(first, blocks.stop)]


def _bytes(signature: Signature, blocks: range) -> int:
    return signature.blocks[blocks[-1]].stop - signature.blocks[blocks[0]].start
