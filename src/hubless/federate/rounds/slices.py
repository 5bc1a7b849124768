"""Slices: the result of a synchronous round in parts, each with the optimizer's memory of it.

A slice's key ends in a digest of its header, and its header holds digests of its params and of
the memory. So what a listing shows settles every byte, and two slices that differ have two keys.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hubless import events
from hubless.federate import keys
from hubless.federate.fold import Flat, Own, Stored, implausible, parts_of, parts_within
from hubless.federate.keys import Made, Posted, Round
from hubless.federate.member import Member
from hubless.federate.rounds.plans import Plan
from hubless.params import Array, scaled
from hubless.signature import Block, Signature
from hubless.store import codec
from hubless.store.base import Bytes
from hubless.store.reliable import Reliable
from hubless.strategy.base import Slots

if TYPE_CHECKING:
    from hubless.federate.rounds.looks import Looked


class Sliced:
    """What members make together at one attempt of a round, a slice each, as far as it is there."""

    kind = ""

    def __init__(
        self,
        signature: Signature,
        number: int,
        plan: Plan,
        posted: Posted | None = None,
        own: Own | None = None,
    ) -> None:
        self.signature, self.number, self.plan = signature, number, plan
        self.posted, self.own = posted, own
        self.cuts = cut(len(signature.blocks), len(plan.included))
        self.digests: dict[int, str] = {}
        """Of the slices that are in place."""
        self.made: set[int] = set()
        """Those that this member computed itself."""
        self.is_checked = False
        index = plan.included.index(posted.key) if posted and posted.key in plan.included else -1
        self.mine = index if 0 <= index < len(self.cuts) else None

    @property
    def complete(self) -> bool:
        return len(self.digests) == len(self.cuts)

    @property
    def version(self) -> tuple[int, int]:
        """The version that this becomes."""
        return self.number, self.plan.attempt

    def in_turn(self) -> list[int]:
        """All slices, from one's own on: so that those who help out start at different ones."""
        first = self.mine or 0
        return [(first + i) % len(self.cuts) for i in range(len(self.cuts))]

    def says(self, index: int) -> dict[str, str]:
        """What a slice's metadata says of it; the plan's digest keeps it from being made early."""
        return {
            "round": str(self.number),
            "attempt": str(self.plan.attempt),
            "slice": str(index),
            "plan": self.plan.digest,
        }

    def key(self, index: int, client: str, incarnation: keys.Incarnation, digest: str) -> str:
        """Where a slice stands."""
        attempt = self.plan.attempt
        return keys.slice_key(self.kind, self.number, attempt, index, client, incarnation, digest)

    def listed(self, index: int, round_: Round) -> Sequence[Made]:
        """Who is said to have made a slice, and what."""
        slices: dict[int, keys.Slices] = getattr(round_, self.kind)
        return slices.get(self.plan.attempt, {}).get(index, ())


class Work(Sliced):
    """One attempt at a round's result."""

    kind = "slices"

    def __init__(
        self,
        signature: Signature,
        number: int,
        plan: Plan,
        posted: Posted | None = None,
        own: Own | None = None,
        look: str | None = "",
    ) -> None:
        super().__init__(signature, number, plan, posted, own)
        self.out: Flat = np.empty(signature.size, np.uint8)
        self.look = look
        """A digest of the looks that it follows; empty without any, None for whichever it is."""
        self.looked: Looked | None = None
        """What updates are like, as far as it is known; None where the strategy does not ask."""
        self.weights: list[float] | None = None
        """What each included update counts for, once that is known."""

    def follow(self, look: str) -> None:
        """Begin anew by these looks."""
        self.look, self.weights, self.is_checked = look, None, False
        self.digests.clear()
        self.made.clear()

    def says(self, index: int) -> dict[str, str]:
        """What a slice's metadata says of it, and which looks it follows."""
        return {**super().says(index), **({"look": self.look} if self.look else {})}

    def key(self, index: int, client: str, incarnation: keys.Incarnation, digest: str) -> str:
        """Where a slice stands."""
        digest = f"{digest}-{self.look}" if self.look else digest
        return super().key(index, client, incarnation, digest)

    def listed(self, index: int, round_: Round) -> Sequence[Made]:
        """Who is said to have made a slice that follows the same looks, and what."""
        listed = super().listed(index, round_)
        return listed if self.look is None else [m for m in listed if m.look == self.look]


