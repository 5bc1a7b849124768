"""A recipe: what a client does with its data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hubless.checks import flag, number, one_of, whole
from hubless.errors import TaskError
from hubless.train.optimizers import SGD, Optimizer, check_optimizer


@dataclass(frozen=True)
class Recipe:
    """What a client does with its data: which optimizer, for how long, in batches of what size.

        gradient ← gradient of the batch's mean loss + proximal · (x - x_global)
        gradient ← gradient · min(1, clip / |gradient|)

    x are the client's params and x_global those it started from. The proximal term is that of
    FedProx, and the optimizer makes its step with what comes out.

    Args:
        optimizer: `SGD(0.1)` if not given; or `Adam`, `AdamW`, or one of your own. It starts anew
            for every client in every round.
        epochs: How often a client goes through its data in a round, at least 1. More saves rounds,
            and drives clients apart whose data differ.
        batch: How many examples a step takes, at least 1; the last one of an epoch may be smaller.
            None takes all of a client's examples in one step: with `epochs=1` that is FedSGD.
        steps: So many steps for every client, instead of epochs: a client with few examples goes
            through them again. It bounds how far a busy client may go.
        clip: The longest gradient, above 0, as a norm over all params; None does not clip. 1.0 is a
            usual first try where training diverges.
        proximal: The mu of FedProx, at least 0: how strongly a client is pulled back to the global
            params. 0 does not pull. It helps where many epochs drive clients apart.
        decay: What the learning rate is multiplied by from round to round. 0.99 halves it in some
            70 rounds.
        shuffle: Whether a client's examples are mixed anew in every epoch. False keeps their order,
            such as that of a text.
        precision: Of the forward and backward pass: "float32", "tf32" (a GPU's matrix products in
            TF32) or "bfloat16". Params and what the optimizer remembers are always float32.

    >>> Recipe(SGD(0.1), epochs=5, batch=10).steps_for(np.array([25, 0, 1]))
    array([15,  0,  5])

    Reference:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous
        Networks", 2020, Algorithm 2.
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
        check_optimizer(self.optimizer)
        whole("epochs", self.epochs, least=1, error=TaskError)
        for name in ("batch", "steps"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1, error=TaskError)
        if self.clip is not None:
            number("clip", self.clip, above=0, error=TaskError)
        number("proximal", self.proximal, least=0, error=TaskError)
        number("decay", self.decay, above=0, error=TaskError)
        flag("shuffle", self.shuffle, error=TaskError)
        one_of("precision", self.precision, ("float32", "tf32", "bfloat16"), error=TaskError)

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
        """The learning rate of a round, counted from 0: that of the optimizer times decay^round."""
        return self.optimizer.lr * self.decay**round
