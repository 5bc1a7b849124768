"""MultiKrum: Blanchard et al., "Machine Learning with Adversaries" (2017), section 5."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.krum import Nearest
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Equally


class MultiKrum(Strategy):
    """The mean of the updates that lie closest to the others.

        s_i = Σ |x_i - x_j|²        over the n - f - 2 updates x_j nearest to x_i, f = ⌊hostile · n⌋
        x ← Σ w_i · x_i             over the `keep` updates with the least s_i

    Args:
        hostile: The share of updates that may be anything at all, in [0, 0.5).
        keep: How many updates count, at least 1; n - f if not given. 1 is `Krum`. The more are
            kept, the less the noise of single updates matters.
        weighting: How much each of the kept ones counts; `Equally()` if not given, because a
            hostile client can claim any number of examples.

    Reference:
        Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine
        Tolerant Gradient Descent", 2017, section 5.
    """

    def __init__(
        self, hostile: float = 0.2, keep: int | None = None, weighting: Weighting | None = None
    ) -> None:
        super().__init__(Nearest(hostile, keep, weighting or Equally()), Mean(), Replace())
