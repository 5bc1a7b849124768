"""FedYogi: Reddi et al., "Adaptive Federated Optimization" (2021)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import ServerYogi
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedYogi(Strategy):
    """The mean of all updates, approached with Yogi: Adam whose step sizes grow back slowly.

        d = Σ w_i · x_i - x
        m ← beta1 · m + (1 - beta1) · d
        v ← v - (1 - beta2) · d² · sign(v - d²)
        x ← x + lr · m / (√v + tau)

    x are the current params, x_i those of update i and w_i its weight. d plays the part of the
    gradient, and m and v start at 0. In the paper v starts at tau² or above. v moves by a share of
    d² and not of v, so that a few rounds of small changes do not make the next step a long one.

    Args:
        lr: The server's learning rate, above 0. Nothing corrects for v starting at 0, so early
            steps are up to twice as long as `lr`. This is the first one to tune. Try factors of
            ten.
        beta1: How much of the last m is kept, in [0, 1). The paper's experiments use 0.9.
        beta2: How slowly v moves, in [0, 1). The paper's experiments use 0.99.
        tau: Bounds how much a small change is amplified, above 0. The larger it is, the less the
            step depends on v. The paper's experiments use 1e-3.
        weighting: How much each update counts; `ByExamples()` if not given.

    Reference:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated
        Optimization", 2021, Algorithm 2.
    """

    def __init__(
        self,
        lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        weighting: Weighting | None = None,
    ) -> None:
        super().__init__(weighting or ByExamples(), Mean(), ServerYogi(lr, beta1, beta2, tau))
