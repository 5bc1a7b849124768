"""Terms: how one member takes part, as it told `join`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from hubless.errors import FederationError
from hubless.events import Listener
from hubless.federate.agreement import check_limit
from hubless.federate.checks import check_share, check_strategy, number, whole
from hubless.federate.fold import OUTWEIGH
from hubless.federate.keys import check_name
from hubless.federate.picking.draw import Selection
from hubless.federate.picking.report import check_mechanism
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
        number("outweigh", self.outweigh, least=1, most=math.inf)
        whole("every", self.every, least=1)
        whole("seed", self.seed, least=0)
        number("participation", self.participation, above=0, most=1)
        check_strategy(self.strategy)
        if self.private is not None:
            check_mechanism(self.private)
        if self.unpicked not in ("wait", "train"):
            raise FederationError(f"unpicked is 'wait' or 'train', not {self.unpicked!r}")
        if self.selection is not None and self.participation < 1:
            raise FederationError(
                "participation= and selector= both say who takes part: leave one of them out"
            )
        if self.share is not None:
            check_share(self.share)

    def chance(self, life: int) -> np.random.Generator | None:
        """What decides whether a call takes part, where not every call does.

        A process that takes a single step before it ends draws anew each time.
        """
        if self.participation == 1:
            return None
        return stream(self.seed, "participation", self.client, life)
