"""Round robin: everybody once before anybody twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.select.roster import Ints, Roster, refuse_shortage, there


@dataclass(frozen=True)
class RoundRobin:
    """Those who waited longest since they were last picked; of these, who was picked less often.

    Among equals chance decides. While everybody is available nobody is picked twice before everyone
    was picked once, and each turn through the roster mixes clients anew.

    >>> roster, rng = Roster([5, 5, 5, 5]), np.random.default_rng(0)
    >>> first = RoundRobin()(roster, 2, rng)
    >>> roster.record_selected(first)
    >>> sorted([*first.tolist(), *RoundRobin()(roster, 2, rng).tolist()])
    [0, 1, 2, 3]
    """

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        if k == 0:
            return np.empty(0, np.int64)
        here = None if roster.available is None else there(roster)
        # a cohort of the old turn and the new has waited as long, but not been picked as often
        turns = roster.last_selected.astype(np.int64) << 32
        turns += roster.selected
        turns = turns if here is None else turns[here]
        edge = np.partition(turns, k - 1)[k - 1]
        longer, equal = np.flatnonzero(turns < edge), np.flatnonzero(turns == edge)
        drawn = rng.choice(equal, k - len(longer), replace=False, shuffle=False)
        picked = np.concatenate([longer, drawn])
        return picked if here is None else here[picked]
