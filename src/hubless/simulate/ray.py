"""Lanes on a Ray cluster: each worker trains its part of the cohort and returns one sum.

A worker that dies, with its machine or without, is started anew and its part is redone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from hubless.errors import ClientFailed, HublessError
from hubless.simulate.engine import Local, LocalExecutor, Plan
from hubless.simulate.processes import merge, split
from hubless.simulate.work import Cohort, Engine, Learned, Work

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

    def start(self, work: Work, cohort: int, rounds: int) -> Engine:
        """Workers for this work; how they run is measured on the first of them."""
        return RayEngine(self, work, cohort, rounds)


class RayEngine:
    """Actors that hold the population, and the sums they send back."""

    device = torch.device("cpu")

    def __init__(self, wanted: Ray, work: Work, cohort: int, rounds: int) -> None:
        # no usage reports: nothing is sent anywhere without being asked for
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise HublessError("Ray is not installed: pip install 'hubless[ray]'") from error
        self._ray, self._wanted, self._work = ray, wanted, work
        self._own = not ray.is_initialized()
        if self._own:
            ray.init(
                address=wanted.address,
                num_cpus=None if wanted.address else max(1, round(wanted.workers * wanted.cpus)),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        self._shared = ray.put(work)
        self._actor = ray.remote(num_cpus=wanted.cpus, num_gpus=wanted.gpus)(_Worker)
        self._workers: list[Any] = [self._actor.remote(self._shared) for _ in range(wanted.workers)]
        local = Local(wanted.lanes, wanted.compiled, processes=1)
        share = max(1, cohort // wanted.workers)
        self.plan: Plan = ray.get(self._workers[0].choose.remote(local, share, rounds))
        self._deaths = 0

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params, each worker its share of the steps."""
        shared = self._ray.put(params.cpu().numpy())
        alone = self.plan.lanes == 0
        parts = split(self._work, cohort.clients, len(self._workers), alone=alone)
        shares = [cohort.part(part) for part in parts]
        asked = [
            worker.run.remote(shared, self.plan, share, each)
            for worker, share in zip(self._workers, shares, strict=True)
        ]
        learned = []
        for i, (answer, share) in enumerate(zip(asked, shares, strict=True)):
            learned.append(self._receive(i, answer, shared, share, each))
        return merge(learned, parts, len(cohort.clients))

    def _receive(self, i: int, answer: Any, shared: Any, share: Cohort, each: bool) -> Learned:
        exceptions = self._ray.exceptions
        while True:
            try:
                arrays = self._ray.get(answer)
            except exceptions.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, ClientFailed) else None
                said = f"{cause or error}\nIn a worker:\n{error}"
                raise ClientFailed(said, cause.client if cause else -1, share.round + 1) from error
            except exceptions.RayActorError as error:
                self._deaths += 1
                if self._deaths > _MOST_DEATHS:
                    raise HublessError(
                        f"workers died {self._deaths} times, in round {share.round + 1} again: is "
                        f"there enough memory? Ray says: {error}"
                    ) from error
                logger.warning("a worker died in round %d: its part is redone", share.round + 1)
                self._workers[i] = self._actor.remote(self._shared)
                answer = self._workers[i].run.remote(shared, self.plan, share, each)
                continue
            total, kept, losses, values = (
                None if array is None else torch.tensor(array) for array in arrays
            )
            return Learned(total, kept, cast(Tensor, losses), values)

    def describe(self) -> Mapping[str, Any]:
        return {**asdict(self.plan), "workers": len(self._workers), "device": "ray"}

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._own:
            self._ray.shutdown()


class _Worker:
    """One actor: an executor over the whole population, of which it trains what it is sent."""

    def __init__(self, work: Work) -> None:
        torch.set_num_threads(1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._executor = LocalExecutor(work, device)

    def choose(self, local: Local, cohort: int, rounds: int) -> Plan:
        """How the work is run fastest here."""
        return local.plan(self._executor, cohort, rounds)

    def run(self, params: Any, plan: Plan, share: Cohort, each: bool) -> tuple[Any, ...]:
        """Train a share of the cohort."""
        if plan != self._executor.plan:
            self._executor.adopt(plan)
        start = torch.tensor(params, device=self._executor.device)
        learned = self._executor.run(start, share, each=each)
        arrays = (learned.total, learned.each, learned.losses, learned.values)
        return tuple(None if array is None else array.cpu().numpy() for array in arrays)
