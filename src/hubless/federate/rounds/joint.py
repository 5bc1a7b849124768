"""What members compute together: each of them a slice, and a part of somebody else's again.

A slice whose owner is late is computed by whoever misses it: it comes out the same. For the same
reason a member can check others. It computes a random part of what they made again, and all of a
slice that two members disagree about.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hubless.errors import NotFound, Refused, StoreError
from hubless.federate.keys import Made, Round
from hubless.federate.member import Member
from hubless.federate.rounds.slices import Makers, Sliced
from hubless.store.base import Bytes

W = TypeVar("W", bound=Sliced)


class Joint(ABC, Generic[W]):
    """Makes, reads and checks slices, whatever they are of.

    Who does not know the members' strategy `computes` nothing: it reads what they agree about.
    """

    def __init__(self, member: Member, makers: Makers, computes: bool) -> None:
        self._member, self._store = member, member.store
        self._makers, self.computes = makers, computes

    @abstractmethod
    def compute(self, work: W, index: int, round_: Round) -> tuple[list[Bytes], str]:
        """A slice as an object, and its digest; NotFound where updates were collected."""

    @abstractmethod
    def load(self, work: W, index: int, made: Made) -> None:
        """Read a slice into its place; Refused where it cannot be one."""

    @abstractmethod
    def differs(self, work: W, index: int, round_: Round) -> bool:
        """Whether a random part of a slice comes out otherwise when it is computed again."""

    def to_check(self, work: W, others: Sequence[int]) -> list[int]:
        """Of which slices of others a part is computed again: of one, which nobody can foresee."""
        return [others[secrets.randbelow(len(others))]]

    def advance(self, work: W, round_: Round, late: bool) -> bool:
        """Compute one's own slice, or if others are late one of theirs; read those that are there.

        Whether anything came of it: what others do is what a member waits for, and while it was
        busy itself it did not wait.
        """
        missing = [i for i in work.in_turn() if i not in work.digests]
        if work.mine in missing and self.make(work, work.mine, round_):
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
            advanced |= self.make(work, index, round_)
        return advanced

    def make(self, work: W, index: int, round_: Round) -> bool:
        """Compute one slice, and publish it under one's own name.

        Whether that went well: updates may have been collected since the listing.
        """
        if not self.computes:
            return False
        try:
            encoded, digest = self.compute(work, index, round_)
        except NotFound:
            return False
        member = self._member
        key = work.key(index, member.client, member.incarnation, digest)
        if not any(made.key == key for made in self._makers.of(work, index, round_)):
            member.publish(key, encoded)
        work.digests[index] = digest
        work.made.add(index)
        self._makers.name_forgers(work, index, round_)
        return True

    def check(self, work: W, round_: Round) -> None:
        """Compute a part of what others made again, once."""
        others = [i for i in range(len(work.cuts)) if i not in work.made]
        if work.is_checked or not others or not self.computes:
            return
        for index in self.to_check(work, others):
            if self.differs(work, index, round_):
                # known to be wrong, or not to be had: in place again once it is computed
                del work.digests[index]
                self.make(work, index, round_)
        work.is_checked = work.complete

    def settle(self, work: W, round_: Round) -> bool:
        """Compute what others say differs from what was loaded; whether that could be done."""
        for index in self.contradicted(work, round_):
            if index in work.made:
                self._makers.name_forgers(work, index, round_)
            elif not self.make(work, index, round_):
                return False
        return True

    def contradicted(self, work: W, round_: Round) -> list[int]:
        """The slices in place that somebody says are others."""
        return [
            index
            for index, digest in work.digests.items()
            if any(made.digest != digest for made in self._makers.of(work, index, round_))
        ]

    def doubted(self, work: W, round_: Round) -> list[Made]:
        """What was loaded, and somebody says otherwise."""
        return [
            made
            for index in self.contradicted(work, round_)
            for made in self._makers.of(work, index, round_)
            if made.digest == work.digests[index]
        ]

    def _read(self, work: W, index: int, made: Made) -> Refused | NotFound | None:
        try:
            self.load(work, index, made)
        except (Refused, NotFound) as trouble:
            return trouble
        except StoreError as error:
            return Refused(made.client, made.key, f"it cannot be read: {error}")
        return None
