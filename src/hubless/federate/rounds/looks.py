"""Looks: what whole updates of a round are like, which members find out together.

Members have to weigh updates alike, and none wants to read all of all updates for that. So the
owner of each slice looks at that stretch of all updates, and publishes what it saw as a record.
Sums come to the same bits on every machine, so a record can be checked like a slice of the
result, and computed by whoever misses it. A record has several units, so that checking a part of
it means reading a part of a slice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from hubless.errors import Refused
from hubless.federate.fold import Flat, Own, Stored
from hubless.federate.keys import Made, Posted, Round
from hubless.federate.looking import Step, count_steps, looks, steps_of
from hubless.federate.member import Member
from hubless.federate.rounds.included import Included
from hubless.federate.rounds.joint import Joint
from hubless.federate.rounds.plans import Plan
from hubless.federate.rounds.slices import Makers, Sliced, cut
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.base import Bytes
from hubless.strategy.look import Column, Look

_SHARE = 32
"""All records together take at most one such part of a model, unless one unit each is more."""
_SLACK = 1e-6
"""What rounding may add to a product; more would be no product of two changes."""
_TINY = 1e-140
"""Squares of smaller numbers are 0 in float64, where products with others are not."""


class Looked(Sliced):
    """One attempt at finding out what a round's updates are like: its records so far."""

    kind = "looks"

    def __init__(
        self,
        signature: Signature,
        number: int,
        plan: Plan,
        look: Look,
        posted: Posted | None = None,
        own: Own | None = None,
    ) -> None:
        super().__init__(signature, number, plan, posted, own)
        self.look, self.count = look, len(plan.included)
        self.width = self.count if look == "norms" else self.count * (self.count + 1) // 2
        """How many numbers a unit's record has: of products the upper triangle."""
        room = signature.size // (_SHARE * 8 * self.width * len(self.cuts))
        self.most = min(max(1, room), self.count)
        """How many units a record has at most."""
        self.records: dict[int, Column] = {}

    def rows(self, index: int) -> int:
        """How many units a slice's record has."""
        return len(cut(count_steps(self.signature, self.cuts[index]), self.most))

    def units(self, index: int) -> list[list[Step]]:
        """What each unit of a slice's record is about."""
        steps = steps_of(self.signature, self.cuts[index])
        return [[steps[i] for i in run] for run in cut(len(steps), self.most)]

    @property
    def digest(self) -> str:
        """Of all records: a slice of the result says by it which looks it follows."""
        return codec.fingerprint(*(self.digests[i].encode() for i in range(len(self.cuts))))

    @property
    def products(self) -> Column:
        """What all records come to, added up in their order."""
        total = np.zeros(self.width)
        for index in range(len(self.cuts)):
            for unit in self.records[index]:
                total += unit
        if self.look == "norms":
            return total
        products = np.zeros((self.count, self.count))
        products[np.triu_indices(self.count)] = total
        return products + np.triu(products, 1).T


class Looks(Joint[Looked]):
    """Makes, reads and checks records; `current` gives the version that changes are from."""

    def __init__(
        self,
        member: Member,
        makers: Makers,
        included: Included,
        current: Callable[[Sliced], Flat | None],
        computes: bool,
    ) -> None:
        super().__init__(member, makers, computes)
        self._included, self._current = included, current

    def compute(self, work: Looked, index: int, round_: Round) -> tuple[list[Bytes], str]:
        """Look at one stretch of all included updates."""
        record = self._seen(work, index, round_, work.units(index))
        work.records[index] = record
        return encode_look(work, index, record)

    def load(self, work: Looked, index: int, made: Made) -> None:
        """Read a record that somebody made."""
        rows = work.rows(index)
        shape = _shape(rows * work.width)
        stored = Stored(
            self._store,
            made.key,
            made.size,
            made.client,
            shape,
            work.says(index),
            math.inf,
            ahead=shape.size,
            digest=made.digest,
            keep=("products",),
        )
        flat = np.empty(shape.size, np.uint8)
        stored.verify(into=flat)
        if codec.fingerprint(flat.data) != stored.kept["products"]:
            raise stored.refused("its products are not those that its key announces")
        record = shape.unpack(flat)["products"].reshape(rows, work.width)
        if not _is_possible(record, work):
            raise stored.refused("its products are none of any changes")
        work.records[index] = record

    def differs(self, work: Looked, index: int, round_: Round) -> bool:
        """Whether a random unit of a record comes out otherwise."""
        units = work.units(index)
        at = secrets.randbelow(len(units))
        (mine,) = self._seen(work, index, round_, [units[at]])
        return not np.array_equal(mine, work.records[index][at])

    def to_check(self, work: Looked, others: Sequence[int]) -> list[int]:
        """Of so many records a unit each that all take a member about one model of reading.

        One false unit could change every weight, so that looking at a single one is not enough.
        """
        left = list(others)
        count = min(len(left), -(-len(work.cuts) * work.most // work.count))
        return [left.pop(secrets.randbelow(len(left))) for _ in range(count)]

    def _seen(
        self, work: Looked, index: int, round_: Round, units: Sequence[Sequence[Step]]
    ) -> Column:
        sources = self._included.sources(work, index, round_)
        current = self._current(work)
        try:
            seen = looks(work.signature, units, sources, work.look, self._store, current)
        except Refused as refusal:
            raise self._included.all_that_is_wrong(work, round_, refusal) from None
        return seen if work.look == "norms" else seen[:, *np.triu_indices(work.count)]


def encode_look(work: Looked, index: int, record: Column) -> tuple[list[Bytes], str]:
    """A record as an object, and its digest."""
    shape = _shape(record.size)
    flat = shape.pack({"products": record.reshape(-1)})
    says = {**work.says(index), "products": codec.fingerprint(flat.data)}
    encoded = codec.encode(shape, flat, says)
    return encoded, codec.fingerprint(encoded[0])


def _shape(count: int) -> Signature:
    return Signature.build({"products": ("F64", (count,))})


def _is_possible(record: Column, work: Looked) -> bool:
    """Whether there can be changes with these products: no forger can make distances negative."""
    if work.look == "norms":
        return bool((record >= 0).all())
    rows, columns = np.triu_indices(work.count)
    alone = record[:, rows == columns]
    if (alone < 0).any():
        return False
    lengths = np.sqrt(alone)
    most = lengths[:, rows] * lengths[:, columns]
    return bool((np.abs(record) <= most * (1 + _SLACK) + _TINY).all())
