"""FedAdagrad: Reddi et al., "Adaptive Federated Optimization" (2021)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import ServerAdagrad
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAdagrad(Strategy):
    """The mean of all updates, approached with Adagrad."""

    def __init__(
        self,
        lr: float = 0.1,
        beta1: float = 0.0,
        tau: float = 1e-3,
        weighting: Weighting | None = None,
    ) -> None:
        super().__init__(weighting or ByExamples(), Mean(), ServerAdagrad(lr, beta1, tau))
