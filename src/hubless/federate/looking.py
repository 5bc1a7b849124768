"""Looking at whole updates, a part at a time: what a strategy has to see before it weighs them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from hubless.federate.fold import HELD_BYTES, Flat, Part, Source, is_real, parts_of, runs
from hubless.params import PRODUCT_COLUMNS, Array
from hubless.signature import Block, Signature
from hubless.store.reliable import Reliable
from hubless.strategy.base import Strategy
from hubless.strategy.look import Column, Look, Looking

STEP = 8 * PRODUCT_COLUMNS
"""Bytes that are added up at a time, however many are read at once: so all come to the same."""
Step: TypeAlias = tuple[int, Block]
"""A stretch of a block that is added up at a time, and the number of that block."""


def look(
    signature: Signature,
    sources: Sequence[Source],
    strategy: Strategy,
    store: Reliable,
    current: Flat | None,
) -> Column:
    """What a strategy asks for, in one pass over all updates, as exactly as one member needs it."""
    looking = Looking(strategy.look, len(sources))
    real = runs([i for i, block in enumerate(signature.blocks) if is_real(block)])
    most = _room(strategy.look, len(sources), store)
    parts = [part for run in real for part in parts_of(signature, run, most)]
    pieces = [[(0, block) for block in part.blocks] for part in parts]
    _pass(parts, pieces, sources, [looking], store, current)
    return looking.products


def looks(
    signature: Signature,
    units: Sequence[Sequence[Step]],
    sources: Sequence[Source],
    look: Look,
    store: Reliable,
    current: Flat | None,
) -> Column:
    """The same for each of these units of an update, to the bit wherever it is worked out."""
    lookings = [Looking(look, len(sources), exact=True) for _ in units]
    most = _room(look, len(sources), store)
    parts: list[Part] = []
    pieces: list[list[tuple[int, Block]]] = []
    every = ((index, unit, step) for unit, steps in enumerate(units) for index, step in steps)
    for index, group in itertools.groupby(every, lambda each: each[0]):
        some = [(unit, step) for _, unit, step in group]
        block = Block(some[0][1].start, some[-1][1].stop, some[0][1].dtype)
        size = block.stop - block.start
        last = parts[-1] if parts and parts[-1].whole else None
        if block != signature.blocks[index] or size > most:
            for at in range(0, len(some), most // STEP):
                run = some[at : at + most // STEP]
                window = Block(run[0][1].start, run[-1][1].stop, block.dtype)
                parts.append(Part((window,), index, whole=False))
                pieces.append(run)
        elif last and last.stop == block.start and block.stop - last.start <= most:
            # far away, what counts is how much comes at a time
            parts[-1] = Part((*last.blocks, block), last.first)
            pieces[-1] += some
        else:
            parts.append(Part((block,), index))
            pieces.append(some)
    _pass(parts, pieces, sources, lookings, store, current)
    return np.stack([looking.products for looking in lookings])


def steps_of(signature: Signature, blocks: Iterable[int]) -> list[Step]:
    """The real numbers in some blocks in steps, each with the number of its block."""
    return [
        (i, Block(start, min(start + STEP, block.stop), block.dtype))
        for i in blocks
        if is_real(block := signature.blocks[i])
        for start in range(block.start, block.stop, STEP)
    ]


def count_steps(signature: Signature, blocks: Iterable[int]) -> int:
    """How many steps these blocks have."""
    real = (block for i in blocks if is_real(block := signature.blocks[i]))
    return sum(-(-(block.stop - block.start) // STEP) for block in real)


def _room(look: Look, sources: int, store: Reliable) -> int:
    """How many bytes of an update are read at once; where all are compared, all are held."""
    held = store.request_bytes if look == "norms" else HELD_BYTES // sources
    return max(STEP, min(store.request_bytes, held) // STEP * STEP)


def _pass(
    parts: Sequence[Part],
    pieces: Sequence[Sequence[tuple[int, Block]]],
    sources: Sequence[Source],
    lookings: Sequence[Looking],
    store: Reliable,
    current: Flat | None,
) -> None:
    """Read parts of all sources, and add each piece of them up where it belongs."""
    arrived = store.ahead(partial(source.checked, part) for part in parts for source in sources)

    def values(flat: Flat, first: int, block: Block) -> Array:
        return flat[block.start - first : block.stop - first].view(block.dtype)

    def origin(block: Block) -> Array | None:
        return None if current is None else values(current, 0, block)

    alone = lookings[0].look == "norms"
    for part, some in zip(parts, pieces, strict=True):
        if alone:
            for number in range(len(sources)):
                flat = next(arrived)
                for at, block in some:
                    lookings[at].add(number, values(flat, part.start, block), origin(block))
        else:
            flats = [next(arrived) for _ in sources]
            for at, block in some:
                seen = [values(flat, part.start, block) for flat in flats]
                lookings[at].add_all(seen, origin(block))
