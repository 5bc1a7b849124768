"""Lanes on a Ray cluster: each worker trains its part of the cohort and returns one sum.

A worker that dies, with its machine or without, is started anew and its part is redone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from hubless.checks import fitting, number, whole
from hubless.errors import ClientFailed, HublessError
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.engine.machine import Local, check_lanes
from hubless.simulate.engine.memory import keep_freed
from hubless.simulate.engine.processes import merge, split
from hubless.simulate.job import Cohort, Engine, Job, Learned

logger = logging.getLogger("hubless")
_MOST_DEATHS = 3


@dataclass(frozen=True)
class Ray:
    """An engine of `workers` Ray actors, on this machine or on a cluster.

    `address="auto"` joins what `ray start` started; without an address a Ray of its own is started
    here, and stopped at the end. `cpus` and `gpus` are what each worker asks for.
    """

    workers: int = 2
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    lanes: int | Literal["auto"] = "auto"
    compiled: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        whole("workers", self.workers, least=1, error=HublessError)
        fits = self.address is None or (isinstance(self.address, str) and bool(self.address))
        takes = "an address, such as 'auto', or None"
        fitting("address", self.address, fits, takes, error=HublessError)
        number("cpus", self.cpus, least=0, error=HublessError)
        number("gpus", self.gpus, least=0, error=HublessError)
        check_lanes(self.lanes, self.compiled)

    def start(self, job: Job, cohort: int, rounds: int) -> Engine:
        """Workers for this job; how they run is measured on the first of them."""
        return RayEngine(self, job, cohort, rounds)


class RayEngine:
    """Actors that hold the population, and the sums they send back."""

    device = torch.device("cpu")

    def __init__(self, wanted: Ray, job: Job, cohort: int, rounds: int) -> None:
        # no usage reports: nothing is sent anywhere without being asked for
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise HublessError("Ray is not installed: pip install 'hubless[ray]'") from error
        self._ray, self._wanted, self._job = ray, wanted, job
        self._own = not ray.is_initialized()
        if self._own:
            ray.init(
                address=wanted.address or "local",
                num_cpus=None if wanted.address else max(1, round(wanted.workers * wanted.cpus)),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        self._shared = ray.put(job)
        self._actor = ray.remote(num_cpus=wanted.cpus, num_gpus=wanted.gpus)(_Worker)
        self._workers: list[Any] = [self._actor.remote(self._shared) for _ in range(wanted.workers)]
        local = Local(wanted.lanes, wanted.compiled, processes=1)
        share = max(1, cohort // wanted.workers)
        self._deaths = 0
        self.setup: Setup = self._ask(
            0, lambda worker: worker.choose.remote(local, share, rounds)
        )()

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params, each worker its share of the steps."""
        shared = self._ray.put(params.cpu().numpy())
        alone = self.setup.lanes == 0
        parts = split(self._job, cohort.clients, len(self._workers), alone=alone)
        shares = [cohort.part(part) for part in parts]
        answers = [
            self._ask(i, partial(_train, shared, self.setup, share, each), share.round + 1)
            for i, share in enumerate(shares)
        ]
        try:
            learned = [_learned(answer()) for answer in answers]
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, ClientFailed) else None
            message = f"{cause or error}\nIn a worker:\n{error}"
            raise ClientFailed(message, cause.client if cause else -1, cohort.round + 1) from error
        return merge(learned, parts, len(cohort.clients))

    def _ask(self, i: int, request: Callable[[Any], Any], number: int = 1) -> Callable[[], Any]:
        """Ask a worker now; its answer is waited for when called, from another one if it dies."""
        asked = request(self._workers[i])

        def answer() -> Any:
            nonlocal asked
            while True:
                try:
                    return self._ray.get(asked)
                except self._deadly as error:
                    self._deaths += 1
                    if self._deaths > _MOST_DEATHS:
                        raise HublessError(
                            f"workers died {self._deaths} times, in round {number} again: is "
                            f"there enough memory? Ray says: {error}"
                        ) from error
                logger.warning("a worker died in round %d: its part is redone", number)
                self._workers[i] = self._actor.remote(self._shared)
                asked = request(self._workers[i])

        return answer

    @property
    def _deadly(self) -> tuple[type[Exception], ...]:
        """What Ray says of a worker that is no more, by whichever way it went."""
        errors = self._ray.exceptions
        return (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
        )

    def describe(self) -> Mapping[str, Any]:
        return {**asdict(self.setup), "workers": len(self._workers), "device": "ray"}

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._own:
            self._ray.shutdown()


def _train(shared: Any, setup: Setup, share: Cohort, each: bool, worker: Any) -> Any:
    return worker.run.remote(shared, setup, share, each)


def _learned(arrays: tuple[Any, ...]) -> Learned:
    total, kept, losses, values = (
        None if array is None else torch.tensor(array) for array in arrays
    )
    return Learned(total, kept, cast(Tensor, losses), values)


class _Worker:
    """One actor: an executor over the whole population, of which it trains what it is sent."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        keep_freed()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._executor = LocalExecutor(job, device)

    def choose(self, local: Local, cohort: int, rounds: int) -> Setup:
        """How the job is run fastest here."""
        return local.choose(self._executor, cohort, rounds)

    def run(self, params: Any, setup: Setup, share: Cohort, each: bool) -> tuple[Any, ...]:
        """Train a share of the cohort."""
        if setup != self._executor.setup:
            self._executor.adopt(setup)
        start = torch.tensor(params, device=self._executor.device)
        learned = self._executor.run(start, share, each=each)
        arrays = (learned.total, learned.each, learned.losses, learned.values)
        return tuple(None if array is None else array.cpu().numpy() for array in arrays)
