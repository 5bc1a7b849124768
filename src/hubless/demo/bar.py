"""A line that grows on a terminal, and a line now and then where there is none."""

from __future__ import annotations

import sys
import time

_WIDTH = 24


class Bar:
    """Shows how far something is; on anything but a terminal only every few seconds."""

    def __init__(self, label: str, total: int, every: float = 5.0) -> None:
        self.label, self.total, self.every = label, total, every
        self._shown_at = time.monotonic()

    def show(self, done: int, status: str) -> None:
        """So much of the total is done, and this is how it stands."""
        live, now = sys.stdout.isatty(), time.monotonic()
        ended = done >= self.total
        if not live and not ended and now - self._shown_at < self.every:
            return
        self._shown_at = now
        bar = "#" * (_WIDTH * done // self.total)
        start, end = ("\r", "\n" if ended else "") if live else ("", "\n")
        print(f"{start}{self.label:22} [{bar:{_WIDTH}}] {status}", end=end, flush=True)
