"""Where the params that are folded come from: one's own memory, or a stored object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubless.errors import ParamsError, Refused
from hubless.federate.fold.ahead import read_ahead
from hubless.federate.keys import Posted, exactly
from hubless.params import scaled
from hubless.signature import Block, Signature
from hubless.store import codec
from hubless.store.base import Store

Flat = NDArray[np.uint8]

ABSURD = 1e9
"""Params whose root mean square over a block is beyond this have diverged."""
HELD_BYTES = 64 << 20
_ROW = 4096


class Source(Protocol):
    """Params that can be read a stretch of blocks at a time.

    What comes back writeable is the caller's to use up; what is read-only is somebody else's.
    """

    def stretch(self, blocks: range, into: memoryview | None = None) -> Flat:
        """The bytes of these blocks, as they were written."""
        ...

    def checked(self, blocks: range, into: memoryview | None = None) -> Flat:
        """The same, and Refused where the values are not finite or absurd."""
        ...


@dataclass(frozen=True)
class Own:
    """The member's own params, in memory.

    Where they are `spendable`, a reduction adds the others to them in place, and nothing else has
    to be held. `renew` copies them from the model again where it has to start over.
    """

    signature: Signature
    flat: Flat
    renew: Callable[[], object]
    spendable: bool = False

    def stretch(self, blocks: range, into: memoryview | None = None) -> Flat:
        """A view of these blocks."""
        whole = self.signature.blocks
        view = self.flat[whole[blocks[0]].start : whole[blocks[-1]].stop]
        view.flags.writeable = self.spendable
        return view

    def checked(self, blocks: range, into: memoryview | None = None) -> Flat:
        """The same: own params were checked before they were shared."""
        return self.stretch(blocks)


class Stored:
    """A stored object: its header is held against the signature before any params are read.

    Everything that can be wrong with it raises Refused, naming the client it is from. `says` is
    what its metadata has to say; so many bytes of params as `ahead` come along with the header, in
    one request.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        size: int,
        client: str,
        signature: Signature,
        says: Mapping[str, str] | None = None,
        limit: float = ABSURD,
        ahead: int = 0,
    ) -> None:
        self.store, self.key, self.size, self.client = store, key, size, client
        self.signature, self.limit = signature, limit
        self._body = size - signature.size
        self._kept = memoryview(b"")
        self.metadata = self._open(says or {}, ahead)
        self._digests = codec.block_digests(self.metadata)

    def stretch(self, blocks: range, into: memoryview | None = None) -> Flat:
        """These blocks' bytes, held against their digests."""
        chosen = self.signature.blocks[blocks.start : blocks.stop]
        start, stop = chosen[0].start, chosen[-1].stop
        if stop <= len(self._kept):
            raw = self._kept[start:stop].toreadonly()
        else:
            raw = self.store.read(self.key, self._body + start, self._body + stop, into)
        digests = self._digests[blocks.start : blocks.stop]
        if broken := codec.broken_block(raw, start, chosen, digests):
            raise self._refused(
                f"bytes {broken.start} to {broken.stop} of its params do not match their digest"
            )
        return np.frombuffer(raw, np.uint8)

    def checked(self, blocks: range, into: memoryview | None = None) -> Flat:
        """The same, with finite and plausible values."""
        flat = self.stretch(blocks, into)
        start = self.signature.blocks[blocks.start].start
        for block in self.signature.blocks[blocks.start : blocks.stop]:
            if trouble := implausible(self.signature, flat, start, block, self.limit):
                raise self._refused(trouble)
        return flat

    def _open(self, says: Mapping[str, str], ahead: int) -> dict[str, str]:
        if not 8 < self._body <= codec.header_limit(self.signature):
            raise self._refused(self._look())
        raw = self.store.read(self.key, 0, min(self.size, self._body + ahead))
        try:
            metadata = codec.decode_header(raw[: self._body], self.signature)
        except ValueError as error:
            raise self._refused(str(error)) from None
        if any(metadata.get(name) != value for name, value in says.items()):
            raise self._refused("its header belongs to another object than its key")
        self._kept = raw[self._body :]
        return metadata

    def _look(self) -> str:
        """What an object that cannot be what it should be is instead."""
        most = min(self.size, codec.header_limit(self.signature))
        raw = self.store.read(self.key, 0, most) if most else b""
        return codec.describe(raw, self.size, self.signature)

    def _refused(self, reason: str) -> Refused:
        return Refused(self.client, self.key, reason)


def open_updates(
    store: Store, listed: Sequence[Posted], signature: Signature, limit: float, ahead: bool
) -> Iterator[Stored]:
    """Listed updates, in order, each checked as far as its header goes.

    With `ahead`, small ones come whole with their header, as long as memory stays bounded.
    """
    room = HELD_BYTES // max(1, len(listed))
    whole = signature.size if ahead and signature.size <= min(store.request_bytes, room) else 0

    def opening(posted: Posted) -> Callable[[], Stored]:
        says = {
            "client": posted.client,
            "examples": str(posted.examples),
            "sequence": str(posted.sequence),
        }
        if posted.valuation is not None:
            says["valuation"] = exactly(posted.valuation)
        return lambda: Stored(
            store, posted.key, posted.size, posted.client, signature, says, limit, whole
        )

    return read_ahead((opening(p) for p in listed), store.parallel, 2 * store.parallel)


def implausible(signature: Signature, flat: Flat, start: int, block: Block, limit: float) -> str:
    """What is wrong with a block's values, or nothing; `flat` begins at byte `start`.

    A finite sum of squares proves all values finite, so one fast pass mostly settles both
    questions; only where it is too large are they told apart.
    """
    values = flat[block.start - start : block.stop - start].view(block.dtype)
    if not is_beyond(values, limit):
        return ""
    values = scaled(values, 1.0)
    if np.isfinite(values).all():
        names = ", ".join(signature.names_within(block.start, block.stop)[:3])
        return f"values in {names} are beyond {limit:g} in root mean square: training diverged"
    at = block.start + int(np.argmin(np.isfinite(values))) * block.dtype.itemsize
    name = signature.names_within(at, at + 1)[0]
    return f"parameter {name!r} holds NaN or infinity"


def is_beyond(values: NDArray[Any], limit: float) -> bool:
    """Whether the root mean square is over the limit, or no number at all."""
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
