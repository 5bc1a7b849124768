"""Picking who trains in a synchronous round: everybody draws the same, from the round before."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from hubless import events
from hubless.errors import FederationError, SelectionError
from hubless.federate.agreement import Selecting
from hubless.federate.picking.standing import Pick, Standing
from hubless.federate.rounds.complete import Completing
from hubless.federate.rounds.plan import Plan, Round, Superseded, cut, damaged
from hubless.federate.rounds.quorum import Quorum
from hubless.federate.terms import Terms
from hubless.signature import Signature
from hubless.store.reliable import Reliable


class Picking(Completing):
    """A member that knows who trains in the open round."""

    def __init__(self, store: Reliable, terms: Terms, quorum: Quorum, help_after: float) -> None:
        self.quorum = quorum
        if terms.selection is not None:
            if " at 0x" in repr(terms.selection.selector):
                raise FederationError(
                    "synchronous members compare their selectors by their text, and "
                    f"{terms.selection.selector!r} has none: make it a dataclass, or a function "
                    "with the decorator hubless.select.selector"
                )
            # what cannot pick anybody says so now, and not to everybody in the first round
            terms.selection.pick(self._strangers(), 0)
        super().__init__(store, terms, help_after)
        self._drawn: tuple[int, Pick] | None = None

    def _selecting(self) -> Selecting | None:
        """What everybody has to agree on."""
        selection = self.terms.selection
        if selection is None:
            return None
        selector, names = repr(selection.selector), self.quorum.names
        return Selecting(selector, selection.cohort, selection.seed, names)

    def _pick(self, signature: Signature, number: int, rounds: Mapping[int, Round]) -> Pick | None:
        """Who trains in the open round; None where everybody does.

        It follows from the round before, as it came to be in the end: a round that is closed may
        still be closed again without some update, until all of its result is there.
        """
        selection = self.terms.selection
        if selection is None:
            return None
        if self._drawn is None or self._drawn[0] != number:
            known = self._strangers()
            if number > 0:
                known = self._final(signature, number - 1, rounds).known_after(number - 1)
            pick = selection.pick(known, number)
            self._drawn = number, pick
            self.events.emit(
                events.Picked(client=self.client, round=number, cohort=list(pick.members))
            )
        return self._drawn[1]

    def _pick_of(self, number: int, attempt: int) -> Pick | None:
        """What the plan of a round is to say of it: the same at every attempt."""
        if attempt:
            return self._plans.get(number, attempt - 1).pick
        return self._drawn[1] if self._drawn and self._drawn[0] == number else None

    def _strangers(self) -> dict[str, Standing]:
        """What is known of the members at first."""
        return dict.fromkeys(self.quorum.names, Standing())

    def _final(self, signature: Signature, number: int, rounds: Mapping[int, Round]) -> Plan:
        """The plan that a round was completed by, which may take completing it."""
        plan = self._plans.newest(number, rounds)
        if plan is None:
            raise Superseded(number)
        there = rounds[number].slices.get(plan.attempt, {})
        slices = len(cut(len(signature.blocks), len(plan.included)))
        if self._reached == (number, plan.attempt) or set(range(slices)) <= set(there):
            return plan
        return self._complete(signature, number, plan).plan

    def _check_plan(self, plan: Plan, number: int) -> None:
        selection = self.terms.selection
        if selection is None:
            return
        included = [p.client for p in plan.posted()]
        try:
            selection.check(plan.pick, included, self.quorum.names, number)
            reached = self._reached
            if reached is not None and plan.pick is not None and reached[0] == number - 1 >= 0:
                with contextlib.suppress(Superseded):
                    known = self._plans.get(*reached).known_after(number - 1)
                    if known != plan.pick.roster:
                        raise ValueError("its roster does not follow from the round before")
        except (ValueError, SelectionError) as error:
            raise damaged(number, plan.attempt, error) from None
