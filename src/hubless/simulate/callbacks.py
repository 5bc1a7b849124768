"""Callbacks: what else happens after a round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hubless.checks import fitting, folder_of, number, one_of, whole
from hubless.errors import HublessError

if TYPE_CHECKING:
    from hubless.simulate.simulation import Simulation

Row = Mapping[str, float]


class Callback(Protocol):
    """Called after every round with what is known of it; returning True ends the run.

    Any function of (simulation, row) will do. `simulation` is as it is after the newest round.
    `row` is that of the round in `Simulation.history`: it holds metrics only where the round was
    evaluated. On a GPU rounds are told of in batches, so the simulation may be ahead of the row. A
    callback that is also `Remembering` goes on where it was when a run is resumed.

    >>> def too_long(simulation, row):
    ...     return row["virtual"] > 3600
    """

    def __call__(self, simulation: Simulation, row: Row) -> bool | None: ...


@runtime_checkable
class Remembering(Protocol):
    """A callback that remembers something, which checkpoints then hold too."""

    def state(self) -> Mapping[str, NDArray[Any]]:
        """What it needs to go on, as arrays by name."""
        ...

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what a checkpoint holds; nothing, where there was nothing to remember."""
        ...


class Checkpoint:
    """Save everything every so many rounds, when the run ends, and when it is interrupted.

    `Simulation.resume(folder)` goes on from there, to the same bits. It is called after all other
    callbacks, so that what they remember of a round is part of it.

    Args:
        folder: Where the checkpoint goes. It is replaced as a whole: a crash leaves the one before.
        every: Rounds between two checkpoints, at least 1. About so many are lost in a crash.
    """

    def __init__(self, folder: str | Path, every: int = 50) -> None:
        self.folder = folder_of("folder", folder, error=HublessError)
        self.every = whole("every", every, least=1, error=HublessError)
        self._since: int | None = None

    def __call__(self, simulation: Simulation, row: Row) -> bool | None:
        if self._since is None:
            self._since = int(row["round"]) - 1
        # rounds are reported in batches on a GPU: only the newest one's params are at hand
        due = simulation.round // self.every > self._since // self.every
        if due and row["round"] == simulation.round:
            simulation.save(self.folder)
            self._since = simulation.round
        return None


class EarlyStop:
    """End the run when a metric has not improved for so many evaluations, or reached a target.

    Args:
        metric: "loss" or a metric of the task, on the test population. Only rounds that are
            evaluated count: see `evaluate_every` of `Simulation`.
        patience: How many evaluations may pass without a new best; None never loses patience.
        target: The value at which the run ends at once; None has no target.
        best: Whether a "low" or a "high" metric is good: "low" for losses, "high" for accuracies.

    >>> stop = EarlyStop("accuracy", target=0.9, best="high")
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        patience: int | None = None,
        target: float | None = None,
        best: Literal["low", "high"] = "low",
    ) -> None:
        if patience is None and target is None:
            raise HublessError("EarlyStop would never stop: give patience= or target=")
        if patience is not None:
            whole("patience", patience, least=1, error=HublessError)
        if target is not None:
            number("target", target, error=HublessError)
        self.metric, self.patience, self.target = metric, patience, target
        self._sign = _sign(metric, best)

    def __call__(self, simulation: Simulation, row: Row) -> bool | None:
        if self.metric not in row:
            return None
        # from the rows, which a resumed run has too
        past = [other for other in simulation.rows if other["round"] <= row["round"]]
        values = [self._sign * other[self.metric] for other in past if self.metric in other]
        if self.target is not None and values[-1] <= self._sign * self.target:
            return True
        best = min(range(len(values)), key=values.__getitem__)
        return self.patience is not None and len(values) - 1 - best >= self.patience


class BestModel:
    """Keep the params with the best metric.

    `params` holds them by name, `value` is their metric and `round` the round they are from.

    Args:
        metric: "loss" or a metric of the task, on the test population. Only rounds that are
            evaluated count: see `evaluate_every` of `Simulation`.
        best: Whether a "low" or a "high" metric is good: "low" for losses, "high" for accuracies.
    """

    def __init__(self, metric: str = "loss", best: Literal["low", "high"] = "low") -> None:
        self.metric = metric
        self._sign = _sign(metric, best)
        self.value: float | None = None
        self.round = 0
        self.params: dict[str, torch.Tensor] = {}

    def __call__(self, simulation: Simulation, row: Row) -> bool | None:
        if self.metric in row and row["round"] == simulation.round:
            value = row[self.metric]
            if self.value is None or self._sign * value < self._sign * self.value:
                self.value, self.round = value, simulation.round
                self.params = {n: p.clone() for n, p in simulation.params.items()}
        return None

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint has to hold for it to go on."""
        if self.value is None:
            return {}
        kept = {f"params {name}": array.cpu().numpy() for name, array in self.params.items()}
        return {**kept, "value": np.array(self.value), "round": np.array(self.round)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what a checkpoint holds."""
        if "value" not in arrays:
            return
        self.value, self.round = float(arrays["value"]), int(arrays["round"])
        self.params = {
            name.removeprefix("params "): torch.tensor(array)
            for name, array in arrays.items()
            if name.startswith("params ")
        }


def _sign(metric: Any, best: Any) -> float:
    """What makes a lower value of the metric the better one."""
    takes = "the name of a metric, such as 'loss'"
    fitting("metric", metric, isinstance(metric, str), takes, error=HublessError)
    one_of("best", best, ("low", "high"), error=HublessError)
    return 1.0 if best == "low" else -1.0