class Makers:
    """Who says what a slice is, and whom this member has found wrong."""

    def __init__(self, member: Member, admits: Callable[[str], bool]) -> None:
        self._member, self._admits = member, admits
        self._forgers: set[tuple[str, keys.Incarnation]] = set()
        self._forged: set[str] = set()

    def of(self, work: Sliced, index: int, round_: Round) -> list[Made]:
        """A slice as it is said to be: by its owner first, and not by strangers."""
        owner, member = work.plan.updates[index].client, self._member
        makers = [
            made
            for made in work.listed(index, round_)
            if made.key not in self._forged
            and self._admits(made.client)
            and not member.rejects(made.key)
        ]
        return sorted(makers, key=lambda made: (made.client != owner, made.client))

    def agreed(self, makers: Sequence[Made]) -> Made | None:
        """The slice to read: one that nobody contradicts, and that not only forgers made.

        A forger's word is not believed, but it still counts against others': somebody may have
        forged a slice in an honest member's name, so that nobody hears the honest one any more.
        """
        if len({made.digest for made in makers}) != 1:
            return None
        if not self._forgers:
            return makers[0]
        return next((m for m in makers if (m.client, m.incarnation) not in self._forgers), None)

    def name_forgers(self, work: Sliced, index: int, round_: Round) -> None:
        """Name who made a slice that comes out otherwise, and believe its maker nothing more."""
        member = self._member
        for made in self.of(work, index, round_):
            if made.digest != work.digests[index]:
                self._forgers.add((made.client, made.incarnation))
                self._forged.add(made.key)
                reason = "this member computed the same slice, and it comes out otherwise"
                key, peer = made.key, made.client
                member.emit(events.Forged(client=member.client, peer=peer, key=key, reason=reason))


