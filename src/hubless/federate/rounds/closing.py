"""Closing a round: whom it waits for, and when it is due."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hubless import events
from hubless.errors import FederationError, QuorumMissed, Refused, TooLate
from hubless.federate import keys
from hubless.federate.keys import Listing, Posted, check_name
from hubless.federate.member import Member
from hubless.federate.picking.standing import Pick
from hubless.federate.rounds.completing import AFTER_THE_END, Completing
from hubless.federate.rounds.deadline import Deadline
from hubless.federate.rounds.plans import Plan, Plans
from hubless.patience import pauses

_SAY_AFTER = 5.0


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
        """What `Rounds` was told, checked; with a `cohort`, so many of the named train."""
        named = () if members is None or isinstance(members, int) else tuple(sorted(set(members)))
        for name in named:
            check_name(name)
        everyone = members if isinstance(members, int) else len(named) or quorum or 0
        if cohort is not None and not named:
            raise FederationError(
                "a selector needs the names of all members: Rounds(members=[names]), because "
                "everybody draws from the same list"
            )
        if cohort is not None and cohort > everyone:
            raise FederationError(f"cohort={cohort} is more than the {everyone} members there are")
        most = everyone if cohort is None else cohort
        enough = most if quorum is None else quorum
        if not 1 <= enough <= most:
            of = "members there are" if cohort is None else "members that are picked"
            raise FederationError(f"quorum= is {quorum}, and the {of} are {most}: take 1 to {most}")
        if named and client not in named:
            raise FederationError(f"{client!r} is not among members={list(named)}")
        return cls(everyone, enough, named)

    def among(self, picked: Collection[str]) -> Quorum:
        """The same for a round in which only these train.

        >>> Quorum.of(["a", "b", "c"], None, "a", cohort=2).among(["c"]).enough
        1
        """
        return Quorum(len(picked), min(self.enough, len(picked)), tuple(picked))

    def without(self, left: Collection[str]) -> Quorum:
        """The same where some have left: nobody waits for them any more.

        >>> Quorum.of(3, None, "a").without({"c"})
        Quorum(everyone=2, enough=2, names=())
        """
        if self.names:
            staying = tuple(name for name in self.names if name not in left)
            everyone = len(staying)
        else:
            staying, everyone = (), max(0, self.everyone - len(left))
        return Quorum(everyone, min(self.enough, everyone), staying)

    def admits(self, client: str) -> bool:
        """Whether this client is one of the members at all."""
        return not self.names or client in self.names

    def missing(self, present: Collection[str], known: Collection[str]) -> list[str]:
        """Who has not delivered yet, by name as far as names are known."""
        if self.names:
            return [name for name in self.names if name not in present]
        count = max(0, self.everyone - len(present))
        names = sorted(set(known) - set(present))[:count]
        unseen = count - len(names)
        return [*names, *([f"{unseen} not seen yet"] if unseen > 0 else [])]


class OpenRound:
    """The round that takes updates: who has delivered, whom it waits for, and closing it."""

    def __init__(
        self,
        member: Member,
        plans: Plans,
        quorum: Quorum,
        deadline: Deadline,
        completing: Completing,
    ) -> None:
        self._member, self._plans, self._completing = member, plans, completing
        self.quorum, self._deadline = quorum, deadline
        self._delivered: set[str] = set()
        self._recent: dict[int, set[str]] = {}
        self._first_seen = -1, 0.0

    def note(self, number: int, plan: Plan) -> None:
        """Remember who takes part: by name, and who took part in the last two rounds."""
        clients = {posted.client for posted in plan.updates}
        self._delivered |= clients
        if plan.pick is None:
            # who was not picked did not stay away
            self._recent[number] = clients
        self._recent = dict(sorted(self._recent.items())[-2:])

    def arrive(self, number: int, plan: Plan) -> None:
        """Have the result of a round."""
        self.note(number, plan)
        self._deadline.arrived(number)

    def wait(self, number: int, pick: Pick | None, delivered: bool) -> Plan | None:
        """Wait until a round is closed, closing it when that is due.

        None where it went by, or where nobody is left who could deliver.
        Being late is counted from one's own update; for who only looks on, from the first it sees.
        """
        member, clock = self._member, self._member.clock
        began = spoke = clock.now()
        quorum, in_vain = self._of(pick), 0
        for _ in pauses(clock, float("inf"), first=0.02, longest=1.0):
            listing = member.look()
            if plan := self._plans.binding(number, listing):
                return plan
            if any(later > number for later in listing.planned):
                newest = self._plans.newest(listing, number - 1)
                if newest is not None and newest[0] > number:
                    return None
            if pick is not None and member.is_deserted(pick.members, number, listing):
                # others are drawn, and may have delivered already
                return None
            present = self.present(listing, number, pick)
            if present and not delivered:
                began, delivered = clock.now(), True
            now = clock.now()
            waited = now - began
            is_last = waited >= self._deadline.ceiling or member.is_past
            over = is_last or now >= self._deadline.due(number, began)
            staying, missing = self._staying(quorum, present, listing)
            if self._is_due(staying, present, missing, over):
                in_vain += is_last
                if in_vain > AFTER_THE_END:
                    raise TooLate(
                        f"round {number} at {member.store.url} could not be closed before its "
                        "deadline. The model is untouched: call step again to go on"
                    )
                self.close(number, [p.key for p in present.values()], listing, pick)
            elif is_last:
                raise QuorumMissed(
                    f"round {number} has {len(present)} of the {staying.enough} updates it "
                    f"needs after {waited:.1f} s; missing: {', '.join(missing)}. The model is "
                    "untouched: call step again to go on waiting, or join with a longer deadline "
                    "or a lower quorum",
                    missing,
                )
            elif clock.now() - spoke >= _SAY_AFTER:
                spoke = clock.now()
                member.emit(
                    events.Waiting(
                        client=member.client,
                        round=number,
                        present=len(present),
                        missing=missing,
                        seconds=waited,
                    )
                )
        raise AssertionError("a wait without end ended")

    def look_on(self, number: int, listing: Listing, pick: Pick) -> None:
        """Close a round if that is due: those who were picked for it may all be gone."""
        clock, quorum = self._member.clock, self._of(pick)
        present = self.present(listing, number, pick)
        if self._first_seen[0] != number and present:
            self._first_seen = number, clock.now()
        over = clock.now() >= self._deadline.due(number, self._first_seen[1])
        staying, missing = self._staying(quorum, present, listing)
        if self._is_due(staying, present, missing, over):
            self.close(number, [p.key for p in present.values()], listing, pick)

    def present(self, listing: Listing, number: int, pick: Pick | None) -> dict[str, Posted]:
        """Each client's newest usable update in an open round."""
        digest = self._member.signature.digest if self._member.signature else ""
        quorum, usable = self._of(pick), list[Posted]()
        for posted in listing.rounds[number].updates.values():
            if posted.signature != digest:
                reason = "its params have another signature than this federation's"
            elif not self.quorum.admits(posted.client):
                reason = f"it is not among the members {', '.join(self.quorum.names)}"
            elif pick is not None and not quorum.admits(posted.client) and _is_left(pick, listing):
                # members hear at different times of who leaves and who is back: others may have
                # drawn it
                continue
            elif not quorum.admits(posted.client):
                reason = f"it was not picked for this round: {', '.join(quorum.names)} were"
            else:
                if not self._member.rejects(posted.key):
                    usable.append(posted)
                continue
            self._member.refuse(Refused(posted.client, posted.key, reason))
        return keys.newest(usable)

    def missing(self, plan: Plan, listing: Listing) -> list[str]:
        """Who was to be in a round that went without them; who left was not."""
        expected = set(plan.pick.members if plan.pick else self.quorum.names or self._delivered)
        included = {posted.client for posted in plan.updates}
        return sorted(expected - included - self._member.gone(listing))

    def close(
        self, number: int, included: Sequence[str], listing: Listing, pick: Pick | None
    ) -> None:
        """Close a round with these updates, unless somebody else has closed it already."""
        self._check_agrees(number, listing)
        if self._completing.has_version_before(number, listing):
            before = self._completing.version_before(number, listing)
            self._plans.close(number, included, listing, before, pick)

    def _check_agrees(self, number: int, listing: Listing) -> None:
        """Raise where most follow a plan that this member refuses: they would part ways.

        One alone may be somebody who wants everybody to stop.
        """
        taking_part = {posted.client for posted in listing.rounds[number].updates.values()}
        taking_part -= {self._member.client}
        for attempt, slices in listing.rounds[number].slices.items():
            makers = {made.client for several in slices.values() for made in several}
            others = sorted(filter(self.quorum.admits, makers - {self._member.client}))
            key = keys.plan_key(number, attempt)
            if 2 * len(others) > len(taking_part) and self._member.refused(key):
                raise FederationError(
                    f"{', '.join(others)} follow {key}, which this member refuses (an event says "
                    "why): every site needs the same hubless, numpy and arguments of join"
                )

    def _of(self, pick: Pick | None) -> Quorum:
        return self.quorum.among(pick.members) if pick else self.quorum

    def _staying(
        self, quorum: Quorum, present: Collection[str], listing: Listing
    ) -> tuple[Quorum, list[str]]:
        """The quorum of those who have not left, and who of them is missing."""
        # who delivered before it left is one of those who are there
        gone = self._member.gone(listing) - set(present)
        if gone and not self.quorum.names:
            gone &= self._delivered
        staying = quorum.without(gone) if gone else quorum
        return staying, staying.missing(present, self._delivered - gone)

    def _is_due(
        self, staying: Quorum, present: Mapping[str, Posted], missing: Sequence[str], over: bool
    ) -> bool:
        """Whether a round may be closed: all are there, or enough are and it has been long.

        Who was in neither of the last two rounds costs nobody a deadline again until it is back.
        """
        if not present:
            return False
        if not missing:
            return True
        if len(present) < staying.enough:
            return False
        lately = set().union(*self._recent.values()) if len(self._recent) == 2 else None
        if over or lately is None:
            return over
        return not (lately & set(missing) if staying.names else lately - set(present))


def _is_left(pick: Pick, listing: Listing) -> bool:
    """Whether some may draw others than these, or may have."""
    return bool(pick.passed) or listing.left.keys() >= set(pick.members)
