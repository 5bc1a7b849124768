"""Two sites, each a process of its own, that meet in a folder and nowhere else.

Each sees one half of the world: the line that fits what it has is wrong elsewhere. Neither waits
for the other, and only params pass through the folder.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hubless

# the heating that a building needs by outside temperature: steep when cold, none when warm
SITES = {"north": (-20.0, 5.0), "south": (5.0, 30.0)}
EPOCHS = 40


def world(low: float, high: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Temperatures, as features of a small model, and the heating they called for."""
    rng = np.random.default_rng(seed)
    degrees = rng.uniform(low, high, 200)
    features = np.stack([np.ones(200), degrees / 20, (degrees / 20) ** 2], 1)
    return features, np.maximum(15 - degrees, 0) / 10 + rng.normal(0, 0.05, 200)


def train(params: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """An epoch of plain gradient descent."""
    w = params["w"]
    for _ in range(20):
        w = w - 0.1 * x.T @ (x @ w - y) / len(y)
    return {"w": w}


def site(name: str, folder: str, start: object, results: object) -> None:
    """What each site runs. Without `federation.step` it would be training alone."""
    x, y = world(*SITES[name], seed=len(name))
    params = alone = {"w": np.zeros(3)}
    start.wait()
    with hubless.join(folder, name) as federation:
        for _ in range(EPOCHS):
            alone = train(alone, x, y)
            params = federation.step(train(params, x, y), examples=len(y))
            time.sleep(0.01)  # in earnest an epoch takes a while
        start.wait()
        params = federation.pull(params)
    everywhere, wanted = world(-20, 30, seed=99)
    error = {
        k: np.abs(everywhere @ p["w"] - wanted).mean()
        for k, p in (("alone", alone), ("together", params))
    }
    results.put((name, error))


def main() -> int:
    """Start both, and say what each would have got wrong alone."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(len(SITES)), context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        sites = [context.Process(target=site, args=(n, folder, start, results)) for n in SITES]
        for process in sites:
            process.start()
        for process in sites:
            process.join()
        updates = len(list(Path(folder, "updates").iterdir()))
        for name, error in sorted(results.get() for _ in sites):
            print(
                f"{name}: mean error {error['alone']:.2f} alone, {error['together']:.2f} together"
            )
        print(f"{updates} updates are left in the folder, the newest two of each site")
    return 0


if __name__ == "__main__":
    sys.exit(main())
