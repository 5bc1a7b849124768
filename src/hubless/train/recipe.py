"""A recipe: what a client does with its data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hubless.errors import TaskError
from hubless.train.optimizers import SGD, Optimizer


@dataclass(frozen=True)
class Recipe:
    """Local training: which optimizer, for how long, in batches of what size.

    `batch=None` takes all of a client's examples in one step; with `epochs=1` that is FedSGD.
    `steps` trains every client for so many steps instead of epochs. `clip` bounds the gradient's
    norm; `proximal` is the mu of FedProx (Li et al. 2020), which pulls towards the global params.
    `decay` multiplies the learning rate from round to round. `precision` is that of the forward
    and backward pass: "float32", "tf32" (matrix products of a GPU in TF32) or "bfloat16"; params
    and what the optimizer remembers stay float32.

    >>> Recipe(SGD(0.1), epochs=5, batch=10).steps_for(np.array([25, 0, 1]))
    array([15,  0,  5])
    """

    optimizer: Optimizer = field(default_factory=lambda: SGD(0.1))
    epochs: int = 1
    batch: int | None = 10
    steps: int | None = None
    clip: float | None = None
    proximal: float = 0.0
    decay: float = 1.0
    shuffle: bool = True
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("steps", 1)):
            value = getattr(self, name)
            if value is not None and (value < least or value != int(value)):
                raise TaskError(f"{name} must be a whole number of at least {least}, not {value}")
        if self.clip is not None and not self.clip > 0:
            raise TaskError(f"clip bounds the gradient's norm, so it is above 0, not {self.clip}")
        if not self.proximal >= 0:
            raise TaskError(f"the proximal term is at least 0, not {self.proximal}")
        if not 0 < self.optimizer.lr < float("inf"):
            raise TaskError(f"the learning rate is above 0, not {self.optimizer.lr}")
        if self.precision not in ("float32", "tf32", "bfloat16"):
            raise TaskError(f"precision is float32, tf32 or bfloat16, not {self.precision!r}")

    def steps_for(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many steps clients with so many examples take; none without any."""
        if self.steps is not None:
            return np.where(examples > 0, self.steps, 0)
        batch = np.maximum(examples, 1) if self.batch is None else self.batch
        return np.asarray(self.epochs * -(-examples // batch))

    def examples_for(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples clients with so many train on in all, counting repeats."""
        if self.steps is None:
            return examples * self.epochs
        if self.batch is None:
            return examples * self.steps
        epochs, steps = np.divmod(self.steps, (-(-examples // self.batch)).clip(min=1))
        return np.asarray(epochs * examples + np.minimum(steps * self.batch, examples))

    def lr(self, round: int) -> float:
        """The learning rate of a round."""
        return self.optimizer.lr * self.decay**round
