"""How the commands print: tables, sizes, ages, and text from strangers made harmless."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hubless.errors import printable
from hubless.events import plain


def in_json(document: object) -> str:
    """A document as every reader of JSON takes it: what is not finite is nothing.

    >>> in_json({"loss": float("nan"), "of": (1, 2.5)})
    '{"loss": null, "of": [1, 2.5]}'
    """
    return json.dumps(plain(document), allow_nan=False)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows in columns that are as wide as they have to be."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def in_bytes(count: float) -> str:
    """A size as people say it.

    >>> in_bytes(700), in_bytes(4800)
    ('700 B', '4.7 KiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def in_time(seconds: float) -> str:
    """An age in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def in_words(metrics: Mapping[str, float]) -> str:
    """Metrics in a line.

    >>> in_words({"loss": 0.25, "accuracy": 0.91234})
    'loss 0.25  accuracy 0.9123'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
