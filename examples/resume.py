"""Kill a run in the middle, go on, and arrive at the same bits.

The same script is started as a process of its own and killed without warning once it has passed a
checkpoint. Whoever goes on needs nothing but the folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import hubless

ROUNDS = 60


def simulation(folder: Path | None, slowly: bool = False) -> hubless.Simulation:
    """The same in every process: a seed is all that chance there is."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((2000, 8), dtype=np.float32)
    people = hubless.Population.by({"x": x, "y": (x[:, 0] > 0).astype(int)}, np.arange(2000) % 50)
    callbacks: list[object] = [hubless.Checkpoint(folder, every=5)] if folder else []
    if slowly:
        callbacks.append(lambda simulation, row: time.sleep(0.2))
    return hubless.Simulation(
        hubless.Task(torch.nn.Linear(8, 2)),
        people,
        strategy=hubless.FedAdam(lr=0.05),
        cohort=5,
        callbacks=callbacks,
        engine=hubless.Local(lanes=5, compiled=False, processes=1),
    )


def main() -> int:
    """Run once whole, once killed and resumed, and compare."""
    whole = simulation(None)
    whole.run(ROUNDS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        victim = subprocess.Popen([sys.executable, __file__, scratch])
        resumed = simulation(folder)
        while not resumed.resume(folder) and victim.poll() is None:
            time.sleep(0.02)
        victim.kill()
        killed = victim.wait() != 0
        resumed.resume(folder)
        print(f"killed: {'yes' if killed else 'no'}; going on after round {resumed.round}")
        resumed.run(ROUNDS)
    same = torch.equal(whole.flat, resumed.flat)
    print(f"{ROUNDS} rounds: {'the same bits' if same else 'DIFFERENT params'}")
    return 0 if same and killed else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        simulation(Path(sys.argv[1]), slowly=True).run(ROUNDS)
    else:
        sys.exit(main())
