"""How often selectors should pick whom, computed exactly, and whether they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Subsets = dict[tuple[int, ...], float]


def successive(weights: Sequence[float], k: int) -> Subsets:
    """The probability of each set of `k`, by going through every order of drawing it."""
    exact = [Fraction(weight) for weight in weights]
    found: dict[tuple[int, ...], Fraction] = {}
    for order in permutations([i for i, weight in enumerate(exact) if weight], k):
        left, chance = sum(exact), Fraction(1)
        for client in order:
            chance, left = chance * exact[client] / left, left - exact[client]
        key = tuple(sorted(order))
        found[key] = found.get(key, Fraction(0)) + chance
    return {key: float(chance) for key, chance in found.items()}


def inclusion(subsets: Subsets, clients: int) -> NDArray[np.float64]:
    """The probability of each client to be in the set."""
    chances = np.zeros(clients)
    for subset, chance in subsets.items():
        chances[list(subset)] += chance
    return chances


def drawn(pick: Callable[[], NDArray[np.int64]], times: int) -> Counter[tuple[int, ...]]:
    """How often each set came out."""
    return Counter(tuple(sorted(pick().tolist())) for _ in range(times))


def fits(seen: Mapping[tuple[int, ...], int], expected: Subsets) -> bool:
    """Whether counts agree with probabilities: chi-square, to be wrong once in 10^5 times.

    What is expected fewer than five times is counted together; what cannot be must not be there.
    """
    times = sum(seen.values())
    if any(expected.get(key, 0.0) == 0.0 for key in seen):
        return False
    cells: list[tuple[float, float]] = []
    rare = [0.0, 0.0]
    for key, chance in expected.items():
        if times * chance >= 5:
            cells.append((seen.get(key, 0), times * chance))
        else:
            rare = [rare[0] + seen.get(key, 0), rare[1] + times * chance]
    if rare[1] >= 5:
        cells.append((rare[0], rare[1]))
    elif rare[0] > rare[1] + 5 * np.sqrt(rare[1]) + 4:
        return False
    if len(cells) < 2:
        return True
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    # Wilson and Hilferty (1931): the cube root of a chi-square is nearly normal
    free = len(cells) - 1
    return bool((statistic / free) ** (1 / 3) < 1 - 2 / (9 * free) + 4.3 * np.sqrt(2 / (9 * free)))


def often(
    pick: Callable[[], NDArray[np.int64]], chances: NDArray[np.float64], times: int
) -> NDArray[np.float64]:
    """By how many standard deviations each client was picked too often or too rarely.

    Whoever is certain must always be there and whoever has no chance never: infinite otherwise.
    """
    counts = np.zeros(len(chances))
    for _ in range(times):
        counts[pick()] += 1
    spread = np.sqrt(times * chances * (1 - chances))
    off = counts - times * chances
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(off) < 1e-6, 0.0, np.abs(off) / spread)
