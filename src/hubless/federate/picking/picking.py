"""Picking who trains in a synchronous round: everybody draws the same, from the round before."""

from __future__ import annotations

from dataclasses import dataclass

from hubless import events
from hubless.errors import FederationError, SelectionError
from hubless.federate.agreement import Selecting
from hubless.federate.keys import Listing
from hubless.federate.member import Member
from hubless.federate.picking.draw import Selection
from hubless.federate.picking.standing import Pick, Standing
from hubless.federate.rounds.completing import Completing
from hubless.federate.rounds.plans import Plan, Plans


@dataclass(frozen=True)
class _Drawn:
    number: int
    former: Plan | None
    """The plan of the round before, which may still change."""
    pick: Pick


class Picking:
    """Knows who trains in the open round."""

    def __init__(
        self,
        member: Member,
        plans: Plans,
        completing: Completing,
        selection: Selection,
        names: tuple[str, ...],
    ) -> None:
        if " at 0x" in repr(selection.selector):
            raise FederationError(
                "synchronous members compare their selectors by their text, and "
                f"{selection.selector!r} has none: make it a dataclass, or a function "
                "with the decorator hubless.select.selector"
            )
        self._member, self._plans, self._completing = member, plans, completing
        self._selection, self._names = selection, names
        self._drawn: _Drawn | None = None
        # a selector that cannot pick anybody says so now, and not in everybody's first round
        selection.pick(self._strangers(), 0)

    def selecting(self) -> Selecting:
        """What everybody has to agree on."""
        selection = self._selection
        return Selecting(repr(selection.selector), selection.cohort, selection.seed, self._names)

    def pick(self, number: int, listing: Listing) -> Pick | None:
        """Who trains in the open round, or None where the round before cannot be had just now.

        It follows from the round before, as it came to be in the end: a round that is closed may
        still be closed again without some update, until all of its result is there. Where all who
        were picked have left and delivered nothing, others are drawn.
        """
        drawn, former = self._drawn, None
        if number > 0:
            former = self._plans.binding(number - 1, listing)
        if drawn is None or drawn.number != number or (former and former != drawn.former):
            standings = self._strangers()
            if number > 0:
                former = self._final(number - 1, listing)
                if former is None:
                    return None
                standings = former.known_after(number - 1)
            drawn = self._draw(number, former, self._selection.pick(standings, number))
        pick = drawn.pick
        while self._member.is_deserted(pick.members, number, listing):
            pick = self._selection.pick_after(pick, listing.left, number)
            self._draw(number, drawn.former, pick)
        return pick

    def check(self, plan: Plan, number: int, listing: Listing) -> None:
        """Raise ValueError for a plan that these members cannot have drawn."""
        clients = [posted.client for posted in plan.updates]
        try:
            self._selection.check(plan.pick, clients, self._names, number)
        except SelectionError as error:
            raise ValueError(str(error)) from None
        for name, life in plan.pick.passed.items() if plan.pick else ():
            if not listing.is_over(name, life):
                raise ValueError(f"it passes {name} over, who has not left")
        reached = self._plans.reached
        former = self._plans.get(*reached) if reached and reached[0] == number - 1 >= 0 else None
        expected = former and former.known_after(number - 1)
        if expected is not None and plan.pick is not None and expected != plan.pick.roster:
            raise ValueError("its roster does not follow from the round before")

    def _draw(self, number: int, former: Plan | None, pick: Pick) -> _Drawn:
        member = self._member
        member.emit(events.Picked(client=member.client, round=number, cohort=list(pick.members)))
        self._drawn = _Drawn(number, former, pick)
        return self._drawn

    def _strangers(self) -> dict[str, Standing]:
        """What is known of the members at first."""
        return dict.fromkeys(self._names, Standing())

    def _final(self, number: int, listing: Listing) -> Plan | None:
        """The plan that a round was completed by, which may take completing it."""
        plan = self._plans.binding(number, listing)
        if plan is None or self._completing.has_all_slices(number, plan, listing):
            return plan
        result = self._completing.complete(number, plan)
        return None if result is None else result.plan
