"""Completing a closed round: every member reduces a slice, and everybody reads all slices.

That is two models of download per member, however many members there are. A slice whose owner
is late is computed by whoever misses it: it comes out the same. For the same reason a member can
check others: it computes a random part of somebody else's slice again in every round, and all of
a slice that two members disagree about.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hubless.errors import FederationError, NotFound, Refused, StoreError, TooLate
from hubless.federate import keys
from hubless.federate.fold import (
    Flat,
    Own,
    Part,
    ServerState,
    Source,
    Stored,
    bad_ones,
    capped,
    foldable_parts,
    implausible,
    look,
    open_updates,
    parts_within,
    reduce,
)
from hubless.federate.keys import Listing, Made, Posted, Round
from hubless.federate.member import Member
from hubless.federate.rounds.plans import ATTEMPTS, Plan, Plans
from hubless.federate.rounds.slices import (
    Makers,
    Work,
    encode_slice,
    extent,
    read_slice,
    read_slots,
    read_slots_within,
)
from hubless.params import Array
from hubless.patience import pauses
from hubless.signature import Block
from hubless.strategy.base import Slots

KEPT_ROUNDS = 2
_CHECKED_BYTES = 64 << 10
"""Less is not worth leaving out when a slice is checked."""
AFTER_THE_END = 20
"""So many looks are taken after the deadline before a round is given up."""
UNSETTLED = "another contradicts it, and it is too late to compute it"
"""Why a slice is not gone on from that may be right."""
OTHER_SIGNATURE = "its params have another signature than this federation's"


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


class _Unusable(Exception):
    """Updates that nobody can use, so that the round has to be closed again without them."""

    def __init__(self, refusals: Sequence[Refused]) -> None:
        super().__init__(refusals)
        self.refusals = refusals


class Completing:
    """Turns plans into results, and knows which version this member has reached.

    Who does not know the members' strategy `computes` nothing: it reads what they agree about.
    """

    def __init__(
        self, member: Member, plans: Plans, help_after: float, computes: bool = True
    ) -> None:
        self._member, self._plans, self._help_after = member, plans, help_after
        self._computes = computes
        self._store, self._strategy = member.store, member.strategy
        self._slot_names = member.strategy.optimizer.slots
        self._state = ServerState(member.strategy)
        self._at: tuple[int, int] | None = None
        """The version whose params are at hand to step from."""
        self._slots: dict[int, tuple[tuple[int, int], Slots]] = {}
        self._makers = Makers(member, plans.admits)
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
        work = Work(member.agreed, number, plan, posted, own)
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
                work = Work(member.agreed, number, binding, posted, own)
            if (loaded := self._loaded) is not None and self._plans.reached == work.version:
                # it stands, whatever is deleted later
                self._be_at(loaded)
                return Result(loaded.out, loaded.plan, listing)
            is_past = member.is_past
            looks += is_past
            if looks > AFTER_THE_END + ATTEMPTS + 2 * len(work.cuts):
                # each may have been of some use, and still there has to be an end
                break
            late = is_past or clock.now() - waiting_since >= self._help_after
            try:
                advanced = self._advance(work, listing.rounds[number], late)
                if work.complete and (result := self._arrive(work)):
                    return result
            except _Unusable as unusable:
                bad = [each for each in unusable.refusals if each.key in work.plan.included]
                if bad and self._plans.knows_before(number, [work.plan]):
                    self._leave_out(work, bad, listing)
                    continue
                # the plan itself may not count, which shows from the round before
                self.has_version_before(number, listing)
                advanced = False
            if advanced and not late:
                # who is late stays so, however long it takes to help out
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
            self._open([posted], verify=True)
        except _Unusable as unusable:
            for refusal in unusable.refusals:
                self._member.refuse(refusal)
            return True
        return False

    def has_all_slices(self, number: int, plan: Plan, listing: Listing) -> bool:
        """Whether a round needs nobody's update any more: its attempt stands."""
        work, round_ = Work(self._member.agreed, number, plan), listing.rounds[number]
        return self._plans.reached == work.version or (
            not _absent(plan, round_)
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
            is_settled = self._settle_contradictions(work, round_)
        except (_Unusable, NotFound):
            is_settled = False
        if not is_settled:
            for index in self._contradicted(work, round_):
                for made in self._makers.of(work, index, round_):
                    if made.digest == work.digests[index]:
                        self._member.miss(Refused(made.client, made.key, UNSETTLED))
            self._forget()
        elif work.digests != digests:
            self._be_at(work)

    def _forget(self) -> None:
        """Be at no version: the last one is not to be gone on from."""
        self._loaded = self._at = self._plans.reached = None

    def _is_over(self, number: int, listing: Listing) -> bool:
        if listing.planned[-1:] < [number + KEPT_ROUNDS]:
            return False
        newest = self._plans.newest(listing, number)
        return newest is not None and newest[0] >= number + KEPT_ROUNDS

    def _arrive(self, work: Work) -> Result | None:
        """Be at this version, once a part of it was checked and nobody says otherwise."""
        listing = self._member.look()
        round_ = listing.rounds[work.number]
        try:
            self._check(work, round_)
        except NotFound:
            # where others have gone on from here it may be too late to check anything
            following = self._plans.binding(work.number + 1, listing)
            if following is None or following.before not in (None, work.version):
                return None
        if not work.complete or not self._settle_contradictions(work, round_):
            return None
        self._be_at(work)
        return Result(work.out, work.plan, listing)

    def _be_at(self, work: Work) -> None:
        """Go on from this version."""
        self._plans.arrive(work.number, work.plan)
        self._at, self._loaded = work.version, work
        self._state.current = work.out
        # what it was trained to is the caller's again
        work.own = None

    def _advance(self, work: Work, round_: Round, late: bool) -> bool:
        """Compute one's own slice, or if others are late one of theirs; read those that are there.

        Whether anything came of it: what others do is what a member waits for, and while it was
        busy itself it did not wait.
        """
        if absent := _absent(work.plan, round_):
            # what nobody can check is not read
            if late:
                raise _Unusable([Refused(p.client, p.key, "it is not there") for p in absent])
            return False
        missing = [i for i in work.in_turn() if i not in work.digests]
        if work.mine in missing and self._make_slice(work, work.mine, round_):
            return True
        makers = {i: self._makers.of(work, i, round_) for i in missing}
        agreed = {i: made for i in missing if (made := self._makers.agreed(makers[i]))}

        def reading(index: int) -> Callable[[], Refused | NotFound | None]:
            return lambda: self._read(work, index, agreed[index])

        advanced, forged = False, []
        arrived = self._store.ahead(reading(index) for index in agreed)
        for index, trouble in zip(agreed, arrived, strict=True):
            if trouble is None:
                work.digests[index] = agreed[index].digest
                advanced = True
            elif isinstance(trouble, Refused):
                self._member.refuse(trouble)
                forged.append(index)
        # where makers disagree nobody is believed, and who is late is not waited for
        alone = [*forged, *(i for i in missing if makers[i] and i not in agreed)]
        alone += [i for i in missing if late and not makers[i]][:1]
        for index in alone:
            advanced |= self._make_slice(work, index, round_)
        return advanced

    def _read(self, work: Work, index: int, made: Made) -> Refused | NotFound | None:
        try:
            read_slice(self._store, work, index, made, self._slot_names, self._member.limit)
        except (Refused, NotFound) as trouble:
            return trouble
        except StoreError as error:
            return Refused(made.client, made.key, f"it cannot be read: {error}")
        return None

    def _make_slice(self, work: Work, index: int, round_: Round) -> bool:
        """Reduce one slice of all included updates and publish it under one's own name.

        Whether that went well: updates may have been collected since the listing.
        """
        if not self._computes:
            return False
        blocks, slots = work.cuts[index], dict[int, Slots]()

        def finish(block: Block, total: Array) -> None:
            target = work.out[block.start : block.stop].view(block.dtype)
            target[...], slots[block.start] = self._state.advance(block, total)

        room = self._store.request_bytes
        parts = foldable_parts(
            work.signature, blocks, self._strategy, len(work.plan.included), room
        )
        try:
            self._reduce(work, index, round_, parts, finish)
        except NotFound:
            return False
        for i in blocks:
            block = work.signature.blocks[i]
            if trouble := implausible(work.signature, work.out, 0, block, self._member.limit):
                raise FederationError(
                    f"round {work.number} comes to what nobody can go on with: {trouble}. The "
                    "model is untouched; a smaller server learning rate may help"
                )
        self._slots.update({start: (work.version, held) for start, held in slots.items()})
        encoded, digest = encode_slice(work, index, slots, self._slot_names)
        member = self._member
        key = work.key(index, member.client, member.incarnation, digest)
        if not any(made.key == key for made in self._makers.of(work, index, round_)):
            member.publish(key, encoded)
        work.digests[index] = digest
        work.made.add(index)
        self._makers.name_forgers(work, index, round_)
        return True

    def _reduce(
        self,
        work: Work,
        index: int,
        round_: Round,
        parts: Sequence[Part],
        finish: Callable[[Block, Array], None],
    ) -> None:
        """Fold parts of a slice over all included updates."""
        sources = self._sources(work, index, round_)
        self._prepare(work, work.cuts[index])
        limit = self._member.limit
        try:
            weights = self._weights(work, round_)
            current = self._state.current
            strategy, store = self._strategy, self._store
            reduce(work.signature, parts, sources, weights, strategy, store, limit, finish, current)
        except Refused as refusal:
            # where one is bad others may be, too: one more pass finds them all
            updates = round_.updates
            there = [updates[key] for key in work.plan.included if key in updates]
            self._open(there, verify=True)
            raise _Unusable([refusal]) from None

    def _weights(self, work: Work, round_: Round) -> list[float]:
        """What each included update counts for: the same wherever it is asked."""
        if work.weights is None:
            included, strategy = work.plan.updates, self._strategy
            examples = capped([p.examples for p in included], self._member.outweigh)
            staleness = [max(0, work.number - p.version) for p in included]
            products = None
            if strategy.look:
                sources, origin = self._sources(work, work.mine, round_), self._state.current
                products = look(work.signature, sources, strategy, self._store, origin, exact=True)
            weights = strategy.weights(examples, staleness, products=products)
            work.weights = weights.tolist()
        return work.weights

    def _sources(self, work: Work, index: int | None, round_: Round) -> list[Source]:
        """All included updates; one's own from memory, but for what others reduce alike."""
        own = work.posted.key if work.posted and work.own and index == work.mine else ""
        wanted = [key for key in work.plan.included if key != own]
        for key in wanted:
            if key not in round_.updates:
                raise NotFound(f"{key} was collected", key)
        listed = [round_.updates[key] for key in wanted]
        sources: dict[str, Source] = dict(self._open(listed, ahead=len(work.cuts) == 1))
        if own and work.own is not None:
            sources[own] = work.own
        return [sources[key] for key in work.plan.included]

    def _open(
        self, listed: Sequence[Posted], ahead: bool = False, verify: bool = False
    ) -> dict[str, Stored]:
        """Included updates by key; _Unusable with all those that nobody can use."""
        member = self._member
        refusals = [
            Refused(p.client, p.key, OTHER_SIGNATURE)
            for p in listed
            if p.signature != member.agreed.digest
        ]
        opened, troubles = open_updates(
            self._store, listed, member.agreed, member.limit, ahead=ahead
        )
        if verify:
            troubles += bad_ones(opened.values())
        refusals += [trouble for trouble in troubles if isinstance(trouble, Refused)]
        if refusals:
            raise _Unusable(refusals)
        if troubles:
            raise troubles[0]
        return opened

    def _prepare(self, work: Work, blocks: range) -> None:
        """Have the version to step from, and what the optimizer remembers of these blocks."""
        before = work.plan.before
        slots: dict[int, Slots] = {}
        if before is not None and before[0] >= 0 and self._slot_names:
            slots = self._recall_slots(before, blocks)
        if before is None:
            self._state.current = self._at = None
        elif self._at != before:
            self._go_back_to(before)
        self._state.slots, self._state.step = slots, work.number

    def _go_back_to(self, version: tuple[int, int]) -> None:
        """Be at the version that a plan steps from; NotFound where it is not there any more."""
        number, attempt = version
        if number < 0:
            self._state.current = self._member.initial(self._member.agreed)
            self._at = version
            return
        listing = self._member.look()
        plan = self._plans.binding(number, listing)
        result = None if plan is None else self.complete(number, plan)
        if result is None or result.plan.attempt != attempt:
            raise NotFound(f"round {number} was collected", keys.plan_key(number, attempt))

    def _recall_slots(self, version: tuple[int, int], blocks: range) -> dict[int, Slots]:
        """The optimizer's memory of some blocks, from the slices of an earlier round.

        What this member computed itself it still has.
        """
        number, attempt = version
        starts = [self._member.agreed.blocks[i].start for i in blocks]
        if slots := self._own_slots(version, starts):
            return slots
        gone = NotFound(f"round {number} was collected", keys.plan_key(number, attempt))
        listing = self._member.look()
        plan = self._plans.get(number, attempt)
        if plan is None:
            raise gone
        round_, earlier = listing.rounds[number], Work(self._member.agreed, number, plan)
        loaded = self._loaded
        for index, stretch in enumerate(earlier.cuts):
            if stretch.start >= blocks.stop or blocks.start >= stretch.stop:
                continue
            makers = self._makers.of(earlier, index, round_)
            if loaded is not None and loaded.version == version:
                makers = [made for made in makers if made.digest == loaded.digests[index]]
            try:
                if not (agreed := self._makers.agreed(makers)):
                    raise gone
                slots |= read_slots(self._store, earlier, index, agreed, self._slot_names)
            except (Refused, NotFound) as trouble:
                if isinstance(trouble, Refused):
                    self._member.refuse(trouble)
                if not self._can_make(earlier, index, round_):
                    raise gone from None
                made = [earlier.signature.blocks[i].start for i in stretch]
                slots |= self._own_slots(version, made)
        return slots

    def _can_make(self, work: Work, index: int, round_: Round) -> bool:
        """Make a slice of an earlier round, if that can still be done."""
        try:
            return self._make_slice(work, index, round_)
        except _Unusable:
            # it was completed by who did not look: nobody can go on from there
            return False

    def _own_slots(self, version: tuple[int, int], starts: Sequence[int]) -> dict[int, Slots]:
        """The memory of blocks that this member computed for a version, if it did all of them."""
        kept = {start: self._slots[start] for start in starts if start in self._slots}
        if len(kept) < len(starts) or any(at != version for at, _ in kept.values()):
            return {}
        return {start: held for start, (_, held) in kept.items()}

    def _check(self, work: Work, round_: Round) -> None:
        """Compute a part of another's slice again, once.

        One part in as many as there are members costs a member its share of one model. Nobody can
        know which part of which slice it will be.
        """
        others = [i for i in range(len(work.cuts)) if i not in work.made]
        if work.is_checked or not others or not self._computes:
            return
        index = others[secrets.randbelow(len(others))]
        start, stop = extent(work.signature, work.cuts[index])
        size = stop - start
        length = max(size // len(work.plan.included), min(size, _CHECKED_BYTES))
        first = start + secrets.randbelow(size - length + 1)
        parts = parts_within(
            work.signature, work.cuts[index], first, first + length, whole=bool(self._slot_names)
        )
        differs: list[Block] = []
        memory: dict[int, Slots] = {}

        def compare(block: Block, total: Array) -> None:
            values, memory[block.start] = self._state.advance(block, total)
            mine = np.empty(block.stop - block.start, np.uint8)
            mine.view(block.dtype)[...] = values
            if not np.array_equal(mine, work.out[block.start : block.stop]):
                differs.append(block)

        self._reduce(work, index, round_, parts, compare)
        if differs or self._remembers_otherwise(work, index, round_, memory):
            # known to be wrong, or not to be had: in place again once it is computed
            del work.digests[index]
            self._make_slice(work, index, round_)
        work.is_checked = work.complete

    def _remembers_otherwise(
        self, work: Work, index: int, round_: Round, mine: dict[int, Slots]
    ) -> bool:
        """Whether the optimizer's memory in a slice is another than what this member computed."""
        if not self._slot_names:
            return False
        makers = self._makers.of(work, index, round_)
        made = next((m for m in makers if m.digest == work.digests[index]), None)
        if made is None:
            return True
        try:
            theirs = read_slots_within(
                self._store, work, index, made, self._slot_names, mine.keys()
            )
        except NotFound:
            return True
        except Refused as refusal:
            self._member.refuse(refusal)
            return True
        return any(
            not np.array_equal(a, b)
            for start, held in theirs.items()
            for a, b in zip(held, mine[start], strict=True)
        )

    def _settle_contradictions(self, work: Work, round_: Round) -> bool:
        """Compute what others say differs from what was loaded; whether that could be done."""
        for index in self._contradicted(work, round_):
            if index in work.made:
                self._makers.name_forgers(work, index, round_)
            elif not self._make_slice(work, index, round_):
                return False
        return True

    def _contradicted(self, work: Work, round_: Round) -> list[int]:
        """The slices in place that somebody says are others."""
        return [
            index
            for index, digest in work.digests.items()
            if any(made.digest != digest for made in self._makers.of(work, index, round_))
        ]

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


def _absent(plan: Plan, round_: Round) -> list[Posted]:
    """The updates that a plan includes and a listing does not show."""
    return [posted for posted in plan.updates if posted.key not in round_.updates]
