"""What schedules are made of: params that tell whose they are, the one store, what is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.federate.keys import Incarnation, Posted
from hubless.store.base import Bytes, Entry
from hubless.store.memory import MemoryStore

Params = dict[str, NDArray[Any]]
Rank = tuple[Incarnation, int]
Version = tuple[int, int]

MALLORY = "mallory"


class Killed(BaseException):
    """A process is gone; nothing that it would still have done happens."""


class ScheduleFailure(AssertionError):
    """A schedule broke a promise; `seed` brings it back."""

    def __init__(self, mode: str, seed: int, what: str, trace: Sequence[str]) -> None:
        shown = "\n  ".join(trace)
        super().__init__(
            f"{mode} schedule {seed}: {what}\nthe last operations:\n  {shown}\n"
            f"replay: python -m tests.support.schedules --mode {mode} --seed {seed} --trace"
        )
        self.seed, self.what, self.trace = seed, what, list(trace)


@dataclass
class Report:
    """What happened in a schedule that kept all promises."""

    seed: int
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Content:
    """Params that tell by themselves whose they are and when they were made."""

    client: str
    serial: int
    params: Params

    @classmethod
    def make(cls, client: str, number: int, serial: int) -> Content:
        base = 100.0 * (number + 1) + serial
        grid = base + np.arange(20, dtype=np.float32).reshape(4, 5) / 64
        params: Params = {
            "steps": np.array(1000 * (number + 1) + serial),
            "w": grid.astype(np.float32),
            "b": (-base - np.arange(10) / 32).astype(np.float32),
        }
        return cls(client, serial, params)

    @property
    def flat(self) -> Params:
        # strategies are compared on flat arrays, as the protocol has them
        return {name: array.reshape(-1) for name, array in self.params.items()}


def parsed(key: str) -> Posted | None:
    return Posted.parse(Entry(key, 0, 0.0))


def is_joint(key: str) -> bool:
    """Whether this is part of what members make together, and of no update."""
    return "/slices-" in key or "/looks-" in key


def packed(params: Mapping[str, Any]) -> bytes:
    return b"".join(np.asarray(params[name]).tobytes() for name in ("steps", "w", "b"))


class Backing(MemoryStore):
    """The one store behind all views; listings, which are most of the work, are kept ready."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._listings: dict[str, list[Entry]] = {}

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        super().put(key, parts, create=create)
        self._listings.clear()

    def delete(self, keys: Sequence[str]) -> None:
        super().delete(keys)
        self._listings.clear()

    def list(self, prefix: str) -> list[Entry]:
        if prefix not in self._listings:
            self._listings[prefix] = super().list(prefix)
        return list(self._listings[prefix])
