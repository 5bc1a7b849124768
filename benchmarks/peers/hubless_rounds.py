"""The workloads simulated by hubless.

python hubless_rounds.py --workload logreg --processes 2 --rounds 10
"""

import os
import sys
import time

import numpy as np
import turns
from workloads import WORKLOADS, Workload

import hubless
from hubless.select.roster import Roster


class InTurn:
    """The clients whose turn it is, as for every other contender."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self._turn = workload, 0

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> np.ndarray:
        self._turn += 1
        return self._workload.cohort_of(self._turn - 1)

    def begin_again(self) -> None:
        self._turn = 0


class Rounds:
    def __init__(self, workload: Workload, processes: int) -> None:
        data, offsets = workload.make_data()
        precision = os.environ.get("PRECISION", "float32")
        # an LSTM's time is in the library's own loop, which compiling does not touch
        compiled = workload.name != "lstm"
        started, whose = time.perf_counter(), InTurn(workload)
        self._ended: list[float] = []
        self.simulation = hubless.Simulation(
            hubless.Task(workload.make_model()),
            hubless.Population(data, offsets),
            recipe=hubless.Recipe(
                hubless.SGD(workload.lr), batch=workload.batch, precision=precision
            ),
            selector=whose,
            cohort=workload.cohort,
            callbacks=[self._note],
            engine=hubless.Local(
                lanes="auto" if compiled else 0, compiled=compiled, processes=processes
            ),
        )
        self.simulation.__enter__()
        self.play(1)
        # the other contenders are ready without having played
        whose.begin_again()
        print(f"ready after {time.perf_counter() - started:.1f} s", file=sys.stderr)
        print(dict(self.simulation.engine.describe()), file=sys.stderr, flush=True)

    def play(self, number: int) -> list[float]:
        self._ended = [time.perf_counter()]
        self.simulation.run(self.simulation.round + number)
        return np.diff(self._ended).tolist()

    def _note(self, simulation: hubless.Simulation, row: object) -> None:
        self._ended.append(time.perf_counter())


def main() -> None:
    turns.one_thread()
    args = turns.arguments(__doc__)
    rounds = Rounds(WORKLOADS[args.workload], args.processes)
    try:
        turns.play("hubless", args, rounds.play, sys.stdout)
    finally:
        rounds.simulation.__exit__()


if __name__ == "__main__":
    main()
