"""A grid: every combination of a few choices is a cell, and every cell is run once.

What is finished stands in one file of results, a line per cell, and is never run again. A cell that
was interrupted, by a deadline or by kill -9, goes on in its own folder from its last checkpoint.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hubless.errors import DataError
from hubless.study.results import add_line, lines, sole
from hubless.study.side_by_side import side_by_side

if TYPE_CHECKING:
    import polars

Cell = Mapping[str, str]
"""What was chosen on each axis."""
Rows = Sequence[Mapping[str, Any]]
"""What a cell came to, as rows of a table."""


class Runner(Protocol):
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
    combinations: list[Cell] = [
        dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())
    ]
    labels: dict[str, Cell] = {}
    for cell in combinations:
        if (other := labels.setdefault(label(cell), cell)) is not cell:
            raise DataError(f"{dict(other)} and {dict(cell)} would both be kept as {label(cell)}")
    return combinations


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
        run: Runner,
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
        choices = ", ".join(f"{name} {choice}" for name, choice in cell.items())
        more = f"; about {_spoken(left)} to go" if self.finished < self.cells else ""
        print(f"cell {self.finished} of {self.cells}: {choices}{more}", file=sys.stderr)


Ended = tuple[Cell, Rows | None, float]


def _one_by_one(
    run: Runner,
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
    run: Runner,
    todo: Sequence[Cell],
    out: Path,
    deadline: float,
    workers: int,
    needs: Sequence[Callable[[], None]],
) -> Iterator[Ended]:
    cells = {label(cell): cell for cell in todo}
    work = partial(_run_named, run, out, cells)
    for name, ended in side_by_side(work, list(cells), deadline, workers, needs):
        yield (cells[name], *(ended or (None, 0.0)))


def _run_named(
    run: Runner, out: Path, cells: Mapping[str, Cell], name: str, left: float
) -> tuple[Rows | None, float]:
    return _run(run, cells[name], out / name, time.monotonic() + left)


def _run(run: Runner, cell: Cell, folder: Path, deadline: float) -> tuple[Rows | None, float]:
    folder.mkdir(parents=True, exist_ok=True)
    with sole(folder):
        started = time.monotonic()
        rows = run(cell, folder, deadline)
        return rows, time.monotonic() - started


def _spoken(seconds: float) -> str:
    """A time as people say it.

    >>> _spoken(75), _spoken(5400)
    ('1 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
