"""Numbers per example, checked and added up by group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.data.index import Index
from hubless.errors import DataError

Floats = NDArray[np.float64]
Describe = Callable[[int], str]


def example(place: int) -> str:
    """What an example is called in an error where no more is known of it."""
    return f"example {place}"


def numbers(what: str, values: ArrayLike, length: int | None = None) -> Floats:
    """A flat array of floats, as long as it has to be.

    >>> numbers("losses", [1, 2])
    array([1., 2.])
    """
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        raise DataError(
            f"{what} are {array.dtype} of shape {array.shape}: give a flat list of numbers"
        )
    if length is not None and len(array) != length:
        raise DataError(f"there are {len(array)} {what} for {length} examples")
    return array.astype(np.float64, copy=False)


def whole(what: str, values: ArrayLike, length: int | None = None, of: Describe = example) -> Index:
    """Numbers of something: whole and not negative, whatever their dtype.

    >>> whole("tokens", np.array([3.0, 0.0], np.float32))
    array([3, 0])
    """
    array = np.asarray(values)
    if array.dtype.kind in "iu" and array.ndim == 1 and length in (None, len(array)):
        counts = array.astype(np.int64, copy=False)
        refuse(
            counts < 0, lambda i: f"{of(i)} has {counts[i]} {what}: give whole numbers from 0 on"
        )
        return counts
    floats = numbers(what, array, length)
    wrong = ~(np.isfinite(floats) & (floats >= 0) & (floats == np.rint(floats)))
    refuse(wrong, lambda i: f"{of(i)} has {floats[i]:g} {what}: give whole numbers from 0 on")
    return floats.astype(np.int64)


def groups_of(group: ArrayLike, length: int, groups: int | None = None) -> tuple[Index, int]:
    """The group of every example, -1 for none, and how many groups there are."""
    member = np.asarray(group)
    if member.shape != (length,) or (member.size and member.dtype.kind not in "iu"):
        raise DataError(
            f"groups are {member.dtype} of shape {member.shape}: give a number for each of "
            f"{length} examples"
        )
    member = member.astype(np.int64, copy=False)
    count = int(member.max(initial=-1)) + 1 if groups is None else groups
    wrong = (member < -1) | (member >= count)
    refuse(wrong, lambda i: f"example {i} is of group {member[i]}, and there are {count}")
    return member, count


def added(values: NDArray[Any], member: Index, count: int) -> Floats:
    """The sum within each group.

    >>> added(np.array([1.0, 2.0, 4.0]), np.array([1, -1, 1]), 2)
    array([0., 5.])
    """
    # one bin more, in front, for those of no group: cheaper than to pick the others out
    return np.bincount(member + 1, values, count + 1)[1:].astype(np.float64, copy=False)


def counted(member: Index, count: int) -> Index:
    """How many there are in each group."""
    return np.bincount(member + 1, minlength=count + 1)[1:]


def refuse(wrong: NDArray[np.bool_], message: Callable[[int], str]) -> None:
    """Raise with what the message says of the first that is wrong, if any is."""
    if wrong.any():
        raise DataError(message(int(wrong.argmax())))
