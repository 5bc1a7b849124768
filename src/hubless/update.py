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
        check_examples(self.examples)


def check_examples(examples: int) -> None:
    """Refuse a number of examples that cannot weigh anything."""
    if isinstance(examples, bool) or int(examples) != examples or examples < 0:
        raise ParamsError(f"examples must be a whole number of at least 0, not {examples!r}")
    if examples >= 10**15:
        raise ParamsError(f"examples={examples} is not a plausible number of examples")
