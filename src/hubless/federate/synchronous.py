"""Synchronous mode: rounds that everybody ends with the same bytes.

Each member puts its update; when enough are there, one create-only record fixes which are
included; then the round is completed, in slices. Each of these is a part with a state of its own:
`Picking` knows who trains, `OpenRound` waits and closes, `Plans` says which record binds, and
`Completing` turns it into params. This one leads from the one to the next.
"""

from __future__ import annotations

from hubless import events
from hubless.errors import FederationError, RolledBack, TooLate, UnsafeStore
from hubless.federate import keys
from hubless.federate.agreement import Agreement
from hubless.federate.fold import Flat, Own
from hubless.federate.keys import Listing, Posted
from hubless.federate.member import Member, Report
from hubless.federate.outside.probe import honours_create
from hubless.federate.picking.picking import Picking
from hubless.federate.rounds.closing import OpenRound, Quorum
from hubless.federate.rounds.completing import KEPT_ROUNDS, Completing, Result
from hubless.federate.rounds.deadline import Adaptive, Deadline
from hubless.federate.rounds.plans import Plan, Plans
from hubless.patience import pauses
from hubless.signature import Signature

_TRIES = 3
"""So often a member delivers at least before it gives up, however late it was."""
_LOOKS = 20
"""So often the newest round is looked for, as it may be collected while it is read."""


