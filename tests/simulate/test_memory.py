"""What a step frees is there for the next, and goes back to the system when a run is over."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from hubless.simulate import memory

pytestmark = pytest.mark.skipif(memory._glibc() is None, reason="only glibc can be told")

PAGE = resource.getpagesize()
BLOCKS, SIZE = 8, 4 << 20
PROGRAM = f"""
import resource, sys, torch
from hubless.simulate.memory import give_back, keep_freed

def faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones({SIZE} // 4) for _ in range({BLOCKS})]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

torch.set_num_threads(1)
if "keep" in sys.argv:
    keep_freed()
faults = [faults_of_a_step() for _ in range(5)][-1]
held = resident()
give_back()
print(faults, held - resident())
"""


def run(*arguments: str) -> tuple[int, int]:
    """Page faults of a step, and pages given back after it; a process's allocator is told once."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    faults, returned = map(int, said.split())
    return faults, returned


def test_a_step_finds_what_the_one_before_has_freed() -> None:
    pages = BLOCKS * SIZE // PAGE
    assert run()[0] > pages // 2
    assert run("keep")[0] < pages // 20


def test_what_is_kept_is_given_back() -> None:
    pages = BLOCKS * SIZE // PAGE
    assert run("keep")[1] > pages // 2


def test_elsewhere_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory._glibc.cache_clear()
    try:
        assert memory._glibc() is None
        memory.keep_freed()
        memory.give_back()
    finally:
        monkeypatch.undo()
        memory._glibc.cache_clear()
