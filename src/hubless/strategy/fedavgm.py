"""FedAvgM: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution" (2019)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import Momentum
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAvgM(Strategy):
    """The mean of all updates, approached with momentum: rounds that agree add up.

        v ← momentum · v + (x - Σ w_i · x_i)
        x ← x - lr · v

    x are the current params, x_i those of update i, w_i its weight, and v starts at 0. The paper
    has this without `lr`. With the default `lr` both are the same, and `momentum=0` is FedAvg.

    Args:
        lr: The server's learning rate, above 0. Below 1 the steps are damped. In the long run a
            step is lr / (1 - momentum) times as long as one of FedAvg: lower `lr` where that
            diverges.
        momentum: How much of the last step is kept, in [0, 1). 0.9 averages over some ten rounds,
            which helps where cohorts are small or clients differ much.
        weighting: How much each update counts; `ByExamples()` if not given.

    Reference:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification", 2019.
    """

    def __init__(
        self,
        lr: float = 1.0,
        momentum: float = 0.9,
        weighting: Weighting | None = None,
    ) -> None:
        super().__init__(weighting or ByExamples(), Mean(), Momentum(lr, momentum))
