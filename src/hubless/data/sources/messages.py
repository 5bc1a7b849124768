"""Messages: who wrote what, and when, out of parquet files with a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.data import tables
from hubless.data.population import Population
from hubless.data.sources.table import by_time, in_rows, instants
from hubless.errors import DataError


def read_messages(paths: Sequence[Path], more: Mapping[str, type[str] | type[bool]]) -> Population:
    """One client per user, with columns `text`, `time` (in UTC) and more, in the order of time.

    The files have columns `user, timestamp, text` and those of `more`, which are strings, or bools
    that may be stored as 0 and 1. A timestamp, a datetime or a text in ISO 8601, of another zone is
    turned into UTC; one without a zone is taken to be UTC.
    """
    where = ", ".join(str(path) for path in paths)
    stored = {"text": "text", "time": "timestamp", **{name: name for name in more}}
    user, columns = tables.read_parquet(paths, "user", stored)
    if not len(user):
        raise DataError(f"{where} holds no messages")
    columns["time"] = instants(columns["time"], "timestamp", in_rows(where))
    _check_texts("user", user, where)
    _check_texts("text", columns["text"], where)
    for name, kind in more.items():
        if kind is bool:
            columns[name] = _bools(name, columns[name], where)
        else:
            _check_texts(name, columns[name], where)
    return by_time(columns, user)


def _check_texts(name: str, values: NDArray[Any], where: str) -> None:
    if values.dtype.kind != "T":
        raise DataError(f"{where}: column {name!r} holds {values.dtype}, not strings")
    empty = np.strings.strip(values) == ""
    if empty.any():
        row = int(empty.argmax())
        raise DataError(f"{where}: column {name!r} is empty at row {row}: drop the row first")


def _bools(name: str, values: NDArray[Any], where: str) -> NDArray[np.bool_]:
    wrong = (
        (values != 0) & (values != 1) if values.dtype.kind in "biu" else np.full(len(values), True)
    )
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{where}: column {name!r} is {values[row]} at row {row}, where 0 or 1 is meant"
        )
    return values.astype(np.bool_)
