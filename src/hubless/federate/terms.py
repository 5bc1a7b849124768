"""Terms: how one member takes part, as it told `join`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hubless.checks import fitting, number, shown, texts, whole
from hubless.errors import FederationError
from hubless.events import Listener
from hubless.federate.fold import OUTWEIGH
from hubless.federate.keys import check_name
from hubless.federate.picking.draw import Selection
from hubless.federate.picking.participation import Participation
from hubless.federate.picking.report import check_mechanism
from hubless.patience import Clock, SystemClock
from hubless.privacy.mechanisms import Mechanism
from hubless.strategy.base import Strategy


@dataclass(frozen=True)
class Terms:
    """What holds for a member at either pace; `hubless.join` says what each of these means."""

    client: str
    strategy: Strategy
    who: Selection | Participation | None = None
    share: Sequence[str] | None = None
    every: int = 1
    limit: float | None = None
    outweigh: float = OUTWEIGH
    private: Mechanism | None = None
    ledger: Path | None = None
    listeners: Sequence[Listener] = ()
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        check_name(self.client)
        if self.limit is not None:
            number("limit", self.limit, error=FederationError, above=0)
        number("outweigh", self.outweigh, error=FederationError, least=1, most=math.inf)
        whole("every", self.every, error=FederationError, least=1)
        meant = "a strategy, such as hubless.FedAvg()"
        fits = isinstance(self.strategy, Strategy)
        fitting("strategy", self.strategy, fits, meant, error=FederationError)
        if self.private is not None:
            check_mechanism(self.private)
        if self.who is not None and not isinstance(self.who, Selection | Participation):
            # a selector alone, or its class, is what is given here by mistake
            raise FederationError(
                "who= takes Selection(selector, cohort), such as Selection(Uniform(), cohort=5), "
                f"or Participation(0.5), not {shown(self.who)}"
            )
        if self.share is not None:
            texts("share", self.share, "patterns of names", error=FederationError)
            if not self.share:
                raise FederationError(
                    "share=[] would share nothing: leave it out to share everything"
                )

    @property
    def selection(self) -> Selection | None:
        """Who is picked, where somebody is."""
        return self.who if isinstance(self.who, Selection) else None

    @property
    def participation(self) -> Participation | None:
        """How likely this member takes part, where that is left to chance."""
        return self.who if isinstance(self.who, Participation) else None
