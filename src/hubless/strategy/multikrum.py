"""MultiKrum: Blanchard et al., "Machine Learning with Adversaries" (2017), section 5."""

from __future__ import annotations

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.krum import Nearest
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Equally


class MultiKrum(Strategy):
    """The mean of the `keep` updates that the others are nearest to.

    `hostile` is the share of updates that may be anything at all, below one half; `keep` is how
    many count, all but the hostile ones if not given; `weighting` is for those among them.
    """

    def __init__(
        self, hostile: float = 0.2, keep: int | None = None, weighting: Weighting | None = None
    ) -> None:
        super().__init__(Nearest(hostile, keep, weighting or Equally()), Mean(), Replace())
