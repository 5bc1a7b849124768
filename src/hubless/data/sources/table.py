"""Tables: clients, times and texts or features out of any parquet files or lines of JSON."""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hubless.data import tables
from hubless.data.population import Population
from hubless.errors import DataError

Place = Callable[[int], str]
"""Says where a row stands: the file, and its row or line."""
Unit = Literal["s", "ms", "us", "ns"]

_LINES = (".jsonl", ".ndjson", ".json")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_YEARS = np.array(["0001", "10000"], "datetime64[us]")
# int and float are one kind, and bool, though Python calls it an int, another
_KINDS: dict[type, str] = {str: "text", bool: "bool", int: "number", float: "number", list: "list"}


def load(
    paths: str | Path | Sequence[str | Path],
    *,
    client: str,
    time: str,
    text: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    unit: Unit | None = None,
) -> Population:
    """Columns `time` (UTC), `text` where it is named, and others, by client, in the order of time.

    `client`, `time` and `text` name the columns that hold them; `columns` lists more to read, or
    maps the names they get to those they have, as in `Population.from_parquet`. Files end in
    .parquet, or in .jsonl, .ndjson or .json with one JSON object on each line, and may then be
    packed: .jsonl.gz.

    Times are datetimes, dates, texts in ISO 8601, or numbers of a `unit` since 1970. Other zones
    are turned into UTC, and a time without a zone is taken to be UTC; rows may stand in any order.
    What is missing, or cannot be read, is refused with its row (from 0) or line (from 1): no row
    is left out. Parquet needs polars.
    """
    listed = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    wanted = _wanted(time, text, columns)
    suffixes = {_suffix(path) for path in listed}
    if suffixes == {".parquet"}:
        where = ", ".join(map(str, listed))
        owner, read = tables.read_parquet(listed, client, wanted)
        place = in_rows(where)
    elif suffixes and suffixes <= set(_LINES):
        owner, read, place = _read_lines(listed, client, wanted)
    else:
        names = ", ".join(map(str, listed)) or "no file"
        raise DataError(f"{names}: give files that all end in .parquet, or all in .jsonl")
    if not len(owner):
        raise DataError(f"{', '.join(map(str, listed))}: there are no rows")
    if text is not None and read["text"].dtype.kind != "T":
        raise DataError(f"{place(0)}: {text!r} holds {read['text'].dtype}, not strings")
    read["time"] = instants(read["time"], time, place, unit)
    return by_time(read, owner)


def by_time(columns: Mapping[str, NDArray[Any]], clients: NDArray[Any]) -> Population:
    """One client for each distinct id, everybody's rows in the order of the column `time`."""
    time = columns["time"]
    if (time[1:] < time[:-1]).any():
        order = np.argsort(time, kind="stable")
        clients, columns = clients[order], {name: column[order] for name, column in columns.items()}
    return Population.by(columns, clients)


def instants(
    values: NDArray[Any], name: str, place: Place, unit: Unit | None = None
) -> NDArray[np.datetime64]:
    """Times in microseconds of UTC, out of datetimes, texts in ISO 8601 or numbers of a unit.

    >>> instants(np.array(["2016-03-01T01:00+02:00"], "T"), "time", in_rows("here"))
    array(['2016-02-29T23:00:00.000000'], dtype='datetime64[us]')
    """
    if values.ndim == 1 and values.dtype.kind == "M":
        missing = np.isnat(values)
        if missing.any():
            raise DataError(f"{place(int(missing.argmax()))}: {name!r} is no time")
        return values.astype("datetime64[us]")
    if values.ndim == 1 and values.dtype.kind == "T":
        return _parsed(values.tolist(), name, place)
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise DataError(f"{place(0)}: {name!r} holds {values.dtype}, which is no time")
    if unit is None:
        raise DataError(
            f"{place(0)}: {name!r} holds {values.dtype}: store it as a datetime, or say with unit= "
            "whether it counts seconds (s), ms, us or ns since 1970"
        )
    return _counted(values, name, place, unit)


def in_rows(where: str) -> Place:
    """Places in a table whose rows count from 0."""
    return lambda row: f"{where}, row {row}"


def _parsed(texts: Sequence[str], name: str, place: Place) -> NDArray[np.datetime64]:
    times = np.empty(len(texts), np.int64)
    for row, text in enumerate(texts):
        try:
            moment = datetime.fromisoformat(text.strip())
            aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            times[row] = (aware - _EPOCH) // _MICROSECOND
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{place(row)}: {name!r} is {text!r}, which is no time: write it as "
                "2016-02-29T12:30:00+01:00"
            ) from error
    return times.view("datetime64[us]")


