"""What a plan includes: its updates, opened and checked, and what is wrong with some."""

from __future__ import annotations

from collections.abc import Sequence

from hubless.errors import NotFound, Refused
from hubless.federate.fold import Source, Stored, bad_ones, open_updates
from hubless.federate.keys import Posted, Round
from hubless.federate.member import Member
from hubless.federate.rounds.plans import Plan
from hubless.federate.rounds.slices import Sliced

OTHER_SIGNATURE = "its params have another signature than this federation's"


class Unusable(Exception):
    """Updates that nobody can use, so that the round has to be closed again without them."""

    def __init__(self, refusals: Sequence[Refused]) -> None:
        super().__init__(refusals)
        self.refusals = refusals


class Included:
    """Opens the updates that a round includes."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def sources(self, work: Sliced, index: int | None, round_: Round) -> list[Source]:
        """All included updates; one's own from memory, but for what others reduce alike."""
        own = work.posted.key if work.posted and work.own and index == work.mine else ""
        wanted = [key for key in work.plan.included if key != own]
        for key in wanted:
            if key not in round_.updates:
                raise NotFound(f"{key} was collected", key)
        listed = [round_.updates[key] for key in wanted]
        sources: dict[str, Source] = dict(self.open(listed, ahead=len(work.cuts) == 1))
        if own and work.own is not None:
            sources[own] = work.own
        return [sources[key] for key in work.plan.included]

    def open(
        self, listed: Sequence[Posted], ahead: bool = False, verify: bool = False
    ) -> dict[str, Stored]:
        """Included updates by key; Unusable with all those that nobody can use."""
        member = self._member
        refusals = [
            Refused(p.client, p.key, OTHER_SIGNATURE)
            for p in listed
            if p.signature != member.agreed.digest
        ]
        opened, troubles = open_updates(
            member.store, listed, member.agreed, member.limit, ahead=ahead
        )
        if verify:
            troubles += bad_ones(opened.values())
        refusals += [trouble for trouble in troubles if isinstance(trouble, Refused)]
        if refusals:
            raise Unusable(refusals)
        if troubles:
            raise troubles[0]
        return opened

    def all_that_is_wrong(self, work: Sliced, round_: Round, refusal: Refused) -> Unusable:
        """What to raise for one that is bad: others may be, too, and one more pass tells."""
        updates = round_.updates
        there = [updates[key] for key in work.plan.included if key in updates]
        try:
            self.open(there, verify=True)
        except Unusable as unusable:
            return unusable
        return Unusable([refusal])


def absent(plan: Plan, round_: Round) -> list[Posted]:
    """The updates that a plan includes and a listing does not show."""
    return [posted for posted in plan.updates if posted.key not in round_.updates]
