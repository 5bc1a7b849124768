"""Client after client in a tuned plain torch loop, in one process or several: no framework at all.

python sequential.py --workload logreg --processes 2 --rounds 10
"""

import contextlib
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
import turns
from trainer import Trainer
from workloads import WORKLOADS, Workload


class Share:
    """One process's part of every round; its sum lies in memory that all processes see."""

    def __init__(self, trainer: Trainer, params: torch.Tensor) -> None:
        self._trainer, self._params = trainer, params
        self.sum = torch.zeros_like(params).share_memory_()

    def train(self, clients: list[int]) -> int:
        """Add up the clients' parameters, each times its examples; returns the local steps."""
        flat, steps = self._trainer.flat, 0
        self.sum.zero_()
        for client in clients:
            flat.copy_(self._params)
            steps += self._trainer.train(client)
            self.sum.add_(flat, alpha=self._trainer.examples(client))
        return steps

    def serve(self, requests: Connection, other_end: Connection) -> None:
        # the fork copied it too, and the end would never be seen while this process holds it
        other_end.close()
        with contextlib.suppress(EOFError):
            while True:
                requests.send(self.train(requests.recv()))


class Rounds:
    def __init__(self, workload: Workload, processes: int) -> None:
        self._workload = workload
        trainer = Trainer(workload)
        self._params = trainer.flat.clone().share_memory_()
        self._shares = [Share(trainer, self._params) for _ in range(processes)]
        self._sizes = workload.sizes
        self._played = 0
        self._pipes, self._helpers = [], []
        # forked, so that the data exist once; this process takes the first share itself
        context = multiprocessing.get_context("fork")
        for share in self._shares[1:]:
            ours, theirs = context.Pipe()
            helper = context.Process(target=share.serve, args=(theirs, ours), daemon=True)
            helper.start()
            # each holds one end now: if either dies, the other sees it instead of waiting
            theirs.close()
            self._pipes.append(ours)
            self._helpers.append(helper)

    def play(self, number: int) -> list[float]:
        seconds = []
        for _ in range(number):
            start = time.perf_counter()
            self._round()
            seconds.append(time.perf_counter() - start)
        return seconds

    def close(self) -> None:
        # the last first: it holds copies of what the earlier ones wait for
        for pipe, helper in reversed(list(zip(self._pipes, self._helpers, strict=True))):
            pipe.close()
            helper.join(timeout=10)

    def _round(self) -> None:
        cohort = self._workload.cohort_of(self._played)
        parts = self._divide(cohort)
        for pipe, clients in zip(self._pipes, parts[1:], strict=True):
            pipe.send(clients)
        steps = self._shares[0].train(parts[0]) + sum(pipe.recv() for pipe in self._pipes)
        total = self._shares[0].sum
        for share in self._shares[1:]:
            total += share.sum
        torch.div(total, int(self._sizes[cohort].sum()), out=self._params)
        self._played += 1
        expected = int(np.ceil(self._sizes[cohort] / self._workload.batch).sum())
        assert steps == expected, f"{steps} local steps instead of {expected}"

    def _divide(self, cohort: np.ndarray) -> list[list[int]]:
        """The largest client first, always to whoever has least to do."""
        parts: list[list[int]] = [[] for _ in self._shares]
        loads = [0] * len(parts)
        for client in sorted(cohort.tolist(), key=lambda c: -self._sizes[c]):
            least = loads.index(min(loads))
            parts[least].append(client)
            loads[least] += int(self._sizes[client])
        return parts


def main() -> None:
    args = turns.arguments(__doc__)
    rounds = Rounds(WORKLOADS[args.workload], args.processes)
    try:
        turns.play("sequential", args, rounds.play, sys.stdout)
    finally:
        rounds.close()


if __name__ == "__main__":
    main()
