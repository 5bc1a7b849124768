"""Callbacks: what else happens after a round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch

if TYPE_CHECKING:
    from hubless.simulate.simulation import Simulation

Row = Mapping[str, float]


class Callback(Protocol):
    """Called after every round with what is known of it; returning True ends the run.

    A round's row holds metrics only where it was evaluated.
    """

    def __call__(self, simulation: Simulation, row: Row) -> bool | None: ...


class Checkpoint:
    """Save everything every so many rounds, when the run ends, and when it is interrupted.

    `Simulation.resume(folder)` goes on from there, to the same bits.
    """

    def __init__(self, folder: str | Path, every: int = 50) -> None:
        self.folder, self.every = Path(folder), every

    def __call__(self, simulation: Simulation, row: Row) -> bool | None:
        # rounds are reported in batches on a GPU: only the newest one's params are at hand
        if simulation.round % self.every == 0 and row["round"] == simulation.round:
            simulation.save(self.folder)
        return None


class EarlyStop:
    """End the run when a metric has not improved for so many evaluations, or reached a target."""

    def __init__(
        self,
        metric: str = "loss",
        *,
        patience: int | None = None,
        target: float | None = None,
        best: Literal["low", "high"] = "low",
    ) -> None:
        self.metric, self.patience, self.target = metric, patience, target
        self._sign = 1.0 if best == "low" else -1.0
        self._best, self._since = float("inf"), 0

    def __call__(self, simulation: Simulation, row: Row) -> bool | None:
        if self.metric not in row:
            return None
        value = self._sign * row[self.metric]
        self._since = 0 if value < self._best else self._since + 1
        self._best = min(self._best, value)
        if self.target is not None and value <= self._sign * self.target:
            return True
        return self.patience is not None and self._since >= self.patience


class BestModel:
    """Keep the params with the best metric; `params` holds them by name."""

    def __init__(self, metric: str = "loss", best: Literal["low", "high"] = "low") -> None:
        self.metric = metric
        self._sign = 1.0 if best == "low" else -1.0
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
