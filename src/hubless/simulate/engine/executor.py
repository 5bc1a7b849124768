"""One process's part of a simulation: the data on the device, and what runs clients on them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from hubless.errors import TaskError
from hubless.simulate.engine.memory import give_back
from hubless.simulate.job import Cohort, Job, Learned, Running, to_tensors
from hubless.simulate.values import Valuing
from hubless.simulate.ways.plain import Plain
from hubless.simulate.ways.tiers import Tiers
from hubless.train.layers.dual import DualTask, dual_layer

logger = logging.getLogger("hubless")


@dataclass(frozen=True)
class Setup:
    """How a task is run: so many lanes (0: plainly, one client after another) per process.

    `dual` with the layer that sees the data in dual coordinates.
    """

    lanes: int
    compiled: bool = False
    processes: int = 1
    dual: bool = False


class LocalExecutor:
    """One process's part: the data on the device, and lanes to run clients on."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self.device = job, device
        self.data = to_tensors(job.population, job.task.columns, device)
        self.setup = Setup(0)
        self.alone = why_alone(job, self.data)
        self._running: Running | None = None
        self._valuing = None if job.value is None else Valuing(job, self.data, device)

    def adopt(self, setup: Setup) -> None:
        """Run like this from now on."""
        self.setup, self._running = setup, None

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        if self._running is None:
            self._running = self.build(self.setup)
        if self._valuing is None:
            return self._running.run(params, cohort, each=each)
        return self._valuing.run(self._running, params, cohort, each=each)

    def build(self, setup: Setup) -> Running:
        """What runs clients like that."""
        if setup.lanes == 0:
            return Plain(self.job, self.data, self.device)
        if self.alone:
            raise TaskError(f"clients cannot share lanes, so use lanes=0: {self.alone}")
        if setup.dual and self.dual is None:
            raise TaskError("no layer of this module can be trained in dual coordinates")
        dual = self.dual if setup.dual else None
        return Tiers(
            self.job, self.data, self.device, setup.lanes, compiled=setup.compiled, dual=dual
        )

    @cached_property
    def dual(self) -> DualTask | None:
        """The task with a layer in dual coordinates, where there is one that can be."""
        job, most = self.job, int(self.job.population.sizes.max(initial=1))
        if self.device.type != "cpu" or self.alone:
            return None
        try:
            layer = dual_layer(job.task, job.recipe, job.sample(self.data, 4), most)
        except Exception as error:
            logger.info("not tried in dual coordinates: %s", error)
            return None
        return None if layer is None else DualTask.of(job.task, layer, most)

    def describe(self) -> Mapping[str, Any]:
        return {**asdict(self.setup), "device": str(self.device)}

    def close(self) -> None:
        self._running = None
        if self.device.type == "cpu":
            give_back()


def why_alone(job: Job, data: Mapping[str, Tensor]) -> str:
    """Why clients must be trained one at a time, or nothing.

    Lanes fill short batches up and keep no buffers per client, so examples may not depend on each
    other nor leave anything behind.
    """
    module = copy.deepcopy(job.task.module).to(next(iter(data.values())).device).train()
    if any(isinstance(part, _BatchNorm) for part in module.modules()):
        return "BatchNorm mixes the examples of a batch (GroupNorm does not)"
    if not job.layout.has_buffers:
        return ""
    before = [buffer.clone() for buffer in module.buffers()]
    with torch.no_grad(), torch.random.fork_rng():
        job.task.losses(module, job.sample(data, 2))
    if all(map(torch.equal, before, module.buffers())):
        return ""
    return "the module changes its buffers while it trains"