def _counted(values: NDArray[Any], name: str, place: Place, unit: Unit) -> NDArray[np.datetime64]:
    try:
        each = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}[unit]
    except KeyError as error:
        raise DataError(f"unit={unit!r}: times are counted in s, ms, us or ns") from error
    low, high = _YEARS.astype(np.int64) / each
    wrong = ~((values >= low) & (values < high))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{place(row)}: {name!r} is {values[row]}, which in {unit} since 1970 is beyond the "
            "years 1 to 9999: is the unit right?"
        )
    if values.dtype.kind == "f":
        return np.round(values.astype(np.float64) * each).astype(np.int64).view("datetime64[us]")
    whole = values.astype(np.int64)
    return cast(NDArray[np.datetime64], whole.view(f"datetime64[{unit}]").astype("datetime64[us]"))


def _wanted(
    time: str, text: str | None, columns: Sequence[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """The names that columns get, and those they have."""
    if isinstance(columns, str):
        raise DataError(f"columns={columns!r} is one name: give a list, columns=[{columns!r}]")
    if text is None and not columns:
        raise DataError("say what there is to learn from: name a column with text= or columns=")
    more = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns or ()}
    wanted = {"time": time} if text is None else {"time": time, "text": text}
    for name in wanted:
        if name in more:
            raise DataError(
                f"columns= names {name!r}, which stands for the column {wanted[name]!r}: give it "
                'another name, as in columns={"other": "name"}'
            )
    return wanted | more


def _suffix(path: Path) -> str:
    packed = path.suffix.lower() == ".gz"
    return Path(path.stem).suffix.lower() if packed else path.suffix.lower()


def _read_lines(
    paths: Sequence[Path], client: str, wanted: Mapping[str, str]
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], Place]:
    values: dict[str, list[Any]] = {name: [] for name in (client, *wanted.values())}
    lines: list[int] = []
    ends: list[int] = []
    for path in paths:
        packed = path.suffix.lower() == ".gz"
        try:
            with gzip.open(path) if packed else path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        _take(line, values, path, number)
                        lines.append(number)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        ends.append(len(lines))

    def place(row: int) -> str:
        return f"{paths[bisect_right(ends, row)]}, line {lines[row]}"

    owner = _array(values[client], client, place)
    if len(owner) and (owner.ndim != 1 or owner.dtype.kind not in "iT"):
        raise DataError(f"{place(0)}: the client {client!r} is neither an integer nor a string")
    return owner, {k: _array(values[v], v, place) for k, v in wanted.items()}, place


def _take(line: bytes, values: Mapping[str, list[Any]], path: Path, number: int) -> None:
    """Add the values of one line, of which none is missing."""
    try:
        # a str is read faster than bytes, but must not begin with a mark
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: no JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}, line {number}: no JSON object with a value for each column")
    for name, column in values.items():
        value = record.get(name)
        if value is None:
            what = "is null" if name in record else f"is missing; there are {', '.join(record)}"
            raise DataError(f"{path}, line {number}: {name!r} {what}")
        column.append(value)


def _array(values: list[Any], name: str, place: Place) -> NDArray[Any]:
    """Numbers, bools, texts, or lists of these of one length, as an array."""
    shape, flat = [len(values)], values
    while flat and isinstance(flat[0], list):
        each = len(flat[0])
        for number, value in enumerate(flat):
            if not isinstance(value, list) or len(value) != each or not each:
                row = number // int(np.prod(shape[1:]))
                raise DataError(
                    f"{place(row)}: {name!r} is no list of as many values as that of {place(0)}, "
                    f"{each}: pad or cut them to one length above 0"
                )
        shape.append(each)
        flat = [value for inner in flat for value in inner]
    kinds = [_KINDS.get(type(value)) for value in flat]
    kind = kinds[0] if kinds else "number"
    rows_each = int(np.prod(shape[1:]))
    for number, other in enumerate(kinds):
        if other != kind or other is None:
            raise DataError(
                f"{place(number // rows_each)}: {name!r} is {json.dumps(flat[number])[:40]}"
                + ("" if number == 0 else f", where that of {place(0)} is a {kind}")
                + ": numbers, texts, true and false can be read, and lists of them"
            )
    try:
        return _typed(flat, kind).reshape(shape)
    except (OverflowError, UnicodeEncodeError):
        for number, value in enumerate(flat):
            try:
                _typed([value], kind)
            except (OverflowError, UnicodeEncodeError) as error:
                at = place(number // rows_each)
                raise DataError(f"{at}: {name!r} cannot be kept: {error}") from error
        raise


def _typed(flat: list[Any], kind: str | None) -> NDArray[Any]:
    if kind == "text":
        return np.array(flat, np.dtypes.StringDType())
    if kind == "bool":
        return np.array(flat, np.bool_)
    whole = all(type(value) is int for value in flat)
    return np.array(flat, np.int64 if whole else np.float64)
