"""Oort: clients that are worth most and fast enough, and always some that nobody knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hubless.errors import SelectionError
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage, there
from hubless.select.sampling import Table


@dataclass(frozen=True)
class Oort:
    """A share of the cohort explores clients never picked, the rest exploits the known ones.

    A known client's utility is its valuation, none above the quantile `clip`, plus a bonus
    sqrt(0.1 log R / L) that grows with the rounds R since it was last picked in round L; times
    (preferred / t)^alpha where its training takes t = examples / speed seconds and that is longer
    than `preferred`. Among those who reach `cutoff` of what the last one of a strict ranking has,
    chances are in proportion to utility. Exploration starts at `explore` of the cohort and decays
    by `decay` a round to `least`; unknown clients are drawn in proportion to their speed. Clients
    without examples are not picked, and where one kind is short, the other makes up for it.

    Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
    Selection" (2021), algorithm 1, with a fixed preferred duration for its pacer.

    >>> roster = Roster(np.full(10, 5), round=400)
    >>> roster.record_selected(np.arange(8))
    >>> roster.record_seen(np.arange(8), [0, 0, 0, 0, 0, 0, 9, 9])
    >>> sorted(Oort(least=0.5)(roster, 4, np.random.default_rng(0)).tolist())
    [6, 7, 8, 9]
    """

    looks_at: ClassVar[str] = "losses"

    preferred: float = math.inf
    alpha: float = 2.0
    explore: float = 0.9
    decay: float = 0.98
    least: float = 0.2
    cutoff: float = 0.95
    clip: float = 0.95

    def __post_init__(self) -> None:
        if not self.preferred > 0 or self.alpha < 0:
            raise SelectionError(
                f"preferred must be above 0 seconds and alpha not below 0, not {self.preferred} "
                f"and {self.alpha}"
            )
        for name in ("explore", "decay", "least", "cutoff", "clip"):
            if not 0 <= getattr(self, name) <= 1:
                raise SelectionError(f"{name} is between 0 and 1, not {getattr(self, name)}")

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        here = there(roster)
        here = here[roster.examples[here] > 0]
        refuse_shortage(roster, k, here)
        never = roster.last_selected[here] < 0
        untried, tried = here[never], here[~never]
        share = max(self.least, self.explore * self.decay**roster.round)
        explored = min(len(untried), max(round(share * k), k - len(tried)))
        best = self._exploit(roster, tried, k - explored, rng)
        fast = Table.of(_usable(roster.speed[untried])).draw(explored, rng)
        return np.concatenate([best, untried[fast]])

    def utility(self, roster: Roster, clients: Ints) -> Floats:
        """What picking each of these known clients is worth."""
        values = np.nan_to_num(roster.valuation[clients], nan=0.0)
        if len(values):
            values = np.minimum(values, np.quantile(values, self.clip, method="lower"))
        last = np.maximum(roster.last_selected[clients] + 1, 1)
        values = values + np.sqrt(0.1 * math.log(roster.round + 1) / last)
        if self.preferred < math.inf:
            seconds = roster.examples[clients] / _usable(roster.speed[clients])
            values *= np.minimum(1.0, self.preferred / seconds) ** self.alpha
        return values

    def _exploit(self, roster: Roster, tried: Ints, k: int, rng: np.random.Generator) -> Ints:
        if k == 0:
            return tried[:0]
        utility = self.utility(roster, tried)
        edge = np.partition(utility, -k)[-k]
        # of an edge below 0 a share would be above it
        near = np.flatnonzero(utility >= min(edge, self.cutoff * edge))
        return tried[near[Table.of(_usable(utility[near])).draw(k, rng)]]


def _usable(weights: Floats) -> Floats:
    """Nothing at or below 0: whoever is worth nothing is still better than nobody."""
    return np.maximum(weights, np.finfo(np.float64).tiny)
