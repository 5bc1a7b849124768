"""FedTrimmedMean: Yin et al., "Byzantine-Robust Distributed Learning" (2018), trimmed mean."""

from __future__ import annotations

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import TrimmedMean
from hubless.strategy.weighting import Equally


class FedTrimmedMean(Strategy):
    """Per element the mean of what is left when the `cut` share is dropped at either end."""

    def __init__(self, cut: float = 0.2) -> None:
        super().__init__(Equally(), TrimmedMean(cut), Replace())
