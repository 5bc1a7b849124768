"""A task: the model, what it is trained on, and how well it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hubless.checks import fitting, texts
from hubless.errors import TaskError
from hubless.train.losses import cross_entropy

TAKEN = (
    "round",
    "clients",
    "examples",
    "skipped",
    "dropped",
    "bytes_down",
    "bytes_up",
    "seconds",
    "virtual",
    "epsilon",
    "train_loss",
    "loss",
)
"""What a simulation's history has in every round, and so is no name for a metric."""
Batch = dict[str, Tensor]
PerExample = Callable[..., Tensor]


@dataclass(frozen=True)
class Task:
    """The model, what it is trained on, and how well it does.

    Loss and metrics give one number per example, not one for the batch. So clients can share a pass
    over the model, and any group of examples has a mean.

    Args:
        module: Where training starts, with the params it has. It is copied, not changed.
        loss: A function (output, *targets) to one number per example; `cross_entropy` if not given.
            `hubless.train.losses` has others; torch's need `reduction="none"`.
        metrics: More such functions by name, such as {"accuracy": accuracy}; they are only
            evaluated.
        inputs: The columns that the module is called with, in this order; or by keyword, as a
            mapping from argument to column.
        targets: The columns that loss and metrics get besides the output.
        prepare: Turns a batch of stored columns into what the module expects, on the device. Images
            stored as bytes become floats here, which keeps memory small.

    >>> task = Task(nn.Linear(3, 2))
    >>> task.losses(task.module, {"x": torch.ones(4, 3), "y": torch.tensor([0, 1, 1, 0])}).shape
    torch.Size([4])
    """

    module: nn.Module
    loss: PerExample = cross_entropy
    metrics: Mapping[str, PerExample] = field(default_factory=dict)
    inputs: Sequence[str] | Mapping[str, str] = ("x",)
    targets: Sequence[str] = ("y",)
    prepare: Callable[[Batch], Batch] | None = None

    def __post_init__(self) -> None:
        takes = "a module, such as torch.nn.Linear(4, 2)"
        fitting("module", self.module, isinstance(self.module, nn.Module), takes, error=TaskError)
        takes = "a function that gives one number per example"
        fitting("loss", self.loss, callable(self.loss), takes, error=TaskError)
        _check_metrics(self.metrics)
        _check_columns(self.inputs, self.targets)
        takes = "a function from a batch to a batch"
        fits = self.prepare is None or callable(self.prepare)
        fitting("prepare", self.prepare, fits, takes, error=TaskError)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are needed of the data."""
        inputs = self.inputs.values() if isinstance(self.inputs, Mapping) else self.inputs
        return tuple(dict.fromkeys([*inputs, *self.targets]))

    def output(self, module: Callable[..., Any], batch: Batch) -> Any:
        """What the module says of a batch that was prepared."""
        if isinstance(self.inputs, Mapping):
            answer = module(**{argument: batch[name] for argument, name in self.inputs.items()})
        else:
            answer = module(*[batch[name] for name in self.inputs])
        return getattr(answer, "logits", answer)

    def losses(self, module: Callable[..., Any], batch: Batch) -> Tensor:
        """One loss per example of a batch as it is stored."""
        batch = self.prepared(batch)
        return self.loss(self.output(module, batch), *[batch[name] for name in self.targets])

    def prepared(self, batch: Batch) -> Batch:
        """The batch as the module expects it."""
        return batch if self.prepare is None else self.prepare(batch)

    def check(self, batch: Batch) -> None:
        """Try module, loss and metrics on a few examples, and say what is wrong with them."""
        examples = len(next(iter(batch.values())))
        training = self.module.training
        state = {name: value.clone() for name, value in self.module.state_dict().items()}
        with torch.no_grad(), torch.random.fork_rng():
            try:
                batch = self.prepared(batch)
                output = self.output(self.module.train(), batch)
            except Exception as error:
                shapes = {name: (tuple(v.shape), v.dtype) for name, v in batch.items()}
                raise TaskError(
                    f"the module cannot be called on a batch of the data: {error}. It was given "
                    f"{self.inputs} of {shapes}"
                ) from error
            finally:
                self.module.load_state_dict(state)
                self.module.train(training)
            targets = [batch[name] for name in self.targets]
            for name, measure in {"loss": self.loss, **self.metrics}.items():
                _check_measure(name, measure, output, targets, examples)


def _check_metrics(metrics: Any) -> None:
    takes = 'functions by name, such as {"accuracy": accuracy}'
    fitting("metrics", metrics, isinstance(metrics, Mapping), takes, error=TaskError)
    for name, measure in metrics.items():
        fits = isinstance(name, str) and callable(measure) and not isinstance(measure, type)
        fitting("metrics", metrics, fits, takes, error=TaskError)
        if name in TAKEN:
            raise TaskError(f"metrics= has {name!r}, which histories have already: rename it")


def _check_columns(inputs: Any, targets: Any) -> None:
    takes = "names of columns"
    named = inputs
    if isinstance(inputs, Mapping):
        texts("inputs", list(inputs), "names of arguments, to names of columns", error=TaskError)
        named = list(inputs.values())
    texts("inputs", named, takes, error=TaskError)
    texts("targets", targets, takes, error=TaskError)
    if not named:
        raise TaskError("inputs= names no column: the module has to be called on something")


def _check_measure(
    name: str, measure: PerExample, output: Any, targets: list[Tensor], examples: int
) -> None:
    try:
        values = measure(output, *targets)
    except Exception as error:
        form = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise TaskError(
            f"{name!r} cannot be computed from the module's output ({form}) and the targets "
            f"{[tuple(t.shape) for t in targets]}: {error}"
        ) from error
    if not isinstance(values, Tensor):
        raise TaskError(f"{name!r} must return a tensor, not a {type(values).__name__}")
    if values.ndim == 0:
        raise TaskError(
            f"{name!r} returns one number for {examples} examples, where one per example is "
            'needed: pass reduction="none", or take the mean over all but the first dimension'
        )
    if tuple(values.shape) != (examples,):
        raise TaskError(
            f"{name!r} returns shape {tuple(values.shape)} for {examples} examples, where "
            f"({examples},) is needed: one number per example"
        )
