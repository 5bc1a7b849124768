"""Slices: the result of a synchronous round in parts, each with the optimizer's memory of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import Refused
from hubless.federate.fold.reduce import stretches
from hubless.federate.fold.source import Flat, Stored, implausible
from hubless.federate.keys import ROUNDS
from hubless.federate.rounds.plan import Plans, Result, Superseded, Work, parse_rounds
from hubless.params import Array, scaled
from hubless.signature import Block, Signature
from hubless.store import codec
from hubless.store.base import Bytes, Entry, Store
from hubless.strategy.base import Slots


def extent(signature: Signature, blocks: range) -> tuple[int, int]:
    """The first and last byte of a range of blocks."""
    return signature.blocks[blocks[0]].start, signature.blocks[blocks[-1]].stop


def encode_slice(
    signature: Signature,
    blocks: range,
    values: Flat,
    slots: Mapping[int, Slots],
    names: tuple[str, ...],
    metadata: Mapping[str, str],
) -> list[Bytes]:
    """A slice as an object: its params, then each slot of its floating blocks."""
    shape = slice_signature(signature, blocks, names)
    flat = np.empty(shape.size, np.uint8)
    parts = shape.unpack(flat)
    parts["params"][...] = values
    for i, name in enumerate(names):
        if held := [slots[b.start][i] for b in _floating(signature, blocks)]:
            # as bytes, because numpy would bring those of different dtypes to one
            parts[f"slot-{name}"][...] = np.concatenate([_bytes(h) for h in held])
    return codec.encode(shape, flat, metadata)


def read_slice(
    store: Store, work: Work, index: int, entry: Entry, names: tuple[str, ...], limit: float
) -> None:
    """Read one slice of a round's result into its place, checked like an update."""
    signature, blocks = work.signature, work.cuts[index]
    shape = slice_signature(signature, blocks, names)
    owner = work.plan.posted()[index].client
    start, stop = extent(signature, blocks)
    out = work.out[start:stop]
    # params come first, and what the optimizer remembers after them is not needed here
    reaching = sum(block.start < len(out) for block in shape.blocks)
    ahead = min(shape.blocks[reaching - 1].stop, store.request_bytes)
    says = work.says(index)
    stored = Stored(store, entry.key, entry.size, owner, shape, says, ahead=ahead)
    for part in stretches(shape, range(reaching), store.request_bytes):
        first = shape.blocks[part[0]].start
        raw = stored.stretch(part)
        out[first : first + len(raw)] = raw[: len(out) - first]
    for i in blocks:
        if trouble := implausible(signature, work.out, 0, signature.blocks[i], limit):
            raise Refused(owner, entry.key, trouble)


def newest_result(
    store: Store, signature: Signature, names: tuple[str, ...], limit: float
) -> tuple[int, Result] | None:
    """The newest round whose slices are all there, without taking part in it."""
    rounds = parse_rounds(store.list(ROUNDS))
    plans = Plans(store)
    for number in sorted(rounds, reverse=True):
        try:
            plan = plans.newest(number, rounds)
        except Superseded:
            continue
        if plan is None:
            continue
        work = Work(signature, number, plan)
        there = rounds[number].slices.get(plan.attempt, {})
        if not all(index in there for index in range(len(work.cuts))):
            continue
        for index in range(len(work.cuts)):
            read_slice(store, work, index, there[index], names, limit)
        return number, Result(work.out, plan)
    return None


def read_slots(
    stored: Stored, signature: Signature, blocks: range, names: tuple[str, ...]
) -> dict[int, Slots]:
    """The optimizer's memory in a slice, by the first byte of each block."""
    shape = stored.signature
    flat = np.empty(shape.size, np.uint8)
    for i, block in enumerate(shape.blocks):
        flat[block.start : block.stop] = stored.stretch(range(i, i + 1))
    parts = shape.unpack(flat)
    slots: dict[int, Slots] = {}
    at = 0
    for block in _floating(signature, blocks):
        dtype, size = _slot_dtype(block), _slot_bytes(block)
        slots[block.start] = tuple(
            parts[f"slot-{name}"][at : at + size].view(dtype) for name in names
        )
        at += size
    return slots


def slice_signature(signature: Signature, blocks: range, names: tuple[str, ...]) -> Signature:
    """What a slice of these blocks looks like as an object."""
    start, stop = extent(signature, blocks)
    memory = sum(_slot_bytes(b) for b in _floating(signature, blocks))
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"params": ("U8", (stop - start,))}
    shapes.update({f"slot-{name}": ("U8", (memory,)) for name in names})
    return Signature.build(shapes)


def _floating(signature: Signature, blocks: range) -> list[Block]:
    return [b for b in (signature.blocks[i] for i in blocks) if b.dtype.kind in "fV"]


def _bytes(held: Array) -> Flat:
    return np.ascontiguousarray(held).view(np.uint8)


def _slot_dtype(block: Block) -> np.dtype[Any]:
    empty: NDArray[Any] = scaled(np.empty(0, block.dtype), 1.0)
    return empty.dtype


def _slot_bytes(block: Block) -> int:
    return (block.stop - block.start) // block.dtype.itemsize * _slot_dtype(block).itemsize
