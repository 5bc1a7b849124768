"""The engine of one machine: it measures how this task trains fastest here, and does that."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from hubless.checks import flag, shown, whole
from hubless.errors import HublessError
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.engine.memory import keep_freed
from hubless.simulate.engine.tuning import Note, Tuning
from hubless.simulate.job import Engine, Job


@dataclass(frozen=True)
class Local:
    """Everything on this machine. What is left at "auto" is measured once, and remembered.

    Args:
        lanes: How many clients train side by side in one pass. 0 trains one after the other on the
            module itself, where a debugger can look on.
        compiled: Whether the step is compiled: slow to start, and faster in long runs.
        processes: How many processes share a cohort, on a CPU.
        device: "cpu", "cuda" or any other of torch's; "auto" takes a GPU where there is one.
    """

    lanes: int | Literal["auto"] = "auto"
    compiled: bool | Literal["auto"] = "auto"
    processes: int | Literal["auto"] = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_lanes(self.lanes, self.compiled)
        if self.processes != "auto":
            whole("processes", self.processes, least=1, error=HublessError)
        _check_device(self.device)

    def start(self, job: Job, cohort: int, rounds: int) -> Engine:
        """An engine for this job, cohorts of about this size, and about so many rounds."""
        device = self._device()
        if device.type == "cpu":
            # small models are slower on two threads than on one
            torch.set_num_threads(1)
            keep_freed()
        executor = LocalExecutor(job, device)
        setup = self.choose(executor, cohort, rounds)
        executor.adopt(setup)
        if setup.processes > 1:
            from hubless.simulate.engine.processes import Processes

            return Processes(executor, setup.processes)
        return executor

    @property
    def on_gpu(self) -> bool:
        return self._device().type == "cuda"

    def _device(self) -> torch.device:
        if self.device != "auto":
            device, seen = torch.device(self.device), torch.cuda.device_count()
            if device.type == "cuda" and (device.index or 0) >= seen:
                raise HublessError(f"device= is {self.device}, and torch sees {seen} GPUs here")
            return device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def choose(self, executor: LocalExecutor, cohort: int, rounds: int) -> Setup:
        """How to run cohorts of this size for so many rounds, measured where it is not known."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        cores = cores if executor.device.type == "cpu" and hasattr(os, "fork") else 1
        processes = min(cores, max(1, cohort // 2)) if self.processes == "auto" else self.processes
        if self.lanes == 0:
            return Setup(0, False, processes)
        if self.lanes != "auto" and self.compiled != "auto":
            return Setup(self.lanes, self.compiled, processes)
        note = Note(executor, self, cohort, rounds)
        earlier = note.read()
        # not all that dual coordinates hang on can be read off a task
        if earlier is not None and (not earlier.dual or executor.dual is not None):
            return replace(earlier, processes=processes)
        setup = Tuning(executor, self, cohort, rounds, processes).best()
        note.write(setup)
        return setup


def check_lanes(lanes: Any, compiled: Any) -> None:
    """Refuse what is no number of lanes, or no answer to whether to compile them."""
    if lanes != "auto":
        whole("lanes", lanes, least=0, error=HublessError)
    if compiled != "auto":
        flag("compiled", compiled, error=HublessError)


def _check_device(device: Any) -> None:
    if device == "auto":
        return
    try:
        if isinstance(device, str | torch.device):
            torch.device(device)
            return
    except RuntimeError:
        pass
    raise HublessError(f"device= is 'auto', 'cpu', 'cuda' or 'cuda:1', not {shown(device)}")
