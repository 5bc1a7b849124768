"""FedAdagrad: Reddi et al., "Adaptive Federated Optimization" (2021)."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.optimizers import ServerAdagrad
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


class FedAdagrad(Strategy):
    """The mean of all updates, approached with Adagrad: steps get shorter from round to round.

        d = Σ w_i · x_i - x
        m ← beta1 · m + (1 - beta1) · d
        v ← v + d²
        x ← x + lr · m / (√v + tau)

    x are the current params, x_i those of update i and w_i its weight. d plays the part of the
    gradient, and m and v start at 0. In the paper v starts at tau² or above. Params that seldom
    change keep long steps. This suits sparse data, such as the embeddings of rare words.

    Args:
        lr: The server's learning rate, above 0. With `beta1=0` a param moves by nearly `lr` in the
            first round, and by about lr / √t in round t while changes stay as large.
        beta1: How much of the last m is kept, in [0, 1). 0 is no momentum, as in the paper's
            experiments.
        tau: Bounds how much a small change is amplified, above 0. The paper's experiments use 1e-3.
        weighting: How much each update counts; `ByExamples()` if not given.

    Reference:
        Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated
        Optimization", 2021, Algorithm 2.
    """

    def __init__(
        self,
        lr: float = 0.1,
        beta1: float = 0.0,
        tau: float = 1e-3,
        weighting: Weighting | None = None,
    ) -> None:
        super().__init__(weighting or ByExamples(), Mean(), ServerAdagrad(lr, beta1, tau))
