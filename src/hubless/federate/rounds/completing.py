"""Completing a closed round: from a plan to what everybody goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hubless.errors import FederationError, NotFound, Refused, TooLate
from hubless.federate import keys
from hubless.federate.fold import Flat, Own
from hubless.federate.keys import Listing, Made, Posted, Round
from hubless.federate.member import Member
from hubless.federate.rounds.included import Included, Unusable, absent
from hubless.federate.rounds.joint import Joint
from hubless.federate.rounds.looks import Looked, Looks
from hubless.federate.rounds.plans import ATTEMPTS, Plan, Plans
from hubless.federate.rounds.results import Results
from hubless.federate.rounds.slices import Makers, Sliced, Work
from hubless.patience import pauses
from hubless.strategy.base import Slots

W = TypeVar("W", bound=Sliced)

KEPT_ROUNDS = 2
AFTER_THE_END = 20
"""So many looks are taken after the deadline before a round is given up."""
UNSETTLED = "another contradicts it, and it is too late to compute it"
"""Why a slice is not gone on from that may be right."""


@dataclass(frozen=True)
class Result:
    """What a round came to, the plan that held in the end, and how things lay then."""

    version: Flat
    """What this member goes on from, too: not for a caller to change."""
    plan: Plan
    listing: Listing

    def taken(self, into: Flat | None = None) -> Flat:
        """A copy of the version for a caller, who may go on to change its arrays in place."""
        into = np.empty_like(self.version) if into is None else into
        into[...] = self.version
        return into


class Completing:
    """Turns plans into results, and knows which version this member has reached.

    Who does not know the members' strategy `computes` nothing: it reads what they agree about, and
    has to be told of the `slots` that their optimizer has.
    """

    def __init__(
        self,
        member: Member,
        plans: Plans,
        help_after: float,
        computes: bool = True,
        slots: tuple[str, ...] | None = None,
    ) -> None:
        self._member, self._plans, self._help_after = member, plans, help_after
        self._store, self._strategy = member.store, member.strategy
        self._at: tuple[int, int] | None = None
        """The version whose params are at hand to step from."""
        self._makers = Makers(member, plans.admits)
        self._included = included = Included(member)
        self._looks = Looks(member, self._makers, included, self._current, computes)
        self._results = Results(
            member, self._makers, included, self._prepare, self._look, computes, slots
        )
        self._any = None if self._strategy.look or not computes else ""
        """What to ask of slices whose looks are not settled here: that they follow none, or any."""
        self._loaded: Work | None = None

    def complete(
        self,
        number: int,
        plan: Plan,
        posted: Posted | None = None,
        own: Own | None = None,
    ) -> Result | None:
        """The result of a closed round: read its slices, and compute those that are missing.

        An update that turns out bad is left out by closing the round again without it. Whether it
        is bad does not depend on who looks, so the attempt that includes it never completes. None
        where later rounds have taken this one's place, or where it is open again, because nobody
        can use any of its updates. Past the call's deadline nobody is waited for.
        """
        member, clock = self._member, self._member.clock
        work = self._begin(number, plan, posted, own)
        waiting_since, in_vain, looks = clock.now(), 0, 0
        for _ in pauses(clock, float("inf"), first=0.02, longest=1.0):
            listing = member.look()
            # from then on its objects, the plan too, may be collected and even created again
            binding = (
                None if self._is_over(number, listing) else self._plans.binding(number, listing)
            )
            if binding is None:
                return None
            if binding.attempt != work.plan.attempt or binding.digest != work.plan.digest:
                work = self._begin(number, binding, posted, own)
            if (loaded := self._loaded) is not None and self._plans.reached == work.version:
                # it stands, whatever is deleted later
                self._be_at(loaded)
                return Result(loaded.out, loaded.plan, listing)
            is_past = member.is_past
            looks += is_past
            if looks > AFTER_THE_END + ATTEMPTS + 4 * len(work.cuts):
                # each may have been of some use, and still there has to be an end
                break
            late = is_past or clock.now() - waiting_since >= self._help_after
            look = work.look
            try:
                advanced = self._advance(work, listing, late)
                if work.complete and (result := self._arrive(work)):
                    return result
            except Unusable as unusable:
                bad = [each for each in unusable.refusals if each.key in work.plan.included]
                if bad and self._plans.knows_before(number, [work.plan]):
                    self._leave_out(work, bad, listing)
                    continue
                # the plan itself may not count, which shows from the round before
                self.has_version_before(number, listing)
                advanced = False
            if (advanced and not late) or work.look != look:
                # who is late stays so, however long it takes to help out; a slice is awaited anew
                waiting_since = clock.now()
            in_vain = in_vain + 1 if is_past and not advanced else 0
            if in_vain > AFTER_THE_END:
                break
        raise TooLate(
            f"round {number} at {self._store.url} could not be completed before its deadline. The "
            "model is untouched: call step again to go on"
        )

    def is_bad(self, key: str, plan: Plan, number: int, listing: Listing) -> bool:
        """Whether nobody can use an update that a plan includes; NotFound if it has just gone."""
        if self._member.refused(key):
            return True
        posted = listing.rounds[number].updates.get(key)
        if posted is None:
            # what this member has computed stands for it, whatever is deleted later
            return self._plans.reached != (number, plan.attempt)
        try:
            self._included.open([posted], verify=True)
        except Unusable as unusable:
            for refusal in unusable.refusals:
                self._member.refuse(refusal)
            return True
        return False

    def has_all_slices(self, number: int, plan: Plan, listing: Listing) -> bool:
        """Whether a round needs nobody's update any more: its attempt stands."""
        work = Work(self._member.agreed, number, plan, look=self._any)
        round_ = listing.rounds[number]
        return self._plans.reached == work.version or (
            not absent(plan, round_)
            and all(
                self._makers.agreed(self._makers.of(work, i, round_)) for i in range(len(work.cuts))
            )
        )

    def has_version_before(self, number: int, listing: Listing) -> bool:
        """Whether the version that a round steps from is there for everybody, where it matters.

        That may take completing the round before.
        """
        if not self._strategy.needs_current or number == 0:
            return True
        plan = self._plans.binding(number - 1, listing)
        if plan is None or self._plans.reached == (number - 1, plan.attempt):
            return plan is not None
        return self.complete(number - 1, plan) is not None

    def version_before(self, number: int, listing: Listing) -> tuple[int, int] | None:
        """The version that a round steps from, where that matters; -1 is the initial one."""
        if not self._strategy.needs_current:
            return None
        if number == 0:
            return (-1, 0) if listing.has_initial else None
        plan = self._plans.binding(number - 1, listing)
        return None if plan is None else (number - 1, plan.attempt)

    def check_version_before(self, plan: Plan, number: int, listing: Listing) -> None:
        """Raise ValueError for a plan that steps from a version that no member can be at."""
        if not self._results.computes:
            # it follows whatever the members agree about
            return
        if not self._strategy.needs_current:
            fits = plan.before is None
        elif number == 0:
            fits = plan.before is None or (plan.before == (-1, 0) and listing.has_initial)
        else:
            fits = plan.before is not None and plan.before[0] == number - 1
        if not fits:
            raise ValueError("it steps from another version than the one before it")

    def check_again(self, listing: Listing) -> None:
        """Name what contradicts the slices that were loaded last, as far as it shows now."""
        work = self._loaded
        if work is None or work.number not in listing.rounds:
            return
        round_, digests = listing.rounds[work.number], dict(work.digests)
        plan = self._plans.binding(work.number, listing)
        if plan is not None and plan.attempt != work.plan.attempt:
            # it was closed again, as what it includes is bad: its result has to be had anew
            self._forget()
            return
        try:
            is_settled = self._is_looked_at(work, listing) and work.complete
            is_settled = is_settled and self._results.settle(work, round_)
        except (Unusable, NotFound):
            is_settled = False
        if not is_settled:
            for made in [*self._results.doubted(work, round_), *self._doubted_looks(work, round_)]:
                self._member.miss(Refused(made.client, made.key, UNSETTLED))
            self._forget()
        elif work.digests != digests:
            self._be_at(work)

    def _doubted_looks(self, work: Work, round_: Round) -> list[Made]:
        return [] if work.looked is None else self._looks.doubted(work.looked, round_)

    def _forget(self) -> None:
        """Be at no version: the last one is not to be gone on from."""
        if self._loaded is not None:
            self._results.forget(self._loaded.version)
        self._loaded = self._at = self._plans.reached = None

    def _is_over(self, number: int, listing: Listing) -> bool:
        if listing.planned[-1:] < [number + KEPT_ROUNDS]:
            return False
        newest = self._plans.newest(listing, number)
        return newest is not None and newest[0] >= number + KEPT_ROUNDS

    def _arrive(self, work: Work) -> Result | None:
        """Be at this version, once a part of it was checked and nobody says otherwise."""
        listing = self._member.look()
        if not self._is_looked_at(work, listing) or not work.complete:
            return None
        if not self._is_checked(self._results, work, listing):
            return None
        if not work.complete or not self._results.settle(work, listing.rounds[work.number]):
            return None
        self._be_at(work)
        return Result(work.out, work.plan, listing)

    def _be_at(self, work: Work) -> None:
        """Go on from this version."""
        self._plans.arrive(work.number, work.plan)
        self._at, self._loaded = work.version, work
        self._results.state.current = work.out
        # what it was trained to is the caller's again
        work.own = None
        if work.looked is not None:
            work.looked.own = None

    def _begin(
        self, number: int, plan: Plan, posted: Posted | None = None, own: Own | None = None
    ) -> Work:
        """An attempt at a round's result of which nothing is there yet."""
        signature, look = self._member.agreed, self._strategy.look
        work = Work(signature, number, plan, posted, own, self._any)
        if look and self._looks.computes:
            work.looked = Looked(signature, number, plan, look, posted, own)
        return work

    def _advance(self, work: Work, listing: Listing, late: bool) -> bool:
        """Do what can be done for a round now; whether anything came of it."""
        round_ = listing.rounds[work.number]
        if gone := absent(work.plan, round_):
            # what nobody can check is not read
            if late:
                raise Unusable([Refused(p.client, p.key, "it is not there") for p in gone])
            return False
        if work.looked is not None and not self._is_looked_at(work, listing):
            return self._looks.advance(work.looked, round_, late)
        return self._results.advance(work, round_, late)

    def _is_looked_at(self, work: Work, listing: Listing) -> bool:
        """Whether it stands what a round's updates are like; then they are weighed by that."""
        looked, round_ = work.looked, listing.rounds[work.number]
        if looked is None:
            return True
        if not looked.complete or not self._is_checked(self._looks, looked, listing):
            return False
        if not looked.complete or not self._looks.settle(looked, round_):
            return False
        if work.look != looked.digest:
            # what this member made by other looks is given up, memory and all
            work.follow(looked.digest)
            self._results.forget(work.version)
            self._results.weigh(work, looked.products)
        return True

    def _look(self, work: Work, round_: Round) -> None:
        """Find out alone what a round's updates are like; NotFound where they are not there."""
        look = self._strategy.look
        assert look
        looked = Looked(work.signature, work.number, work.plan, look)
        for index in range(len(looked.cuts)):
            if not self._looks.make(looked, index, round_):
                key = keys.plan_key(work.number, work.plan.attempt)
                raise NotFound(f"round {work.number} was collected", key)
        work.follow(looked.digest)
        self._results.weigh(work, looked.products)

    def _is_checked(self, joint: Joint[W], work: W, listing: Listing) -> bool:
        """Whether a part of what others made was computed again, or it is too late for that."""
        try:
            joint.check(work, listing.rounds[work.number])
        except NotFound:
            # where others have gone on from here it may be too late to check anything
            following = self._plans.binding(work.number + 1, listing)
            here = work.number, work.plan.attempt
            return following is not None and following.before in (None, here)
        return True

    def _prepare(self, work: Work, blocks: range) -> None:
        """Have the version to step from, and what the optimizer remembers of these blocks."""
        before = work.plan.before
        slots: dict[int, Slots] = {}
        if before is not None and before[0] >= 0 and self._strategy.optimizer.slots:
            slots = self._recall_slots(before, blocks)
        self._current(work)
        self._results.state.slots, self._results.state.step = slots, work.number

    def _current(self, work: Sliced) -> Flat | None:
        """The version that a plan steps from, where that matters."""
        before = work.plan.before
        if before is None:
            self._results.state.current = self._at = None
        elif self._at != before:
            self._go_back_to(before)
        return self._results.state.current

    def _go_back_to(self, version: tuple[int, int]) -> None:
        """Be at the version that a plan steps from; NotFound where it is not there any more."""
        number, attempt = version
        if number < 0:
            current = self._member.initial(self._member.agreed)
            if current is None and self._strategy.partial:
                raise FederationError(
                    f"{self._strategy!r} goes by how far updates are from the version that they "
                    f"started from, and {keys.INITIAL} cannot be used: remove it, and join again "
                    "with model="
                )
            self._results.state.current, self._at = current, version
            return
        listing = self._member.look()
        plan = self._plans.binding(number, listing)
        result = None if plan is None else self.complete(number, plan)
        if result is None or result.plan.attempt != attempt:
            raise NotFound(f"round {number} was collected", keys.plan_key(number, attempt))

    def _recall_slots(self, version: tuple[int, int], blocks: range) -> dict[int, Slots]:
        """The optimizer's memory of some blocks, as it was at an earlier version."""
        starts = [self._member.agreed.blocks[i].start for i in blocks]
        if slots := self._results.own_slots(version, starts):
            return slots
        number, attempt = version
        listing = self._member.look()
        plan = self._plans.get(number, attempt)
        if plan is None:
            raise NotFound(f"round {number} was collected", keys.plan_key(number, attempt))
        loaded = self._loaded
        digests = loaded.digests if loaded is not None and loaded.version == version else None
        earlier = Work(self._member.agreed, number, plan, look=self._any)
        return self._results.recall(earlier, blocks, listing.rounds[number], digests)

    def _leave_out(self, work: Work, refusals: Sequence[Refused], listing: Listing) -> None:
        """Close the round again without updates that nobody can use."""
        for refusal in refusals:
            self._member.refuse(refusal)
        rest = [key for key in work.plan.included if not self._member.refused(key)]
        plan = work.plan
        if rest:
            self._plans.close(work.number, rest, listing, plan.before, plan.pick)
        else:
            self._plans.void(work.number, plan.attempt)
