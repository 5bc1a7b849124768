"""A round's result: slices of the next version, each with the optimizer's memory of it.

That is two models of download per member, however many members there are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import numpy as np

from hubless.errors import FederationError, NotFound, Refused
from hubless.federate import keys
from hubless.federate.fold import (
    Part,
    ServerState,
    capped,
    foldable_parts,
    implausible,
    parts_within,
    reduce,
)
from hubless.federate.keys import Made, Round
from hubless.federate.member import Member
from hubless.federate.rounds.included import Included, Unusable
from hubless.federate.rounds.joint import Joint
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
from hubless.signature import Block
from hubless.store.base import Bytes
from hubless.strategy.base import Slots
from hubless.strategy.look import Column

_CHECKED_BYTES = 64 << 10
"""Less is not worth leaving out when a slice is checked."""


class Results(Joint[Work]):
    """Reduces updates to the next version, a slice at a time.

    `prepare` has the version to step from, and what the optimizer remembers of some blocks. `look`
    has the updates weighed where a slice of an earlier round has to be made again.
    """

    def __init__(
        self,
        member: Member,
        makers: Makers,
        included: Included,
        prepare: Callable[[Work, range], None],
        look: Callable[[Work, Round], None],
        computes: bool,
        slots: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(member, makers, computes)
        self._strategy, self._included = member.strategy, included
        self._prepare, self._look = prepare, look
        self._slot_names = member.strategy.optimizer.slots if slots is None else slots
        self._slots: dict[int, tuple[tuple[int, int], Slots]] = {}
        self.state = ServerState(member.strategy)

    def compute(self, work: Work, index: int, round_: Round) -> tuple[list[Bytes], str]:
        """Reduce one slice of all included updates."""
        blocks, slots = work.cuts[index], dict[int, Slots]()

        def finish(block: Block, total: Array) -> None:
            target = work.out[block.start : block.stop].view(block.dtype)
            target[...], slots[block.start] = self.state.advance(block, total)

        room = self._store.request_bytes
        parts = foldable_parts(
            work.signature, blocks, self._strategy, len(work.plan.included), room
        )
        self._reduce(work, index, round_, parts, finish)
        for i in blocks:
            block = work.signature.blocks[i]
            if trouble := implausible(work.signature, work.out, 0, block, self._member.limit):
                raise FederationError(
                    f"round {work.number} comes to what nobody can go on with: {trouble}. The "
                    "model is untouched; a smaller server learning rate may help"
                )
        self._slots.update({start: (work.version, held) for start, held in slots.items()})
        return encode_slice(work, index, slots, self._slot_names)

    def load(self, work: Work, index: int, made: Made) -> None:
        """Read a slice's params."""
        read_slice(self._store, work, index, made, self._slot_names, self._member.limit)

    def differs(self, work: Work, index: int, round_: Round) -> bool:
        """Whether a random part of a slice, or the memory of it, comes out otherwise.

        One part in as many as there are members costs a member its share of one model.
        """
        start, stop = extent(work.signature, work.cuts[index])
        size = stop - start
        length = max(size // len(work.plan.included), min(size, _CHECKED_BYTES))
        first = start + secrets.randbelow(size - length + 1)
        parts = parts_within(
            work.signature, work.cuts[index], first, first + length, whole=bool(self._slot_names)
        )
        differing: list[Block] = []
        memory: dict[int, Slots] = {}

        def compare(block: Block, total: Array) -> None:
            values, memory[block.start] = self.state.advance(block, total)
            mine = np.empty(block.stop - block.start, np.uint8)
            mine.view(block.dtype)[...] = values
            if not np.array_equal(mine, work.out[block.start : block.stop]):
                differing.append(block)

        self._reduce(work, index, round_, parts, compare)
        return bool(differing) or self._remembers_otherwise(work, index, round_, memory)

    def forget(self, version: tuple[int, int]) -> None:
        """Remember nothing of what was computed for a version: it was computed by false looks."""
        self._slots = {start: kept for start, kept in self._slots.items() if kept[0] != version}

    def recall(
        self, earlier: Work, blocks: range, round_: Round, digests: dict[int, str] | None
    ) -> dict[int, Slots]:
        """The optimizer's memory of some blocks, from the slices of an earlier round.

        Of slices that this member has loaded it knows the digests.
        """
        number, attempt = earlier.version
        gone = NotFound(f"round {number} was collected", keys.plan_key(number, attempt))
        slots: dict[int, Slots] = {}
        for index, stretch in enumerate(earlier.cuts):
            if stretch.start >= blocks.stop or blocks.start >= stretch.stop:
                continue
            makers = self._makers.of(earlier, index, round_)
            if digests is not None:
                makers = [made for made in makers if made.digest == digests[index]]
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
                slots |= self.own_slots(earlier.version, made)
        return slots

    def _reduce(
        self,
        work: Work,
        index: int,
        round_: Round,
        parts: Sequence[Part],
        finish: Callable[[Block, Array], None],
    ) -> None:
        """Fold parts of a slice over all included updates."""
        sources = self._included.sources(work, index, round_)
        self._prepare(work, work.cuts[index])
        limit = self._member.limit
        try:
            weights = self._weights(work, round_)
            current = self.state.current
            strategy, store = self._strategy, self._store
            reduce(work.signature, parts, sources, weights, strategy, store, limit, finish, current)
        except Refused as refusal:
            raise self._included.all_that_is_wrong(work, round_, refusal) from None

    def weigh(self, work: Work, products: Column | None = None) -> None:
        """Settle what each included update counts for, given what was asked for of them."""
        included = work.plan.updates
        examples = capped([p.examples for p in included], self._member.outweigh)
        staleness = [max(0, work.number - p.version) for p in included]
        work.weights = self._strategy.weights(examples, staleness, products=products).tolist()

    def _weights(self, work: Work, round_: Round) -> list[float]:
        if work.weights is None and self._strategy.look:
            self._look(work, round_)
        elif work.weights is None:
            self.weigh(work)
        assert work.weights is not None
        return work.weights

    def _can_make(self, work: Work, index: int, round_: Round) -> bool:
        """Make a slice of an earlier round, if that can still be done."""
        try:
            return self.make(work, index, round_)
        except Unusable:
            # it was completed by who did not look: nobody can go on from there
            return False

    def own_slots(self, version: tuple[int, int], starts: Sequence[int]) -> dict[int, Slots]:
        """The memory of blocks that this member computed for a version, if it did all of them."""
        kept = {start: self._slots[start] for start in starts if start in self._slots}
        if len(kept) < len(starts) or any(at != version for at, _ in kept.values()):
            return {}
        return {start: held for start, (_, held) in kept.items()}

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
