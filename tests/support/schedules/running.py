"""Running a schedule so that its seed brings it back."""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from unittest import mock

from hubless import signature
from hubless.federate.keys import Posted
from tests.support.schedules.asynchronous import AsyncWorld
from tests.support.schedules.basics import Report
from tests.support.schedules.hostile import HostileAsyncWorld, HostileSyncWorld
from tests.support.schedules.selecting import SelectingWorld
from tests.support.schedules.synchronous import SyncWorld
from tests.support.schedules.world import World

_BLOCK_BYTES = 32
WORLDS: dict[str, type[World]] = {
    "async": AsyncWorld,
    "hostile-async": HostileAsyncWorld,
    "hostile-sync": HostileSyncWorld,
    "select": SelectingWorld,
    "sync": SyncWorld,
}


class Nonces:
    """Stands in for `secrets`, so that a seed brings the same names back."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"nonces {seed}")

    def token_hex(self, size: int) -> str:
        return self.rng.randbytes(size).hex()

    def randbelow(self, stop: int) -> int:
        return self.rng.randrange(stop)


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Take away everything that would make one seed give two schedules."""
    nonces, state, logger = Nonces(seed), random.getstate(), logging.getLogger("hubless")
    level = logger.level
    random.seed(seed)
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            mock.patch("hubless.federate.keys.secrets", nonces),
            mock.patch("hubless.federate.rounds.plans.secrets", nonces),
            mock.patch("hubless.federate.rounds.joint.secrets", nonces),
            mock.patch("hubless.federate.rounds.looks.secrets", nonces),
            mock.patch("hubless.federate.rounds.results.secrets", nonces),
            mock.patch("hubless.federate.outside.probe.secrets", nonces),
            # here nobody races in threads, so that two racers show as much as eight
            mock.patch("hubless.federate.outside.probe._RACERS", 2),
            # killed members are no members of this process when it ends
            mock.patch("hubless.federate.member._HERE", weakref.WeakSet()),
            mock.patch.object(signature, "BLOCK_BYTES", _BLOCK_BYTES),
            # it depends on nothing but the entry, and is half of the work
            mock.patch.object(Posted, "parse", staticmethod(lru_cache(4096)(Posted.parse))),
        ):
            yield
    finally:
        logger.setLevel(level)
        random.setstate(state)


def run(mode: str, seed: int, sabotage: str = "", keep: int | None = 60) -> Report:
    """One schedule; ScheduleFailure where it breaks a promise."""
    with repeatable(seed):
        return WORLDS[mode](seed, sabotage, keep).run()


def run_async(seed: int, sabotage: str = "") -> Report:
    """One asynchronous schedule."""
    return run("async", seed, sabotage)


def run_sync(seed: int, sabotage: str = "") -> Report:
    """One synchronous schedule."""
    return run("sync", seed, sabotage)


def run_select(seed: int, sabotage: str = "") -> Report:
    """One synchronous schedule with a selector."""
    return run("select", seed, sabotage)


def run_hostile_async(seed: int, sabotage: str = "") -> Report:
    """One asynchronous schedule in which somebody writes under everybody's names."""
    return run("hostile-async", seed, sabotage)


def run_hostile_sync(seed: int, sabotage: str = "") -> Report:
    """One synchronous schedule in which somebody writes under everybody's names."""
    return run("hostile-sync", seed, sabotage)
