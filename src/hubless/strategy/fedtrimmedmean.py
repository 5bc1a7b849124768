"""FedTrimmedMean: Yin et al., "Byzantine-Robust Distributed Learning" (2018), trimmed mean."""

from __future__ import annotations

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import TrimmedMean
from hubless.strategy.weighting import Equally


class FedTrimmedMean(Strategy):
    """Per element the mean of what is left when the largest and smallest values are dropped.

        x ← mean of the values with rank c + 1 to n - c        c = ⌊cut · n⌋, element by element

    n is the number of updates. Examples do not count, because anybody can claim any number of them.
    Every update has to be held at once: memory grows with the number of clients. The paper takes
    the mean of gradients, here it is that of params.

    Args:
        cut: The share of values dropped at each end, in [0, 0.5). This share of clients may send
            anything. 0 is the plain mean; towards 0.5 it becomes the median. With fewer than 1 /
            cut updates nothing is dropped: 0.2 needs five of them to withstand one.

    Reference:
        Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates", 2018, Algorithm 1 and Definition 2.
    """

    def __init__(self, cut: float = 0.2) -> None:
        super().__init__(Equally(), TrimmedMean(cut), Replace())
