"""Asynchronous mode: share, look who has something new, average it in, train on.

Nobody waits for anybody. An update counts once with each member: what a member has averaged in
before is part of its params already, so nothing unchanged is downloaded or weighed again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from hubless import events
from hubless.errors import FederationError, NotFound, Refused, StoreError
from hubless.federate import keys
from hubless.federate.agreement import Agreement
from hubless.federate.fold import (
    Flat,
    Own,
    ServerState,
    Source,
    Stored,
    bad_ones,
    capped,
    foldable_parts,
    open_updates,
    reduce,
)
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.member import Member, Report
from hubless.federate.picking.draw import Selection, listed_standings
from hubless.params import Array, settle
from hubless.signature import Block, Signature
from hubless.store.reliable import Reliable
from hubless.strategy.base import Slots, Strategy

KEPT_UPDATES = 2
"""A member's newest updates stay: a peer may be reading the one before the last."""
_RENEWALS = 3
OUTRUN = "it was replaced faster than it could be read, and waits until next time"
"""Why an update is left out that nothing is wrong with."""
OTHER_SIGNATURE = "its params have another signature than this federation's"

Number = TypeVar("Number", int, float)


class Asynchronous:
    """A mode in which members never wait."""

    name = "async"
    deadline = math.inf
    trains_on_alone = True
    ends_alike = False

    def __init__(self, member: Member, peers: Literal["new", "all"] = "new") -> None:
        if peers not in ("new", "all"):
            raise FederationError(f"peers is 'new' or 'all', not {peers!r}")
        self.member = member
        self.state = ServerState(member.strategy)
        self._peers = peers
        self._seen: dict[str, tuple[Incarnation, int]] = {}
        self._turns = 0

    def agreement(self, signature: Signature) -> Agreement:
        """The model, and what counts as absurd: strategies may differ."""
        return Agreement(self.name, signature, self.member.limit, self.member.outweigh)

    def start_from(self, version: Flat) -> None:
        """Go on from this version."""
        self.state.start_from(version)

    def exchange(self, own: Own, report: Report) -> Flat | None:
        """Put one's update, and average in what is new; None where there is nothing."""
        member, selection = self.member, self.member.terms.selection
        if selection is None:
            member.post(keys.UPDATES, own, member.hidden(report))
            return self._take_in(own, report.examples, self._list())
        listed = self._list()
        if self._has_turn(selection, listed, own.signature):
            # acknowledged, and so visible: one listing serves to pick and to take in
            listed.append(member.post(keys.UPDATES, own, member.hidden(report)))
        elif member.terms.unpicked == "train":
            return None
        return self._take_in(own, report.examples, listed)

    def collective(self, signature: Signature) -> Flat | None:
        """Everybody's newest update in one."""
        member = self.member
        averaged = collective(
            member.store,
            signature,
            member.strategy,
            self._refuse,
            member.limit,
            member.outweigh,
            member.miss,
        )
        if averaged is None:
            return None
        self._note(averaged)
        return averaged.flat

    def _has_turn(self, selection: Selection, listed: list[Posted], signature: Signature) -> bool:
        """Whether this member is among those it draws; it is if nothing is known of it yet.

        Who joined as often and is at the same turn draws the same. A process that takes a single
        turn before it ends draws anew each time, because then it has joined once more.
        """
        member = self.member
        turn, self._turns = self._turns, self._turns + 1
        usable = [
            p for p in listed if p.signature == signature.digest and not member.rejects(p.key)
        ]
        standings, now = listed_standings(keys.newest(usable))
        if member.client not in standings:
            return True
        pick = selection.pick(standings, turn, member.incarnation.count, round=now)
        member.emit(events.Picked(client=member.client, round=turn, cohort=list(pick.members)))
        if member.client in pick.members:
            return True
        member.emit(events.Skipped(client=member.client, step=member.calls, round=turn))
        return False

    def _list(self) -> list[Posted]:
        """Everybody's updates; what somebody else put under this member's name is an alarm."""
        listed = keys.parse_updates(self.member.store.list(keys.UPDATES))
        self.member.notice(listed)
        return listed

    def _take_in(self, own: Own, examples: int, listed: list[Posted]) -> Flat | None:
        member = self.member
        started = member.clock.now()
        self._collect(listed)
        fresh = self._fresh(listed, own.signature)
        slots: dict[int, Slots] = {}

        def advance(block: Block, total: Array) -> Array:
            values, slots[block.start] = self.state.advance(block, total)
            return values

        averaged = average(
            member.store,
            own.signature,
            fresh,
            member.strategy,
            refuse=self._refuse,
            miss=member.miss,
            limit=member.limit,
            outweigh=member.outweigh,
            own=(own, examples),
            version=member.version,
            advance=advance if member.strategy.optimizer.needs_current else None,
        )
        if averaged is None:
            member.version += 1
            member.emit(events.Nothing(client=member.client, version=member.version))
            return None
        self._note(averaged)
        self.state.arrive(averaged.flat, slots)
        member.emit(
            events.Pulled(
                client=member.client,
                peers={p.client: p.sequence for p in averaged.included},
                weights=averaged.named(averaged.weights),
                staleness=averaged.named(averaged.staleness),
                version=member.version,
                bytes=averaged.bytes,
                seconds=member.clock.now() - started,
            )
        )
        return averaged.flat

    def _fresh(self, listed: list[Posted], signature: Signature) -> list[Posted]:
        """What peers have that this member has not taken in, what can be none left aside."""
        member = self.member
        peers = [p for p in listed if p.client != member.client and not member.refused(p.key)]
        usable = _credible(peers, listed, signature, member.version, self._refuse)
        return [p for p in usable if self._peers == "all" or self._is_unseen(p)]

    def _is_unseen(self, posted: Posted) -> bool:
        seen = self._seen.get(posted.client)
        return seen is None or posted.rank > seen

    def _collect(self, listed: list[Posted]) -> None:
        """Delete own updates that newer ones, visible to all, have replaced."""
        self.member.discard(self.member.superseded(listed, KEPT_UPDATES))
        self.member.forget_all_but({p.key for p in listed})

    def _refuse(self, refusal: Refused) -> None:
        self.member.refuse(refusal)

    def _note(self, averaged: Averaged) -> None:
        """Remember what was taken in: it counts once, and moves this member's version."""
        for posted in averaged.included:
            self._seen[posted.client] = posted.rank
        reached = max(self.member.version, *(p.version for p in averaged.included)) + 1
        self.member.version = min(reached, keys.VERSIONS - 1)


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
) -> Averaged | None:
    """Everybody's newest usable update in one: what the federation has arrived at."""
    listed = keys.parse_updates(store.list(keys.UPDATES))
    usable = _credible(listed, listed, signature, 0, refuse)
    return average(
        store,
        signature,
        usable,
        strategy,
        refuse=refuse,
        miss=miss,
        limit=limit,
        outweigh=outweigh,
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
) -> Averaged | None:
    """Reduce each client's newest sound update, and one's own params, into one.

    The result takes the place of one's own params. Bad updates are handed to `refuse`, and what
    their client shared before is taken instead; one that its owner replaced meanwhile is taken in
    its newest form. One that is replaced over and over is handed to `miss` (to `refuse` if not
    given): there is nothing wrong with it. None where nothing is left to average.
    """
    chosen = _Chosen(store, signature, wanted, version or 0, limit, refuse, miss or refuse)
    reduced = False
    while chosen.updates:
        troubles = chosen.open()
        if not troubles:
            if reduced and own is not None:
                own[0].renew()
            reduced = True
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
                )
            except Refused as refusal:
                # where one is bad others may be, too: one more pass finds them all
                troubles = bad_ones(chosen.opened[p.key] for p in chosen.updates) or [refusal]
            except StoreError as error:
                troubles = [error]
        chosen.replace(troubles)
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
        newest = keys.newest(
            _credible(theirs, listed, self._signature, self._version, self._refuse)
        )
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


def _credible(
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
) -> Averaged:
    reached = max(p.version for p in included) if version is None else version
    sources: list[Source] = [opened[p.key] for p in included]
    examples = [p.examples for p in included]
    staleness = [max(0, reached - p.version) for p in included]
    if own is not None:
        local = replace(own[0], reusable=True)
        sources, examples, staleness = [local, *sources], [own[1], *examples], [0, *staleness]
    examples = capped(examples, outweigh)
    weights = strategy.weights(examples, staleness, None if own is None else 0)
    out = np.empty(signature.size, np.uint8) if own is None else own[0].flat

    def finish(block: Block, total: Array) -> None:
        target = out[block.start : block.stop].view(block.dtype)
        values = np.asarray(settle(total, target) if advance is None else advance(block, total))
        if not np.may_share_memory(target, values):
            target[...] = values

    everything = range(len(signature.blocks))
    parts = foldable_parts(signature, everything, strategy, len(sources), store.request_bytes)
    shares = weights.tolist()
    reduce(signature, parts, sources, shares, strategy, store, limit, finish)
    first = 0 if own is None else 1
    size = sum(p.size for p in included)
    return Averaged(out, included, shares[first:], staleness[first:], size)
