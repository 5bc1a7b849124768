"""What a step frees is there for the next, and goes back to the system when a run is over."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import pytest
from torch import nn

import hubless
from hubless.simulate.engine import executor, machine, memory

BLOCKS, SIZE = 8, 4 << 20
PROGRAM = f"""
import ctypes, resource, torch
from hubless.simulate.engine.memory import _MMAP_THRESHOLD, give_back, keep_freed

def faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones({SIZE} // 4) for _ in range({BLOCKS})]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

torch.set_num_threads(1)
# as it is at first; what it adapts to is chance
ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 128 << 10)
before = [faults_of_a_step() for _ in range(5)][-1]
keep_freed()
after = [faults_of_a_step() for _ in range(5)][-1]
held = resident()
give_back()
print(before, after, held - resident())
"""


@pytest.mark.skipif(memory._glibc() is None, reason="only glibc can be told")
def test_a_step_finds_what_the_one_before_has_freed_and_it_can_be_given_back() -> None:
    # in a process of its own, as one process has one allocator
    command = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    before, after, returned = map(int, said.split())
    pages = BLOCKS * SIZE // resource.getpagesize()
    assert before > pages // 2
    assert after < pages // 20
    assert returned > pages // 2


def test_an_engine_on_a_cpu_keeps_memory_until_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(machine, "keep_freed", lambda: told.append("keep"))
    monkeypatch.setattr(executor, "give_back", lambda: told.append("give back"))
    columns = {"x": np.ones((2, 3), np.float32), "y": np.zeros(2, np.int64)}
    people = hubless.Population(columns, np.array([0, 1, 2]))
    local = hubless.Local(lanes=0, processes=1, device="cpu")
    task = hubless.Task(nn.Linear(3, 2))
    with hubless.Simulation(task, people, cohort=2, engine=local) as simulation:
        simulation.run(1)
        assert told == ["keep"]
    assert told == ["keep", "give back"]


def test_elsewhere_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    memory._glibc.cache_clear()
    try:
        assert memory._glibc() is None
        memory.keep_freed()
        memory.give_back()
    finally:
        monkeypatch.undo()
        memory._glibc.cache_clear()
