"""FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (2022)."""

from __future__ import annotations

from typing import Literal

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Buffer, Decay


class FedBuff(Strategy):
    """Updates count the same but for their staleness, which shrinks them towards no change.

    >>> FedBuff().weights([0, 5, 9], [0, 0, 3], own=0)
    array([0.25, 0.5 , 0.25])
    """

    def __init__(
        self,
        decay: Literal["constant", "hinge", "polynomial"] = "polynomial",
        a: float = 0.5,
        b: float = 4.0,
    ) -> None:
        super().__init__(Buffer(Decay(decay, a, b)), Mean(), Replace())
