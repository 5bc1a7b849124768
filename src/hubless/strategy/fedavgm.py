"""FedAvgM: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution" (2019)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import Momentum
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAvgM(Strategy):
    """The mean of all updates, approached with momentum."""

    def __init__(
        self,
        lr: float = 1.0,
        momentum: float = 0.9,
        weighting: Weighting | None = None,
    ) -> None:
        super().__init__(weighting or ByExamples(), Mean(), Momentum(lr, momentum))
