"""Synchronous mode: rounds that everybody ends with the same bytes.

Each member puts its update; when enough are there, one create-only record fixes which are
included; then the round is completed, in slices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from hubless import events
from hubless.errors import (
    AlreadyExists,
    FederationError,
    QuorumMissed,
    Refused,
    StoreError,
    UnsafeStore,
)
from hubless.federate import keys
from hubless.federate.agreement import Agreement
from hubless.federate.fold.source import Flat, Own
from hubless.federate.keys import Posted
from hubless.federate.outside.probe import honours_create
from hubless.federate.picking.picking import Picking
from hubless.federate.picking.report import Said
from hubless.federate.picking.standing import Pick
from hubless.federate.rounds.complete import KEPT_ROUNDS
from hubless.federate.rounds.plan import Plan, Result, Round, Superseded
from hubless.federate.rounds.quorum import Quorum
from hubless.federate.terms import Terms
from hubless.patience import pauses
from hubless.signature import Signature
from hubless.store.reliable import Reliable

_SAY_AFTER = 5.0
_READS = 20
_AGAIN_AFTER = 0.05


class Synchronous(Picking):
    """A member that waits for the others, but never forever."""

    mode = "sync"

    def __init__(
        self,
        store: Reliable,
        terms: Terms,
        quorum: Quorum,
        deadline: float,
        help_after: float = 5.0,
    ) -> None:
        if terms.participation < 1 and quorum.enough == quorum.everyone:
            raise FederationError(
                "with participation below 1 a member sits rounds out, so the others need a quorum= "
                "below the number of members"
            )
        if " at 0x" in repr(terms.strategy):
            raise FederationError(
                f"synchronous members compare their strategies by their text, and {terms.strategy} "
                "has parts without one: make those dataclasses, or give them a __repr__"
            )
        honoured, what = honours_create(store)
        if not honoured:
            raise UnsafeStore(
                f'{store.url} cannot carry mode="sync": members fix who is included in a round '
                f"by creating a record only if it is absent, and here {what}. Use "
                'mode="async", which needs no such promise, or a store that keeps it '
                "(`hubless check URL` tells)"
            )
        super().__init__(store, terms, quorum, help_after)
        self.deadline = deadline
        self._known: set[str] = set()
        self._loaded = -1
        self._first_seen = -1, 0.0

    def _agreement(self, signature: Signature) -> Agreement:
        return Agreement(
            self.mode,
            signature,
            self.terms.limit,
            repr(self.strategy),
            self.strategy.optimizer.slots,
            self._selecting(),
        )

    def _exchange(self, own: Own, said: Said) -> Flat | None:
        started, signature = self.clock.now(), own.signature
        hidden: Said | None = None
        tries = 0
        while True:
            rounds = self._look()
            number = _open_round(rounds)
            try:
                pick = self._pick(signature, number, rounds)
            except Superseded:
                tries += 1
                if tries > _READS:
                    raise FederationError(
                        f"round {number - 1} at {self.store.url} could not be read to its end"
                    ) from None
                self.clock.sleep(_AGAIN_AFTER)
                continue
            posted = None
            trains = pick is None or self.client in pick.members
            if not trains:
                self.events.emit(events.Skipped(client=self.client, step=self._calls, round=number))
            if pick is not None and self._is_behind(number) and not (trains and hidden):
                if trains and self._loaded >= 0:
                    self.events.emit(events.Late(client=self.client, round=number - 1))
                self._tidy(number - 1, rounds)
                return self._collective(signature)
            if trains:
                hidden = hidden or self._hidden(said)
                posted = self._post(f"{keys.round_folder(number)}updates/", own, hidden)
            elif pick is not None and self.terms.unpicked == "train":
                self._look_on(signature, number, rounds, pick)
                return None
            try:
                plan = self._await_plan(signature, number, pick, posted is not None)
                counted = None if posted is None else self._counted(number, posted)
                if posted is None or counted is not None:
                    mine = own if counted and posted and counted.key == posted.key else None
                    result = self._complete(signature, number, plan, counted, mine)
                    break
            except Superseded:
                # nobody can tell any more whether it counted, and it must not count twice
                return self._collective(signature)
            self.events.emit(events.Late(client=self.client, round=number))
        self._settle(number, result)
        self.events.emit(
            events.Closed(
                client=self.client,
                round=number,
                included=[p.client for p in result.plan.posted()],
                seconds=self.clock.now() - started,
            )
        )
        self._tidy(number, None)
        return result.flat

    def _is_behind(self, number: int) -> bool:
        """Whether rounds went by without this member: then it starts from their result first.

        So whatever a member trains for a round starts from the round before, as in a simulation.
        Who trains on when it is not picked goes its own way.
        """
        return self.terms.unpicked == "wait" and self._loaded < number - 1

    def _look_on(
        self, signature: Signature, number: int, rounds: Mapping[int, Round], pick: Pick
    ) -> None:
        """Close the open round if that is due: those who were picked may all be gone."""
        quorum = self.quorum.among(pick.members)
        present = self._present(signature, rounds.get(number, Round()), quorum)
        if self._first_seen[0] != number and present:
            self._first_seen = number, self.clock.now()
        waited = self.clock.now() - self._first_seen[1]
        if present and self._is_due(quorum, present, waited):
            # somebody else may have closed it, and the next ones too
            with contextlib.suppress(Superseded):
                self._propose(signature, number, [p.key for p in present.values()])
        self._tidy(number - 1, rounds)

    def _is_due(self, quorum: Quorum, present: Mapping[str, Posted], waited: float) -> bool:
        """Whether a round may be closed: all are there, or enough are and it has been long."""
        if not quorum.missing(present, self._known):
            return True
        return waited >= self.deadline and len(present) >= quorum.enough

    def _counted(self, number: int, posted: Posted) -> Posted | None:
        """Which of this process's updates a round includes.

        It may be an earlier one than the last: of a step that was given up and tried again.
        """
        mine = [
            p
            for p in self._plans.get(number, 0).posted()
            if p.client == self.client and p.incarnation == posted.incarnation
        ]
        return mine[0] if mine else None

    def _collective(self, signature: Signature) -> Flat | None:
        for _ in pauses(self.clock, self.deadline, at_least=_READS):
            rounds = self._look()
            planned = [n for n, round_ in rounds.items() if round_.plans]
            if not planned:
                return None
            with contextlib.suppress(Superseded):
                plan = self._plans.newest(planned[-1], rounds)
                if plan is not None:
                    result = self._complete(signature, planned[-1], plan)
                    self._settle(planned[-1], result)
                    return result.flat
        raise FederationError(f"no round at {self.store.url} could be read to its end")

    def _await_plan(
        self, signature: Signature, number: int, pick: Pick | None, delivered: bool
    ) -> Plan:
        """Wait until the round is closed, closing it when that is due.

        Being late is counted from one's own update; for who only looks on, from the first it sees.
        """
        began = said = self.clock.now()
        quorum = self.quorum.among(pick.members) if pick else self.quorum
        for _ in pauses(self.clock, float("inf"), first=0.02, longest=1.0):
            rounds = self._look()
            if plan := self._plans.newest(number, rounds):
                return plan
            if any(n > number and round_.plans for n, round_ in rounds.items()):
                raise Superseded(number)
            present = self._present(signature, rounds.get(number, Round()), quorum)
            if present and not delivered:
                began, delivered = self.clock.now(), True
            waited = self.clock.now() - began
            missing = quorum.missing(present, self._known)
            if self._is_due(quorum, present, waited):
                self._propose(signature, number, [p.key for p in present.values()])
            elif waited >= self.deadline:
                raise QuorumMissed(
                    f"round {number} has {len(present)} of the {quorum.enough} updates it "
                    f"needs after {waited:.0f} s; missing: {', '.join(missing)}. The model is "
                    "untouched: call step again to go on waiting, or join with a lower quorum",
                    missing,
                )
            elif self.clock.now() - said >= _SAY_AFTER:
                said = self.clock.now()
                self.events.emit(
                    events.Waiting(
                        client=self.client,
                        round=number,
                        present=len(present),
                        missing=missing,
                        seconds=waited,
                    )
                )
        raise AssertionError("a wait without end ended")

    def _present(self, signature: Signature, round_: Round, quorum: Quorum) -> dict[str, Posted]:
        """Each client's newest usable update in an open round."""
        usable = []
        for posted in round_.updates.values():
            if posted.signature != signature.digest:
                reason = "its params have another signature than this federation's"
            elif not self.quorum.admits(posted.client):
                reason = f"it is not among the members {', '.join(self.quorum.names)}"
            elif not quorum.admits(posted.client):
                reason = f"it was not picked for this round: {', '.join(quorum.names)} were"
            else:
                usable.append(posted)
                continue
            self._refuse(Refused(posted.client, posted.key, reason))
        return keys.newest(usable)

    def _propose(
        self, signature: Signature, number: int, included: Sequence[str], attempt: int = 0
    ) -> None:
        before, pick = self._before(signature, number), self._pick_of(number, attempt)
        plan = Plan(tuple(included), attempt, before, pick)
        with contextlib.suppress(AlreadyExists):
            self.store.put(keys.plan_key(number, attempt), [plan.to_bytes()], create=True)

    def _before(self, signature: Signature, number: int) -> tuple[int, int] | None:
        """The version that the round's result is a step from, where that matters."""
        if not self.strategy.optimizer.needs_current:
            return None
        rounds = self._look()
        planned = [n for n in rounds if n < number and rounds[n].plans]
        if planned:
            plan = self._plans.newest(planned[-1], rounds)
            if plan is not None and self._reached != (planned[-1], plan.attempt):
                # named only once it is there for everyone, which may take computing it
                plan = self._complete(signature, planned[-1], plan).plan
            return (planned[-1], plan.attempt) if plan is not None else None
        there = any(entry.key == keys.INITIAL for entry in self.store.list(""))
        return (-1, 0) if there else None

    def _settle(self, number: int, result: Result) -> None:
        """Start from here next time."""
        self.version = number + 1
        self._loaded = number
        self.state.start_from(result.flat)
        self._reached = number, result.plan.attempt
        self._known |= {p.client for p in result.plan.posted()}

    def _tidy(self, number: int, rounds: Mapping[int, Round] | None) -> None:
        """Collect what is over; what cannot be now must not cost the member its result."""
        with contextlib.suppress(StoreError):
            self._collect(number, self._look() if rounds is None else rounds)

    def _collect(self, number: int, rounds: Mapping[int, Round]) -> None:
        """Delete what is this client's in rounds that later ones have replaced.

        Its newest update stays, in whatever round that was: it says how far the client counted.
        """
        keys: list[str] = []
        mine = [p for r in rounds.values() for p in r.updates.values() if p.client == self.client]
        newest = max((p.rank for p in mine), default=None)
        for old, round_ in rounds.items():
            if old > number - KEPT_ROUNDS:
                break
            own = [p for p in round_.updates.values() if p.client == self.client]
            keys += [p.key for p in own if p.rank != newest]
            # another member may be collecting the same plans at this moment
            with contextlib.suppress(Superseded):
                keys += self._own_leftovers(old, round_)
        self._discard(keys)
        self._plans.forget(rounds)
        self._bad = {key for key in self._bad if any(key in r.updates for r in rounds.values())}

    def _own_leftovers(self, number: int, round_: Round) -> list[str]:
        mine: list[str] = []
        owner = ""
        if not round_.slices and len(round_) > len(round_.plans):
            return mine
        for attempt in sorted(round_.plans):
            clients = [p.client for p in self._plans.get(number, attempt).posted()]
            owner = clients[0]
            for index, entry in round_.slices.get(attempt, {}).items():
                if clients[min(index, len(clients) - 1)] == self.client:
                    mine.append(entry.key)
        # the plans go last, because they tell whose the slices are
        if owner == self.client and len(round_) == len(round_.plans):
            mine += [keys.plan_key(number, attempt) for attempt in round_.plans]
        return mine


def _open_round(rounds: Mapping[int, Round]) -> int:
    """The round that takes updates now: the one after the last that was closed."""
    planned = [number for number, round_ in rounds.items() if round_.plans]
    return planned[-1] + 1 if planned else 0
