"""What `join` was told, checked before anything is written: an error names the argument."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from hubless.errors import FederationError
from hubless.events import Listener
from hubless.strategy.base import Strategy


def number(
    name: str, value: Any, *, least: float | None = None, above: float = -math.inf, most: float
) -> float:
    """A real number within these bounds.

    >>> number("deadline", 2, above=0, most=1e9)
    2.0
    """
    bounds = f"above {above:g}" if least is None else f"at least {least:g}"
    if most < math.inf:
        bounds += f" and at most {most:g}"
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    if not is_real or not (above < value <= most) or (least is not None and value < least):
        raise FederationError(f"{name}= is a number {bounds}, not {value!r}")
    return float(value)


def whole(name: str, value: Any, *, least: int) -> int:
    """A whole number from so many on.

    >>> whole("every", 5, least=1)
    5
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise FederationError(f"{name}= is a whole number of at least {least}, not {value!r}")
    return int(value)


def check_strategy(strategy: Any) -> None:
    """A strategy, and not its class or its name."""
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        raise FederationError(f"strategy= takes a strategy: {strategy.__name__}(), with brackets")
    if not isinstance(strategy, Strategy):
        raise FederationError(
            f"strategy= takes a strategy, such as hubless.FedAvg(), not {strategy!r}; "
            "hubless.strategy.parse makes one from a text"
        )


def check_share(share: Any) -> None:
    """Patterns of parameter names."""
    if isinstance(share, str):
        raise FederationError(f"share= takes a list of patterns: share=[{share!r}]")
    if not isinstance(share, Sequence) or not all(isinstance(each, str) for each in share):
        raise FederationError(f"share= takes a list of patterns of names, not {share!r}")
    if not share:
        raise FederationError("share=[] would share nothing: leave it out to share everything")


def check_members(members: Any) -> None:
    """How many there are, or their names."""
    if isinstance(members, Integral):
        whole("members", members, least=1)
        return
    if isinstance(members, str):
        names = members.split(",")
        raise FederationError(f"members= takes a number or a list of names: members={names!r}")
    if not isinstance(members, Sequence) or not all(isinstance(each, str) for each in members):
        raise FederationError(f"members= takes a number or a list of names, not {members!r}")
    if twice := sorted({name for name in members if list(members).count(name) > 1}):
        raise FederationError(f"members= has {', '.join(twice)} more than once")


def listeners_of(on_event: Any) -> list[Listener]:
    """One listener, or several, as a list."""
    listeners = [on_event] if callable(on_event) else on_event
    if isinstance(listeners, str) or not (
        isinstance(listeners, Sequence) and all(callable(each) for each in listeners)
    ):
        raise FederationError(
            f"on_event= takes a function that is called with each event, or several, not "
            f"{on_event!r}; hubless.events.to_file makes one that writes a file"
        )
    return list(listeners)


def check_bucket(url: Any, endpoint: Any, options: Any, *, is_store: bool) -> None:
    """Where the federation meets, and what its server needs."""
    if is_store and not (endpoint is None and options is None):
        raise FederationError("endpoint= and options= go with an address, and this is a store")
    if options is not None and not isinstance(options, Mapping):
        raise FederationError(f"options= takes settings by name, not {options!r}")
    if endpoint is not None and not isinstance(endpoint, str):
        raise FederationError(f"endpoint= is the address of a server, not {endpoint!r}")
