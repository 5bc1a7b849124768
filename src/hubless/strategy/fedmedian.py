"""FedMedian: Yin et al., "Byzantine-Robust Distributed Learning" (2018), coordinate-wise median."""

from __future__ import annotations

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Median
from hubless.strategy.weighting import Equally


class FedMedian(Strategy):
    """Per element the middle value of all updates: nearly half of the clients may send anything.

        x ← median(x_1, ..., x_n)        element by element

    Of an even number of values it is the mean of the middle two. Examples do not count, because
    anybody can claim any number of them. Every update has to be held at once: memory grows with the
    number of clients. The paper takes the median of gradients, here it is that of params.

    Reference:
        Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates", 2018, Algorithm 1 and Definition 1.
    """

    def __init__(self) -> None:
        super().__init__(Equally(), Median(), Replace())
