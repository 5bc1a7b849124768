"""Active selection: whose data the model does badly on trains more often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hubless.checks import number, one_of
from hubless.errors import SelectionError
from hubless.select.ranking import Ranking, ranked, those_with_examples
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage

Unseen = Literal["highest", "mean", "lowest"] | float


@dataclass(frozen=True)
class Active:
    """Clients on whose data the model does badly are picked more often.

        1. The ⌊alpha1 · K⌋ of the K clients with the smallest valuations v are dropped.
        2. (1 - alpha3) · k of the others are drawn one after the other, p ∝ exp(alpha2 · v).
        3. alpha3 · k are drawn uniformly from everybody not yet picked, dropped or not.

    K counts only clients that are available and have examples, so clients that nobody can reach do
    not push others out. alpha3 · k is rounded to the nearest whole number, a half upwards: 0.1 of a
    k below 5 is nobody. Where fewer survive than are to be drawn, more are picked uniformly. Of
    clients that are level at the edge, a new draw in every round decides who survives.

    In a simulation v is the sum of a client's losses over the root of their number, as in the
    paper, unless another value is given. The paper does not say what a client counts as that never
    gave a valuation: that is `unseen`.

    Chances depend on differences of valuations only, and no alpha2 is too high: where weights would
    vanish beside the largest, clients are compared by logarithms. A draw is fast while no valuation
    changes and everybody is available; otherwise clients are ranked anew.

    Args:
        alpha1: The share that is dropped, in [0, 1]. 0.75 is the paper's.
        alpha2: How strongly larger valuations are preferred, at least 0. It has to fit their scale:
            a client that is 1 / alpha2 above another is picked e times as often. 0.01 is the
            paper's, for sums of losses; smaller valuations need more.
        alpha3: The share that is picked uniformly, in [0, 1], so that old valuations are looked at
            again. 0.1 is the paper's.
        unseen: What a client without a valuation is worth: the "highest", "mean" or "lowest" that
            is known, or a number. "highest" asks everybody early on, and that ends by itself. With
            the others a client may stay unseen for long; "lowest" leaves exploring to the uniform
            part.

    >>> roster = Roster(np.full(8, 10))
    >>> roster.record_seen(np.arange(8), [3, 900, 1, 2, 800, 2, 0, 1])
    >>> sorted(Active(alpha3=0.0)(roster, 2, np.random.default_rng(0)).tolist())
    [1, 4]

    Reference:
        Goetz, Malik, Bui, Moon, Liu and Kumar, "Active Federated Learning", 2019, Algorithm 1.
    """

    looks_at: ClassVar[str] = "losses"
    reads: ClassVar[tuple[str, ...]] = ("valuation", "examples")

    alpha1: float = 0.75
    alpha2: float = 0.01
    alpha3: float = 0.1
    unseen: Unseen = "highest"

    def __post_init__(self) -> None:
        for name in ("alpha1", "alpha3"):
            number(name, getattr(self, name), least=0, most=1, error=SelectionError)
        number("alpha2", self.alpha2, least=0, most=1e300, error=SelectionError)
        if isinstance(self.unseen, str):
            words = ("highest", "mean", "lowest")
            one_of("unseen", self.unseen, words, error=SelectionError)
        else:
            number("unseen", self.unseen, error=SelectionError)

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
