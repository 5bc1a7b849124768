"""MNIST: 70,000 handwritten digits, as one set or by the writer of each.

The writers come from the label files of QMNIST (Yadav and Bottou, 2019), which name who wrote
every digit of MNIST.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hubless.data.population import Population
from hubless.data.sources.base import Remote, Split, find, read_bytes, require, source_folder
from hubless.errors import DataError

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
REMOTES = (
    Remote(
        f"{_MNIST}train-images-idx3-ubyte.gz",
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    Remote(
        f"{_MNIST}train-labels-idx1-ubyte.gz",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    Remote(
        f"{_MNIST}t10k-images-idx3-ubyte.gz",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    Remote(
        f"{_MNIST}t10k-labels-idx1-ubyte.gz",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    Remote(
        f"{_QMNIST}qmnist-train-labels-idx2-int.gz",
        "sha256:2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
    ),
    Remote(
        f"{_QMNIST}qmnist-test-labels-idx2-int.gz",
        "sha256:9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
    ),
)
_IDX: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 11: np.dtype(">i2"), 12: np.dtype(">i4")}
_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
_DIGIT, _WRITER = 0, 2


def load(
    data: str | Path | None = None,
    *,
    by: Literal["writer"] | None = None,
    download: bool = False,
) -> Split:
    """Images [28, 28] and labels, both uint8; one client in all, or one for each writer.

    The writers of the test set are others than those of the training set.
    """
    if by not in (None, "writer"):
        raise DataError(f"MNIST is grouped by writer or not at all, not by {by!r}")
    folder = source_folder("mnist", data)
    names = [f"{part}-{kind}" for part in ("train", "t10k") for kind in _KINDS]
    if by == "writer":
        names += [f"qmnist-{part}-labels-idx2-int" for part in ("train", "test")]
    require(folder, names, REMOTES, download)
    train = _part(folder, "train", "train" if by else None)
    test = _part(folder, "t10k", "test" if by else None)
    return Split(train, test, tuple("0123456789"))


def _part(folder: Path, name: str, writers: str | None) -> Population:
    images, labels = (_idx(folder, f"{name}-{kind}") for kind in _KINDS)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{folder}: {name} has images of shape {images.shape} and labels of shape "
            f"{labels.shape}; the files do not belong together"
        )
    columns = {"x": images, "y": labels}
    if writers is None:
        return Population.pooled(columns)
    extended = _idx(folder, f"qmnist-{writers}-labels-idx2-int")
    # QMNIST's test set goes on where MNIST's ends
    if extended.ndim != 2 or not np.array_equal(extended[: len(labels), _DIGIT], labels):
        raise DataError(
            f"{folder}: the digits of qmnist-{writers}-labels-idx2-int are not those of "
            f"{name}-{_KINDS[1]}, so its writers cannot be either"
        )
    return Population.by(columns, extended[: len(labels), _WRITER])


def _idx(folder: Path, name: str) -> NDArray[Any]:
    path = find(folder, name)
    raw = read_bytes(path or folder / name)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX:
        raise DataError(f"{path} is not an idx file of whole numbers")
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:start], ">u4").tolist()) if len(raw) >= start else ()
    kind = _IDX[raw[2]]
    expected = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(raw) != expected:
        raise DataError(f"{path} holds {len(raw)} bytes where its header announces {expected}")
    # a copy in the machine's own byte order, which can be written to
    values = np.frombuffer(raw, kind, offset=start).astype(kind.newbyteorder("="))
    return values.reshape(shape)
