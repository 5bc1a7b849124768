"""The population: which client owns which examples, as columns and offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.checks import fitting, folder_of, number, whole
from hubless.data import files, tables
from hubless.data.index import Index, offsets_of, ranges
from hubless.data.partition import Parts, by_column
from hubless.errors import DataError
from hubless.rng import stream

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Population:
    """Clients and their examples: values in columns, one row per example, shared by all views.

    Client i owns the rows `rows[offsets[i]:offsets[i + 1]]` of every column. Nothing is kept per
    client but its offset, and its name if it has one, so ten million clients are one array of 80
    MB. `by`, `of` and `pooled` make one of data at hand.

    Args:
        columns: Arrays by name, all with a row per example.
        offsets: Where each client's stretch begins, from 0, and at the end the number of examples.
        rows: The rows of the columns in client order; None where columns stand in that order
            already.
        names: What clients are called, one name each; None if they are only numbered.

    >>> x, y = np.arange(8).reshape(4, 2), np.array([0, 1, 1, 0])
    >>> people = Population.by({"x": x, "y": y}, ["ann", "bob", "ann", "ann"])
    >>> len(people), people.examples, people.sizes, people.name(0)
    (2, 4, array([3, 1]), 'ann')
    >>> people.client(0)["y"]
    array([0, 1, 0])
    """

    columns: Columns
    offsets: Index
    rows: Index | None = None
    names: NDArray[Any] | Sequence[str] | None = None

    def __post_init__(self) -> None:
        columns = {name: _array(name, self.columns[name]) for name in _named(self.columns)}
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "offsets", _whole("offsets", self.offsets))
        if self.rows is not None:
            object.__setattr__(self, "rows", _whole("rows", self.rows))
        height = _height(columns)
        _check_offsets(self.offsets, height if self.rows is None else len(self.rows), self.rows)
        if self.rows is not None and len(self.rows):
            _check_rows(self.rows, height)
        if self.names is not None:
            fits = isinstance(self.names, Sequence | np.ndarray) and not isinstance(self.names, str)
            fitting("names", self.names, fits, "a name per client, in a list", error=DataError)
        if self.names is not None and len(self.names) != len(self):
            raise DataError(f"there are {len(self.names)} names for {len(self)} clients")

    @classmethod
    def pooled(cls, columns: Columns) -> Population:
        """One client that owns everything: a test set, or what a partition starts from.

        Args:
            columns: Arrays by name, all with a row per example.

        >>> Population.pooled({"y": np.arange(3)}).sizes
        array([3])
        """
        return cls(columns, np.array([0, _height(columns)]))

    @classmethod
    def by(cls, columns: Columns, client_ids: ArrayLike) -> Population:
        """One client per distinct id, in sorted order, its rows in the order they stand in.

        Args:
            columns: Arrays by name, all with a row per example.
            client_ids: Whose each row is: integers or texts.

        >>> Population.by({"y": np.array([5, 6, 7])}, [8, 3, 8]).client(1)["y"]
        array([5, 7])
        """
        ids = np.asarray(client_ids)
        if ids.shape != (_height(columns),):
            raise DataError(
                f"client ids have shape {ids.shape} and the columns {_height(columns)} rows: "
                "give one id per row"
            )
        return cls.pooled(columns).partition(by_column(ids))

    @classmethod
    def of(cls, columns: Columns, parts: Sequence[ArrayLike]) -> Population:
        """From one list of row numbers per client.

        Args:
            columns: Arrays by name, all with a row per example.
            parts: For each client the numbers of its rows; a list may be empty.

        >>> Population.of({"y": np.array([5, 6, 7])}, [[2, 0], []]).client(0)["y"]
        array([7, 5])
        """
        return cls.pooled(columns).partition(Parts.of(parts))

    @classmethod
    def from_parquet(
        cls,
        paths: str | Path | Sequence[str | Path],
        *,
        client: str,
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Population:
        """Read parquet files, one row per example, grouped by a column. Needs polars.

        Numbers, dates and lists of one length become arrays of their dtype, strings arrays of
        `numpy.dtypes.StringDType`.

        Args:
            paths: A file, or several that are read one after the other.
            client: The column that says whose each row is.
            columns: The columns to read, or a mapping from the names they get to the names they
                have in the files (`{"x": "text", "y": "label"}`); all of them if not given.
        """
        owner, read = tables.read_parquet(paths, client, columns)
        return cls.by(read, owner)

    @classmethod
    def from_huggingface(
        cls,
        dataset: tables.Dataset,
        *,
        client: str,
        columns: Sequence[str] | Mapping[str, str] | None = None,
    ) -> Population:
        """Read a `datasets.Dataset`, one row per example, grouped by a column. Needs polars.

        Args:
            dataset: What `datasets.load_dataset(..., split=...)` gives. It is read through Arrow.
            client: The column that says whose each row is.
            columns: As in `from_parquet`.
        """
        owner, read = tables.read_huggingface(dataset, client, columns)
        return cls.by(read, owner)

    @classmethod
    def open(cls, folder: str | Path, *, mmap: bool = True) -> Population:
        """What `save` wrote.

        Args:
            folder: Where it wrote.
            mmap: Read numbers from disk only when they are used; False reads all of them now.
        """
        path = folder_of("folder", folder, error=DataError)
        columns, offsets, rows, names = files.read(path, mmap)
        return cls(columns, offsets, rows, names)

    def save(self, folder: str | Path) -> None:
        """Write .npy files into a new folder, for `open`: no pickle, and views stay views.

        Args:
            folder: One that is not there yet, or is empty.
        """
        path = folder_of("folder", folder, error=DataError)
        files.write(path, self.columns, self.offsets, self.rows, self.names)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        columns = ", ".join(f"{k}: {v.dtype}{list(v.shape[1:])}" for k, v in self.columns.items())
        return f"Population({len(self)} clients, {self.examples} examples, {columns})"

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self)

    @property
    def examples(self) -> int:
        """How many examples all clients have together."""
        return int(self.offsets[-1])

    @property
    def sizes(self) -> Index:
        """How many examples each client has."""
        return np.diff(self.offsets)

    def name(self, client: int) -> str:
        """The name of a client; its number where clients have no names."""
        client = self._client(client)
        return str(client if self.names is None else self.names[client])

    def rows_of(self, client: int) -> Index:
        """The rows of the columns that a client owns."""
        client = self._client(client)
        start, stop = int(self.offsets[client]), int(self.offsets[client + 1])
        return np.arange(start, stop) if self.rows is None else self.rows[start:stop]

    def client(self, client: int) -> dict[str, NDArray[Any]]:
        """A client's examples, column by column."""
        client = self._client(client)
        stretch = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        rows = stretch if self.rows is None else self.rows[stretch]
        return {name: values[rows] for name, values in self.columns.items()}

    def partition(self, parts: Parts) -> Population:
        """The same examples dealt anew.

        Args:
            parts: Which examples each client gets, numbered in client order: what `iid`, `shards`,
                `dirichlet`, `label_skew` and `by_column` of `hubless.data` give.

        >>> from hubless.data import iid
        >>> digits = Population.pooled({"y": np.arange(100) % 10})
        >>> digits.partition(iid(100, clients=4, seed=1)).sizes
        array([25, 25, 25, 25])
        """
        takes = "a partition, such as hubless.data.iid(examples, clients)"
        fitting("parts", parts, isinstance(parts, Parts), takes, error=DataError)
        if len(parts.rows):
            _check_rows(parts.rows, self.examples)
        if self.rows is not None:
            return Population(self.columns, parts.offsets, self.rows[parts.rows], parts.names)
        in_order = len(parts.rows) == self.examples and bool(
            (parts.rows[1:] > parts.rows[:-1]).all()
        )
        return Population(
            self.columns, parts.offsets, None if in_order else parts.rows, parts.names
        )

    def select(self, clients: ArrayLike) -> Population:
        """Only these clients, in this order: a view.

        Args:
            clients: Their numbers.

        >>> Population.of({"y": np.arange(4)}, [[0], [1, 2], [3]]).select([2, 1]).sizes
        array([1, 2])
        """
        chosen = np.asarray(clients)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise DataError(f"clients are chosen by a list of numbers, not {chosen.dtype}")
        if chosen.size and (chosen.min() < 0 or chosen.max() >= len(self)):
            wrong = chosen[(chosen < 0) | (chosen >= len(self))][0]
            raise DataError(f"there is no client {wrong}: the population has {len(self)}")
        sizes = self.offsets[chosen + 1] - self.offsets[chosen]
        places = ranges(self.offsets[chosen], sizes)
        names = None if self.names is None else np.asarray(self.names)[chosen]
        rows = places if self.rows is None else self.rows[places]
        return Population(self.columns, offsets_of(sizes), rows, names)

    def where(self, mask: ArrayLike) -> Population:
        """Only some rows; every client keeps its place, if with no examples.

        Args:
            mask: One bool for each row of the columns, as they stand, not in client order.

        >>> people = Population.of({"month": np.array([1, 2, 2])}, [[0], [1, 2]])
        >>> people.where(people.columns["month"] == 2).sizes
        array([0, 2])
        """
        kept, height = np.asarray(mask), _height(self.columns)
        if kept.shape != (height,) or kept.dtype != np.bool_:
            raise DataError(
                f"the mask is {kept.dtype} of shape {kept.shape}: give one bool for each of the "
                f"columns' {height} rows"
            )
        return self._kept(kept if self.rows is None else kept[self.rows])

    def packed(self) -> Population:
        """The same clients with the values copied into client order, and no more than theirs."""
        if self.rows is None:
            return self
        columns = {name: values[self.rows] for name, values in self.columns.items()}
        return Population(columns, self.offsets, None, self.names)

    def split(self, share: float, *, seed: int | None = None) -> tuple[Population, Population]:
        """Cut every client in two: all but a share of its examples, and that share.

        The share is rounded down, but a client with two examples or more has at least one on either
        side; a single example stays on the first.

        Args:
            share: Of each client's examples, between 0 and 1.
            seed: Takes random examples. Without it the last ones are taken: the latest, where rows
                stand in time.

        >>> train, test = Population.of({"y": np.arange(6)}, [range(5), [5]]).split(0.2)
        >>> train.sizes, test.sizes
        (array([4, 1]), array([1, 0]))
        """
        number("share", share, above=0, below=1, error=DataError)
        if seed is not None:
            whole("seed", seed, least=0, error=DataError)
        sizes = self.sizes
        # 0.29 of 100 is 28.999999999999996 in floating point, and means 29
        cut = np.clip(np.floor(sizes * share + 1e-9).astype(np.int64), 1, np.maximum(sizes - 1, 1))
        cut[sizes < 2] = 0
        place = ranges(np.zeros(len(self), np.int64), sizes)
        if seed is not None:
            keys = stream(seed, "split").random(self.examples)
            order = np.lexsort((keys, np.repeat(np.arange(len(self)), sizes)))
            place[order] = place.copy()
        second = place >= np.repeat(sizes - cut, sizes)
        return self._kept(~second), self._kept(second)

    def _kept(self, kept: NDArray[np.bool_]) -> Population:
        """The examples that satisfy a mask over all examples in client order."""
        rows = np.flatnonzero(kept) if self.rows is None else self.rows[kept]
        return replace(self, offsets=offsets_of(kept)[self.offsets], rows=rows)

    def _client(self, client: int) -> int:
        if not isinstance(client, Integral) or not 0 <= client < len(self):
            raise DataError(f"there is no client {client}: the population has {len(self)}")
        return int(client)


