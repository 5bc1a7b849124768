"""The strip: what every client did, client by client over rounds or time."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

TRAINED, WAITED, LATE, REFUSED, SKIPPED, OFFLINE, WRONG = (1 << bit for bit in range(7))
MARKS = {
    "trained": TRAINED,
    "waited": WAITED,
    "late": LATE,
    "refused": REFUSED,
    "skipped": SKIPPED,
    "offline": OFFLINE,
    "wrong": WRONG,
}
"""What a client can have done, each a bit: a cell holds everything that falls into it."""

COLUMNS = 120
SHOWN = 200
_KEPT = 1000
_BITS = len(MARKS)
_MASK = (1 << _BITS) - 1


class Strip:
    """A row of cells for every client, each cell so many rounds or seconds wide as it takes.

    Memory is bounded: cells become wider as a run becomes longer, and of many clients only the
    most recently active keep their rows.

    >>> strip = Strip("round")
    >>> for round_ in range(500):
    ...     strip.mark(str(round_ % 3), round_, TRAINED)
    >>> strip.width, list(strip.to_json(total=3)["rows"][0]["cells"])[:3]
    (8, ['1', '1', '1'])
    """

    def __init__(self, axis: Literal["round", "time"]) -> None:
        self.axis = axis
        self.width = 1
        self.first: int | None = None
        self.last = 0
        self._rows: OrderedDict[str, list[int]] = OrderedDict()

    def mark(self, client: str, at: int, did: int, *, again: bool = False) -> None:
        """Note that a client did something at this round, or this second.

        `again` where it is told once more, by others, and so counts for nothing.
        """
        if self.first is None:
            self.first = at
        column = max(0, at - self.first) // self.width
        while column >= COLUMNS:
            self._widen()
            column //= 2
        self.last = max(self.last, at)
        row = self._rows.get(client)
        if row is None:
            row = self._rows[client] = [0] * COLUMNS
            if len(self._rows) > _KEPT:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(client)
        # how often, above what
        row[column] = (row[column] | did) + (0 if again else 1 << _BITS)

    def forget_after(self, at: int) -> None:
        """Empty the cells that lie wholly after this."""
        if self.first is None:
            return
        column = max(0, at - self.first) // self.width + 1
        for row in self._rows.values():
            row[column:] = [0] * (COLUMNS - column)
        self.last = min(self.last, at)

    def to_json(self, total: int) -> dict[str, Any]:
        """What to draw, of so many clients in all.

        A cell is a character: `0` plus the bits of what was done in it. Where cells are wide,
        `levels` has a digit for each that says how often, up to 9.
        """
        rows = list(self._rows.items())[-SHOWN:]
        if len(self._rows) > SHOWN:
            # so that who was active last is on top
            rows.reverse()
        else:
            rows.sort(key=lambda item: natural(item[0]))
        first = self.first or 0
        columns = min(COLUMNS, (self.last - first) // self.width + 1) if rows else 0
        one_each = self.axis == "round" and self.width == 1
        most = 0 if one_each else max((c >> _BITS for _, row in rows for c in row), default=0)
        return {
            "axis": self.axis,
            "first": first,
            "width": self.width,
            "columns": columns,
            "rows": [self._row(name, row[:columns], most) for name, row in rows],
            "full": len(rows) == SHOWN,
            "more": max(0, total - len(rows)),
        }

    def _row(self, name: str, row: Sequence[int], most: int) -> dict[str, Any]:
        drawn: dict[str, Any] = {
            "name": name,
            "cells": "".join(chr(48 + (cell & _MASK)) for cell in row),
        }
        if most > 1:
            drawn["levels"] = "".join(str(-(-9 * (cell >> _BITS) // most)) for cell in row)
        return drawn

    def _widen(self) -> None:
        self.width *= 2
        for row in self._rows.values():
            pairs = zip(row[::2], row[1::2], strict=True)
            joined = [
                ((a | b) & _MASK) + (((a >> _BITS) + (b >> _BITS)) << _BITS) for a, b in pairs
            ]
            row[:] = joined + [0] * (COLUMNS - len(joined))


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people do.

    >>> sorted(["site-10", "site-9"], key=natural)
    ['site-9', 'site-10']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return [(1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts]
