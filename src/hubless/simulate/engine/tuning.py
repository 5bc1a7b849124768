"""Which way to run a task is the fastest here: measured on a few clients, and remembered."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import torch

import hubless
from hubless.data.sources.base import cache_folder
from hubless.select.custom import without_addresses
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.job import Cohort, Ints, Job, Running
from hubless.simulate.ways.schedule import CHUNK, programs
from hubless.simulate.ways.single import take_single_step
from hubless.train.layers.factored import factorable
from hubless.whole import write_whole

if TYPE_CHECKING:
    from hubless.simulate.engine.machine import Local

logger = logging.getLogger("hubless")

_COMPILE_SECONDS = 60.0
"""Training that would take less than this without being compiled is not worth compiling a program.
"""
_LANE_COUNTS = (8, 32, 128, 256)
_CACHE_BYTES = 8 << 20
"""On a CPU, lanes gain for as long as their params stay in its cache together."""
_MOST_CPU_LANES = 64
_TURNS = 3
"""Measured so often, the shortest counts: whatever else a machine does only makes it longer."""
_LONG_SECONDS = 2.0
"""What takes so long is not measured again."""
_MANY_STEPS = 100
"""Of a client with so many, what comes before and after them takes next to no time."""
_RULES = 3
"""Another number whenever what there is to choose from becomes another."""


class Tuning:
    """Tries ways to run on a few clients each, and keeps the fastest."""

    def __init__(
        self, executor: LocalExecutor, wanted: Local, cohort: int, rounds: int, processes: int
    ) -> None:
        self.executor, self.wanted = executor, wanted
        self.cohort, self.rounds, self.processes = cohort, rounds, processes
        job = executor.job
        self.params = job.layout.flatten(job.task.module).to(executor.device)
        self.clients = _sample(job, max(cohort, 4))
        offsets = job.population.offsets
        self.sizes = offsets[self.clients + 1] - offsets[self.clients]
        self.steps = job.recipe.steps_for(self.sizes)
        self.share = -(-cohort // processes)

    def best(self) -> Setup:
        """The fastest setup for a run as long as this one."""
        lanes, seconds = self._lane_count()
        best, dual = Setup(lanes, False, self.processes), self._dual_lanes()
        if dual:
            best, seconds = self._better(best, seconds, Setup(dual, False, self.processes, True))
        total = seconds * self.cohort * self.rounds / self.processes
        compiled = self.wanted.compiled
        if compiled == "auto":
            compiled = total > _COMPILE_SECONDS * self._programs(lanes) and self._can_compile()
        if not compiled:
            return best
        device = self.executor.device.type
        options = [max(lanes, 1)] if device == "cuda" or self.wanted.lanes != "auto" else [1]
        if device == "cpu" and self.wanted.lanes == "auto" and self._cpu_lanes() > 1:
            options.append(self._cpu_lanes())
        candidates = [Setup(option, True, self.processes) for option in options]
        if dual:
            candidates.append(Setup(dual, True, self.processes, True))
        for candidate in candidates:
            best, seconds = self._better(best, seconds, candidate)
        return best

    def _better(self, best: Setup, seconds: float, candidate: Setup) -> tuple[Setup, float]:
        """Of the best so far and a candidate the faster one, and its seconds per client."""
        taken = self._measure(candidate)
        return (candidate, taken) if taken is not None and taken < seconds else (best, seconds)

    def _lane_count(self) -> tuple[int, float]:
        """The best number of lanes without compiling, and its seconds per client."""
        if self.wanted.lanes != "auto":
            taken = self._measure(Setup(self.wanted.lanes))
            return self.wanted.lanes, taken or 1.0
        device = self.executor.device.type
        best, seconds = 0, self._measure(Setup(0), most=1 if device == "cuda" else 0)
        seconds = seconds or float("inf")
        if self.executor.alone:
            logger.warning("one client at a time: %s", self.executor.alone)
            return best, seconds
        counts = {min(count, self.cohort) for count in _LANE_COUNTS}
        if device == "cpu":
            counts = {self._cpu_lanes(), self._cpu_lanes(self._factorable())}
            if not take_single_step(self.sizes, self.executor.job.recipe).any():
                # one lane is no more than running plainly
                counts.discard(1)
        # from many lanes to few, for as long as fewer are no slower
        for lanes in sorted(counts, reverse=True):
            taken = self._measure(Setup(lanes))
            if taken is None:
                continue
            if taken > seconds:
                break
            best, seconds = lanes, taken
        return best, seconds

    def _measure(self, setup: Setup, most: int = 0) -> float | None:
        """Seconds per client run like this, or None where it cannot be done."""
        long = self.steps.min() >= _MANY_STEPS
        count = most or (max(setup.lanes, 1) if long else max(2 * setup.lanes, 4))
        if self.steps.max() > 2 * self.steps.min():
            # a few of very unequal clients say little about how a whole share packs
            count = max(count, self.share)
        clients = self.clients[:count]
        cohort = Cohort(0, clients, np.full(len(clients), 1 / len(clients)))
        try:
            running = self.executor.build(setup)
            running.run(self.params, cohort)
            taken = self._timed(running, cohort)
        except Exception as error:
            if setup.lanes == 0:
                raise
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
            logger.warning(
                "not run in %d lanes%s: %s: %s",
                setup.lanes,
                " compiled" if setup.compiled else "",
                type(error).__name__,
                reason,
            )
            return None
        # these may take more or fewer steps than others do
        return float(taken * self.steps.mean() / self.steps[:count].sum())

    def _timed(self, running: Running, cohort: Cohort) -> float:
        """The seconds of a run: of several, the shortest, unless it is long."""
        turns: list[float] = []
        while len(turns) < _TURNS and sum(turns) < _LONG_SECONDS:
            self._wait()
            started = time.perf_counter()
            running.run(self.params, cohort)
            self._wait()
            turns.append(time.perf_counter() - started)
        return min(turns)

    def _wait(self) -> None:
        if self.executor.device.type == "cuda":
            torch.cuda.synchronize(self.executor.device)

    def _programs(self, lanes: int) -> int:
        """How many programs may have to be compiled: for unequal clients on a GPU, several."""
        if self.sizes.min() == self.sizes.max() or self.executor.device.type == "cpu":
            return 1
        return len(programs(self.executor.job.recipe.batch or CHUNK, lanes))

    def _factorable(self) -> int:
        """How many params lanes that are not compiled need not keep one by one."""
        job = self.executor.job
        module = job.task.module
        layers = factorable(module, job.recipe, job.most_steps)
        return sum(module.get_parameter(f"{name}.weight").numel() for name in layers)

    def _cpu_lanes(self, spared: int = 0) -> int:
        """So many that their params, but for those spared, fit in the cache, and none idles."""
        busy = int(self.share * self.steps.mean() // max(self.steps.max(), 1))
        fitting = _CACHE_BYTES // (4 * max(self.executor.job.layout.size - spared, 1))
        most = max(1, min(busy, _MOST_CPU_LANES, fitting))
        return -(-self.share // -(-self.share // most))

    def _dual_lanes(self) -> int:
        """How many lanes to try in dual coordinates, or 0."""
        if (task := self.executor.dual) is None or self.wanted.lanes in (0, 1):
            return 0
        if self.wanted.lanes != "auto":
            return self.wanted.lanes
        weight = self.executor.job.task.module.get_parameter(task.module.dual.weight)
        moved = task.module.get_parameter(task.module.moved_name)
        lanes = self._cpu_lanes(weight.numel() - moved.numel())
        return lanes if lanes > 1 else 0

    def _can_compile(self) -> bool:
        if (
            shutil.which("g++")
            or shutil.which("clang++")
            or shutil.which(os.environ.get("CXX", ""))
        ):
            return True
        logger.warning("not compiled, because there is no C++ compiler here: training is eager")
        return False


def _sample(job: Job, count: int) -> Ints:
    """A few clients with data, to measure on."""
    population = job.population
    picked = np.random.default_rng(0).choice(
        len(population), min(4 * count, len(population)), replace=False
    )
    sizes = population.offsets[picked + 1] - population.offsets[picked]
    kept = picked[sizes > 0][:count]
    if not len(kept):
        kept = np.flatnonzero(population.sizes)[:count]
    return np.resize(kept, max(count, 1)) if len(kept) else kept


def _code(function: object) -> str:
    """What a function does, as far as its own code says."""
    code = getattr(function, "__code__", None)
    return repr((code.co_code, code.co_names)) if code else repr(type(function))


class Note:
    """What was found out about a task on this machine, kept between runs.

    It spares the measuring; and as lanes decide the order in which numbers are added, the same run
    gives the same bits twice.
    """

    def __init__(self, executor: LocalExecutor, wanted: Local, cohort: int, rounds: int) -> None:
        job = executor.job
        device = executor.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        about = [
            str(job.task.module),
            [(p.name, p.shape) for p in job.layout.places],
            without_addresses(job.recipe),
            [_code(job.task.loss), _code(job.task.prepare)],
            sorted({_code(type(part).forward) for part in job.task.module.modules()}),
            {n: [str(c.dtype), c.shape[1:]] for n, c in executor.data.items()},
            [name, os.cpu_count(), torch.__version__, hubless.__version__],
            [repr(wanted), cohort, rounds, _RULES],
            # equal clients are run otherwise than unequal ones
            [len(job.population), job.population.examples, int(job.population.sizes.max())],
        ]
        self._key = hashlib.blake2b(repr(about).encode(), digest_size=12).hexdigest()
        self._path = cache_folder("setups") / f"{self._key}.json"

    def read(self) -> Setup | None:
        try:
            return Setup(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, setup: Setup) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(asdict(setup)))
        except OSError as error:
            logger.info("what was measured could not be remembered: %s", error)