def cut(blocks: int, parts: int) -> Sequence[range]:
    """Divide so many blocks evenly into at most so many stretches.

    >>> cut(5, 2)
    [range(0, 3), range(3, 5)]
    """
    parts = max(1, min(blocks, parts))
    bounds = [-(-blocks * i // parts) for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def extent(signature: Signature, blocks: range) -> tuple[int, int]:
    """The first and last byte of a range of blocks."""
    return signature.blocks[blocks[0]].start, signature.blocks[blocks[-1]].stop


def encode_slice(
    work: Work, index: int, slots: Mapping[int, Slots], names: tuple[str, ...]
) -> tuple[list[Bytes], str]:
    """A slice as an object: its params, then each slot of its real blocks; and its digest."""
    signature, blocks = work.signature, work.cuts[index]
    start, stop = extent(signature, blocks)
    shape = slice_signature(signature, blocks, names)
    flat = np.empty(shape.size, np.uint8)
    parts = shape.unpack(flat)
    parts["params"][...] = work.out[start:stop]
    for i, name in enumerate(names):
        if held := [slots[b.start][i] for b in _real(signature, blocks)]:
            # as bytes, because numpy would bring those of different dtypes to one
            parts[f"slot-{name}"][...] = np.concatenate([_bytes(h) for h in held])
    says = {
        **work.says(index),
        "params": codec.fingerprint(parts["params"].data),
        "memory": codec.fingerprint(*(parts[f"slot-{name}"].data for name in names)),
    }
    encoded = codec.encode(shape, flat, says)
    return encoded, codec.fingerprint(encoded[0])


def read_slice(
    store: Reliable, work: Work, index: int, made: Made, names: tuple[str, ...], limit: float
) -> None:
    """Read one slice of a round's result into its place, checked like an update."""
    signature, blocks = work.signature, work.cuts[index]
    shape = slice_signature(signature, blocks, names)
    start, stop = extent(signature, blocks)
    out = work.out[start:stop]
    # params come first, and what the optimizer remembers after them is not needed here
    reaching = sum(block.start < len(out) for block in shape.blocks)
    ahead = min(shape.blocks[reaching - 1].stop, store.request_bytes)
    stored = _open(store, work, index, made, shape, ahead)
    hashed = hashlib.sha256()
    for part in parts_of(shape, range(reaching), store.request_bytes):
        raw = stored.read(part)[: len(out) - part.start]
        out[part.start : part.start + len(raw)] = raw
        hashed.update(raw.data)
    if hashed.hexdigest()[:32] != stored.kept["params"]:
        raise stored.refused("its params are not those that its key announces")
    for i in blocks:
        if trouble := implausible(signature, work.out, 0, signature.blocks[i], limit):
            raise stored.refused(trouble)


def read_slots(
    store: Reliable, work: Work, index: int, made: Made, names: tuple[str, ...]
) -> dict[int, Slots]:
    """The optimizer's memory in a slice, by the first byte of each block."""
    signature, blocks = work.signature, work.cuts[index]
    shape = slice_signature(signature, blocks, names)
    stored = _open(store, work, index, made, shape)
    flat = np.empty(shape.size, np.uint8)
    stored.verify(into=flat)
    parts = shape.unpack(flat)
    memory = codec.fingerprint(*(parts[f"slot-{name}"].data for name in names))
    if memory != stored.kept["memory"]:
        raise stored.refused("its memory is not the one that its key announces")
    slots: dict[int, Slots] = {}
    at = 0
    for block in _real(signature, blocks):
        dtype, size = _slot_dtype(block), _slot_bytes(block)
        held = tuple(parts[f"slot-{name}"][at : at + size].view(dtype) for name in names)
        if not all(np.isfinite(values).all() for values in held):
            raise stored.refused("the optimizer's memory in it holds NaN or infinity")
        slots[block.start] = held
        at += size
    return slots


def read_slots_within(
    store: Reliable,
    work: Work,
    index: int,
    made: Made,
    names: tuple[str, ...],
    blocks: Collection[int],
) -> dict[int, Slots]:
    """The optimizer's memory of some blocks alone, by the first byte of each."""
    signature, whole = work.signature, work.cuts[index]
    shape = slice_signature(signature, whole, names)
    stored = _open(store, work, index, made, shape)
    starts = {spec.name: spec.start for spec in shape.specs}
    flat = np.empty(shape.size, np.uint8)
    slots: dict[int, Slots] = {}
    at = 0
    for block in _real(signature, whole):
        size = _slot_bytes(block)
        if block.start in blocks:
            held = []
            for name in names:
                first = starts[f"slot-{name}"] + at
                for part in parts_within(
                    shape, range(len(shape.blocks)), first, first + size, whole=True
                ):
                    flat[part.start : part.stop] = stored.read(part)
                held.append(flat[first : first + size].view(_slot_dtype(block)))
            slots[block.start] = tuple(held)
        at += size
    return slots


def slice_signature(signature: Signature, blocks: range, names: tuple[str, ...]) -> Signature:
    """What a slice of these blocks looks like as an object."""
    start, stop = extent(signature, blocks)
    memory = sum(_slot_bytes(b) for b in _real(signature, blocks))
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"params": ("U8", (stop - start,))}
    shapes.update({f"slot-{name}": ("U8", (memory,)) for name in names})
    return Signature.build(shapes)


def _open(
    store: Reliable, work: Work, index: int, made: Made, shape: Signature, ahead: int = 0
) -> Stored:
    return Stored(
        store,
        made.key,
        made.size,
        made.client,
        shape,
        work.says(index),
        ahead=ahead,
        digest=made.digest,
        keep=("params", "memory"),
    )


def _real(signature: Signature, blocks: range) -> list[Block]:
    return [b for b in (signature.blocks[i] for i in blocks) if b.dtype.kind in "fV"]


def _bytes(held: Array) -> Flat:
    return np.ascontiguousarray(held).view(np.uint8)


def _slot_dtype(block: Block) -> np.dtype[Any]:
    empty: NDArray[Any] = scaled(np.empty(0, block.dtype), 1.0)
    return empty.dtype


def _slot_bytes(block: Block) -> int:
    return (block.stop - block.start) // block.dtype.itemsize * _slot_dtype(block).itemsize
