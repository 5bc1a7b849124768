"""FedAsync: Xie et al., "Asynchronous Federated Optimization" (2019)."""

from __future__ import annotations

from typing import Literal

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Decay, Mixing


class FedAsync(Strategy):
    """Each update is mixed into the current params in turn; the older it is, the less it counts.

        x ← (1 - share · s(t_k)) · x + share · s(t_k) · x_k        for each k, the oldest first

    x are a member's own params (in a simulation, the current version), x_k those of another one's
    update, and t_k is how many versions passed since x_k began to train; s is `Decay`. The paper
    mixes one update at a time, which is `Buffered(buffer=1, adding="params")` in a simulation. In
    synchronous rounds no update is one's own. Each then counts by its examples times s.

    Args:
        share: How much of a fresh update is mixed in, in (0, 1]. With 1 and constant decay the last
            update replaces everything before it. 0.6 learns fast from few others; take less where
            many updates arrive at once, because the first ones are then diluted by the later ones.
        decay: The shape of s: `constant`, `hinge` or `polynomial`.
        a: How fast s falls, at least 0; for `hinge` and `polynomial`.
        b: How many versions an update may be late before s falls, at least 0; for `hinge` only.

    >>> FedAsync(share=0.5, decay="constant").weights([1, 1, 1], [0, 2, 1], own=0)
    array([0.25, 0.25, 0.5 ])

    Reference:
        Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019, Algorithm 1.
    """

    def __init__(
        self,
        share: float = 0.6,
        decay: Literal["constant", "hinge", "polynomial"] = "polynomial",
        a: float = 0.5,
        b: float = 4.0,
    ) -> None:
        super().__init__(Mixing(share, Decay(decay, a, b)), Mean(), Replace())
