"""FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (2022)."""

from __future__ import annotations

from typing import Literal

from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Buffer, Decay


class FedBuff(Strategy):
    """The mean of all changes, each shrunk by its age.

        x ← x + Σ s(t_k) · (x_k - x) / K

    x are a member's own params (in a simulation, the current version), x_k those of K others, and
    t_k is how many versions passed since x_k began to train; s is `Decay`. Examples do not count.
    In a simulation with `Buffered(adding="deltas")` the change x_k - x is what a client learned, as
    in the paper; its K is `Buffered.buffer`. The paper also has a server learning rate, which is 1
    here. In synchronous rounds no update is one's own. Each then counts in proportion to s.

    Args:
        decay: The shape of s: `constant`, `hinge` or `polynomial`.
        a: How fast s falls, at least 0; for `hinge` and `polynomial`. `polynomial` with 0.5 is the
            paper's 1 / √(1 + t).
        b: How many versions an update may be late before s falls, at least 0; for `hinge` only.

    >>> FedBuff().weights([0, 5, 9], [0, 0, 3], own=0)
    array([0.25, 0.5 , 0.25])

    Reference:
        Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated Learning with Buffered
        Asynchronous Aggregation", 2022, Algorithm 1.
    """

    def __init__(
        self,
        decay: Literal["constant", "hinge", "polynomial"] = "polynomial",
        a: float = 0.5,
        b: float = 4.0,
    ) -> None:
        super().__init__(Buffer(Decay(decay, a, b)), Mean(), Replace())
