"""Ten patterns under noise for digits, in files like those of MNIST."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def written(folder: Path, examples: int = 600) -> str:
    """A folder with so many digits to train on, and 100 to test with."""
    inner = folder / "mnist"
    inner.mkdir(parents=True)
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 28, 28))
    for part, count in (("train", examples), ("t10k", 100)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        noise = rng.integers(0, 256, (count, 28, 28))
        images = (0.3 * patterns[labels] + 0.7 * noise).astype(np.uint8)
        (inner / f"{part}-images-idx3-ubyte").write_bytes(_idx(images))
        (inner / f"{part}-labels-idx1-ubyte").write_bytes(_idx(labels))
    return str(folder)


def _idx(values: NDArray[np.uint8]) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return head + values.tobytes()
