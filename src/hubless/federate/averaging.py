"""Averaging stored updates that may be bad, or replaced while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from hubless.errors import NotFound, Refused, StoreError
from hubless.federate import keys
from hubless.federate.fold.reduce import reduce
from hubless.federate.fold.source import ABSURD, Flat, Own, Source, Stored, open_updates
from hubless.federate.keys import Posted
from hubless.params import Array, settle
from hubless.signature import Block, Signature
from hubless.store.base import Store
from hubless.strategy.base import Strategy

_RENEWALS = 3
OUTRUN = "it was replaced faster than it could be read, and waits until next time"
"""Why an update is left out that nothing is wrong with."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Averaged:
    """What came out, and of whom."""

    flat: Flat
    included: list[Posted]
    weights: list[float]
    staleness: list[int]
    bytes: int

    def named(self, values: Sequence[Number]) -> dict[str, Number]:
        """What stands in the order of the updates, by client."""
        return {p.client: value for p, value in zip(self.included, values, strict=True)}


def average(
    store: Store,
    signature: Signature,
    wanted: Sequence[Posted],
    strategy: Strategy,
    *,
    refuse: Callable[[Refused], None],
    miss: Callable[[Refused], None] | None = None,
    limit: float = ABSURD,
    own: tuple[Own, int] | None = None,
    version: int | None = None,
    advance: Callable[[Block, Array], Array] | None = None,
) -> Averaged | None:
    """Reduce the wanted updates, and one's own params with their examples, into one.

    The result takes the place of one's own params. A bad update is handed to `refuse` and the
    rest is averaged without it; one that its owner replaced meanwhile is taken in its newest form.
    One that is replaced over and over is handed to `miss` (to `refuse` if not given): there is
    nothing wrong with it. None where nothing is left to average.
    """
    included = list(wanted)
    opened: dict[str, Stored] = {}
    renewals: Counter[str] = Counter()
    spoiled = False
    while included:
        if spoiled and own is not None:
            own[0].renew()
        spoiled = True
        try:
            fresh = [p for p in included if p.key not in opened]
            arrived = open_updates(store, fresh, signature, limit, ahead=True)
            opened.update((stored.key, stored) for stored in arrived)
            return _reduce(
                store, signature, included, opened, strategy, own, version, limit, advance
            )
        except Refused as refusal:
            refuse(refusal)
            included = [p for p in included if p.key != refusal.key]
        except NotFound as missing:
            client = next((p.client for p in included if p.key == missing.key), "")
            if not client:
                raise
            renewals[client] += 1
            newest = keys.newest(keys.parse_updates(store.list(keys.UPDATES)))
            included = [p for p in included if p.client != client]
            if client in newest and renewals[client] <= _RENEWALS:
                included.append(newest[client])
            elif client in newest:
                (miss or refuse)(Refused(client, missing.key, OUTRUN))
        except StoreError as error:
            store.list(keys.UPDATES)  # raises if it is the store, and not this one object
            client = next((p.client for p in included if p.key == error.key), "")
            if not client:
                raise
            refuse(Refused(client, error.key, f"it cannot be read: {error}"))
            included = [p for p in included if p.key != error.key]
    return None


def _reduce(
    store: Store,
    signature: Signature,
    included: list[Posted],
    opened: dict[str, Stored],
    strategy: Strategy,
    own: tuple[Own, int] | None,
    version: int | None,
    limit: float,
    advance: Callable[[Block, Array], Array] | None,
) -> Averaged:
    reached = max(p.version for p in included) if version is None else version
    sources: list[Source] = [opened[p.key] for p in included]
    examples = [p.examples for p in included]
    staleness = [max(0, reached - p.version) for p in included]
    if own is not None:
        local = replace(own[0], spendable=True)
        sources, examples, staleness = [local, *sources], [own[1], *examples], [0, *staleness]
    weights = strategy.weights(examples, staleness, None if own is None else 0)
    out = np.empty(signature.size, np.uint8) if own is None else own[0].flat

    def finish(block: Block, total: Array) -> None:
        target = out[block.start : block.stop].view(block.dtype)
        values = np.asarray(settle(total, target) if advance is None else advance(block, total))
        if not np.may_share_memory(target, values):
            target[...] = values

    everything = range(len(signature.blocks))
    shares, reducer = weights.tolist(), strategy.reducer
    reduce(signature, everything, sources, shares, reducer, store, limit, finish)
    first = 0 if own is None else 1
    size = sum(p.size for p in included)
    return Averaged(out, included, shares[first:], staleness[first:], size)
