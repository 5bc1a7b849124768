"""Refreshing: nobody's valuation gets older than a given number of rounds."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from hubless.checks import whole
from hubless.errors import SelectionError, Shortage
from hubless.select.ranking import those_with_examples
from hubless.select.roster import (
    Ints,
    Roster,
    Selector,
    check_selector,
    refuse_shortage,
    refuse_unbiased,
)
from hubless.select.uniform import Uniform

_USUAL: Selector = Uniform()


@dataclass(frozen=True)
class Refreshed:
    """Clients whose valuation gets too old are picked first, the oldest first; then `selector`.

    When clients are picked for a round, no valuation is from more than `rounds` rounds before. A
    client that never gave one counts as asked just before the first round. No more are picked for
    their age than must be, now or in good time, so that never more than k are due at once. This
    holds if everybody is available and `rounds` is at least clients / k, which `feasible` tells.
    Where it cannot hold, the oldest go first, up to all k; a client that was away goes first when
    it is back. Equally old ones are taken at random. Clients without examples have nothing to value
    and are left alone.

    Args:
        selector: Picks the rest of the cohort, usually by valuations, such as `Active()`; uniformly
            if not given.
        rounds: How many rounds a valuation may be old, at least 1. The smaller, the more of the
            cohort is picked for its age: clients / rounds in each round.

    >>> roster = Roster(np.full(6, 10), round=8)
    >>> roster.put("valued", slice(None), [7, 2, 6, 7, 3, 5])
    >>> picked = Refreshed(Uniform(), rounds=6)(roster, 2, np.random.default_rng(0))
    >>> 1 in picked, Refreshed(Uniform(), rounds=6).feasible(roster, 2)
    (True, True)
    """

    selector: Selector = _USUAL
    rounds: int = 100

    def __post_init__(self) -> None:
        check_selector(self.selector)
        refuse_unbiased(self.selector, "who is due is picked whatever its probability")
        whole("rounds", self.rounds, least=1, error=SelectionError)

    @property
    def looks_at(self) -> str:
        return str(getattr(self.selector, "looks_at", "")) or "losses"

    def feasible(self, roster: Roster, k: int) -> bool:
        """Whether picking `k` a round is enough to ask everybody in time."""
        some = those_with_examples(roster)
        return (len(roster) if some is None else len(some)) <= self.rounds * k

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        due = self._due(roster, k, rng)
        if not len(due):
            return self.selector(roster, k, rng)
        if len(due) == k:
            return due
        # the same columns, with another opinion of who is there
        others = copy.copy(roster)
        others.available = np.ones(len(roster), np.bool_)
        if roster.available is not None:
            others.available[:] = roster.available
        others.available[due] = False
        try:
            return np.concatenate([due, self.selector(others, k - len(due), rng)])
        except Shortage as shortage:
            left = np.array(shortage.eligible, np.int64)
            refuse_shortage(roster, k, np.sort(np.concatenate([due, left])))
            raise

    def _due(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        """Whoever must be picked now, for everybody to get a turn in time."""
        if not k:
            return np.empty(0, np.int64)
        # who has this many rounds left or more is never in the way of others
        ahead = (len(roster) - 1) // k
        valued, oldest = roster.valued, roster.round - self.rounds
        soon = np.flatnonzero(valued <= oldest + ahead)
        if roster.available is not None:
            soon = soon[roster.available[soon]]
        if those_with_examples(roster) is not None:
            soon = soon[roster.examples[soon] > 0]
        if not len(soon):
            return soon
        when = valued[soon]
        # of those with at most h rounds left, all but h k must be picked now
        within = np.cumsum(np.bincount(np.maximum(when - oldest, 0)))
        count = min(k, int((within - k * np.arange(len(within))).max()))
        if count <= 0:
            return soon[:0]
        near = np.flatnonzero(when <= oldest + int(np.searchsorted(within, count)))
        soon, when = soon[near], when[near]
        edge = np.partition(when, count - 1)[count - 1]
        older, level = soon[when < edge], soon[when == edge]
        drawn = rng.choice(len(level), count - len(older), replace=False, shuffle=False)
        return np.concatenate([older, level[drawn]])
