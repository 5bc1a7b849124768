"""A member of a federation, as far as it is known, and whether it still says anything."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from hubless.watch.values import short

_LEAST_QUIET = 5.0
"""Nobody is silent before: a look at a store, and a store's clock, are no quicker."""
_UNKNOWN_QUIET = 60.0
_PATIENT = 660.0
"""A member that waits for others may say nothing for as long as a round may take by default."""
_GAPS = 8
_TIMES_LONGER = 3.0


@dataclass
class MemberFold:
    """One client of a federation."""

    began: float = 0.0
    status: str = "joined"
    heard: float = 0.0
    """When it was last heard of by itself, or its status changed by what others said."""
    last: float = 0.0
    """The same by the clock of whoever told it."""
    pushed: float = 0.0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))
    sequence: int = -1
    updates: int = 0
    rounds: int = 0
    last_round: int = -1
    """The last one that counted, and `last_included` is which of its updates was in it."""
    last_included: int = -1
    pushed_round: int = -1
    examples: int | None = None
    weight: int = 1
    version: int = 0
    staleness: int = 0
    sent: int = 0
    received: int | None = None
    """None where it does not say so, as in rounds."""
    skipped: int = 0
    lives: int = 0
    life: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    troubles: Counter[str] = field(default_factory=Counter)
    is_noted_silent: bool = False

    def standing(self, now: float) -> str:
        """Its status, or that it is silent: for longer than its own pace explains."""
        if self.status == "left" or now - self.heard <= self.patience():
            return self.status
        return "silent"

    def patience(self) -> float:
        """For how many seconds it may say nothing."""
        if self.status in ("waiting", "idle"):
            return _PATIENT
        if not self.gaps:
            return _UNKNOWN_QUIET
        return max(_LEAST_QUIET, _TIMES_LONGER * max(self.gaps))

    def turn(self, status: str, time: float) -> None:
        """It is in this status from now on."""
        self.status = status
        self.heard = max(self.heard, time)
        self.is_noted_silent = False

    def about(self, now: float) -> dict[str, Any]:
        """What a row says of it."""
        return {
            "status": self.standing(now),
            "heard": self.heard,
            "sequence": self.sequence,
            "updates": self.updates,
            "examples": self.examples or 0,
            "staleness": self.staleness,
            "joined": self.lives,
            "metrics": {name: short(value) for name, value in self.metrics.items()},
        }
