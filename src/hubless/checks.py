"""Checks of what a caller gave: an error names the argument, what it takes, and what it got."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from hubless.errors import HublessError


def number(
    name: str,
    value: Any,
    *,
    error: type[HublessError],
    least: float | None = None,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    """A real number within these bounds.

    >>> number("deadline", 2, error=HublessError, above=0, most=1e9)
    2.0
    """
    bounds = [f"above {above:g}"] if above > -math.inf else []
    bounds += [] if least is None else [f"at least {least:g}"]
    bounds += [f"at most {most:g}"] if most < math.inf else []
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    if not is_real or not (above < value <= most) or (least is not None and value < least):
        raise error(f"{name}= is a number {' and '.join(bounds)}".rstrip() + f", not {value!r}")
    return float(value)


def whole(name: str, value: Any, *, error: type[HublessError], least: int) -> int:
    """A whole number from so many on.

    >>> whole("every", 5, error=HublessError, least=1)
    5
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"{name}= is a whole number of at least {least}, not {value!r}")
    return int(value)
