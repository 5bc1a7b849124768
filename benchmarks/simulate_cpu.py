"""Simulating on a CPU side by side: hubless, pfl, Flower and a tuned plain loop, in one run.

    python benchmarks/simulate_cpu.py [--workloads logreg mlp cnn lstm] [--turns 5]

Contenders take turns, each with the same number of processes of one thread, so that a noisy
machine is noisy for all. Each peer has an environment of its own, made once. Prints a table as it
goes, and one JSON line at the end.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from torch import nn

import hubless
from hubless.simulate.engine.executor import LocalExecutor

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))
import environments  # noqa: E402

ROUNDS = {"logreg": 60, "logreg_unequal": 60, "logreg_small": 60, "mlp": 20, "cnn": 1, "lstm": 4}
"""Rounds per turn: some seconds' worth for the slowest, and for the fastest enough that the median
is not of rounds that find another contender's data in the cache."""
CONTENDERS = {
    "logreg": ["hubless", "pfl", "sequential", "flower"],
    "mlp": ["hubless", "pfl", "sequential", "flower"],
    "cnn": ["hubless", "hubless bf16", "pfl", "sequential"],
    "lstm": ["hubless", "hubless bf16", "pfl", "sequential"],
    "logreg_unequal": ["hubless", "sequential"],
    "logreg_small": ["hubless", "pfl", "sequential"],
}


class Contender:
    """A process that plays rounds on request."""

    def __init__(self, name: str, workload: str, processes: int) -> None:
        framework, _, half = name.partition(" ")
        own = framework in ("hubless", "sequential")
        python = sys.executable if own else environments.python_of(framework)
        script = PEERS / f"{framework}{'' if framework == 'sequential' else '_rounds'}.py"
        arguments = ["--workload", workload, "--processes", str(processes), "--serve"]
        self.name, self.rounds = name, ROUNDS[workload]
        if framework == "flower":
            # every turn is a whole simulation, with its own start
            self.rounds = min(self.rounds, 4)
        self.seconds: list[float] = []
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PRECISION": "bfloat16" if half else "float32"},
        )
        self._read()

    def play(self, rounds: int) -> float:
        assert self._process.stdin is not None
        print(rounds, file=self._process.stdin, flush=True)
        return float(self._read()["seconds_per_round"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


def compare(workload: str, turns: int, processes: int) -> dict[str, float]:
    """Median seconds per round of each contender."""
    with ExitStack() as stack:
        contenders = []
        for name in CONTENDERS[workload]:
            contender = Contender(name, workload, processes)
            stack.callback(contender.close)
            contender.play(2 if workload in ("cnn", "lstm") else 10)
            contenders.append(contender)
        for turn in range(turns):
            for contender in contenders:
                if contender.name == "flower" and turn % 2:
                    continue
                contender.seconds.append(contender.play(contender.rounds))
    medians = {c.name: statistics.median(c.seconds) for c in contenders}
    ours = medians["hubless"]
    for name, seconds in medians.items():
        ratio = f"{seconds / ours:6.2f}x hubless"
        print(f"{workload:15s} {name:13s} {seconds * 1e3:9.2f} ms per round {ratio}", flush=True)
    return medians


def million_overhead_ms(rounds: int = 30) -> float:
    """What a round over a million clients costs besides training its cohort of 100."""
    clients = 1_000_000
    rng = np.random.default_rng(0)
    people = hubless.Population(
        {
            "x": rng.standard_normal((2 * clients, 16), dtype=np.float32),
            "y": rng.integers(0, 2, 2 * clients),
        },
        np.arange(0, 2 * clients + 1, 2),
    )
    training: list[float] = []
    plain = LocalExecutor.run

    def timed(self: LocalExecutor, *args: object, **options: object) -> object:
        started = time.perf_counter()
        try:
            return plain(self, *args, **options)  # type: ignore[arg-type]
        finally:
            training.append(time.perf_counter() - started)

    LocalExecutor.run = timed  # type: ignore[method-assign,assignment]
    engine = hubless.Local(lanes=10, compiled=False, processes=1)
    whole = []
    with hubless.Simulation(
        hubless.Task(nn.Linear(16, 2)), people, cohort=100, engine=engine
    ) as simulation:
        for number in range(1, rounds + 1):
            started = time.perf_counter()
            simulation.run(number)
            whole.append(time.perf_counter() - started)
    LocalExecutor.run = plain  # type: ignore[method-assign]
    return 1e3 * statistics.median(np.subtract(whole, training)[5:].tolist())


def ten_million_gib() -> float:
    """The most memory that rounds over ten million clients took, the data and torch included."""
    command = [sys.executable, __file__, "--ten-million"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def run_ten_million() -> None:
    clients = 10_000_000
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.standard_normal((clients, 16), dtype=np.float32),
        "y": rng.integers(0, 2, clients, dtype=np.int8),
    }
    people = hubless.Population(columns, np.arange(clients + 1))
    engine = hubless.Local(lanes=10, compiled=False, processes=1)
    hubless.Simulation(hubless.Task(nn.Linear(16, 2)), people, cohort=100, engine=engine).run(2)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--ten-million", action="store_true", help="only the memory of that")
    args = parser.parse_args()
    if args.ten_million:
        run_ten_million()
        return
    figures: dict[str, float] = {}
    for workload in args.workloads:
        medians = compare(workload, args.turns, args.processes)
        ours = medians.pop("hubless")
        half = medians.pop("hubless bf16", None)
        for name, seconds in medians.items():
            figures[f"{workload}_vs_{name}"] = round(seconds / ours, 3)
        if half is not None:
            figures[f"{workload}_bf16_vs_pfl"] = round(medians["pfl"] / half, 3)
    figures["million_overhead_ms"] = round(million_overhead_ms(), 3)
    figures["ten_million_gib"] = round(ten_million_gib(), 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
