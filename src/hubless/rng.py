"""Random streams: one independent generator per seed and purpose, the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator for one purpose, unaffected by how often any other stream was drawn from.

    >>> int(stream(7, "participation", "site-a").integers(100))
    24
    """
    named = repr(tuple(part if isinstance(part, str) else int(part) for part in purpose))
    digest = hashlib.blake2b(named.encode(), digest_size=16).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.default_rng(np.random.SeedSequence([seed, *words]))
