"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks" (2017)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAvg(Strategy):
    """The mean of all updates, each weighted by its number of examples.

        x ← Σ w_i · x_i        w_i = n_i / Σ n_j

    x are the current params, x_i those of update i, and n_i is its number of examples. The paper
    weighs in the same way.

    Args:
        weighting: How much each update counts; `ByExamples()` if not given. `Equally()` gives a
            client with few examples as much say as one with many; `Capped(most)` lies in between.

    >>> FedAvg().weights(examples=[30, 10], staleness=[0, 0])
    array([0.75, 0.25])

    Reference:
        McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of
        Deep Networks from Decentralized Data", 2017, Algorithm 1.
    """

    def __init__(self, weighting: Weighting | None = None) -> None:
        super().__init__(weighting or ByExamples(), Mean(), Replace())
