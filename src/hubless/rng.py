"""Random streams: one independent generator per seed and purpose, the same on every machine."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator for one purpose, unaffected by how often any other stream was drawn from.

    >>> int(stream(7, "participation", "site-a").integers(100))
    24
    """
    named = repr(tuple(part if isinstance(part, str) else int(part) for part in purpose))
    digest = hashlib.blake2b(named.encode(), digest_size=16).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.default_rng(np.random.SeedSequence([seed, *words]))


def keys(seed: int, purpose: str, *counters: NDArray[np.integer[Any]] | int) -> NDArray[np.uint64]:
    """A random 64-bit number for each combination of counters, whoever asks and in what order.

    What a generator draws depends on what was drawn before; these depend on the counters alone, so
    that many workers can each draw the part they need.

    >>> both, later = keys(1, "shuffle", np.arange(2)), keys(1, "shuffle", np.array([1]))
    >>> bool(both[1] == later[0])
    True
    """
    return further(np.asarray(_first(seed, purpose), np.uint64), *counters)


def further(
    mixed: NDArray[np.uint64], *counters: NDArray[np.integer[Any]] | int
) -> NDArray[np.uint64]:
    """Keys with more counters after those that they have.

    >>> bool(further(keys(1, "shuffle", 2), 3) == keys(1, "shuffle", 2, 3))
    True
    """
    for counter in counters:
        mixed = _mix(mixed ^ _mix(np.asarray(counter).astype(np.uint64)))
    return mixed


@lru_cache(maxsize=256)
def _first(seed: int, purpose: str) -> int:
    """Where keys for a purpose begin."""
    return int(stream(seed, purpose).integers(1 << 63, dtype=np.uint64))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(values ^ (values >> np.uint64(31)))