def _named(columns: Any) -> Columns:
    takes = 'arrays by name, such as {"x": x, "y": y}'
    fitting("columns", columns, isinstance(columns, Mapping), takes, error=DataError)
    given: Columns = columns
    return given


def _array(name: str, values: Any) -> NDArray[Any]:
    try:
        return np.asanyarray(values)
    except ValueError as error:
        raise DataError(f"column {name!r} cannot be an array: {error}") from error


def _height(columns: Columns) -> int:
    if not _named(columns):
        raise DataError("a population needs at least one column of values")
    heights = {}
    for name, values in columns.items():
        if not np.ndim(values):
            raise DataError(f"column {name!r} is a single value: give an array with a row each")
        heights[name] = len(values)
    (first, height), *others = heights.items()
    for name, other in others:
        if other != height:
            raise DataError(f"column {first!r} has {height} rows and column {name!r} has {other}")
    return height


def _whole(what: str, values: ArrayLike) -> Index:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{what} are {array.dtype} of shape {array.shape}: give a list of integers")
    return array.astype(np.int64, copy=False)


def _check_offsets(offsets: Index, examples: int, rows: Index | None) -> None:
    if len(offsets) == 0 or offsets[0] != 0:
        fault = "are empty" if len(offsets) == 0 else f"start at {offsets[0]}"
        raise DataError(f"offsets {fault}: they start at 0 and end each client in turn")
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        client = int(falls.argmax())
        raise DataError(
            f"offsets fall from {offsets[client]} to {offsets[client + 1]} at client {client}"
        )
    if offsets[-1] != examples:
        where = "the columns have" if rows is None else "there are"
        raise DataError(f"offsets end at {offsets[-1]} but {where} {examples} rows")


def _check_rows(rows: Index, height: int) -> None:
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= height:
        raise DataError(f"row {low if low < 0 else high} is out of range: there are {height} rows")
