"""Arithmetic on offsets: many stretches of rows at once, without a Python loop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


def offsets_of(sizes: Index | NDArray[np.bool_]) -> Index:
    """Where each stretch starts when stretches of these sizes follow each other, and the end.

    >>> offsets_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def ranges(starts: Index, sizes: Index) -> Index:
    """The numbers from each start on, as many as its size says, one stretch after the other.

    >>> ranges(np.array([10, 50]), np.array([3, 2]))
    array([10, 11, 12, 50, 51])
    """
    offsets = offsets_of(sizes)
    numbers = np.arange(offsets[-1], dtype=np.int64)
    numbers += np.repeat(np.asarray(starts, np.int64) - offsets[:-1], sizes)
    return numbers


def tenths(counts: Index) -> Index:
    """In which tenth each stands when all are ranked by a count, 1 to 10; 0 for who has none.

    Equal counts stand in the order they come in. Each takes an equal stretch of the line from 0
    to 1 and is in the tenth its middle falls into, so fewer than ten spread evenly.

    >>> tenths(np.array([7, 0, 2]))
    array([8, 0, 3])
    """
    there = np.flatnonzero(counts)
    rank = np.empty(len(there), np.int64)
    rank[np.argsort(counts[there], kind="stable")] = np.arange(len(there))
    tenth = np.zeros(len(counts), np.int64)
    # 10 (rank + 1/2) / how many, in whole numbers
    tenth[there] = 1 + 10 * (2 * rank + 1) // (2 * max(len(there), 1))
    return tenth


def grouped(owner: Index, groups: int) -> tuple[Index, Index]:
    """The rows of each group one group after the other, in their own order, and the offsets.

    >>> grouped(np.array([1, 0, 1]), 2)
    (array([1, 0, 2]), array([0, 1, 3]))
    """
    rows = np.argsort(owner, kind="stable")
    return rows, offsets_of(np.bincount(owner, minlength=groups))


def in_turn(values: Index) -> Iterator[Index]:
    """Everyone's places, those of a value that is there several times one after the other.

    >>> [places.tolist() for places in in_turn(np.array([3, 5, 3, 3]))]
    [[0, 1], [2], [3]]
    """
    left = np.arange(len(values))
    while len(left):
        _, first = np.unique(values[left], return_index=True)
        yield left[np.sort(first)]
        left = np.delete(left, first)
