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
from hubless.federate import layout
from hubless.federate.agreement import Agreement
from hubless.federate.completing import KEPT_ROUNDS, Completing
from hubless.federate.layout import Plan, Posted
from hubless.federate.probe import honours_create
from hubless.federate.quorum import Quorum
from hubless.federate.reduction import Flat, Local
from hubless.federate.rounds import Result, Round, Superseded
from hubless.federate.terms import Terms
from hubless.patience import pauses
from hubless.signature import Signature
from hubless.store.reliable import Reliable

_SAY_AFTER = 5.0
_READS = 20


class Synchronous(Completing):
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
        super().__init__(store, terms, help_after)
        self.quorum = quorum
        self.deadline = deadline
        self._known: set[str] = set()

    def _agreement(self, signature: Signature) -> Agreement:
        return Agreement(
            self.mode,
            signature,
            self.terms.limit,
            repr(self.strategy),
            self.strategy.optimizer.slots,
        )

    def _exchange(self, own: Local, examples: int, metrics: Mapping[str, float]) -> Flat | None:
        started, signature = self.clock.now(), own.signature
        while True:
            number = _open_round(self._look())
            folder = f"{layout.round_folder(number)}updates/"
            posted = self._post(folder, own, examples, metrics)
            try:
                plan = self._await_plan(signature, number)
                counted = self._counted(number, posted)
                if counted is not None:
                    mine = own if counted.key == posted.key else None
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
        # what cannot be tidied up now must not cost the member its result
        with contextlib.suppress(StoreError):
            self._collect(number)
        return result.flat

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

    def _await_plan(self, signature: Signature, number: int) -> Plan:
        """Wait until the round is closed, closing it when that is due."""
        began = said = self.clock.now()
        for _ in pauses(self.clock, float("inf"), first=0.02, longest=1.0):
            rounds = self._look()
            if plan := self._plans.newest(number, rounds):
                return plan
            if any(n > number and round_.plans for n, round_ in rounds.items()):
                raise Superseded(number)
            present = self._present(signature, rounds.get(number, Round()))
            waited = self.clock.now() - began
            missing = self.quorum.missing(present, self._known)
            enough = len(present) >= self.quorum.enough
            if not missing or (waited >= self.deadline and enough):
                self._propose(signature, number, [p.key for p in present.values()])
            elif waited >= self.deadline:
                raise QuorumMissed(
                    f"round {number} has {len(present)} of the {self.quorum.enough} updates it "
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

    def _present(self, signature: Signature, round_: Round) -> dict[str, Posted]:
        """Each client's newest usable update in an open round."""
        usable = []
        for posted in round_.updates.values():
            if posted.signature != signature.digest:
                reason = "its params have another signature than this federation's"
            elif not self.quorum.admits(posted.client):
                reason = f"it is not among the members {', '.join(self.quorum.names)}"
            else:
                usable.append(posted)
                continue
            self._refuse(Refused(posted.client, posted.key, reason))
        return layout.newest(usable)

    def _propose(
        self, signature: Signature, number: int, included: Sequence[str], attempt: int = 0
    ) -> None:
        plan = Plan(tuple(included), attempt, self._before(signature, number))
        with contextlib.suppress(AlreadyExists):
            self.store.put(layout.plan_key(number, attempt), [plan.to_bytes()], create=True)

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
        there = any(entry.key == layout.INITIAL for entry in self.store.list(""))
        return (-1, 0) if there else None

    def _settle(self, number: int, result: Result) -> None:
        """Start from here next time."""
        self.version = number + 1
        self.state.start_from(result.flat)
        self._reached = number, result.plan.attempt
        self._known |= {p.client for p in result.plan.posted()}

    def _collect(self, number: int) -> None:
        """Delete what is this client's in rounds that later ones have replaced."""
        rounds = self._look()
        keys: list[str] = []
        for old, round_ in rounds.items():
            if old > number - KEPT_ROUNDS:
                break
            keys += [p.key for p in round_.updates.values() if p.client == self.client]
            # another member may be collecting the same plans at this moment
            with contextlib.suppress(Superseded):
                keys += self._own_leftovers(old, round_)
        self._discard(keys)
        self._plans.forget(rounds)
        self._bad = {key for key in self._bad if any(key in r.updates for r in rounds.values())}

    def _own_leftovers(self, number: int, round_: Round) -> list[str]:
        keys: list[str] = []
        owner = ""
        for attempt in sorted(round_.plans):
            clients = [p.client for p in self._plans.get(number, attempt).posted()]
            owner = clients[0]
            for index, entry in round_.slices.get(attempt, {}).items():
                if clients[min(index, len(clients) - 1)] == self.client:
                    keys.append(entry.key)
        # the plans go last, because they tell whose the slices are
        if owner == self.client and len(round_) == len(round_.plans):
            keys += [layout.plan_key(number, attempt) for attempt in round_.plans]
        return keys


def _open_round(rounds: Mapping[int, Round]) -> int:
    """The round that takes updates now: the one after the last that was closed."""
    planned = [number for number, round_ in rounds.items() if round_.plans]
    return planned[-1] + 1 if planned else 0
