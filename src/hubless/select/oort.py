"""Oort: clients that are worth most and fast enough, and always some that nobody knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hubless.checks import number
from hubless.errors import SelectionError
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage, there
from hubless.select.sampling import Table


@dataclass(frozen=True)
class Oort:
    """Most of the cohort are clients known to be worth much and fast enough; the rest explore.

        u = min(v, quantile of all v at `clip`) + √(0.1 · ln R / L)
        u ← u · min(1, preferred / t)^alpha        t = examples / speed

    v is a client's valuation, R the current round and L the one it was last picked in, both counted
    from 1, and t the seconds that it trains. The clients to exploit are drawn in proportion to u,
    among those with at least `cutoff` times the u of the last one that a strict ranking would take.
    In round R a share max(least, explore · decay^(R-1)) of the cohort are clients never picked
    before, drawn in proportion to their speed. Where one kind is short, the other makes up for it.
    Clients without examples are not picked.

    In the paper `preferred` adapts to what clients are worth, and v is n · √(mean squared loss) of
    n examples. Here `preferred` is fixed, and v is what the run values clients by: in a simulation
    `LossOverRoot`, unless another value is given. The paper also leaves out clients that were
    picked too often, which is not done here.

    Args:
        preferred: The seconds that a client may take without losing worth, above 0. Without a limit
            speed does not count.
        alpha: How hard slowness is punished, at least 0. With 2, twice as slow is worth a quarter.
        explore: The share of the cohort that explores in the first round, in [0, 1].
        decay: What that share is multiplied by after each round, in [0, 1].
        least: What it never falls below, in [0, 1].
        cutoff: How far below the last one of a strict ranking a client still has a chance, in [0,
            1]. 1 takes the best without a draw.
        clip: The quantile above which valuations are cut off, in [0, 1], against single outliers.

    >>> roster = Roster(np.full(10, 5), round=400)
    >>> roster.record_selected(np.arange(8))
    >>> roster.record_seen(np.arange(8), [0, 0, 0, 0, 0, 0, 9, 9])
    >>> sorted(Oort(least=0.5)(roster, 4, np.random.default_rng(0)).tolist())
    [6, 7, 8, 9]

    Reference:
        Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided
        Participant Selection", 2021, Algorithm 1.
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
        number("preferred", self.preferred, above=0, most=math.inf, error=SelectionError)
        number("alpha", self.alpha, least=0, error=SelectionError)
        for name in ("explore", "decay", "least", "cutoff", "clip"):
            number(name, getattr(self, name), least=0, most=1, error=SelectionError)

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
        """What picking each of these known clients is worth: u in the formula.

        Args:
            roster: Who there is.
            clients: Places of clients that were picked before.
        """
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
