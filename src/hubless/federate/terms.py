"""Terms: how one member takes part, as it told `join`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from hubless.errors import FederationError
from hubless.events import Listener
from hubless.federate.agreement import check_limit
from hubless.federate.fold import OUTWEIGH
from hubless.federate.keys import check_name
from hubless.federate.picking.draw import Selection
from hubless.patience import Clock, SystemClock
from hubless.privacy.mechanisms import Mechanism
from hubless.rng import stream
from hubless.strategy.base import Strategy


@dataclass(frozen=True)
class Terms:
    """What holds for a member in either mode; `hubless.join` says what each of these means."""

    client: str
    strategy: Strategy
    share: Sequence[str] | None = None
    every: int = 1
    participation: float = 1.0
    seed: int = 0
    limit: float | None = None
    outweigh: float = OUTWEIGH
    selection: Selection | None = None
    unpicked: Literal["wait", "train"] = "wait"
    private: Mechanism | None = None
    ledger: Path | None = None
    listeners: Sequence[Listener] = ()
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        check_name(self.client)
        if self.limit is not None:
            check_limit(self.limit)
        if not self.outweigh >= 1:
            raise FederationError(f"outweigh is at least 1, or infinite, not {self.outweigh}")
        if self.every < 1:
            raise FederationError(f"every must be at least 1, not {self.every}")
        if not 0 < self.participation <= 1:
            raise FederationError(f"participation is in (0, 1], not {self.participation}")
        if self.unpicked not in ("wait", "train"):
            raise FederationError(f"unpicked is 'wait' or 'train', not {self.unpicked!r}")
        if self.selection is not None and self.participation < 1:
            raise FederationError(
                "participation= and selector= both say who takes part: leave one of them out"
            )
        if isinstance(self.share, str):
            raise FederationError(f"share takes a list of patterns: share=[{self.share!r}]")

    def chance(self, life: int) -> np.random.Generator | None:
        """What decides whether a call takes part, where not every call does.

        A process that takes a single step before it ends draws anew each time.
        """
        if self.participation == 1:
            return None
        return stream(self.seed, "participation", self.client, life)
