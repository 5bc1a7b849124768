"""Participation: taking part by chance, with the same probability each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.checks import number, whole
from hubless.errors import FederationError
from hubless.rng import stream


@dataclass(frozen=True)
class Participation:
    """A member takes part with this probability each time, and trains on alone otherwise.

    Args:
        probability: C of the federated averaging paper, above 0 and at most 1.
        seed: Seeds the draws; each client draws its own.
    """

    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        number("probability", self.probability, error=FederationError, above=0, most=1)
        whole("seed", self.seed, error=FederationError, least=0)

    def draws(self, client: str, life: int) -> np.random.Generator:
        """What decides whether a call takes part.

        A process that takes a single step before it ends draws anew each time.
        """
        return stream(self.seed, "participation", client, life)
