"""Partitions: ways to deal examples to clients, each example exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.checks import fitting
from hubless.data.index import Index, grouped, offsets_of, ranges
from hubless.errors import DataError
from hubless.rng import stream


@dataclass(frozen=True, eq=False)
class Parts:
    """Which examples each client gets: client i has `rows[offsets[i]:offsets[i + 1]]`.

    Args:
        rows: Numbers of examples, those of client 0 first.
        offsets: Where each client's stretch of `rows` begins, and at the end its length.
        names: What clients are called, if they have names.

    >>> parts = Parts.of([[3, 1], [], [0, 2]])
    >>> len(parts), parts.rows_of(2)
    (3, array([0, 2]))
    """

    rows: Index
    offsets: Index
    names: NDArray[Any] | None = None

    @classmethod
    def of(cls, parts: Sequence[ArrayLike]) -> Parts:
        """From one list of example numbers per client.

        Args:
            parts: For each client the numbers of its examples, counted from 0; a list may be empty.
        """
        fits = isinstance(parts, Iterable) and not isinstance(parts, str)
        takes = "a list of example numbers for each client"
        fitting("parts", parts, fits, takes, error=DataError)
        arrays = [np.asarray(part) for part in parts]
        for client, array in enumerate(arrays):
            if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
                raise DataError(
                    f"part {client} is {array.dtype} of shape {array.shape}: "
                    "give each client a list of example numbers"
                )
        sizes = np.array([array.size for array in arrays], np.int64)
        rows = [array.ravel().astype(np.int64) for array in arrays]
        return cls(np.concatenate([np.empty(0, np.int64), *rows]), offsets_of(sizes))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Index:
        """How many examples each client gets."""
        return np.diff(self.offsets)

    def rows_of(self, client: int) -> Index:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]


def iid(examples: int, clients: int, *, seed: int = 0, sizes: ArrayLike | None = None) -> Parts:
    """Shuffled and cut: equal parts, or parts in proportion to `sizes`; nobody gets nothing.

    Args:
        examples: How many there are.
        clients: Among how many they are dealt.
        seed: The same seed deals the same way.
        sizes: One number above 0 per client; only proportions count. Sizes that add up to
            `examples` are met exactly. See `lognormal_sizes`.

    >>> iid(10, clients=3).sizes
    array([4, 3, 3])
    >>> iid(10, clients=3, sizes=[1, 7, 2]).sizes
    array([1, 7, 2])
    """
    _enough(examples, clients)
    wanted = np.ones(clients) if sizes is None else np.asarray(sizes, np.float64)
    if wanted.shape != (clients,):
        raise DataError(f"sizes has shape {wanted.shape}: give one for each of {clients} clients")
    if not (np.isfinite(wanted).all() and (wanted > 0).all()):
        client = int(np.flatnonzero(~(np.isfinite(wanted) & (wanted > 0)))[0])
        raise DataError(f"the size of client {client} is {wanted[client]}: give sizes above 0")
    counts = _apportion(examples, wanted)
    return Parts(stream(seed, "partition", "iid").permutation(examples), offsets_of(counts))


def lognormal_sizes(clients: int, *, spread: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """Proportions as uneven as users are, for the `sizes` of `iid`.

        size = e^(spread · z)        z normal, drawn for each client

    Args:
        clients: How many there are.
        spread: The standard deviation of the logarithm, at least 0. 0 makes all equal; with 1.5 the
            busiest tenth has more than half of all examples.
        seed: The same seed gives the same sizes.

    >>> iid(1000, clients=4, sizes=lognormal_sizes(4, spread=1.5)).sizes
    array([ 30,  18,  75, 877])
    """
    if not spread >= 0:
        raise DataError(f"the spread of log-normal sizes is 0 or above, not {spread}")
    return stream(seed, "partition", "lognormal").lognormal(0.0, spread, clients)


def shards(labels: ArrayLike, clients: int, *, each: int = 2, seed: int = 0) -> Parts:
    """Sorted by label, cut into `clients · each` equal shards, and `each` dealt to every client.

    With two shards of MNIST, most clients know two digits.

    Args:
        labels: One per example.
        clients: Among how many they are dealt.
        each: Shards per client, at least 1. The fewer, the fewer labels a client knows; 2 is the
            paper's.
        seed: The same seed deals the same way.

    >>> shards([0, 1, 0, 1, 0, 1, 0, 1], clients=2).sizes
    array([4, 4])

    Reference:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        2017, section 3.
    """
    column = _labels(labels)
    if each < 1:
        raise DataError(f"every client is dealt at least 1 shard, not {each}")
    number = clients * each
    _enough(len(column), clients, each)
    order = np.argsort(column, kind="stable")
    cuts = np.arange(number + 1, dtype=np.int64) * len(column) // number
    dealt = stream(seed, "partition", "shards").permutation(number)
    sizes = np.diff(cuts)[dealt]
    rows = order[ranges(cuts[:-1][dealt], sizes)]
    return Parts(rows, offsets_of(sizes.reshape(clients, each).sum(axis=1)))


def dirichlet(
    labels: ArrayLike, clients: int, alpha: float, *, seed: int = 0, least: int = 1
) -> Parts:
    """Every label is shared out among clients in proportions drawn from a Dirichlet distribution.

        proportions of a label over clients ~ Dirichlet(alpha, ..., alpha)

    Clients then differ both in their labels and in how much they have. A client that ends with
    fewer than `least` examples is topped up with random ones of the largest clients. Drawing again
    instead might never end.

    Args:
        labels: One per example.
        clients: Among how many they are dealt.
        alpha: How even it is, above 0. 0.1 gives each label to few clients, 1 is mildly uneven, and
            from 100 on it is nearly `iid`.
        seed: The same seed deals the same way.
        least: The number of examples that every client has at least.

    >>> dirichlet([0] * 50 + [1] * 50, clients=4, alpha=0.3, least=5).sizes
    array([31, 59,  5,  5])

    Reference:
        Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", 2019.
    """
    column = _labels(labels)
    if not (np.isfinite(alpha) and alpha > 0):
        raise DataError(f"the alpha of a Dirichlet partition is a number above 0, not {alpha}")
    _enough(len(column), clients, least)
    rng = stream(seed, "partition", "dirichlet")
    owner = np.empty(len(column), np.int64)
    ends = offsets_of(np.unique_counts(column).counts)
    order = np.argsort(column, kind="stable")
    for start, stop in pairwise(ends):
        rows = rng.permutation(order[start:stop])
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
        owner[rows] = np.searchsorted(cuts, (np.arange(len(rows)) + 0.5) / len(rows))
    _top_up(owner, clients, least, rng)
    return Parts(*grouped(owner, clients))


def label_skew(labels: ArrayLike, clients: int, skew: float, *, seed: int = 0) -> Parts:
    """With probability `skew` an example goes to the client of its label, else to anyone.

    The distinct labels, in order, are cut into one group per client: with two clients, digits 0 to
    4 and 5 to 9. Few examples may leave a client with none.

    Args:
        labels: One per example.
        clients: Among how many they are dealt; at most as many as there are labels.
        skew: In [0, 1]. At 0 the split is random, at 1 no label is shared.
        seed: The same seed deals the same way.

    >>> label_skew([0, 1, 2, 3], clients=2, skew=1.0).rows
    array([0, 1, 2, 3])

    Reference:
        Namjoshi, Green, Sharma and Si, "Serverless Federated Learning with flwr-serverless", 2023,
        section 4.1.
    """
    column = _labels(labels)
    if not 0 <= skew <= 1:
        raise DataError(f"the label skew is a probability from 0 to 1, not {skew}")
    distinct, rank = np.unique(column, return_inverse=True)
    if not 1 <= clients <= len(distinct):
        raise DataError(
            f"label skew gives every client labels of its own: {len(distinct)} labels are not "
            f"enough for {clients} clients; use fewer clients, shards or dirichlet"
        )
    rng = stream(seed, "partition", "label skew")
    anyone = rng.integers(clients, size=len(column))
    own = rng.random(len(column)) < skew
    return Parts(*grouped(np.where(own, rank * clients // len(distinct), anyone), clients))


def by_column(values: ArrayLike) -> Parts:
    """One client for each distinct value, named after it, in sorted order.

    Args:
        values: Whose each example is: integers or texts.

    >>> parts = by_column(["ann", "bob", "ann"])
    >>> parts.names, parts.rows_of(0)
    (array(['ann', 'bob'], dtype='<U3'), array([0, 2]))
    """
    column = _labels(values)
    names, owner = np.unique(column, return_inverse=True)
    return Parts(*grouped(owner, len(names)), names)


def _labels(values: ArrayLike) -> NDArray[Any]:
    column = np.asarray(values)
    if column.ndim != 1:
        raise DataError(f"labels have shape {column.shape}: give one per example")
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column):
        # as polars and pandas give texts
        column = column.astype(np.dtypes.StringDType())
    if column.dtype.kind not in "iubUST":
        raise DataError(f"labels or client ids are {column.dtype}: give integers or strings")
    return column


def _enough(examples: int, clients: int, least: int = 1) -> None:
    if clients < 1:
        raise DataError(f"a partition is among at least 1 client, not {clients}")
    if examples < clients * least:
        raise DataError(
            f"{examples} examples are too few for {clients} clients with at least {least} each"
        )


def _apportion(total: int, weights: NDArray[np.float64]) -> Index:
    """Whole numbers, at least 1 each, that add up to the total in proportion to the weights."""
    small = np.zeros(len(weights), np.bool_)
    # raising some clients to 1 lowers the others' quota, which may bring more of them below 1
    while True:
        scale = (total - int(small.sum())) / weights[~small].sum()
        quota = np.where(small, 1.0, weights * scale)
        if not (quota < 1 - 1e-9).any():
            break
        small |= quota < 1 - 1e-9
    # a quota that is a whole number but for rounding counts as that number
    counts = np.maximum(np.floor(quota + 1e-9), 1).astype(np.int64)
    order = np.argsort(counts - quota, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def _top_up(owner: Index, clients: int, least: int, rng: np.random.Generator) -> None:
    """Move random examples from the largest clients to those below `least`, in place."""
    sizes = np.bincount(owner, minlength=clients)
    needed = np.maximum(least - sizes, 0)
    missing = int(needed.sum())
    if not missing:
        return
    low, high = least, int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= missing:
            low = level
        else:
            high = level - 1
    given = np.maximum(sizes - low - 1, 0)
    given[np.flatnonzero(sizes > low)[: missing - int(given.sum())]] += 1
    shuffled = rng.permutation(len(owner))
    rows, offsets = grouped(owner[shuffled], clients)
    movers = shuffled[rows[ranges(offsets[:-1], given)]]
    owner[rng.permutation(movers)] = np.repeat(np.arange(clients), needed)
