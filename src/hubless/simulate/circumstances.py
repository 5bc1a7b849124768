"""What a run says of itself before it starts: who the clients are, and how it was called."""

from __future__ import annotations

import platform
import shlex
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from hubless.data.index import tenths
from hubless.data.population import Population
from hubless.masked import masked_command
from hubless.train.task import Task

_LABELS = 100
"""Integers with more values than this are no labels."""
_EACH = 200
"""So many clients are told of one by one."""
_COUNTED = 1_000_000
"""Counting the labels of more examples would take longer than anybody waits for a start."""
_RANKED = 100_000
"""Of more clients, so many tell well enough how active they are."""


def circumstances(population: Population, task: Task) -> dict[str, Any]:
    """How active clients are, what labels they have, the versions of everything, the command."""
    offsets = population.offsets
    step = max(1, len(population) // _RANKED)
    some = np.arange(0, len(population), step)
    sizes = offsets[some + 1] - offsets[some]
    there = sizes[sizes > 0]
    quantiles = np.quantile(there, np.linspace(0, 1, 11)).tolist() if len(there) else []
    about: dict[str, Any] = {
        "versions": versions(),
        "command": command(),
        "activity": quantiles,
    }
    if (labels := label_counts(population, task)) is not None:
        about["labels"] = labels
    return about


def command() -> str:
    """How this process was called, without what is secret in that."""
    return shlex.join(["python", *masked_command(sys.orig_argv[1:])])


@cache
def versions() -> dict[str, str]:
    """What was installed, as far as it bears on results."""
    installed = {"python": platform.python_version()}
    for package in ("hubless", "numpy", "torch"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def label_counts(population: Population, task: Task) -> dict[str, Any] | None:
    """Examples by label: of each tenth of clients by activity, and of each client if few."""
    column = population.columns.get(task.targets[0]) if task.targets else None
    if not 0 < max(population.examples, len(population)) <= _COUNTED:
        return None
    if column is None or column.ndim != 1 or column.dtype.kind not in "biu" or not len(column):
        return None
    values = column if population.rows is None else column[population.rows]
    lowest, highest = int(values.min()), int(values.max())
    if highest - lowest >= _LABELS:
        return None
    names, label = range(lowest, highest + 1), values.astype(np.int64) - lowest
    sizes = population.sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)

    def counted(group: Any, groups: int) -> list[list[int]]:
        flat = np.bincount(group * len(names) + label, minlength=groups * len(names))
        return flat.reshape(groups, len(names)).tolist()

    tenth = tenths(sizes)[owner] - 1
    counts = {"names": [str(name) for name in names], "by_decile": counted(tenth, 10)}
    if len(sizes) <= _EACH:
        counts["by_client"] = counted(owner, len(sizes))
    return counts
