"""Synchronous mode: rounds that everybody ends with the same bytes.

Each member puts its update; when enough are there, one create-only record fixes which are
included; member i reduces slice i of all of them and publishes it; everybody reads the slices.
That is two models of download per member, however many members there are. A slice whose owner
is late is computed by whoever misses it: it comes out the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from hubless import events
from hubless.errors import (
    AlreadyExists,
    FederationError,
    NotFound,
    QuorumMissed,
    Refused,
    UnsafeStore,
)
from hubless.federate import layout
from hubless.federate.agreement import Agreement
from hubless.federate.federation import Federation
from hubless.federate.layout import Plan, Posted
from hubless.federate.probe import honours_create
from hubless.federate.quorum import Quorum
from hubless.federate.reduction import (
    Flat,
    Local,
    Source,
    Stored,
    open_update,
    read_ahead,
    reduce,
)
from hubless.federate.rounds import Plans, Result, Round, Superseded, Work, parse_rounds
from hubless.federate.slices import (
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

_KEPT_ROUNDS = 2
_SAY_AFTER = 5.0


class Synchronous(Federation):
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
        honoured, what = honours_create(store)
        if not honoured:
            raise UnsafeStore(
                f'{store.url} cannot carry mode="sync": members fix who is included in a round '
                f"by creating a record only if it is absent, and here {what}. Use "
                'mode="async", which needs no such promise, or a store that keeps it '
                "(`hubless check URL` tells)"
            )
        super().__init__(store, terms)
        self.quorum = quorum
        self.deadline = deadline
        self.help_after = help_after
        self._plans = Plans(store)
        self._known: set[str] = set()
        self._bad: set[str] = set()
        self._reached: tuple[int, int] | None = None
        self._made: dict[int, tuple[tuple[int, int], Slots]] = {}

    def _agreement(self, signature: Signature) -> Agreement:
        return Agreement(
            self.mode,
            signature,
            self.terms.limit,
            repr(self.strategy),
            self.strategy.optimizer.slots,
        )

    def _exchange(
        self, signature: Signature, flat: Flat, examples: int, metrics: Mapping[str, float]
    ) -> Flat | None:
        started = self.clock.now()
        while True:
            number = _open_round(self._look())
            folder = f"{layout.round_folder(number)}updates/"
            posted = self._post(folder, signature, flat, examples, metrics)
            plan = self._await_plan(signature, number)
            if posted.key in self._plans.get(number, 0).included:
                break
            self.events.emit(events.Late(client=self.client, round=number))
        try:
            result = self._complete(signature, number, plan, posted, Local(signature, flat))
        except Superseded:
            return self._collective(signature)
        self._settle(number, result)
        self.events.emit(
            events.Closed(
                client=self.client,
                round=number,
                included=[p.client for p in result.plan.posted()],
                seconds=self.clock.now() - started,
            )
        )
        self._collect(number)
        return result.flat

    def _collective(self, signature: Signature) -> Flat | None:
        while planned := [n for n, round_ in self._look().items() if round_.plans]:
            try:
                plan = self._await_plan(signature, planned[-1])
                result = self._complete(signature, planned[-1], plan)
            except Superseded:
                continue
            self._settle(planned[-1], result)
            return result.flat
        return None

    def _look(self) -> dict[int, Round]:
        rounds = parse_rounds(self.store.list(layout.ROUNDS))
        self._check_sole([p for r in rounds.values() for p in r.updates.values()])
        return rounds

    def _await_plan(self, signature: Signature, number: int) -> Plan:
        """Wait until the round is closed, closing it when that is due."""
        began = said = self.clock.now()
        for _ in pauses(self.clock, float("inf"), first=0.02, longest=1.0):
            rounds = self._look()
            if plan := self._plans.newest(number, rounds):
                return plan
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
        """Close a round with these updates, unless somebody else has closed it already."""
        before = self._before(signature, number)
        plan = Plan(tuple(included), attempt, before)
        with contextlib.suppress(AlreadyExists):
            self.store.put(layout.plan_key(number, attempt), [plan.to_bytes()], create=True)

    def _before(self, signature: Signature, number: int) -> tuple[int, int] | None:
        """The version that the round's result is a step from, where that matters."""
        if not self.strategy.optimizer.needs_current:
            return None
        rounds = self._look()
        planned = [n for n in rounds if n < number and rounds[n].plans]
        if planned:
            # named only once it is there for everyone, which may take computing it
            plan = self._await_plan(signature, planned[-1])
            return planned[-1], self._complete(signature, planned[-1], plan).plan.attempt
        there = any(entry.key == layout.INITIAL for entry in self.store.list(""))
        return (-1, 0) if there else None

    def _complete(
        self,
        signature: Signature,
        number: int,
        plan: Plan,
        posted: Posted | None = None,
        own: Local | None = None,
    ) -> Result:
        """The result of a closed round: read its slices, and compute those that are missing.

        An update that turns out bad is left out by closing the round again without it. Whether it
        is bad does not depend on who looks, so the attempt that includes it never completes.
        """
        work = Work(signature, number, plan, posted, own)
        progress = self.clock.now()
        for _ in pauses(self.clock, float("inf"), first=0.02, longest=1.0):
            rounds = self._look()
            round_ = rounds.get(number, Round())
            newest = self._plans.newest(number, rounds)
            if newest is None:
                raise Superseded(number)
            if newest.attempt != work.plan.attempt:
                work = Work(signature, number, newest, posted, own)
            late = self.clock.now() - progress >= self.help_after
            before = len(work.have)
            try:
                self._advance(work, round_, late)
            except Refused as refusal:
                self._leave_out(work, refusal)
            except NotFound as gone:
                # its owner collects an update when rounds after it are complete, so look again
                if max(rounds) >= number + _KEPT_ROUNDS:
                    raise Superseded(number) from gone
                if late:
                    client = next((p.client for p in plan.posted() if p.key == gone.key), "?")
                    self._leave_out(work, Refused(client, gone.key, "it was deleted"))
            if work.complete:
                return Result(work.out, work.plan)
            if len(work.have) > before:
                progress = self.clock.now()
        raise AssertionError("a wait without end ended")

    def _advance(self, work: Work, round_: Round, late: bool) -> None:
        """Make one's own slice, read those that are there, and if need be make one for another."""
        there = round_.slices.get(work.plan.attempt, {})
        missing = [i for i in work.in_turn() if i not in work.have and i not in there]
        if work.mine in missing or (late and missing):
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

    def _read_slice(self, work: Work, index: int, entry: Entry) -> Refused | None:
        try:
            read_slice(self.store, work, index, entry, self.strategy.optimizer.slots, self.limit)
        except Refused as refusal:
            return refusal
        return None

    def _make_slice(self, work: Work, index: int, round_: Round) -> None:
        """Reduce one slice of all included updates, publish it, and keep it."""
        signature, blocks = work.signature, work.cuts[index]
        sources: list[Source] = []
        included = work.plan.posted()
        for posted in included:
            if work.posted is not None and work.own is not None and posted.key == work.posted.key:
                sources.append(work.own)
            elif posted.key in round_.updates:
                listed = round_.updates[posted.key]
                sources.append(
                    open_update(self.store, listed, signature, self.limit, len(included))
                )
            else:
                raise NotFound(f"{posted.key} was collected", posted.key)
        weights = self.strategy.weights(
            [p.examples for p in included],
            [max(0, work.number - p.version) for p in included],
        )
        self._prepare(work, blocks)
        slots: dict[int, Slots] = {}

        def finish(block: Block, total: Array) -> None:
            target = work.out[block.start : block.stop].view(block.dtype)
            target[...], slots[block.start] = self.state.advance(block, total)

        reducer = self.strategy.reducer
        reduce(signature, blocks, sources, weights.tolist(), reducer, self.store, finish)
        start, stop = extent(signature, blocks)
        names = self.strategy.optimizer.slots
        parts = encode_slice(
            signature, blocks, work.out[start:stop], slots, names, work.says(index)
        )
        key = layout.slice_key(work.number, work.plan.attempt, index)
        # whoever came first has written the same bytes
        with contextlib.suppress(AlreadyExists):
            self.store.put(key, parts, create=True)
        self._made.update({start: (work.tag, slots[start]) for start in slots})
        work.have.add(index)

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
        return self._complete(signature, number, self._plans.get(number, attempt)).flat

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
        if not rest:
            raise FederationError(f"round {work.number} has no usable update: {refusal}")
        self._propose(work.signature, work.number, rest, work.plan.attempt + 1)

    def _settle(self, number: int, result: Result) -> None:
        """Start from here next time."""
        self.version = number + 1
        self.state.arrive(result.flat)
        self._reached = number, result.plan.attempt
        self._known |= {p.client for p in result.plan.posted()}

    def _collect(self, number: int) -> None:
        """Delete what is this client's in rounds that later ones have replaced."""
        keys: list[str] = []
        for old, round_ in self._look().items():
            if old > number - _KEPT_ROUNDS:
                break
            keys += [p.key for p in round_.updates.values() if p.client == self.client]
            # another member may be collecting the same plans at this moment
            with contextlib.suppress(NotFound):
                keys += self._own_leftovers(old, round_)
        self._discard(keys)

    def _own_leftovers(self, number: int, round_: Round) -> list[str]:
        keys: list[str] = []
        firsts = set()
        for attempt in round_.plans:
            included = self._plans.get(number, attempt).posted()
            firsts.add(included[0].client)
            for index, entry in round_.slices.get(attempt, {}).items():
                if included[index].client == self.client:
                    keys.append(entry.key)
        # the plans go last, because they tell whose the slices are
        if firsts == {self.client} and len(round_) == len(round_.plans):
            keys += [layout.plan_key(number, attempt) for attempt in round_.plans]
        return keys

    def _refuse(self, refusal: Refused) -> None:
        if refusal.key not in self._bad:
            self._bad.add(refusal.key)
            super()._refuse(refusal)


def _open_round(rounds: Mapping[int, Round]) -> int:
    """The round that takes updates now: the one after the last that was closed."""
    planned = [number for number, round_ in rounds.items() if round_.plans]
    return planned[-1] + 1 if planned else max(rounds, default=0)
