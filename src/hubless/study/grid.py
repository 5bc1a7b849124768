"""A grid: every combination of a few choices is a cell, and every cell is run once.

What is finished stands in one file of results, a line per cell, and is never run again. A cell that
was interrupted, by a deadline or by kill -9, goes on in its own folder from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import math
import multiprocessing
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hubless.errors import DataError
from hubless.study.results import add_line, lines, why

if TYPE_CHECKING:
    import polars

Cell = Mapping[str, str]
"""What was chosen on each axis."""
Rows = Sequence[Mapping[str, Any]]
"""What a cell came to, as rows of a table."""


class Run(Protocol):
    """How a cell is run; where cells run side by side it has to be picklable."""

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        """The cell's rows; None where the deadline (of time.monotonic) came first.

        Checkpoints go to the folder, which is the cell's own.
        """
        ...


def cells(axes: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Every combination, the last axis changing fastest.

    >>> [label(cell) for cell in cells({"selector": ["n", "1/log"], "set": ["0", "1"]})]
    ['n-0', 'n-1', '1_log-0', '1_log-1']
    """
    for name, choices in axes.items():
        if not choices:
            raise DataError(f"the grid has no choice of {name}")
        if len(set(choices)) < len(choices):
            raise DataError(f"the grid has a choice of {name} twice: {', '.join(choices)}")
    found: list[Cell] = [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]
    labels: dict[str, Cell] = {}
    for cell in found:
        if (other := labels.setdefault(label(cell), cell)) is not cell:
            raise DataError(f"{dict(other)} and {dict(cell)} would both be kept as {label(cell)}")
    return found


def label(cell: Cell) -> str:
    """A cell's name, which is also its folder's."""
    return "-".join(re.sub("[^A-Za-z0-9.]+", "_", choice) for choice in cell.values())


@dataclass(frozen=True)
class Grid:
    """Cells, and the folder where everything about them is kept."""

    axes: Mapping[str, Sequence[str]]
    out: Path

    @property
    def cells(self) -> list[Cell]:
        return cells(self.axes)

    def finished(self) -> dict[str, dict[str, Any]]:
        """The record of each cell that is finished, by label."""
        records = lines(self.out / "results.jsonl")
        return {label(record["cell"]): record for record in records}

    def complete(
        self,
        run: Run,
        *,
        deadline: float = math.inf,
        workers: int = 1,
        first: Sequence[Callable[[], None]] = (),
    ) -> bool:
        """Run what is not finished, several cells at a time if asked; False where time was up.

        Where there is time to run any, what all cells need is done `first`, as many at a time.
        """
        done = self.finished()
        todo = [cell for cell in self.cells if label(cell) not in done]
        board = Board(len(self.cells), len(self.cells) - len(todo), workers)
        needs = first if todo and time.monotonic() < deadline else ()
        running = _one_by_one if workers == 1 else _side_by_side
        complete = True
        for cell, rows, seconds in running(run, todo, self.out, deadline, workers, needs):
            if rows is None:
                complete = False
                continue
            if label(cell) not in self.finished():
                record = {"cell": dict(cell), "seconds": seconds, "rows": list(rows)}
                add_line(self.out / "results.jsonl", record)
            shutil.rmtree(self.out / label(cell), ignore_errors=True)
            board.tell(cell, seconds)
        return complete

    def frame(self) -> polars.DataFrame:
        """The rows of all finished cells, with a column for each axis."""
        import polars

        records = self.finished().values()
        rows = [{**record["cell"], **row} for record in records for row in record["rows"]]
        return polars.DataFrame(rows, infer_schema_length=None)


class Board:
    """Says which cell is finished, and how long the others will take."""

    def __init__(self, cells: int, finished: int, workers: int) -> None:
        self.cells, self.finished, self.workers = cells, finished, workers
        self._taken: list[float] = []
        if finished:
            print(f"{finished} of {cells} cells were finished before", file=sys.stderr)

    def tell(self, cell: Cell, seconds: float) -> None:
        """Another one is finished."""
        self.finished += 1
        self._taken.append(seconds)
        each = sum(self._taken) / len(self._taken)
        left = each * (self.cells - self.finished) / self.workers
        told = ", ".join(f"{name} {choice}" for name, choice in cell.items())
        more = f"; about {_spoken(left)} to go" if self.finished < self.cells else ""
        print(f"cell {self.finished} of {self.cells}: {told}{more}", file=sys.stderr)


Ended = tuple[Cell, Rows | None, float]


def _one_by_one(
    run: Run,
    todo: Sequence[Cell],
    out: Path,
    deadline: float,
    workers: int,
    needs: Sequence[Callable[[], None]],
) -> Iterator[Ended]:
    for need in needs:
        need()
    for cell in todo:
        if time.monotonic() >= deadline:
            yield cell, None, 0.0
            return
        rows, seconds = _run(run, cell, out / label(cell), deadline)
        yield cell, rows, seconds


def _side_by_side(
    run: Run,
    todo: Sequence[Cell],
    out: Path,
    deadline: float,
    workers: int,
    needs: Sequence[Callable[[], None]],
) -> Iterator[Ended]:
    # spawned: a fork of a process that has used a GPU or many threads is not to be relied on
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(todo))
    failed: Exception | None = None
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done in [pool.submit(need) for need in needs]:
            done.result()
        under_way: dict[Future[tuple[Rows | None, float]], Cell] = {}
        while under_way or (waiting and failed is None):
            while failed is None and waiting and len(under_way) < workers:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                cell = waiting.pop()
                under_way[pool.submit(_run_within, run, cell, out / label(cell), left)] = cell
            if not under_way:
                yield waiting[-1], None, 0.0
                return
            together = len(under_way)
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                cell = under_way.pop(future)
                try:
                    rows, seconds = future.result()
                except torch.OutOfMemoryError as error:
                    if together == 1:
                        failed = error
                        continue
                    # it goes on from its checkpoint once others have ended
                    waiting.append(cell)
                    workers = max(1, workers - 1)
                    print(f"the memory is full: {workers} side by side from now", file=sys.stderr)
                except Exception as error:
                    # what else is under way is not lost over it
                    if failed is None:
                        print(f"{label(cell)} has failed: {why(error)}", file=sys.stderr)
                    failed = failed or error
                else:
                    yield cell, rows, seconds
    if failed is not None:
        raise failed


def _run_within(run: Run, cell: Cell, folder: Path, left: float) -> tuple[Rows | None, float]:
    """The same with the time that is left: clocks of two processes need not agree."""
    full: str | None = None
    try:
        ended = _run(run, cell, folder, time.monotonic() + left)
    except torch.OutOfMemoryError as error:
        full = str(error)
    # what this process does not need any more, others do
    gc.collect()
    torch.cuda.empty_cache()
    if full is not None:
        raise torch.OutOfMemoryError(full)
    return ended


def _run(run: Run, cell: Cell, folder: Path, deadline: float) -> tuple[Rows | None, float]:
    folder.mkdir(parents=True, exist_ok=True)
    with _sole(folder):
        started = time.monotonic()
        rows = run(cell, folder, deadline)
        return rows, time.monotonic() - started


@contextlib.contextmanager
def _sole(folder: Path) -> Iterator[None]:
    """Nobody else runs this cell meanwhile, not even what is left of a killed study."""
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder.name} is being run by another process: waiting", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _spoken(seconds: float) -> str:
    """A time as people say it.

    >>> _spoken(75), _spoken(5400)
    ('1 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
