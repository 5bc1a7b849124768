"""Selection without a server: everybody draws the same members from what everybody knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

import numpy as np

from hubless.checks import one_of, whole
from hubless.errors import FederationError, SelectionError, Shortage
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.picking.standing import Pick, Standing
from hubless.rng import stream
from hubless.select.roster import Roster, Selector, check_selector

_LATEST = 2**31 - 2
"""Versions count for as long as anybody likes, and a roster's rounds in 32 bits."""


@dataclass(frozen=True)
class Selection:
    """Who trains next is picked: how many members at a time, and which.

    There is no server that would pick. In rounds everybody draws the same members for a round,
    from what the plans of earlier rounds tell, and needs the same selection and the same names of
    members. At any time every member draws in each of its own steps, from everybody's newest
    update, and shares if it is among them; a member of which there is no update yet shares first.

    A member that was never seen counts as one with the median of the known examples, so that it is
    neither passed over nor preferred before it could say anything; one that had nothing to
    train on as one with a single example, because only who is picked can say that this changed.

    Args:
        selector: Who trains next, such as `hubless.select.Activity("sqrt")`.
        cohort: How many train at a time.
        seed: Seeds the draws.
        unpicked: What a step does for a member that is not picked. `train` (usual at any time)
            leaves the model as it is, so that training goes on. `wait` (usual in rounds) waits
            until the round is over and loads its result. At any time it waits for nothing: the
            member takes in what is new, and shares nothing.

    With `wait` in rounds, the deadline counts from the round's first update, so it has to leave the
    others time to train. Rounds do not wait for a member that is not picked. When it finds that
    some went by, it loads their result and shares nothing yet: all that is trained for a round
    starts from the round before. So count `federation.version`, the rounds that a member has seen,
    and not calls.

    >>> from hubless.select import Uniform
    >>> Selection(Uniform(), 2, seed=7).pick({"a": Standing(), "b": Standing()}, 0).members
    ('a', 'b')
    """

    selector: Selector
    cohort: int
    seed: int = 0
    unpicked: Literal["wait", "train"] | None = None

    def __post_init__(self) -> None:
        check_selector(self.selector)
        whole("cohort", self.cohort, error=FederationError, least=1)
        whole("seed", self.seed, error=FederationError, least=0)
        if self.unpicked is not None:
            one_of("unpicked", self.unpicked, ("wait", "train"), error=FederationError)
        if getattr(self.selector, "unbiased", False):
            raise FederationError(
                f"{self.selector!r} is to be unbiased, which weighs updates by how likely each was "
                "to be picked: only simulations do that, so choose it without unbiased"
            )

    @property
    def by_value(self) -> bool:
        """Whether members have to say what training them is worth."""
        return bool(getattr(self.selector, "looks_at", ""))

    def pick(
        self,
        standings: Mapping[str, Standing],
        number: int,
        *purpose: int,
        round: int | None = None,
        passed: Mapping[str, Incarnation] | None = None,
    ) -> Pick:
        """Who trains in round `number`, the same wherever it is asked; nobody of those `passed`."""
        passed, standings = dict(passed or {}), dict(sorted(standings.items()))
        names = [name for name in standings if name not in passed]
        if not names:
            # a selector need not know what to do with nobody, and a forged plan may ask for that
            raise SelectionError(f"round {number} has no cohort: all members were passed over")
        roster = _roster(standings, names, number if round is None else round)
        cohort = min(self.cohort, len(names))
        rng = stream(self.seed, "pick", *purpose, number)
        try:
            picked = [int(place) for place in self.selector(roster, cohort, rng)]
        except Shortage as shortage:
            raise SelectionError(
                f"round {number} has no cohort: {shortage}. Lower cohort=, or allow for fewer with "
                "hubless.select.AtMost"
            ) from shortage
        if len(set(picked)) != len(picked) or not all(0 <= i < len(names) for i in picked):
            raise SelectionError(f"{self.selector!r} picked {picked} of {len(names)} members")
        if not picked:
            raise SelectionError(f"{self.selector!r} picked nobody for round {number}")
        return Pick(tuple(sorted(names[i] for i in picked)), standings, passed)

    def pick_after(self, pick: Pick, left: Mapping[str, Incarnation], number: int) -> Pick:
        """Who trains instead of those who were picked and have all left, each in a life."""
        passed = {**pick.passed, **{name: left[name] for name in pick.members}}
        return self.pick(pick.roster, number, passed=passed)

    def check(
        self, pick: Pick | None, included: Iterable[str], names: tuple[str, ...], number: int
    ) -> None:
        """Raise a ValueError unless this is what round `number` of these members can have."""
        if pick is None:
            raise ValueError("it has no roster, and this federation picks who trains")
        if tuple(pick.roster) != names:
            raise ValueError("its roster is not of this federation's members")
        if strangers := sorted(set(included) - set(pick.members)):
            raise ValueError(f"it includes {', '.join(strangers)}, who were not picked")
        drawn = self.pick(pick.roster, number)
        while len(drawn.passed) < len(pick.passed) and pick.passed.keys() >= set(drawn.members):
            drawn = self.pick_after(drawn, pick.passed, number)
        if (drawn.members, drawn.passed) != (pick.members, pick.passed):
            raise ValueError(
                f"it picks {', '.join(pick.members)}, and here {', '.join(drawn.members)} are "
                "drawn: every site needs the same hubless, numpy and selector"
            )


def listed_standings(newest: Mapping[str, Posted]) -> tuple[dict[str, Standing], int]:
    """What keys alone tell of members without rounds, and the round that it would be for them.

    Versions stand for rounds, because they grow with all that members take in, and a member was
    picked as often as it shared something.
    """
    standings = {}
    for name, posted in newest.items():
        version = min(posted.version, _LATEST)
        valued = -1 if posted.valuation is None else version
        shared = posted.sequence + 1
        standing = Standing(posted.examples, posted.valuation, valued, shared, version, version)
        standings[name] = standing
    return standings, max((s.last_seen for s in standings.values()), default=-1) + 1


def _roster(members: Mapping[str, Standing], names: Sequence[str], number: int) -> Roster:
    """What a selector is shown of these members, given what is known of all."""
    counts = [max(1, s.examples) for s in members.values() if s.last_seen >= 0]
    usual = median_low(counts) if counts else 1
    standings = [members[name] for name in names]
    examples = [max(1, s.examples) if s.last_seen >= 0 else usual for s in standings]
    roster = Roster(examples, round=number)
    everybody = slice(None)
    if any(s.valuation is not None for s in standings):
        values = [np.nan if s.valuation is None else s.valuation for s in standings]
        roster.put("valuation", everybody, values)
    for name in ("valued", "selected", "last_selected", "last_seen"):
        roster.put(name, everybody, [getattr(s, name) for s in standings])
    return roster
