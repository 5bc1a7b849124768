"""Selection corrected for availability: who is seldom reachable is picked the more when it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.checks import number
from hubless.errors import SelectionError
from hubless.select.roster import (
    Floats,
    Ints,
    Roster,
    Selector,
    check_selector,
    refuse_shortage,
    refuse_unbiased,
    there,
)
from hubless.select.sampling import Table
from hubless.select.uniform import Uniform

_USUAL: Selector = Uniform()


@dataclass(frozen=True)
class Reachable:
    """As if everybody were always reachable, although clients are only a share of the time.

        weight = weight with `selector` / max(availability, floor)

    Those who are there are drawn one after the other by these weights. Over time each is picked as
    often as it would be were all of them there. That holds while k is small beside the number of
    those who are: nobody can be picked more often than it is there.

    Args:
        selector: `Uniform`, or one that has `weights(roster)`, like `Activity` and `Active`. If it
            also says in `reads` which columns it goes by, its table is only made again when one
            changes.
        floor: The least availability that counts, in (0, 1]. A client that is hardly ever there
            would otherwise be picked whenever it is.

    >>> roster = Roster([5, 5], availability=[1.0, 0.25])
    >>> both = Reachable(Uniform())
    >>> both.weights(roster)
    array([1., 4.])
    """

    selector: Selector = _USUAL
    floor: float = 0.05

    def __post_init__(self) -> None:
        number("floor", self.floor, above=0, most=1, error=SelectionError)
        check_selector(self.selector)
        refuse_unbiased(self.selector, "who is there changes them")
        if not isinstance(self.selector, Uniform) and not hasattr(self.selector, "weights"):
            raise SelectionError(f"{self.selector!r} has no weights(roster) to be corrected")

    @property
    def looks_at(self) -> str:
        return str(getattr(self.selector, "looks_at", ""))

    def weights(self, roster: Roster) -> Floats:
        """What chances are in proportion to, of those who are reachable."""
        own = getattr(self.selector, "weights", 1.0)
        weights = np.broadcast_to(own(roster) if callable(own) else own, len(roster))
        if not roster.knows("availability"):
            return weights
        wrong = np.flatnonzero(~((roster.availability >= 0) & (roster.availability <= 1)))
        if len(wrong):
            client, share = int(wrong[0]), roster.availability[wrong[0]]
            raise SelectionError(f"client {client}'s availability is {share}, and no share of time")
        return weights / np.maximum(roster.availability, self.floor)

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        picked = self._table(roster).draw(k, rng, roster.available)
        if len(picked) < k:
            # those without weight come last, like those Active drops
            others = np.setdiff1d(there(roster), picked)
            others = others[roster.examples[others] > 0]
            refuse_shortage(roster, k, np.union1d(picked, others))
            more = rng.choice(others, k - len(picked), replace=False, shuffle=False)
            picked = np.concatenate([picked, more])
        return picked

    def _table(self, roster: Roster) -> Table:
        own = getattr(self.selector, "weights", None)
        reads = getattr(self.selector, "reads", None) if callable(own) else ()
        if reads is None:
            return Table.of(self.weights(roster))
        columns = (*reads, "availability")
        return roster.derive(self, columns, lambda: Table.of(self.weights(roster)))
