"""Completing a closed round: every member reduces a slice, and everybody reads all slices.

That is two models of download per member, however many members there are. A slice whose owner
is late is computed by whoever misses it: it comes out the same.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence

from hubless.errors import AlreadyExists, FederationError, NotFound, Refused
from hubless.federate import keys
from hubless.federate.federation import Federation
from hubless.federate.fold.ahead import read_ahead
from hubless.federate.fold.reduce import reduce
from hubless.federate.fold.source import Flat, Own, Source, Stored, open_updates
from hubless.federate.keys import Posted
from hubless.federate.rounds.plan import Plan, Plans, Result, Round, Superseded, Work, parse_rounds
from hubless.federate.rounds.slices import (
    encode_slice,
    extent,
    read_slice,
    read_slots,
    slice_signature,
)
from hubless.federate.terms import Terms
from hubless.params import Array
from hubless.patience import pauses
from hubless.signature import Block, Signature
from hubless.store.base import Entry
from hubless.store.reliable import Reliable
from hubless.strategy.base import Slots

KEPT_ROUNDS = 2


class Completing(Federation):
    """A member that can turn the plan of a round into its result."""

    def __init__(self, store: Reliable, terms: Terms, help_after: float) -> None:
        super().__init__(store, terms)
        self.help_after = help_after
        self._plans = Plans(store, self._check_plan)
        self._bad: set[str] = set()
        self._reached: tuple[int, int] | None = None
        self._made: dict[int, tuple[tuple[int, int], Slots]] = {}

    def _check_plan(self, plan: Plan, number: int) -> None:
        """Raise for a plan that is sound in itself, and still none for this federation."""

    @abstractmethod
    def _propose(
        self, signature: Signature, number: int, included: Sequence[str], attempt: int
    ) -> None:
        """Close a round with these updates, unless somebody else has closed it already."""

    def _look(self) -> dict[int, Round]:
        rounds = parse_rounds(self.store.list(keys.ROUNDS))
        self._check_sole([p for r in rounds.values() for p in r.updates.values()])
        return rounds

    def _complete(
        self,
        signature: Signature,
        number: int,
        plan: Plan,
        posted: Posted | None = None,
        own: Own | None = None,
        pinned: bool = False,
    ) -> Result:
        """The result of a closed round: read its slices, and compute those that are missing.

        An update that turns out bad is left out by closing the round again without it. Whether it
        is bad does not depend on who looks, so the attempt that includes it never completes. With
        `pinned` it is this attempt that counts, because a later plan refers to it.
        """
        work = Work(signature, number, plan, posted, own)
        waiting_since = self.clock.now()
        for _ in pauses(self.clock, float("inf"), first=0.02, longest=1.0):
            rounds = self._look()
            newest = self._plans.newest(number, rounds)
            # from then on its objects, the plan too, may be collected and even created again
            later = max((n for n, round_ in rounds.items() if round_.plans), default=-1)
            if newest is None or later >= number + KEPT_ROUNDS:
                raise Superseded(number)
            if newest.attempt != work.plan.attempt and not pinned:
                work = Work(signature, number, newest, posted, own)
            late = self.clock.now() - waiting_since >= self.help_after
            try:
                if self._advance(work, rounds[number], late):
                    waiting_since = self.clock.now()
            except Refused as refusal:
                self._leave_out(work, refusal)
            except NotFound as gone:
                # collected since that listing, unless it was missing there already: look again
                owners = [p.client for p in work.plan.posted() if p.key == gone.key]
                if late and owners and gone.key not in rounds[number].updates:
                    self._leave_out(work, Refused(owners[0], gone.key, "it was deleted"))
            if work.complete:
                return Result(work.out, work.plan)
        raise AssertionError("a wait without end ended")

    def _advance(self, work: Work, round_: Round, late: bool) -> bool:
        """Make one's own slice, or if others are late one of theirs; read those that are there.

        Whether any was read, or one's own made: what others do is what a member waits for, and
        while it was busy itself it did not wait.
        """
        there = round_.slices.get(work.plan.attempt, {})
        missing = [i for i in work.in_turn() if i not in work.have and i not in there]
        busy = work.mine in missing
        if busy or (late and missing):
            self._make_slice(work, missing[0], round_)
        wanted = [i for i in work.in_turn() if i in there and i not in work.have]

        def reading(index: int) -> Callable[[], Refused | None]:
            return lambda: self._read_slice(work, index, there[index])

        jobs = (reading(index) for index in wanted)
        arrived = read_ahead(jobs, self.store.parallel, self.store.parallel + 1)
        for index, refusal in zip(wanted, arrived, strict=True):
            if refusal is not None:
                self._refuse(refusal)
                self._make_slice(work, index, round_)
            work.have.add(index)
        return busy or bool(wanted)

    def _read_slice(self, work: Work, index: int, entry: Entry) -> Refused | None:
        try:
            read_slice(self.store, work, index, entry, self.strategy.optimizer.slots, self.limit)
        except Refused as refusal:
            return refusal
        return None

    def _make_slice(self, work: Work, index: int, round_: Round) -> None:
        """Reduce one slice of all included updates and publish it, unless somebody else has."""
        signature, blocks = work.signature, work.cuts[index]
        included = work.plan.posted()
        weights = self.strategy.weights(
            [p.examples for p in included],
            [max(0, work.number - p.version) for p in included],
        )
        sources = self._sources(work, index, round_)
        self._prepare(work, blocks)
        slots: dict[int, Slots] = {}

        def finish(block: Block, total: Array) -> None:
            target = work.out[block.start : block.stop].view(block.dtype)
            target[...], slots[block.start] = self.state.advance(block, total)

        reducer = self.strategy.reducer
        shares = weights.tolist()
        reduce(signature, blocks, sources, shares, reducer, self.store, self.limit, finish)
        self._made.update({start: (work.tag, held) for start, held in slots.items()})
        start, stop = extent(signature, blocks)
        names = self.strategy.optimizer.slots
        says, values = work.says(index), work.out[start:stop]
        parts = encode_slice(signature, blocks, values, slots, names, says)
        # whoever came first decides: what is there is read like any other slice
        with contextlib.suppress(AlreadyExists):
            key = keys.slice_key(work.number, work.plan.attempt, index)
            self.store.put(key, parts, create=True)
            work.have.add(index)

    def _sources(self, work: Work, index: int, round_: Round) -> list[Source]:
        """All included updates; one's own from memory where nobody else is meant to reduce it."""
        own = work.posted.key if work.posted and work.own and index == work.mine else ""
        keys = [key for key in work.plan.included if key != own]
        for key in keys:
            if key not in round_.updates:
                raise NotFound(f"{key} was collected", key)
        listed = [round_.updates[key] for key in keys]
        whole = len(work.cuts) == 1
        opened = open_updates(self.store, listed, work.signature, self.limit, ahead=whole)
        found: dict[str, Source] = {stored.key: stored for stored in opened}
        if own and work.own is not None:
            found[own] = work.own
        return [found[key] for key in work.plan.included]

    def _prepare(self, work: Work, blocks: range) -> None:
        """Have the version to step from, and what the optimizer remembers of these blocks."""
        before = work.plan.before
        slots: dict[int, Slots] = {}
        if before is None:
            self.state.current = None
        elif self._reached != before:
            self.state.current = self._version(work.signature, before)
            self._reached = before
        if before is not None and before[0] >= 0:
            starts = [work.signature.blocks[i].start for i in blocks]
            made = [self._made.get(start, (None, ())) for start in starts]
            if all(tag == before for tag, _ in made):
                slots = {start: held for start, (_, held) in zip(starts, made, strict=True)}
            else:
                slots = self._recall_slots(work.signature, before, blocks)
        self.state.slots, self.state.step = slots, work.number

    def _version(self, signature: Signature, reached: tuple[int, int]) -> Flat | None:
        number, attempt = reached
        if number < 0:
            return self._initial(signature)
        if attempt not in self._look().get(number, Round()).plans:
            raise Superseded(number)
        plan = self._plans.get(number, attempt)
        return self._complete(signature, number, plan, pinned=True).flat

    def _recall_slots(
        self, signature: Signature, before: tuple[int, int], blocks: range
    ) -> dict[int, Slots]:
        """Read the optimizer's memory of some blocks from the slices of an earlier round."""
        number, attempt = before
        there = self._look().get(number, Round()).slices.get(attempt, {})
        earlier = Work(signature, number, self._plans.get(number, attempt))
        names = self.strategy.optimizer.slots
        slots: dict[int, Slots] = {}
        for index, part in enumerate(earlier.cuts):
            if part.start < blocks.stop and blocks.start < part.stop and names:
                if index not in there:
                    raise Superseded(number)
                entry, shape = there[index], slice_signature(signature, part, names)
                says = earlier.says(index)
                stored = Stored(self.store, entry.key, entry.size, "?", shape, says)
                slots.update(read_slots(stored, signature, part, names))
        return slots

    def _leave_out(self, work: Work, refusal: Refused) -> None:
        """Close the round again without an update that nobody can use."""
        self._refuse(refusal)
        rest = [key for key in work.plan.included if key != refusal.key]
        if not rest or len(rest) == len(work.plan.included):
            raise FederationError(f"round {work.number} cannot be completed: {refusal}")
        self._propose(work.signature, work.number, rest, work.plan.attempt + 1)

    def _refuse(self, refusal: Refused) -> None:
        if refusal.key not in self._bad:
            self._bad.add(refusal.key)
            super()._refuse(refusal)
