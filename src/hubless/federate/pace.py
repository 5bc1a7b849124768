"""Paces: how the members of a federation meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

from hubless.checks import fitting, number, one_of, texts, whole
from hubless.errors import FederationError
from hubless.federate.asynchronous import Asynchronous
from hubless.federate.keys import check_name
from hubless.federate.member import Member
from hubless.federate.rounds.closing import Quorum
from hubless.federate.rounds.deadline import Adaptive
from hubless.federate.synchronous import Synchronous
from hubless.patience import LONGEST


@dataclass(frozen=True)
class Anytime:
    """Nobody waits: each member shares when it likes, and takes in what is there.

    Members come to similar models, not to the same one; `federation.pull` loads what all have
    arrived at together.

    Args:
        peers: `new` averages in updates that this member has not seen yet. `all` averages in
            everybody's newest one each time, as robust strategies need it: among few new ones
            most may be hostile.
    """

    peers: Literal["new", "all"] = "new"
    mode: ClassVar = "async"

    def __post_init__(self) -> None:
        one_of("peers", self.peers, ("new", "all"), error=FederationError)

    def among(self, member: Member) -> Asynchronous:
        """This member's part in it."""
        return Asynchronous(member, self.peers)


@dataclass(frozen=True)
class Rounds:
    """Members wait for each other, and end each round with the same bytes.

    Args:
        members: How many members there are, or their names. Names are safer: strangers count for
            nothing then, and a `Selection` needs them.
        quorum: How many updates are enough once the deadline has passed; all, if not given.
        deadline: Seconds to wait for the others, or an `Adaptive` one that follows how long
            rounds take.

    >>> Rounds(members=["a", "b", "c"], quorum=2, deadline=60)
    Rounds(members=['a', 'b', 'c'], quorum=2, deadline=60)
    """

    members: int | Sequence[str] | None = None
    quorum: int | None = None
    deadline: float | Adaptive = 600.0
    mode: ClassVar = "sync"

    def __post_init__(self) -> None:
        if self.members is None and self.quorum is None:
            raise FederationError(
                "rounds need to know whom to wait for: Rounds(members=...), a number or their "
                "names, or quorum="
            )
        count = self.quorum
        if isinstance(self.members, int | Integral):
            count = whole("members", self.members, error=FederationError, least=1)
        elif self.members is not None:
            count = self._count_named(self.members)
        if self.quorum is not None:
            whole("quorum", self.quorum, error=FederationError, least=1)
            if count is not None and self.quorum > count:
                raise FederationError(
                    f"quorum= is {self.quorum}, and the members there are are {count}"
                )
        if isinstance(self.deadline, Adaptive):
            if self.quorum is None or self.quorum == count:
                raise FederationError(
                    "an adaptive deadline says when a quorum is enough: give one that is less than "
                    "all members"
                )
            return
        takes = "a number of seconds, or Adaptive()"
        is_number = isinstance(self.deadline, Real)
        fitting("deadline", self.deadline, is_number, takes, error=FederationError)
        number("deadline", self.deadline, error=FederationError, above=0, most=LONGEST)

    def _count_named(self, members: Sequence[str]) -> int:
        if isinstance(members, str):
            names = [name.strip() for name in members.split(",")]
            raise FederationError(f"members= takes a number, or a list of names: members={names}")
        texts("members", members, "a number or the names", error=FederationError)
        if not members:
            raise FederationError("members= has no names")
        if twice := [name for name, times in Counter(members).items() if times > 1]:
            raise FederationError(f"members= has {', '.join(twice)} more than once")
        for name in members:
            check_name(name)
        return len(members)

    def among(self, member: Member) -> Synchronous:
        """This member's part in it."""
        selection = member.terms.selection
        cohort = None if selection is None else selection.cohort
        quorum = Quorum.of(self.members, self.quorum, member.client, cohort)
        return Synchronous(member, quorum, self.deadline)
