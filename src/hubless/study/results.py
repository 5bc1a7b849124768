"""What studies share: watching a run, and files that are whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hubless.errors import DataError, HublessError
from hubless.simulate.callbacks import Row
from hubless.simulate.simulation import Simulation
from hubless.whole import write_whole

STOPS = (HublessError, KeyboardInterrupt, torch.OutOfMemoryError, BrokenProcessPool)
"""What may end a study before it is finished, with nothing lost of what is."""


def why(stop: BaseException) -> str:
    """What to tell of it."""
    if isinstance(stop, torch.OutOfMemoryError):
        return "the GPU's memory is full: take fewer lanes, or fewer runs side by side, and go on"
    if isinstance(stop, BrokenProcessPool):
        return "a process was killed, perhaps for its memory: go on, with fewer side by side"
    return str(stop) or ("interrupted" if isinstance(stop, KeyboardInterrupt) else repr(stop))


@dataclass
class Watch:
    """Says how a run goes, and ends it when the time is up.

    `metric` is what it tells of a round, and `after` how many rounds other runs will take.
    """

    label: str
    rounds: int
    deadline: float
    metric: str
    after: int = 0
    last_print: tuple[float, float] | None = None

    def __call__(self, simulation: Simulation, row: Row) -> bool:
        now, at = time.monotonic(), row["round"]
        since, last = self.last_print or (-math.inf, at)
        if now - since >= 5:
            left = (now - since) / max(at - last, 1) * (self.rounds - at + self.after)
            latest = [row[self.metric] for row in simulation.rows if self.metric in row][-1:]
            metric = "".join(f", {self.metric} {value:.4f}" for value in latest)
            more = f", at most {left:.0f} s to go" if self.last_print else ""
            print(f"{self.label}: round {at}{metric}{more}", file=sys.stderr)
            self.last_print = (now, at)
        return now >= self.deadline


def write(path: Path, text: str) -> None:
    """Write a file, whatever stood there staying until the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def agree(path: Path, settings: Mapping[str, Any]) -> None:
    """Write down what the results beside a file are of, or refuse settings that differ from it."""
    mine = json.loads(json.dumps(settings))
    if not path.exists():
        write(path, json.dumps(mine, indent=1))
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    names = [name for name in {**kept, **mine} if kept.get(name) != mine.get(name)]
    if names:
        there = ", ".join(f"{name} {kept.get(name)}" for name in names)
        here = ", ".join(f"{name} {mine.get(name)}" for name in names)
        raise DataError(f"what is in {path.parent} is of {there}, and not of {here}")


def add_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to a file of JSON lines, for good when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # whoever wrote the last line was killed over it
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, but for those that were not written to their end."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


@contextlib.contextmanager
def sole(folder: Path) -> Iterator[None]:
    """Nobody else runs this cell meanwhile, not even what is left of a killed study."""
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder.name} is being run by another process: waiting", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
