"""What a step frees is there for the next, and goes back to the system when a run is over."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from hubless.simulate import memory

pytestmark = pytest.mark.skipif(memory._glibc() is None, reason="only glibc can be told")

STEPS, BLOCK = 5, 4 << 20
"""Of a round, and the bytes of what each of them keeps of its hidden layer, several times."""

PROGRAM = f"""
import resource, sys
import numpy as np, torch, hubless
from hubless.simulate import engine

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

if "plain" in sys.argv:
    engine.keep_freed = lambda: None
rows, width = 1024, {BLOCK} // 4 // 1024
x = np.ones(({STEPS} * rows, 16), np.float32)
people = hubless.Population({{"x": x, "y": np.zeros(len(x), np.int64)}}, np.array([0, len(x)]))
task = hubless.Task(torch.nn.Sequential(
    torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)
))
recipe = hubless.Recipe(hubless.SGD(0.01), batch=rows)
local = hubless.Local(lanes=0, processes=1, device="cpu")
with hubless.Simulation(task, people, recipe=recipe, cohort=1, engine=local) as simulation:
    simulation.run(3)
    before = faults()
    simulation.run(4)
    taken, held = faults() - before, resident()
print(taken, held - resident())
"""


def run(*arguments: str) -> tuple[int, int]:
    """Page faults of a round, and bytes that went when it was over; in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    taken, returned = map(int, said.split())
    return taken, returned


def test_a_step_finds_what_the_one_before_has_freed_and_it_goes_back_at_the_end() -> None:
    taken, returned = run()
    assert taken < STEPS * BLOCK // resource.getpagesize() // 10
    assert returned > BLOCK
    assert run("plain")[0] > 10 * taken + 100


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
