"""An update: what one client contributes to the next version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubless.params import Params, whole_examples


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