class Synchronous:
    """A mode in which members wait for each other, but never for ever."""

    name = "sync"
    trains_on_alone = False
    ends_alike = True

    def __init__(
        self,
        member: Member,
        quorum: Quorum,
        deadline: float | Adaptive,
        help_after: float = 5.0,
    ) -> None:
        terms, strategy = member.terms, member.strategy
        if terms.participation is not None and quorum.enough == quorum.everyone:
            raise FederationError(
                "with who=Participation(...) a member sits rounds out, so the others need a "
                "quorum= below the number of members"
            )
        if " at 0x" in repr(strategy):
            raise FederationError(
                f"synchronous members compare their strategies by their text, and {strategy} "
                "has parts without one: make those dataclasses, or give them a __repr__"
            )
        honoured, what = honours_create(member.store, member.client)
        if not honoured:
            raise UnsafeStore(
                f"{member.store.url} cannot carry rounds: members fix who is included in a "
                f"round by creating a record only if it is absent, and here {what}. Use "
                "pace=Anytime(), which needs no such promise, or a store that keeps it "
                "(`hubless check URL` tells)"
            )
        self.member, limit = member, Deadline(deadline, member.clock)
        self.deadline = limit.ceiling
        self._plans = Plans(member, quorum.admits, self._check, self._is_bad)
        self._completing = Completing(member, self._plans, min(help_after, self.deadline / 2))
        self._open = OpenRound(member, self._plans, quorum, limit, self._completing)
        self._picking, self._trains_on = None, False
        if terms.selection is not None:
            self._trains_on = terms.selection.unpicked == "train"
            self._picking = Picking(
                member, self._plans, self._completing, terms.selection, quorum.names
            )
        self._arrived = -1
        """The round whose result this member has loaded last."""

    @property
    def reached(self) -> tuple[int, int] | None:
        """The version that this member is at: a round, and at which attempt it was completed."""
        return self._plans.reached

    def agreement(self, signature: Signature) -> Agreement:
        """The model, and all that has to be the same where everybody computes a part."""
        strategy = self.member.strategy
        return Agreement(
            self.name,
            signature,
            self.member.limit,
            self.member.outweigh,
            repr(strategy),
            strategy.optimizer.slots,
            self._picking.selecting() if self._picking else None,
        )

    def exchange(self, own: Own, report: Report) -> Flat | None:
        """Deliver an update, wait for the others', and come back with what the round came to."""
        member, clock = self.member, self.member.clock
        started = clock.now()
        hidden: Report | None = None
        for _ in pauses(clock, self.deadline, first=0.02, longest=0.2, at_least=_TRIES):
            listing = member.look()
            self._completing.check_again(listing)
            number = self._newest(listing)[0] + 1
            if member.strategy.partial and number == 0 and not listing.has_initial:
                raise FederationError(
                    f"{member.strategy!r} goes by how far updates are from the version that they "
                    "started from, and there is none yet: join with model="
                )
            pick = self._picking.pick(number, listing) if self._picking else None
            if self._picking and pick is None:
                continue
            trains = pick is None or member.client in pick.members
            if not trains:
                member.emit(events.Skipped(client=member.client, step=member.calls, round=number))
            if pick is not None and self._is_behind(number) and not (trains and hidden):
                if trains and self._arrived >= 0:
                    member.emit(events.Late(client=member.client, round=number - 1))
                self._collect(number - 1, listing)
                return self.collective(own.signature)
            posted = None
            if trains and hidden is None and pick is None and self._has_missed(number):
                member.emit(events.Late(client=member.client, round=number - 1))
            if trains:
                hidden = hidden or member.hidden(report)
                posted = member.post(f"{keys.round_folder(number)}updates/", own, hidden)
            elif pick is not None and self._trains_on:
                self._open.look_on(number, listing, pick)
                self._collect(number - 1, listing)
                return None
            plan = self._open.wait(number, pick, posted is not None)
            if plan is None and self._picking and self._picking.pick(number, member.look()) != pick:
                # all who were picked for it have left
                continue
            counted = None if plan is None or posted is None else self._counted(plan)
            if plan is not None and posted is not None and counted is None:
                member.emit(events.Late(client=member.client, round=number))
                continue
            result = None
            if plan is not None:
                mine = own if counted and posted and counted.key == posted.key else None
                result = self._completing.complete(number, plan, counted, mine)
                if result is None and self._plans.get(number, plan.attempt) is None:
                    # it is open again: nobody can use any of the updates that it included
                    continue
            if result is None:
                # nobody can tell any more whether it counted, and it must not count twice
                return self.collective(own.signature)
            self._arrive(number, result)
            member.emit(
                events.Closed(
                    client=member.client,
                    round=number,
                    included=[p.client for p in result.plan.updates],
                    seconds=clock.now() - started,
                    missing=self._open.missing(result.plan, result.listing) or None,
                )
            )
            self._collect(number, result.listing)
            return result.taken(into=own.flat)
        raise TooLate(
            f"rounds at {member.store.url} close without this member: it was late for all of them "
            f"in {clock.now() - started:.0f} s. The model is untouched: call step again, or share "
            "less often with every="
        )

    def collective(self, signature: Signature) -> Flat | None:
        """The result of the newest round, which may take completing it.

        Before the first one: the initial params.
        """
        member = self.member
        for _ in pauses(member.clock, member.until - member.clock.now(), at_least=_LOOKS):
            listing = member.look()
            self._completing.check_again(listing)
            number, plan = self._newest(listing)
            if plan is None:
                return member.initial(signature)
            result = self._completing.complete(number, plan)
            if result is not None:
                self._arrive(number, result)
                return result.taken()
        raise TooLate(f"no round at {member.store.url} could be read to its end: call again")

    def _check(self, plan: Plan, number: int, listing: Listing) -> None:
        """Raise ValueError for a plan that is sound in itself, and still none for these members."""
        self._completing.check_version_before(plan, number, listing)
        if self._picking is not None:
            self._picking.check(plan, number, listing)

    def _is_bad(self, key: str, plan: Plan, number: int, listing: Listing) -> bool:
        return self._completing.is_bad(key, plan, number, listing)

    def _newest(self, listing: Listing) -> tuple[int, Plan | None]:
        """The newest round that was closed, and how; -1 and None before there is any."""
        reached = self._arrived
        number, plan = self._plans.newest(listing, reached) or (-1, None)
        if number < reached:
            raise RolledBack(
                f"{self.member.store.url} has gone back: this member has seen the end of round "
                f"{reached}, and the newest there is round {number}. Somebody removed later ones, "
                "or an old copy took their place. The model is untouched"
            )
        if plan is not None:
            self._open.note(number, plan)
        return number, plan

    def _is_behind(self, number: int) -> bool:
        """Whether rounds went by without this member: then it starts from their result first.

        So whatever a member trains for a round starts from the round before, as in a simulation.
        Who trains on when it is not picked goes its own way.
        """
        return not self._trains_on and self._arrived < number - 1

    def _has_missed(self, number: int) -> bool:
        """Whether a round went by in which this member was to deliver."""
        return 0 <= self._arrived < number - 1 and self.member.terms.participation is None

    def _counted(self, plan: Plan) -> Posted | None:
        """Which of this process's updates a round includes.

        It may be an earlier one than the last: of a step that was given up and tried again.
        """
        mine = [p for p in plan.updates if self.member.wrote(p.key)]
        return mine[0] if mine else None

    def _arrive(self, number: int, result: Result) -> None:
        """Start from here next time."""
        self.member.version = number + 1
        self._arrived = number
        self._open.arrive(number, result.plan)

    def _collect(self, number: int, listing: Listing) -> None:
        """Delete what is this client's in rounds that later ones have replaced.

        Its newest update stays, in whatever round that was: it says how far the client counted.
        """
        client = self.member.client
        over = [(n, round_) for n, round_ in listing.rounds.items() if n <= number - KEPT_ROUNDS]
        updates = [p for r in listing.rounds.values() for p in r.updates.values()]
        superseded = set(self.member.superseded(updates, keep=1))
        leftovers, plans = list[str](), list[str]()
        for old, round_ in over:
            leftovers += [key for key in round_.updates if key in superseded]
            leftovers += [made.key for made in round_.made if made.client == client]
            for attempt in round_.plans:
                plan = self._plans.get(old, attempt)
                if plan is not None and plan.by == client:
                    plans.append(keys.plan_key(old, attempt))
        self.member.discard(leftovers)
        # on its own: where members may create plans and not delete them, the rest still goes
        self.member.discard(plans)
        self._plans.forget_before(number - KEPT_ROUNDS)
        self.member.forget_all_but(listing.keys)
