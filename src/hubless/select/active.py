"""Active selection: whose data the model does badly on trains more often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hubless.errors import SelectionError
from hubless.select.ranking import Ranking, ranked, those_with_examples
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage

Unseen = Literal["highest", "mean", "lowest"] | float


@dataclass(frozen=True)
class Active:
    """Algorithm 1 of Goetz et al., "Active Federated Learning" (2019).

    Of the K clients that can be picked, the floor(alpha1 K) with the smallest valuations are
    dropped. From the others (1 - alpha3) k are drawn one after the other, in proportion to
    exp(alpha2 valuation) among those left; then alpha3 k uniformly from everybody not yet picked,
    dropped or not. alpha3 k is rounded to the nearest whole number, a half upwards: below 5 of k,
    0.1 of them is nobody. Where fewer survive than are to be drawn, more are picked uniformly.

    Those who can be picked are available and have examples, so alpha1 is a share of those who are
    here: clients that nobody can reach do not push others out. Of clients that are level at the
    edge, as many as there is room for survive, drawn anew in every round: equal valuations have
    equal chances, and the same generator state gives the same clients.

    The paper does not say what a client counts as that never gave a valuation. By default
    (`unseen`) it is worth as much as the best known: any other choice may leave clients unseen for
    ever, this one asks everybody early on, and ends by itself. "mean", "lowest" and a number are
    others; "lowest" leaves exploring to the uniform part.

    Chances depend on differences of valuations only, and no temperature is too high: where weights
    would vanish beside the largest, clients are compared by logarithms. A draw is fast while no
    valuation changes and everybody is available; otherwise clients are ranked anew.

    >>> roster = Roster(np.full(8, 10))
    >>> roster.record_seen(np.arange(8), [3, 900, 1, 2, 800, 2, 0, 1])
    >>> sorted(Active(alpha3=0.0)(roster, 2, np.random.default_rng(0)).tolist())
    [1, 4]
    """

    looks_at: ClassVar[str] = "losses"
    reads: ClassVar[tuple[str, ...]] = ("valuation", "examples")

    alpha1: float = 0.75
    alpha2: float = 0.01
    alpha3: float = 0.1
    unseen: Unseen = "highest"

    def __post_init__(self) -> None:
        for name in ("alpha1", "alpha3"):
            if not 0 <= getattr(self, name) <= 1:
                raise SelectionError(f"{name} is a share within [0, 1], not {getattr(self, name)}")
        if not 0 <= self.alpha2 <= 1e300:
            raise SelectionError(f"alpha2 is finite and not below 0, not {self.alpha2}")
        if isinstance(self.unseen, str):
            if self.unseen not in ("highest", "mean", "lowest"):
                raise SelectionError(
                    f"unseen is highest, mean, lowest or a number, not {self.unseen!r}"
                )
        elif not math.isfinite(self.unseen):
            raise SelectionError(f"what an unseen client is worth is finite, not {self.unseen}")

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        ranking = self._ranking(roster)
        if k > ranking.clients:
            refuse_shortage(roster, k, ranking.places(np.arange(ranking.clients)))
        by_value = k - math.floor(self.alpha3 * k + 0.5)
        best = ranking.draw(by_value, rng)
        return ranking.places(np.concatenate([best, ranking.others(k - len(best), best, rng)]))

    def weights(self, roster: Roster) -> Floats:
        """The share of picks that everybody gets while k is small, were all of them available."""
        return self._of_everybody(roster).shares(self.alpha3, len(roster))

    def _ranking(self, roster: Roster) -> Ranking:
        if roster.available is None or roster.available.all():
            return self._of_everybody(roster)
        here = np.flatnonzero(roster.available & (roster.examples > 0))
        return self._ranked(roster, here)

    def _of_everybody(self, roster: Roster) -> Ranking:
        key = ("active", self.alpha1, self.alpha2, self.unseen)
        return roster.derive(key, self.reads, lambda: self._ranked(roster, None))

    def _ranked(self, roster: Roster, here: Ints | None) -> Ranking:
        if here is None:
            here = those_with_examples(roster)
        valuations = roster.valuation if here is None else roster.valuation[here]
        return ranked(valuations, here, self.alpha1, self.alpha2, self.unseen)
