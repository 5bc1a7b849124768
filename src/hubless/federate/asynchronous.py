"""Asynchronous mode: share, look who has something new, average it in, train on.

Nobody waits for anybody. An update counts once with each member: what a member has averaged in
before is part of its params already, so nothing unchanged is downloaded or weighed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hubless import events
from hubless.errors import FederationError, Refused
from hubless.federate import keys
from hubless.federate.averaging import Averaged, average
from hubless.federate.federation import KEPT_UPDATES, Federation
from hubless.federate.fold.source import Flat, Own
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.picking.draw import Selection, listed_standings
from hubless.federate.picking.report import Said
from hubless.federate.terms import Terms
from hubless.params import Array
from hubless.signature import Block, Signature
from hubless.store.base import Store
from hubless.store.reliable import Reliable
from hubless.strategy.base import Slots, Strategy


class Asynchronous(Federation):
    """A member that never waits."""

    mode = "async"
    trains_on_alone = True

    def __init__(self, store: Reliable, terms: Terms, peers: Literal["new", "all"] = "new") -> None:
        if peers not in ("new", "all"):
            raise FederationError(f"peers is 'new' or 'all', not {peers!r}")
        super().__init__(store, terms)
        self._peers = peers
        self._seen: dict[str, tuple[Incarnation, int]] = {}
        self._bad: set[str] = set()
        self._turns = 0

    def _exchange(self, own: Own, said: Said) -> Flat | None:
        selection = self.terms.selection
        if selection is None:
            self._post(keys.UPDATES, own, self._hidden(said))
            return self._take_in(own, said.examples)
        listed = self._list()
        if self._has_turn(selection, listed, own.signature):
            # acknowledged, and so visible: one listing serves to pick and to take in
            listed.append(self._post(keys.UPDATES, own, self._hidden(said)))
        elif self.terms.unpicked == "train":
            return None
        return self._take_in(own, said.examples, listed)

    def _has_turn(self, selection: Selection, listed: list[Posted], signature: Signature) -> bool:
        """Whether this member is among those it draws; it is if nothing is known of it yet.

        Who joined as often and is at the same turn draws the same. A process that takes a single
        turn before it ends draws anew each time, because then it has joined once more.
        """
        turn, self._turns = self._turns, self._turns + 1
        usable = [p for p in listed if p.signature == signature.digest and p.key not in self._bad]
        known, now = listed_standings(keys.newest(usable))
        if self.client not in known:
            return True
        pick = selection.pick(known, turn, self.incarnation.count, round=now)
        self.events.emit(events.Picked(client=self.client, round=turn, cohort=list(pick.members)))
        if self.client in pick.members:
            return True
        self.events.emit(events.Skipped(client=self.client, step=self._calls, round=turn))
        return False

    def _list(self) -> list[Posted]:
        listed = keys.parse_updates(self.store.list(keys.UPDATES))
        self._check_sole(listed)
        return listed

    def _take_in(self, own: Own, examples: int, listed: list[Posted] | None = None) -> Flat | None:
        started = self.clock.now()
        listed = self._list() if listed is None else listed
        self._collect(listed)
        self._bad &= {p.key for p in listed}
        fresh = self._fresh(listed, own.signature)
        slots: dict[int, Slots] = {}

        def advance(block: Block, total: Array) -> Array:
            values, slots[block.start] = self.state.advance(block, total)
            return values

        averaged = average(
            self.store,
            own.signature,
            fresh,
            self.strategy,
            refuse=self._refuse,
            miss=self._miss,
            limit=self.limit,
            own=(own, examples),
            version=self.version,
            advance=advance,
        )
        if averaged is None:
            self.version += 1
            self.events.emit(events.Nothing(client=self.client, version=self.version))
            return None
        self._note(averaged)
        self.state.arrive(averaged.flat, slots)
        self.events.emit(
            events.Pulled(
                client=self.client,
                peers={p.client: p.sequence for p in averaged.included},
                weights=averaged.named(averaged.weights),
                staleness=averaged.named(averaged.staleness),
                version=self.version,
                bytes=averaged.bytes,
                seconds=self.clock.now() - started,
            )
        )
        return averaged.flat

    def _fresh(self, listed: list[Posted], signature: Signature) -> list[Posted]:
        """What peers have that this member has not taken in, bad ones left aside."""
        fresh = []
        for posted in keys.newest(listed).values():
            seen = self._seen.get(posted.client)
            unseen = seen is None or posted.rank > seen or self._peers == "all"
            if posted.client == self.client or not unseen or posted.key in self._bad:
                continue
            if posted.signature != signature.digest:
                reason = "its params have another signature than this federation's"
                self._refuse(Refused(posted.client, posted.key, reason))
            else:
                fresh.append(posted)
        return fresh

    def _collect(self, listed: list[Posted]) -> None:
        """Delete own updates that newer ones, visible to all, have replaced."""
        mine = sorted((p for p in listed if p.client == self.client), key=lambda p: p.rank)
        self._discard([p.key for p in mine[:-KEPT_UPDATES]])

    def _refuse(self, refusal: Refused) -> None:
        self._bad.add(refusal.key)
        super()._refuse(refusal)

    def _miss(self, refusal: Refused) -> None:
        """Tell of an update that could not be had this time, which is not to be called bad."""
        super()._refuse(refusal)

    def _collective(self, signature: Signature) -> Flat | None:
        averaged = collective(
            self.store, signature, self.strategy, self._refuse, self.limit, self._miss
        )
        if averaged is None:
            return None
        self._note(averaged)
        return averaged.flat

    def _note(self, averaged: Averaged) -> None:
        """Remember what was taken in: it counts once, and moves this member's version."""
        for posted in averaged.included:
            self._seen[posted.client] = posted.rank
        reached = max(self.version, *(p.version for p in averaged.included)) + 1
        self.version = min(reached, keys.VERSIONS - 1)


def collective(
    store: Store,
    signature: Signature,
    strategy: Strategy,
    refuse: Callable[[Refused], None],
    limit: float,
    miss: Callable[[Refused], None] | None = None,
) -> Averaged | None:
    """Everybody's newest update in one: what the federation as a whole has arrived at."""
    listed = keys.newest(keys.parse_updates(store.list(keys.UPDATES)))
    wanted = [p for p in listed.values() if p.signature == signature.digest]
    return average(store, signature, wanted, strategy, refuse=refuse, miss=miss, limit=limit)
