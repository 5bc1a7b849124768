"""Averaging what members of an asynchronous federation have shared, whatever some of it is like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from hubless.errors import FederationError, NotFound, Refused, StoreError
from hubless.federate import keys
from hubless.federate.fold import (
    Flat,
    Own,
    Source,
    Stored,
    bad_ones,
    capped,
    foldable_parts,
    open_update,
    open_updates,
    reduce,
)
from hubless.federate.keys import Posted
from hubless.federate.looking import look
from hubless.params import Array, settle
from hubless.signature import Block, Signature
from hubless.store.folder import FolderStore
from hubless.store.reliable import Reliable
from hubless.strategy.base import Strategy

_RENEWALS = 3
_PASSES = 2
"""So often all updates are read at once; then they are copied, so that none goes meanwhile."""
OUTRUN = "it was replaced faster than it could be read, and waits until next time"
"""Why an update is left out that nothing is wrong with."""
OTHER_SIGNATURE = "its params have another signature than this federation's"

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


def collective(
    store: Reliable,
    signature: Signature,
    strategy: Strategy,
    refuse: Callable[[Refused], None],
    limit: float,
    outweigh: float,
    miss: Callable[[Refused], None] | None = None,
    current: Flat | None = None,
) -> Averaged | None:
    """Everybody's newest usable update in one: what the federation has arrived at."""
    listed = keys.parse_updates(store.list(keys.UPDATES))
    usable = credible(listed, listed, signature, 0, refuse)
    return average(
        store,
        signature,
        usable,
        strategy,
        refuse=refuse,
        miss=miss,
        limit=limit,
        outweigh=outweigh,
        current=current,
    )


def average(
    store: Reliable,
    signature: Signature,
    wanted: Sequence[Posted],
    strategy: Strategy,
    *,
    refuse: Callable[[Refused], None],
    limit: float,
    outweigh: float,
    miss: Callable[[Refused], None] | None = None,
    own: tuple[Own, int] | None = None,
    version: int | None = None,
    advance: Callable[[Block, Array], Array] | None = None,
    current: Flat | None = None,
) -> Averaged | None:
    """Reduce each client's newest sound update, and one's own params, into one.

    Strategies that go by changes have those from `current`, or else from one's own params.
    The result takes the place of one's own params. Bad updates are handed to `refuse`, and what
    their client shared before is taken instead; one that its owner replaced meanwhile is taken in
    its newest form. One that is replaced over and over is handed to `miss` (to `refuse` if not
    given): there is nothing wrong with it. None where nothing is left to average.
    """
    chosen = _Chosen(store, signature, wanted, version or 0, limit, refuse, miss or refuse)
    passes = 0
    with ExitStack() as stack:
        while chosen.updates:
            if passes == _PASSES:
                chosen.copy(Path(stack.enter_context(TemporaryDirectory(prefix="hubless-"))))
            if troubles := chosen.open():
                chosen.replace(troubles)
                continue
            if passes and own is not None:
                own[0].renew()
            passes += 1
            try:
                return _reduce(
                    store,
                    signature,
                    chosen.updates,
                    chosen.opened,
                    strategy,
                    own,
                    version,
                    limit,
                    outweigh,
                    advance,
                    current,
                )
            except Refused as refusal:
                # where one is bad others may be, too: one more pass finds them all
                bad = bad_ones(chosen.opened[p.key] for p in chosen.updates)
                chosen.replace(bad or [refusal])
            except StoreError as error:
                chosen.replace([error])
    return None


