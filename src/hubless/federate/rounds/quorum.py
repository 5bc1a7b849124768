"""Whom a synchronous round waits for, and when it may close without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hubless.errors import FederationError
from hubless.federate.keys import check_name


@dataclass(frozen=True)
class Quorum:
    """How many members there are, by name or only by number, and how many are enough.

    >>> Quorum.of(["a", "b", "c"], 2, "a").missing({"a"}, known=set())
    ['b', 'c']
    >>> Quorum.of(3, None, "a").missing({"a"}, known={"a", "b"})
    ['b', '1 not seen yet']
    """

    everyone: int
    enough: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        members: int | Sequence[str] | None,
        quorum: int | None,
        client: str,
        cohort: int | None = None,
    ) -> Quorum:
        """What `join` was told, checked; with a `cohort`, so many of the named train in a round."""
        named = () if members is None or isinstance(members, int) else tuple(sorted(set(members)))
        for name in named:
            check_name(name)
        everyone = members if isinstance(members, int) else len(named) or quorum
        if everyone is None:
            raise FederationError(
                'mode="sync" needs to know whom to wait for: members= (a number or their names) '
                "or quorum="
            )
        if cohort is not None and not named:
            raise FederationError(
                "selector= needs the names of all members: members=[names], because everybody "
                "draws from the same list"
            )
        if cohort is not None and cohort > everyone:
            raise FederationError(f"cohort={cohort} is more than the {everyone} members there are")
        most = everyone if cohort is None else cohort
        enough = most if quorum is None else quorum
        if not 1 <= enough <= most:
            raise FederationError(f"quorum must be from 1 to {most}, not {quorum}")
        if named and client not in named:
            raise FederationError(f"{client!r} is not among members={list(named)}")
        return cls(everyone, enough, named)

    def among(self, picked: Collection[str]) -> Quorum:
        """The same for a round in which only these train.

        >>> Quorum.of(["a", "b", "c"], None, "a", cohort=2).among(["c"]).enough
        1
        """
        return Quorum(len(picked), min(self.enough, len(picked)), tuple(picked))

    def admits(self, client: str) -> bool:
        """Whether this client is one of the members at all."""
        return not self.names or client in self.names

    def missing(self, present: Collection[str], known: Collection[str]) -> list[str]:
        """Who has not delivered yet, by name as far as names are known."""
        if self.names:
            return [name for name in self.names if name not in present]
        count = max(0, self.everyone - len(present))
        seen = sorted(set(known) - set(present))[:count]
        return [*seen, *([f"{count - len(seen)} not seen yet"] if count > len(seen) else [])]
