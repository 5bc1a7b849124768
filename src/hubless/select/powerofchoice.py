"""Power of choice: of some candidates, those for whom the model is worst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hubless.checks import whole
from hubless.errors import SelectionError
from hubless.select.activity import by_activity
from hubless.select.roster import Ints, Roster, refuse_shortage


@dataclass(frozen=True)
class PowerOfChoice:
    """Some candidates are drawn, and of these the k with the highest valuations are picked.

        1. d candidates are drawn one after the other, in proportion to their examples.
        2. The k of them with the highest valuation are picked.

    A client without a valuation counts as highest, so that everybody is valued some day. Where
    fewer than d can be picked, all of them are candidates. In the paper's basic form the candidates
    compute their loss before they are picked. Here valuations are from when a client last trained,
    which the paper has as a variant that costs no messages.

    Args:
        d: How many candidates there are, at least k; 2 k if not given. d = k goes by examples
            alone, and the larger d is, the more the choice leans to high valuations.

    >>> roster = Roster([5, 5, 5])
    >>> roster.record_seen(np.arange(3), [0.5, 2.0, 1.0])
    >>> PowerOfChoice(d=3)(roster, 1, np.random.default_rng(0)).tolist()
    [1]

    Reference:
        Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
        Power-of-Choice Selection Strategies", 2020; in print 2022 as "Towards Understanding Biased
        Client Selection in Federated Learning".
    """

    looks_at: ClassVar[str] = "losses"

    d: int | None = None

    def __post_init__(self) -> None:
        if self.d is not None:
            whole("d", self.d, least=1, error=SelectionError)

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        d = 2 * k if self.d is None else self.d
        if d < k:
            raise SelectionError(f"{k} clients cannot be picked of d={d} candidates: raise d")
        candidates = by_activity(roster, "n").draw(d, rng, roster.available)
        refuse_shortage(roster, k, np.sort(candidates))
        values = np.nan_to_num(roster.valuation[candidates], nan=np.inf, posinf=np.inf)
        # candidates come in the order they were drawn, so chance decides among equals
        return candidates[np.argsort(-values, kind="stable")[:k]]
