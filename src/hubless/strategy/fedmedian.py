"""FedMedian: Yin et al., "Byzantine-Robust Distributed Learning" (2018), coordinate-wise median."""

from __future__ import annotations

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Median
from hubless.strategy.weighting import Equally


class FedMedian(Strategy):
    """Per element the middle value: nearly half of the clients may send anything at all."""

    def __init__(self) -> None:
        super().__init__(Equally(), Median(), Replace())
