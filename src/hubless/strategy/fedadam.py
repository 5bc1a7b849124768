"""FedAdam: Reddi et al., "Adaptive Federated Optimization" (2021)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import ServerAdam
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAdam(Strategy):
    """The mean of all updates, approached with Adam: each param has a step size of its own.

        d = Σ w_i · x_i - x
        m ← beta1 · m + (1 - beta1) · d
        v ← beta2 · v + (1 - beta2) · d²
        x ← x + lr · c · m / (√v + tau)        c = √(1 - beta2^(t+2)) / (1 - beta1^(t+2))

    x are the current params, x_i those of update i and w_i its weight. d plays the part of the
    gradient, m and v start at 0, and t counts the steps from 0. In the paper v starts at tau² or
    above, and there is no correction c.

    Args:
        lr: The server's learning rate, above 0. A param moves by about `lr` a round, whatever the
            clients' own learning rate, so this is the first one to tune. Try factors of ten.
        beta1: How much of the last m is kept, in [0, 1). The paper's experiments use 0.9.
        beta2: The same for v, in [0, 1). The paper's experiments use 0.99. That is less than the
            0.999 which is usual for batches, because there are fewer rounds than batches.
        tau: Bounds how much a small change is amplified, above 0. The larger it is, the less the
            step depends on v. The paper's experiments use 1e-3.
        weighting: How much each update counts; `ByExamples()` if not given.

    Reference:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated
        Optimization", 2021, Algorithm 2.
    """

    def __init__(
        self,
        lr: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        weighting: Weighting | None = None,
    ) -> None:
        super().__init__(weighting or ByExamples(), Mean(), ServerAdam(lr, beta1, beta2, tau))
