"""Reducers: many arrays into one."""

from __future__ import annotations

from dataclasses import dataclass

from hubless.params import Array, add_scaled, scaled, sort_rows, stack


@dataclass(frozen=True)
class Mean:
    """The weighted mean, one array at a time."""

    streaming = True

    def add(self, total: Array | None, array: Array, weight: float, spent: bool = False) -> Array:
        if total is None:
            return scaled(array, weight, spent)
        add_scaled(total, array, weight, spent)
        return total

    def finish(self, total: Array) -> Array:
        return total


@dataclass(frozen=True)
class TrimmedMean:
    """Per element: drop the `cut` share of values at each end, average the rest, unweighted.

    Withstands up to that share of clients sending anything at all (Yin et al. 2018).
    """

    cut: float = 0.2
    streaming = False

    def __post_init__(self) -> None:
        if not 0 <= self.cut < 0.5:
            raise ValueError(f"the share cut at each end must be in [0, 0.5), not {self.cut}")

    def add(
        self, total: list[Array] | None, array: Array, weight: float, spent: bool = False
    ) -> list[Array]:
        return [*(total or []), scaled(array, 1.0)]

    def finish(self, total: list[Array]) -> Array:
        # the small excess keeps 0.2 * 5 from becoming 0.999... and so 0
        drop = int(self.cut * len(total) + 1e-9)
        return sort_rows(stack(total))[drop : len(total) - drop].mean(0)


@dataclass(frozen=True)
class Median:
    """Per element, the middle value, unweighted (Yin et al. 2018)."""

    streaming = False

    def add(
        self, total: list[Array] | None, array: Array, weight: float, spent: bool = False
    ) -> list[Array]:
        return [*(total or []), scaled(array, 1.0)]

    def finish(self, total: list[Array]) -> Array:
        rows = sort_rows(stack(total))
        middle = len(total) // 2
        return rows[middle] if len(total) % 2 else (rows[middle - 1] + rows[middle]) / 2
