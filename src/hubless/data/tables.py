"""Columns out of tables (parquet files, Hugging Face datasets), by way of polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubless.errors import DataError

if TYPE_CHECKING:
    import polars as pl

Wanted = Sequence[str] | Mapping[str, str] | None
Table = tuple[NDArray[Any], dict[str, NDArray[Any]]]


class Dataset(Protocol):
    """What is used of a `datasets.Dataset`."""

    @property
    def column_names(self) -> list[str]: ...
    def select_columns(self, column_names: list[str]) -> Dataset: ...
    def with_format(self, type: str) -> Dataset: ...
    def __getitem__(self, key: slice) -> Any: ...


def read_parquet(
    paths: str | Path | Sequence[str | Path], client: str, columns: Wanted = None
) -> Table:
    """The client of every row, and the wanted columns."""
    pl = polars()
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    where = ", ".join(str(path) for path in listed)
    try:
        frame = pl.scan_parquet(listed)
        names = frame.collect_schema().names()
        wanted = _wanted(columns, client, names, where)
        frame = frame.select(_stored(client, wanted)).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        # polars adds its whole query plan below the first line
        why = str(error).partition("\n")[0]
        raise DataError(f"{where} cannot be read as parquet: {why}") from error
    return _columns(frame, client, wanted, where)


def read_huggingface(dataset: Dataset, client: str, columns: Wanted = None) -> Table:
    """The client of every row, and the wanted columns, of a `datasets.Dataset`."""
    pl = polars()
    wanted = _wanted(columns, client, dataset.column_names, "the dataset")
    # this format applies the dataset's own selection and shuffling, without a copy of the rest
    table = dataset.select_columns(_stored(client, wanted)).with_format("arrow")[:]
    for place, field in enumerate(table.schema):
        storage = getattr(field.type, "storage_type", None)
        if storage is not None:
            table = table.set_column(place, field.name, table.column(place).cast(storage))
    return _columns(pl.from_arrow(table), client, wanted, "the dataset")


def polars() -> ModuleType:
    """Polars, or an error that says how to get it."""
    try:
        import polars
    except ImportError as error:
        raise DataError("reading tables needs polars: pip install 'hubless[data]'") from error
    return polars


def array_of(series: pl.Series, where: str) -> NDArray[Any]:
    """A column of numbers, dates, strings or equally long lists as an array.

    >>> array_of(polars().Series("x", [[1, 2], [3, 4]]), "here")
    array([[1, 2], [3, 4]])
    """
    pl = polars()
    column, shape = series, [len(series)]
    _no_nulls(column, series.name, where, rows_each=1)
    while isinstance(column.dtype, pl.List | pl.Array):
        sizes = column.list.len() if isinstance(column.dtype, pl.List) else column.arr.len()
        each = int(sizes[0]) if len(sizes) else 0
        wrong = (sizes != each) | (sizes == 0)
        if wrong.any():
            row = int(wrong.arg_true()[0])
            raise DataError(
                f"{where}: the list in column {series.name!r} at row "
                f"{row // int(np.prod(shape[1:]))} holds {sizes[row]} values and the first {each}: "
                "pad or cut them to one length above 0"
            )
        shape.append(each)
        column = column.explode()
        _no_nulls(column, series.name, where, rows_each=int(np.prod(shape[1:])))
    return _flat(column, series.name, where).reshape(shape)


def _flat(column: pl.Series, name: str, where: str) -> NDArray[Any]:
    pl = polars()
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return np.array(column.cast(pl.String).to_list(), np.dtypes.StringDType())
    plain = column.dtype in (pl.Boolean, pl.Date, pl.Datetime)
    if plain or column.dtype.is_integer() or column.dtype.is_float():
        return np.asarray(column.to_numpy(writable=True))
    raise DataError(
        f"{where}: column {name!r} holds {column.dtype}; numbers, dates, strings and lists of "
        "them can be read: convert it, or leave it out of columns="
    )


def _columns(frame: pl.DataFrame, client: str, wanted: Mapping[str, str], where: str) -> Table:
    owner = array_of(frame[client], where)
    if owner.ndim != 1 or owner.dtype.kind not in "iubT":
        raise DataError(f"{where}: the client column {client!r} holds neither integers nor strings")
    return owner, {name: array_of(frame[stored], where) for name, stored in wanted.items()}


def _wanted(columns: Wanted, client: str, there: Sequence[str], where: str) -> dict[str, str]:
    if columns is None:
        columns = [name for name in there if name != client]
    elif isinstance(columns, str):
        raise DataError(f"columns={columns!r} is one name: give a list, columns=[{columns!r}]")
    wanted = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    for name in (client, *wanted.values()):
        if name not in there:
            raise DataError(f"{where} has no column {name!r}; there are {', '.join(there)}")
    return wanted


def _stored(client: str, wanted: Mapping[str, str]) -> list[str]:
    """The columns to read, each once."""
    return list(dict.fromkeys([client, *wanted.values()]))


def _no_nulls(column: pl.Series, name: str, where: str, rows_each: int) -> None:
    if column.null_count():
        row = int(column.is_null().arg_true()[0]) // rows_each
        raise DataError(
            f"{where}: column {name!r} is null at row {row}: fill it or drop the row first"
        )
