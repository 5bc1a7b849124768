"""An update: what one client contributes to the next version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubless.errors import ParamsError
from hubless.params import Params


@dataclass(frozen=True, slots=True)
class Update:
    """Params a client trained, on how many examples, and the version it started from.

    >>> import numpy as np
    >>> Update("site-a", {"w": np.ones(3)}, examples=120, metrics={"loss": 0.3}).version
    0
    """

    client: str
    params: Params
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole_examples(self.examples))


def whole_examples(examples: float) -> int:
    """A number of examples as a whole number, or an error where it is none.

    >>> whole_examples(3.0)
    3
    """
    try:
        whole = -1 if isinstance(examples, (bool, str)) else int(examples)
        if whole < 0 or whole != examples:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ParamsError(
            f"examples must be a whole number of at least 0, not {examples!r}"
        ) from None
    if whole >= 10**15:
        raise ParamsError(f"examples={examples} is not a plausible number of examples")
    return whole
