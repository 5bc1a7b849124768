"""At most k: all there are, where fewer than k can be picked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.errors import SelectionError, Shortage
from hubless.select.roster import Floats, Ints, Roster, Selector, check_selector


@dataclass(frozen=True)
class AtMost:
    """What a selector picks; where it refuses because too few are left, all of those.

    Args:
        selector: The selector that may fall short. Wrap it where a run should rather go on with a
            smaller cohort than stop, such as `Heavy` where devices come and go.

    >>> from hubless.select import Uniform
    >>> AtMost(Uniform())(Roster([5, 5]), 10, np.random.default_rng(0))
    array([0, 1])
    """

    selector: Selector

    def __post_init__(self) -> None:
        check_selector(self.selector)

    @property
    def unbiased(self) -> bool:
        return bool(getattr(self.selector, "unbiased", False))

    @property
    def looks_at(self) -> str:
        return str(getattr(self.selector, "looks_at", ""))

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        try:
            return self.selector(roster, k, rng)
        except Shortage as shortage:
            return np.array(shortage.eligible, np.int64)

    def inclusion(self, roster: Roster, k: int, clients: Ints | None = None) -> Floats:
        """How likely clients are to be among at most `k`.

        Args:
            roster: Who there is.
            k: How many are picked, if there are as many.
            clients: Whose probabilities to give; everybody's if not given.
        """
        inclusion = getattr(self.selector, "inclusion", None)
        if inclusion is None:
            raise SelectionError(f"{self.selector!r} does not know its inclusion probabilities")
        try:
            return np.asarray(inclusion(roster, k, clients), np.float64)
        except Shortage as shortage:
            chances = np.zeros(len(roster))
            chances[shortage.eligible] = 1.0
            return chances if clients is None else chances[clients]
