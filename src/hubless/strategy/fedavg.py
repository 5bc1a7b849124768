"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks" (2017)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAvg(Strategy):
    """The mean of all updates, each weighted by its number of examples.

    >>> FedAvg().weights(examples=[30, 10], staleness=[0, 0])
    array([0.75, 0.25])
    """

    def __init__(self, weighting: Weighting | None = None) -> None:
        super().__init__(weighting or ByExamples(), Mean(), Replace())
