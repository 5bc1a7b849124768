"""What a round came to: a row of the history, and an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hubless.errors import Diverged
from hubless.events import Trained
from hubless.simulate.rounds import Version
from hubless.train.recipe import Recipe


@dataclass(frozen=True)
class FinishedRound:
    """A round that is over, with figures that may still be on the device.

    `tenths` are the metrics of each tenth of the test's clients. `valuations` is what its clients
    said training them is worth, and `epsilon` what the client that told most has given away so far.
    """

    run: str
    round: int
    version: Version
    means: Mapping[str, Tensor]
    tenths: Mapping[str, Tensor]
    phases: Mapping[str, float]
    seconds: float
    valuations: NDArray[np.float64] | None
    epsilon: float | None

    def row(self, recipe: Recipe, model_bytes: int) -> dict[str, float]:
        """Everything as numbers; raises where training diverged."""
        version = self.version
        row: dict[str, float] = {
            "round": self.round,
            "clients": len(version.clients),
            "examples": int(version.examples.sum()),
            "skipped": version.skipped,
            "dropped": version.dropped,
            "train_loss": float("nan"),
            "bytes_down": len(version.picked) * model_bytes,
            "bytes_up": len(version.clients) * model_bytes,
            "seconds": self.seconds,
            "virtual": version.virtual,
        }
        if version.losses is not None:
            losses = version.losses.double().cpu().numpy()
            if not np.isfinite(losses).all():
                first = int(np.argmin(np.isfinite(losses)))
                self._refuse(int(version.clients[first]), recipe.lr(self.round - 1))
            row["train_loss"] = float(losses.sum() / recipe.examples_for(version.examples).sum())
        if self.epsilon is not None:
            row["epsilon"] = self.epsilon
        row.update({name: float(mean) for name, mean in self.means.items()})
        return row

    def event(self, row: Mapping[str, float]) -> Trained:
        """What the run says of this round."""
        version = self.version
        return Trained(
            client=self.run,
            round=self.round,
            cohort=version.clients.tolist(),
            skipped=version.skipped,
            dropped=version.dropped,
            metrics={"train_loss": row["train_loss"], **{name: row[name] for name in self.means}},
            bytes_down=int(row["bytes_down"]),
            bytes_up=int(row["bytes_up"]),
            seconds=self.seconds,
            virtual=version.virtual,
            examples=version.examples.tolist(),
            valuations=None if self.valuations is None else self.valuations.tolist(),
            staleness=None if version.staleness is None else list(version.staleness),
            phases=self.phases,
            deciles={name: means.tolist() for name, means in self.tenths.items()} or None,
        )

    def _refuse(self, client: int, lr: float) -> None:
        raise Diverged(
            f"the loss of client {client} is not finite in round {self.round}: training diverged. "
            f"Try a learning rate below {lr:g}, clip=1.0 in the recipe, or look at that client's "
            "data (simulation.population.client(...))",
            client,
            self.round,
        )
