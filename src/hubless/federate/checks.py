"""What `join` was told, checked before anything is written: an error names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from hubless.checks import whole
from hubless.errors import FederationError
from hubless.strategy.base import Strategy


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
        whole("members", members, error=FederationError, least=1)
        return
    if isinstance(members, str):
        names = members.split(",")
        raise FederationError(f"members= takes a number or a list of names: members={names!r}")
    if not isinstance(members, Sequence) or not all(isinstance(each, str) for each in members):
        raise FederationError(f"members= takes a number or a list of names, not {members!r}")
    if twice := sorted({name for name in members if list(members).count(name) > 1}):
        raise FederationError(f"members= has {', '.join(twice)} more than once")
