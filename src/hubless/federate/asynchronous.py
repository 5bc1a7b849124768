"""Asynchronous mode: share, look who has something new, average it in, train on.

Nobody waits for anybody. An update counts once with each member: what a member has averaged in
before is part of its params already, so nothing unchanged is downloaded or weighed again.
"""

from __future__ import annotations

import math
from typing import Literal

from hubless import events
from hubless.errors import Refused
from hubless.federate import keys
from hubless.federate.agreement import Agreement
from hubless.federate.averaging import Averaged, average, collective, credible
from hubless.federate.fold import (
    Flat,
    Own,
    ServerState,
)
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.member import Member, Report
from hubless.federate.picking.draw import Selection, listed_standings
from hubless.params import Array
from hubless.signature import Block, Signature
from hubless.strategy.base import Slots

KEPT_UPDATES = 2
"""A member's newest updates stay: a peer may be reading the one before the last."""


class Asynchronous:
    """A mode in which members never wait."""

    name = "async"
    deadline = math.inf
    trains_on_alone = True
    ends_alike = False

    def __init__(self, member: Member, peers: Literal["new", "all"] = "new") -> None:
        self.member = member
        self.state = ServerState(member.strategy)
        self._peers = peers
        self._taken_in: dict[str, tuple[Incarnation, int]] = {}
        self._turns = 0

    def agreement(self, signature: Signature) -> Agreement:
        """The model, and what counts as absurd: strategies may differ."""
        return Agreement(self.name, signature, self.member.limit, self.member.outweigh)

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
        elif selection.unpicked != "wait":
            return None
        return self._take_in(own, report.examples, listed)

    def collective(self, signature: Signature) -> Flat | None:
        """Everybody's newest update in one; before there is any, the initial params."""
        member = self.member
        averaged = collective(
            member.store,
            signature,
            member.strategy,
            self._refuse,
            member.limit,
            member.outweigh,
            member.miss,
            self._origin(signature),
        )
        if averaged is not None:
            self._note(averaged)
        version = member.initial(signature) if averaged is None else averaged.flat
        if version is not None:
            self.state.start_from(version)
        return version

    def _origin(self, signature: Signature) -> Flat | None:
        """What changes are from, for strategies that go by these."""
        if self.state.current is None and self.member.strategy.partial:
            return self.member.initial(signature)
        return self.state.current

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
        self.member.notice(keys.claimed(listed, self.member.client, self.member.incarnation))
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
            current=self.state.current,
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
        usable = credible(peers, listed, signature, member.version, self._refuse)
        return [p for p in usable if self._peers == "all" or self._is_unseen(p)]

    def _is_unseen(self, posted: Posted) -> bool:
        last = self._taken_in.get(posted.client)
        return last is None or posted.rank > last

    def _collect(self, listed: list[Posted]) -> None:
        """Delete own updates that newer ones, visible to all, have replaced."""
        self.member.discard(self.member.superseded(listed, KEPT_UPDATES))
        self.member.forget_all_but({p.key for p in listed})

    def _refuse(self, refusal: Refused) -> None:
        self.member.refuse(refusal)

    def _note(self, averaged: Averaged) -> None:
        """Remember what was taken in: it counts once, and moves this member's version."""
        for posted in averaged.included:
            self._taken_in[posted.client] = posted.rank
        reached = max(self.member.version, *(p.version for p in averaged.included)) + 1
        self.member.version = min(reached, keys.VERSIONS - 1)
