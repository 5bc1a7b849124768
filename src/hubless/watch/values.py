"""Values of untrusted records: whatever is not what it should be counts as nothing.

A record may hold anything that JSON can say. What comes out of here is of bounded size, sums
without overflow, and can be shown by any page, file and clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]
"""An event as its JSON line has it; `record["event"]` is its kind."""

MOST_METRICS = 32
_LARGEST = 1e100
_LARGEST_COUNT = 10**15
_LARGEST_WHOLE = 2**53
_LATEST = 1e11
"""More than three thousand years: any clock and any browser can show it."""


def finite(value: object) -> float | None:
    """A number that sums stay finite with, or None.

    >>> finite(3), finite("3"), finite(float("inf")), finite(1e300), finite(10**400)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # no NaN is less than anything
    return float(value) if abs(value) < _LARGEST else None


def positive(value: object) -> float:
    """A number of seconds, or 0."""
    return max(0.0, finite(value) or 0.0)


def whole(value: object) -> int | None:
    """A whole number that a table can hold, or None.

    >>> whole(3), whole(3.0), whole(3.5), whole("3"), whole(10**30)
    (3, 3, None, None, None)
    """
    number = finite(value)
    if number is None or number != int(number) or abs(number) >= _LARGEST_WHOLE:
        return None
    return int(number)


def count(value: object) -> int:
    """A count that is not negative, or 0.

    >>> count(3), count(-3), count("3")
    (3, 0, 0)
    """
    number = finite(value)
    return min(_LARGEST_COUNT, max(0, int(number))) if number is not None else 0


def time_of(record: Mapping[str, Any]) -> float:
    """When something was said, in seconds since the epoch, or 0 where no clock can show it.

    >>> time_of({"time": 1e9}), time_of({"time": 1e50}), time_of({})
    (1000000000.0, 0.0, 0.0)
    """
    seconds = finite(record.get("time")) or 0.0
    return seconds if 0 <= seconds < _LATEST else 0.0


def text(value: object, most: int = 100) -> str:
    """A value as text of bounded length that any page or file can hold.

    >>> text("site-a"), text(None), text({"b": 1}), text(chr(0xD800)), text("x" * 9, 5)
    ('site-a', '', '{"b": 1}', '?', 'xxxx…')
    """
    if value is None:
        return ""
    try:
        whole_text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        whole_text = str(value)
    except RecursionError:
        return "…"
    shown = whole_text[: most + 1].encode("utf-8", "replace").decode()
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def items(value: object) -> Sequence[Any]:
    """A list, or none."""
    return value if isinstance(value, list) else []


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one for whatever stands in its place."""
    return value if isinstance(value, dict) else {}


def numbers(value: object) -> dict[str, float | None]:
    """Metrics by name; None where one is no finite number."""
    pairs = list(mapping(value).items())[:MOST_METRICS]
    return {text(name): finite(number) for name, number in pairs}


def short(value: float) -> float:
    """A number in as many digits as anybody can see."""
    return float(f"{value:.6g}")
