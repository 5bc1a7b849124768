"""CIFAR-10: 60,000 small colour photographs of ten classes (Krizhevsky, 2009)."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from hubless.data import tables
from hubless.data.population import Population
from hubless.data.sources.base import (
    Remote,
    Split,
    cache_folder,
    read_bytes,
    source_folder,
)
from hubless.data.sources.base import download as fetch
from hubless.errors import DataError

REMOTE = Remote(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_UNPACKED = "cifar-10-batches-bin"
_RECORD = 1 + 3 * 32 * 32


def load(data: str | Path | None = None, *, download: bool = False) -> Split:
    """Images [3, 32, 32] and labels, both uint8, as one client each.

    Reads the official binary version, unpacked or as it is downloaded, or else parquet files with
    columns `split, index, label, image` (32 x 32 RGB in a lossless format). Those are decoded with
    pillow once and kept under $HUBLESS_CACHE.
    """
    folder = source_folder("cifar10", data)
    for place in (folder, folder / _UNPACKED):
        if all((place / name).is_file() for name in (*_TRAIN, _TEST)):
            return _split({name: read_bytes(place / name) for name in (*_TRAIN, _TEST)})
    parquet = sorted(folder.glob("*.parquet"))
    archive = folder / REMOTE.name
    if download and not parquet and not archive.is_file():
        fetch(REMOTE, folder)
    if archive.is_file():
        return _from_archive(archive)
    if parquet:
        return _from_parquet(parquet)
    raise DataError(
        f"{folder} holds no CIFAR-10: put {REMOTE.name} there, or its files {_TRAIN[0]} to 5 and "
        f"{_TEST} (the binary version; pickles are never read), name another folder with data= or "
        f"HUBLESS_DATA, or pass download=True to fetch {REMOTE.url}"
    )


def _split(raw: Mapping[str, bytes]) -> Split:
    train = b"".join(raw[name] for name in _TRAIN)
    return Split(_records("train", train), _records("test", raw[_TEST]), CLASSES)


def _records(name: str, raw: bytes) -> Population:
    if not raw or len(raw) % _RECORD:
        raise DataError(
            f"the {name} set of CIFAR-10 holds {len(raw)} bytes, which is no multiple of {_RECORD}"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, _RECORD)
    if records[:, 0].max() >= len(CLASSES):
        row = int((records[:, 0] >= len(CLASSES)).argmax())
        raise DataError(
            f"the {name} set of CIFAR-10 has label {records[row, 0]} at row {row}: is this the "
            "binary version of CIFAR-10 (not of CIFAR-100)?"
        )
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
    return Population.pooled({"x": images, "y": records[:, 0].copy()})


def _from_archive(archive: Path) -> Split:
    try:
        with tarfile.open(archive) as tar:
            files = {name: tar.extractfile(f"{_UNPACKED}/{name}") for name in (*_TRAIN, _TEST)}
            return _split({name: file.read() if file else b"" for name, file in files.items()})
    except (tarfile.TarError, KeyError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{archive} cannot be read: {error}; delete it and download it again"
        ) from error


def _from_parquet(paths: Sequence[Path]) -> Split:
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()
    kept = cache_folder("cifar10") / key
    if kept.is_dir():
        train, test = (Population.open(kept / name) for name in ("train", "test"))
        return Split(train, test, CLASSES)
    raw = _decode(paths)
    split = Split(_records("train", raw["train"]), _records("test", raw["test"]), CLASSES)
    # a cache that cannot be written, or that another process wrote first, costs only time
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".part-") as folder:
            split.train.save(Path(folder, key, "train"))
            split.test.save(Path(folder, key, "test"))
            Path(folder, key).rename(kept)
    return split


def _decode(paths: Sequence[Path]) -> dict[str, bytes]:
    """Both sets as records of the binary version: a label, then the red, green and blue planes."""
    pl, where = tables.polars(), str(paths[0].parent)
    try:
        frame = pl.read_parquet(list(paths), columns=["split", "index", "label", "image"])
    except (OSError, pl.exceptions.PolarsError) as error:
        why = str(error).partition("\n")[0]
        raise DataError(f"{where}: CIFAR-10 cannot be read: {why}") from error
    raw = {}
    for name in ("train", "test"):
        part = frame.filter(pl.col("split") == name).sort("index")
        numbers = tables.array_of(part["index"], where)
        if not len(numbers) or (numbers != np.arange(len(numbers))).any():
            raise DataError(
                f"{where}: the {len(numbers)} {name} images are not numbered from 0 without a gap: "
                f"is a parquet file missing? There are {', '.join(path.name for path in paths)}"
            )
        labels = tables.array_of(part["label"], where).astype(np.uint8).tolist()
        raw[name] = b"".join(
            bytes([label]) + _planes(image, f"{name} image {row}")
            for row, (label, image) in enumerate(zip(labels, part["image"], strict=True))
        )
    return raw


def _planes(encoded: bytes, where: str) -> bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("decoding images needs pillow: pip install 'hubless[data]'") from error
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.asarray(image)
    except (OSError, ValueError) as error:
        raise DataError(f"{where} of CIFAR-10 cannot be decoded: {error}") from error
    if pixels.shape != (32, 32, 3):
        raise DataError(f"{where} of CIFAR-10 has shape {pixels.shape}, not 32 x 32 x 3")
    return pixels.transpose(2, 0, 1).tobytes()