class _Chosen:
    """Of each client's updates the one that is averaged: the newest that is sound."""

    def __init__(
        self,
        store: Reliable,
        signature: Signature,
        wanted: Sequence[Posted],
        version: int,
        limit: float,
        refuse: Callable[[Refused], None],
        miss: Callable[[Refused], None],
    ) -> None:
        self._store, self._signature, self._limit = store, signature, limit
        self._version, self._refuse, self._miss = version, refuse, miss
        self._earlier = keys.newest_first(wanted)
        self.updates = [several.pop(0) for several in self._earlier.values()]
        self.opened: dict[str, Stored] = {}
        self._renewals: Counter[str] = Counter()

    def open(self) -> list[StoreError | Refused]:
        """Check all of them as far as their headers go, and say what is wrong with some."""
        unopened = [p for p in self.updates if p.key not in self.opened]
        arrived, troubles = open_updates(
            self._store, unopened, self._signature, self._limit, ahead=True
        )
        self.opened.update(arrived)
        return troubles

    def copy(self, folder: Path) -> None:
        """Read each by itself into a folder of one's own, where nobody can take it away."""
        here = Reliable(FolderStore(folder))
        copied: set[str] = set()
        while left := [posted for posted in self.updates if posted.key not in copied]:
            posted = left[0]
            try:
                _download(self._store, posted, folder)
                self.opened[posted.key] = stored = open_update(
                    here, posted, self._signature, self._limit
                )
                stored.verify()
            except (StoreError, Refused) as trouble:
                self.replace([trouble])
            copied.add(posted.key)

    def replace(self, troubles: Sequence[StoreError | Refused]) -> None:
        """Go on without those that could not be had: with newer ones, or with earlier ones."""
        chosen = {posted.key: posted for posted in self.updates}
        for trouble in troubles:
            if trouble.key not in chosen and not isinstance(trouble, Refused):
                raise trouble
        # raises if it is the store, and not these objects
        listed = keys.parse_updates(self._store.list(keys.UPDATES))
        clients = {posted.client for posted in self.updates}
        theirs = [p for p in listed if p.client in clients]
        newest = keys.newest(credible(theirs, listed, self._signature, self._version, self._refuse))
        for trouble in troubles:
            former = chosen[trouble.key]
            self.updates.remove(former)
            if isinstance(trouble, NotFound):
                follower = self._renewed(former, newest.get(former.client))
            else:
                self._tell(former, trouble)
                follower = self._earlier_of(former.client)
            if follower is not None:
                self.updates.append(follower)

    def _renewed(self, former: Posted, newest: Posted | None) -> Posted | None:
        """What its owner has put in an update's place meanwhile."""
        self._renewals[former.client] += 1
        if newest is None or newest.rank < former.rank:
            return None
        if self._renewals[former.client] <= _RENEWALS:
            return newest
        self._miss(Refused(former.client, former.key, OUTRUN))
        return None

    def _earlier_of(self, client: str) -> Posted | None:
        """The newest sound one of those before; each is read by itself, as many may be bad."""
        while self._earlier[client]:
            posted = self._earlier[client].pop(0)
            opened, troubles = open_updates(
                self._store, [posted], self._signature, self._limit, ahead=True
            )
            troubles += bad_ones(opened.values())
            if not troubles:
                self.opened.update(opened)
                return posted
            for trouble in troubles:
                if not isinstance(trouble, NotFound):
                    self._tell(posted, trouble)
        return None

    def _tell(self, posted: Posted, trouble: StoreError | Refused) -> None:
        if not isinstance(trouble, Refused):
            trouble = Refused(posted.client, posted.key, f"it cannot be read: {trouble}")
        self._refuse(trouble)


def credible(
    updates: Sequence[Posted],
    listed: Sequence[Posted],
    signature: Signature,
    version: int,
    refuse: Callable[[Refused], None],
) -> list[Posted]:
    """Those updates that, by their keys, can be ones of this federation."""
    furthest = max(version, keys.furthest_version(listed))
    credible = []
    for posted in updates:
        if posted.signature != signature.digest:
            refuse(Refused(posted.client, posted.key, OTHER_SIGNATURE))
        elif posted.version > furthest:
            reason = f"its version {posted.version} is further than any update can have led"
            refuse(Refused(posted.client, posted.key, reason))
        else:
            credible.append(posted)
    return credible


def _download(store: Reliable, posted: Posted, folder: Path) -> None:
    path = folder / posted.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, posted.size, store.request_bytes):
            stop = min(posted.size, start + store.request_bytes)
            file.write(store.read(posted.key, start, stop))


def _reduce(
    store: Reliable,
    signature: Signature,
    included: list[Posted],
    opened: dict[str, Stored],
    strategy: Strategy,
    own: tuple[Own, int] | None,
    version: int | None,
    limit: float,
    outweigh: float,
    advance: Callable[[Block, Array], Array] | None,
    current: Flat | None,
) -> Averaged:
    reached = max(p.version for p in included) if version is None else version
    sources: list[Source] = [opened[p.key] for p in included]
    examples = [p.examples for p in included]
    staleness = [max(0, reached - p.version) for p in included]
    if own is not None:
        local = replace(own[0], reusable=True)
        sources, examples, staleness = [local, *sources], [own[1], *examples], [0, *staleness]
    examples = capped(examples, outweigh)
    mine = None if own is None else 0
    products = None
    if strategy.look:
        origin = own[0].flat if current is None and own is not None else current
        products = look(signature, sources, strategy, store, origin)
    weights = strategy.weights(examples, staleness, mine, products)
    if strategy.partial and current is None:
        if mine is None:
            raise FederationError(
                f"{strategy!r} goes by how far updates are from a version, and this member is at "
                "none: join with model=, or take a step before"
            )
        weights[mine] += 1.0 - weights.sum()
    out = np.empty(signature.size, np.uint8) if own is None else own[0].flat

    def finish(block: Block, total: Array) -> None:
        target = out[block.start : block.stop].view(block.dtype)
        values = np.asarray(settle(total, target) if advance is None else advance(block, total))
        if not np.may_share_memory(target, values):
            target[...] = values

    everything = range(len(signature.blocks))
    parts = foldable_parts(signature, everything, strategy, len(sources), store.request_bytes)
    shares = weights.tolist()
    reduce(signature, parts, sources, shares, strategy, store, limit, finish, current)
    first = 0 if own is None else 1
    size = sum(p.size for p in included)
    return Averaged(out, included, shares[first:], staleness[first:], size)
