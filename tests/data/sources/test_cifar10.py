"""CIFAR-10: the binary version, its archive, and images in parquet that are decoded once."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from PIL import Image

from hubless.data.sources import cifar10
from hubless.data.sources.base import Remote, Split
from hubless.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "cache"))


def _batches() -> dict[str, bytes]:
    """Five batches of two images to train on, and one of two to test on."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    records = np.concatenate([LABELS[:, None], IMAGES.reshape(12, -1)], axis=1)
    return {name: records[2 * i : 2 * i + 2].tobytes() for i, name in enumerate(names)}


def _unpacked(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, raw in _batches().items():
        (folder / name).write_bytes(raw)


def _archive(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in _batches().items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def _webp(planes: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(planes.transpose(1, 2, 0)).save(file, "WEBP", lossless=True)
    return file.getvalue()


def _frame() -> pl.DataFrame:
    order = [11, 3, 0, 10, 2, 1, 5, 4, 9, 8, 7, 6]
    return pl.DataFrame(
        {
            "split": ["train" if i < 10 else "test" for i in order],
            "index": pl.Series([i % 10 for i in order], dtype=pl.Int32),
            "label": pl.Series([LABELS[i] for i in order], dtype=pl.Int8),
            "image": [_webp(IMAGES[i]) for i in order],
        }
    )


def _parquet(data: Path, frame: pl.DataFrame) -> None:
    (data / "cifar10").mkdir(parents=True, exist_ok=True)
    frame[:5].write_parquet(data / "cifar10" / "part1.parquet")
    frame[5:].write_parquet(data / "cifar10" / "part2.parquet")


def _check(split: Split) -> None:
    assert np.array_equal(split.train.client(0)["x"], IMAGES[:10])
    assert np.array_equal(split.train.client(0)["y"], LABELS[:10])
    assert np.array_equal(split.test.client(0)["x"], IMAGES[10:])
    assert np.array_equal(split.test.client(0)["y"], LABELS[10:])
    assert split.train.columns["y"].dtype == np.uint8
    assert split.classes[3] == "cat"


def test_the_binary_files_are_read(tmp_path: Path) -> None:
    _unpacked(tmp_path / "cifar10")
    _check(cifar10.load(tmp_path))


def test_the_binary_files_are_found_where_the_archive_puts_them(tmp_path: Path) -> None:
    _unpacked(tmp_path / "cifar10" / "cifar-10-batches-bin")
    _check(cifar10.load(tmp_path))


def test_the_archive_is_read_as_it_is(tmp_path: Path) -> None:
    _archive(tmp_path / "cifar10" / "cifar-10-binary.tar.gz")
    _check(cifar10.load(tmp_path))
    assert len(list((tmp_path / "cifar10").iterdir())) == 1


def test_images_in_parquet_are_put_in_order(tmp_path: Path) -> None:
    _parquet(tmp_path, _frame())
    _check(cifar10.load(tmp_path))


def test_decoded_images_are_kept_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _parquet(tmp_path, _frame())
    cifar10.load(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    _check(cifar10.load(tmp_path))


def test_a_file_that_changed_is_decoded_again(tmp_path: Path) -> None:
    _parquet(tmp_path, _frame())
    cifar10.load(tmp_path)
    _parquet(tmp_path, _frame().with_columns(label=pl.lit(7, dtype=pl.Int8)))
    os.utime(tmp_path / "cifar10" / "part1.parquet", (1, 1))
    assert set(cifar10.load(tmp_path).train.columns["y"]) == {7}


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    _parquet(tmp_path, _frame())
    _check(cifar10.load(tmp_path))


def test_a_machine_without_pillow_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _parquet(tmp_path, _frame())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'hubless\[data\]'"):
        cifar10.load(tmp_path)


@pytest.mark.parametrize("there", [slice(5, None), slice(2, None)], ids=["gaps", "no test set"])
def test_a_missing_part_is_noticed(tmp_path: Path, there: slice) -> None:
    (tmp_path / "cifar10").mkdir()
    _frame().sort("split", "index")[there].write_parquet(tmp_path / "cifar10" / "one.parquet")
    with pytest.raises(DataError, match="is a parquet file missing\\? There are one.parquet"):
        cifar10.load(tmp_path)


def test_an_image_without_a_label_is_named(tmp_path: Path) -> None:
    _parquet(tmp_path, _frame().with_columns(label=pl.lit(None, dtype=pl.Int8)))
    with pytest.raises(DataError, match="column 'label' is null at row 0"):
        cifar10.load(tmp_path)


@pytest.mark.parametrize(
    ("image", "message"),
    [(b"RIFFno", "train image 3 .* cannot be decoded"), (None, "train image 3 .* cannot be")],
    ids=["damaged", "null"],
)
def test_an_image_that_cannot_be_decoded_is_named(
    tmp_path: Path, image: bytes | None, message: str
) -> None:
    frame = _frame()
    _parquet(
        tmp_path,
        frame.with_columns(image=pl.Series([frame["image"][0], image, *frame["image"][2:]])),
    )
    with pytest.raises(DataError, match=message):
        cifar10.load(tmp_path)


def test_an_image_of_another_size_is_named(tmp_path: Path) -> None:
    frame = _frame()
    small = _webp(IMAGES[0][:, :16])
    _parquet(tmp_path, frame.with_columns(image=pl.Series([small, *frame["image"][1:]])))
    with pytest.raises(DataError, match=r"test image 1 .* has shape \(16, 32, 3\)"):
        cifar10.load(tmp_path)


def test_a_parquet_of_something_else_is_refused(tmp_path: Path) -> None:
    _parquet(tmp_path, _frame().drop("label"))
    with pytest.raises(DataError, match="CIFAR-10 cannot be read.*label"):
        cifar10.load(tmp_path)


def test_a_batch_of_another_length_is_refused(tmp_path: Path) -> None:
    _unpacked(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(b"\0" * 3074)
    with pytest.raises(DataError, match="test set .* holds 3074 bytes"):
        cifar10.load(tmp_path)


def test_labels_beyond_ten_are_refused(tmp_path: Path) -> None:
    _unpacked(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(DataError, match="label 11 at row 0.*not of CIFAR-100"):
        cifar10.load(tmp_path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = _archive(tmp_path / "cifar10" / "cifar-10-binary.tar.gz")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match="cifar-10-binary.tar.gz cannot be read"):
        cifar10.load(tmp_path)


def test_without_files_it_is_said_which_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        cifar10.load(tmp_path)
    for part in (str(tmp_path / "cifar10"), "test_batch.bin", "download=True", cifar10.REMOTE.url):
        assert part in str(caught.value)


def test_the_archive_is_downloaded_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = _archive(tmp_path / "public" / "cifar-10-binary.tar.gz")
    digest = "md5:" + hashlib.md5(public.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar10, "REMOTE", Remote(public.as_uri(), digest))
    _check(cifar10.load(tmp_path / "new", download=True))
    assert (tmp_path / "new" / "cifar10" / "cifar-10-binary.tar.gz").is_file()
