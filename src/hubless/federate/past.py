"""What a member said with its updates, which it leaves behind: a view then has whole curves.

Updates are deleted once newer ones are there, and with them what was said along with them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hubless.federate.keys import ROUNDS, Posted

_MOST = 256
_METRICS = 16


@dataclass(frozen=True)
class Said:
    """An update that was shared once: its number, its round if there are any, and its metrics."""

    sequence: int
    round: int | None
    examples: int
    time: float
    metrics: Mapping[str, float]


@dataclass
class Past:
    """The updates of one life, thinned as there come more: every one, every second, every fourth.

    >>> from hubless.federate.keys import UPDATES, Incarnation
    >>> past = Past()
    >>> for number in range(3):
    ...     posted = Posted(UPDATES, "a", number, Incarnation(1, "0" * 8), 5, 0, "0" * 12)
    ...     past.add(posted, {"loss": 1 / (number + 1)})
    >>> [dict(record.metrics) for record in Past.parse(past.to_bytes(steps=3))]
    [{'loss': 1.0}, {'loss': 0.5}, {'loss': 0.333333}]
    """

    _records: list[Said] = field(default_factory=list)
    _count: int = 0
    _stride: int = 1

    def add(self, posted: Posted, metrics: Mapping[str, float]) -> None:
        """Remember what was said with an update."""
        if self._count % self._stride == 0:
            finite = [(name, float(v)) for name, v in metrics.items() if math.isfinite(v)]
            metrics = {name: float(f"{value:.6g}") for name, value in finite[:_METRICS]}
            in_rounds = posted.folder.startswith(ROUNDS)
            round_ = int(posted.folder.split("/")[1]) if in_rounds else None
            self._records.append(
                Said(posted.sequence, round_, posted.examples, time.time(), metrics)
            )
        self._count += 1
        if len(self._records) > _MOST:
            self._records = self._records[::2]
            self._stride *= 2

    def to_bytes(self, steps: int) -> bytes:
        """As it lies in the store, beside how often the member stepped."""
        rows = [
            [s.sequence, s.round, s.examples, round(s.time, 3), dict(s.metrics)]
            for s in self._records
        ]
        return json.dumps({"steps": steps, "past": rows}).encode()

    @staticmethod
    def parse(raw: bytes) -> list[Said]:
        """What a member left behind, as far as it can be read."""
        try:
            rows = json.loads(raw)["past"][: _MOST + 1]
            return [
                Said(
                    int(number),
                    None if at is None else int(at),
                    int(size),
                    float(when),
                    dict(metrics),
                )
                for number, at, size, when, metrics in rows
            ]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return []
