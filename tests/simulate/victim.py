"""A process that simulates until somebody ends it, and says each round that is done."""

from __future__ import annotations

import sys

from hubless.simulate.callbacks import Checkpoint, Row
from hubless.simulate.engine.machine import Local
from hubless.simulate.simulation import Simulation
from hubless.strategy.fedadam import FedAdam
from tests.simulate.worlds import people, simulation


def victim(processes: int, **changes: object) -> Simulation:
    """The simulation that is ended early, and the one that is not."""
    return simulation(
        strategy=FedAdam(lr=0.01),
        test=people([20], seed=8),
        evaluate_every=1000,
        engine=Local(lanes=0, compiled=False, processes=processes),
        seed=4,
        **changes,
    )


def _say(simulation: Simulation, row: Row) -> None:
    print(int(row["round"]), flush=True)


if __name__ == "__main__":
    folder, processes, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    victim(processes, callbacks=[Checkpoint(folder, every=every), _say]).run(rounds=1_000_000)
