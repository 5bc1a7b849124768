"""Reducers: many arrays into one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hubless.checks import number
from hubless.errors import StrategyError
from hubless.params import Array, add_scaled, assign, is_tensor, scaled, sort_rows, stack, to_numpy
from hubless.strategy.look import hostile_among

_COLUMNS = 1 << 16
"""How many elements are sorted at a time: rows of all updates stay in a core's cache."""


@dataclass(frozen=True)
class Mean:
    """The weighted mean Σ w_i · x_i, one array at a time: memory does not grow with the updates."""

    streaming = True
    linear = True

    def add(self, total: Array | None, array: Array, weight: float, spent: bool = False) -> Array:
        if total is None:
            return scaled(array, weight, spent)
        add_scaled(total, array, weight, spent)
        return total

    def finish(self, total: Array) -> Array:
        return total


@dataclass(frozen=True)
class TrimmedMean:
    """Per element the mean without the smallest and the largest values, unweighted.

        mean of the values with rank c + 1 to n - c        c = ⌊cut · n⌋, of n values

    Args:
        cut: The share dropped at each end, in [0, 0.5): that many clients may send anything.

    Reference:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        2018, Definition 2.
    """

    cut: float = 0.2
    streaming = False
    linear = False

    def __post_init__(self) -> None:
        number("cut", self.cut, least=0, below=0.5, error=StrategyError)

    def add(
        self, total: list[Array] | None, array: Array, weight: float, spent: bool = False
    ) -> list[Array]:
        return [*(total or []), scaled(array, 1.0)]

    def finish(self, total: list[Array]) -> Array:
        drop = hostile_among(self.cut, len(total))
        for into, rows in _columns(total):
            into[...] = sort_rows(rows)[drop : len(total) - drop].mean(0)
        return total[0]


@dataclass(frozen=True)
class Median:
    """Per element the middle value, unweighted; of an even number, the mean of the middle two.

    Reference:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        2018, Definition 1.
    """

    streaming = False
    linear = False

    def add(
        self, total: list[Array] | None, array: Array, weight: float, spent: bool = False
    ) -> list[Array]:
        return [*(total or []), scaled(array, 1.0)]

    def finish(self, total: list[Array]) -> Array:
        middle = len(total) // 2
        for into, rows in _columns(total):
            rows = sort_rows(rows)
            if len(total) % 2:
                into[...] = rows[middle]
            else:
                into[...] = (rows[middle - 1] + rows[middle]) / 2
        return total[0]


class _Weighed:
    """Keeps every array with its weight, for what cannot be told before all are there."""

    streaming = False
    linear = False

    def add(
        self,
        total: list[tuple[Array, float]] | None,
        array: Array,
        weight: float,
        spent: bool = False,
    ) -> list[tuple[Array, float]]:
        return [*(total or []), (scaled(array, 1.0), weight)]


@dataclass(frozen=True)
class Middle(_Weighed):
    """Per element the value at which half of the weight is reached, from the smallest value up.

    It is always a value that somebody sent, so a counter stays whole. A client with less than half
    of the weight cannot move it beyond the values of the others.
    """

    def finish(self, total: list[tuple[Array, float]]) -> Array:
        arrays = [array for array, _ in total]
        weights = np.array([weight for _, weight in total])
        for into, rows in _columns(arrays):
            values = to_numpy("rows", rows)
            order = np.argsort(values, axis=0, kind="stable")
            reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 - 1e-12
            chosen = np.take_along_axis(order, reached.argmax(0)[None], 0)
            _put(into, np.take_along_axis(values, chosen, 0)[0])
        return arrays[0]


@dataclass(frozen=True)
class NearMedian(_Weighed):
    """Per element the mean of the values nearest to the median, of those updates that count.

        keep = max(1, 2 m - n)        m of n updates have a weight above 0

    Their weights do not matter beyond that. For each update that does not count, one value of the
    others is left out as well, so that with Bulyan's weights n - 4 f values are averaged.

    Reference:
        El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in
        Byzantium", 2018.
    """

    def finish(self, total: list[tuple[Array, float]]) -> Array:
        arrays = [array for array, weight in total if weight > 0]
        keep = max(1, 2 * len(arrays) - len(total))
        for into, rows in _columns(arrays):
            values = to_numpy("rows", rows)
            away = np.abs(values - np.median(values, axis=0))
            nearest = np.argsort(away, axis=0, kind="stable")[:keep]
            _put(into, np.take_along_axis(values, nearest, 0).mean(0))
        return arrays[0]


def _put(into: Array, values: NDArray[Any]) -> None:
    if is_tensor(into):
        assign(cast(Any, into), values)
    else:
        cast(NDArray[Any], into)[...] = values


def _columns(arrays: list[Array]) -> Iterator[tuple[Array, Array]]:
    """A few elements of all arrays at a time, as rows, and where in the first one they lie."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, len(flat[0]), _COLUMNS):
        chosen = [array[start : start + _COLUMNS] for array in flat]
        yield chosen[0], stack(chosen)
