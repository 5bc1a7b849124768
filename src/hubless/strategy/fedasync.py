"""FedAsync: Xie et al., "Asynchronous Federated Optimization" (2019)."""

from __future__ import annotations

from typing import Literal

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Decay, Mixing


class FedAsync(Strategy):
    """Peers are mixed into one's own params one after another, the staler the less.

    >>> FedAsync(share=0.5, decay="constant").weights([1, 1, 1], [0, 2, 1], own=0)
    array([0.25, 0.25, 0.5 ])
    """

    def __init__(
        self,
        share: float = 0.6,
        decay: Literal["constant", "hinge", "polynomial"] = "polynomial",
        a: float = 0.5,
        b: float = 4.0,
    ) -> None:
        super().__init__(Mixing(share, Decay(decay, a, b)), Mean(), Replace())
