"""One process per core: each trains its part of the cohort and adds to its own partial sum.

Workers are forked, so they share the population's memory and need nothing pickled. One that dies
is forked again and its part redone.
"""

from __future__ import annotations

import mmap
import os
import signal
import traceback
import warnings
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hubless.errors import ClientFailed, HublessError
from hubless.simulate.engine.executor import LocalExecutor
from hubless.simulate.job import Cohort, Ints, Job, Learned
from hubless.simulate.ways.schedule import deal
from hubless.simulate.ways.single import take_single_step

_MOST_DEATHS = 3


class Processes:
    """An engine whose workers are this process and forks of it."""

    def __init__(self, executor: LocalExecutor, processes: int) -> None:
        self.executor, self.processes = executor, processes
        self.device = executor.device
        size = executor.job.layout.size
        self._params = _shared(size)
        self._workers = [_Worker(executor, self._params, size) for _ in range(processes - 1)]

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params, each process its share of the steps."""
        self._params.copy_(params)
        alone = self.executor.setup.lanes == 0
        parts = split(self.executor.job, cohort.clients, self.processes, alone=alone)
        shares = [cohort.part(part) for part in parts]
        for worker, share in zip(self._workers, shares[1:], strict=True):
            worker.send(share, each)
        learned = [self.executor.run(self._params, shares[0], each=each)]
        learned += [
            worker.receive(share, each)
            for worker, share in zip(self._workers, shares[1:], strict=True)
        ]
        return merge(learned, parts, len(cohort.clients))

    def describe(self) -> Mapping[str, Any]:
        return {**self.executor.describe(), "processes": self.processes}

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []
        self.executor.close()


class _Worker:
    """A forked process, and the memory it leaves its sum in."""

    def __init__(self, executor: LocalExecutor, params: Tensor, size: int) -> None:
        self._executor, self._params, self._size = executor, params, size
        self._total = _shared(size)
        self._deaths = 0
        self._fork()

    def send(self, share: Cohort, each: bool) -> None:
        try:
            self._pipe.send((share, each))
        except OSError:
            self._again(share, each)

    def receive(self, share: Cohort, each: bool) -> Learned:
        while True:
            try:
                answer = self._pipe.recv()
            except (EOFError, OSError):
                self._again(share, each)
                continue
            if isinstance(answer, _Failure):
                raise answer.error
            losses, kept, values = answer
            return Learned(
                None if each else self._total.clone(),
                None if kept is None else torch.from_numpy(kept),
                torch.from_numpy(losses),
                None if values is None else torch.from_numpy(values),
            )

    def stop(self) -> None:
        self._pipe.close()
        try:
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def _again(self, share: Cohort, each: bool) -> None:
        """Replace a worker that died, and have its part redone."""
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise HublessError(
                f"a worker process died {self._deaths} times, in round {share.round + 1} again: is "
                "there enough memory? Fewer processes need less (Local(processes=1))"
            )
        self.stop()
        self._fork()
        self._pipe.send((share, each))

    def _fork(self) -> None:
        self._pipe, theirs = Pipe()
        with warnings.catch_warnings():
            # torch's threads sleep while there is nothing for them to do
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            try:
                self._pipe.close()
                self._serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def _serve(self, pipe: Connection) -> None:
        # an interrupt is for the parent to deal with, which then closes the pipe
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        while True:
            try:
                share, each = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                learned = self._executor.run(self._params, share, each=each)
                if learned.total is not None:
                    self._total.copy_(learned.total)
                kept = None if learned.each is None else learned.each.numpy()
                values = None if learned.values is None else learned.values.numpy()
                pipe.send((learned.losses.numpy(), kept, values))
            except Exception as error:
                pipe.send(_Failure(error, share.round + 1))


class _Failure:
    """An error on its way to the parent, with its traceback as text."""

    def __init__(self, error: Exception, round: int) -> None:
        cause = error.__cause__ or error
        text = "".join(traceback.format_exception(cause))
        client = error.client if isinstance(error, ClientFailed) else -1
        self.error = ClientFailed(f"{error}\nIn a worker process:\n{text}", client, round)


def split(job: Job, clients: Ints, parts: int, *, alone: bool = False) -> list[Ints]:
    """Positions in the cohort for each worker, with about as much to do.

    That is the number of steps, since lanes fill short batches up; or that of examples where
    clients run alone, or all in one, and a short batch takes less.
    """
    offsets = job.population.offsets
    sizes = offsets[clients + 1] - offsets[clients]
    recipe = job.recipe
    by_examples = alone or bool(take_single_step(sizes[sizes > 0], recipe).all())
    part, _ = deal(recipe.examples_for(sizes) if by_examples else recipe.steps_for(sizes), parts)
    return [np.flatnonzero(part == i) for i in range(parts)]


def merge(every: list[Learned], parts: list[Ints], clients: int) -> Learned:
    """What each share learned as one: sums added, and what is per client put where it belongs."""
    losses = torch.zeros(clients)
    each = values = None
    for learned, part in zip(every, parts, strict=True):
        where = torch.from_numpy(part)
        losses[where] = learned.losses.cpu()
        if learned.each is not None:
            each = torch.zeros(clients, learned.each.shape[1]) if each is None else each
            each[where] = learned.each.cpu()
        if learned.values is not None:
            values = torch.zeros(clients) if values is None else values
            values[where] = learned.values.cpu()
    total = every[0].total
    for learned in every[1:]:
        if total is not None and learned.total is not None:
            total.add_(learned.total)
    return Learned(total, each, losses, values)


def _shared(size: int) -> Tensor:
    """Memory that forks of this process see too."""
    return torch.frombuffer(mmap.mmap(-1, max(size, 1) * 4), dtype=torch.float32)[:size]
