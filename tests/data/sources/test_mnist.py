"""MNIST: idx files, plain or packed, and the writers of QMNIST."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubless.data.sources import mnist
from hubless.data.sources.base import Remote
from hubless.errors import DataError

KINDS = {"uint8": 8, "int32": 12}


def idx(values: NDArray[Any]) -> bytes:
    head = bytes([0, 0, KINDS[str(values.dtype)], values.ndim])
    big = values.astype(values.dtype.newbyteorder(">"))
    return head + np.array(values.shape, ">u4").tobytes() + big.tobytes()


def _arrays() -> dict[str, NDArray[Any]]:
    train = np.array([3, 1, 4, 1], np.uint8)
    test = np.array([5, 9], np.uint8)
    writers = {"train": [7, 1_000_000, 7, 7], "test": [9, 8, 8]}
    digits = {"train": train, "test": np.array([5, 9, 2], np.uint8)}
    extended = {}
    for part in ("train", "test"):
        table = np.zeros((len(digits[part]), 8), np.int32)
        table[:, 0], table[:, 2] = digits[part], writers[part]
        extended[f"qmnist-{part}-labels-idx2-int"] = table
    return {
        "train-images-idx3-ubyte": np.arange(4 * 784, dtype=np.uint8).reshape(4, 28, 28),
        "train-labels-idx1-ubyte": train,
        "t10k-images-idx3-ubyte": np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28) + 1,
        "t10k-labels-idx1-ubyte": test,
        **extended,
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "mnist").mkdir()
    for place, (name, values) in enumerate(_arrays().items()):
        packed = place % 2 == 0
        raw = gzip.compress(idx(values)) if packed else idx(values)
        (tmp_path / "mnist" / f"{name}{'.gz' if packed else ''}").write_bytes(raw)
    return tmp_path


def test_images_and_labels_are_read_as_stored(data: Path) -> None:
    split = mnist.load(data)
    expected = _arrays()
    assert len(split.train) == len(split.test) == 1
    assert np.array_equal(split.train.columns["x"], expected["train-images-idx3-ubyte"])
    assert split.train.columns["x"].dtype == np.uint8
    assert split.train.columns["y"].tolist() == [3, 1, 4, 1]
    assert np.array_equal(split.test.columns["x"], expected["t10k-images-idx3-ubyte"])
    assert split.classes[7] == "7"


def test_clients_may_be_the_writers(data: Path) -> None:
    split = mnist.load(data, by="writer")
    assert [split.train.name(0), split.train.name(1)] == ["7", "1000000"]
    assert split.train.client(0)["y"].tolist() == [3, 4, 1]
    assert split.test.client(0)["y"].tolist() == [9]
    assert split.test.examples == 2


def test_the_data_folder_may_come_from_the_environment(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBLESS_DATA", str(data))
    assert mnist.load().train.examples == 4


def test_writers_of_other_digits_are_refused(data: Path) -> None:
    table = _arrays()["qmnist-train-labels-idx2-int"]
    table[2, 0] = 0
    (data / "mnist" / "qmnist-train-labels-idx2-int.gz").write_bytes(gzip.compress(idx(table)))
    with pytest.raises(DataError, match="are not those of train-labels"):
        mnist.load(data, by="writer")


def test_files_that_do_not_belong_together_are_refused(data: Path) -> None:
    (data / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(DataError, match="do not belong together"):
        mnist.load(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "holds 11 bytes where its header announces 12"),
        (lambda raw: raw + b"!", "holds 13 bytes"),
        (lambda raw: raw[:6], "holds 6 bytes"),
        (lambda raw: b"", "is not an idx file"),
        (lambda raw: b"PK" + raw[2:], "is not an idx file"),
        (lambda raw: b"\0\0\x0d" + raw[3:], "is not an idx file"),
    ],
    ids=["short", "long", "no header", "empty", "zip", "floats"],
)
def test_a_damaged_file_is_named(data: Path, damage: Any, message: str) -> None:
    path = data / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        mnist.load(data)
    assert str(path) in str(caught.value)


def test_missing_files_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        mnist.load(tmp_path)
    for part in ("train-images-idx3-ubyte", str(tmp_path / "mnist"), "download=True", "https://"):
        assert part in str(caught.value)
    assert not (tmp_path / "mnist").exists()


def test_no_writer_is_asked_for_no_file_of_writers(data: Path) -> None:
    for name in ("train-labels-idx2-int.gz", "test-labels-idx2-int"):
        (data / "mnist" / f"qmnist-{name}").unlink()
    mnist.load(data)
    with pytest.raises(DataError, match="lacks qmnist-train-labels-idx2-int, qmnist-test"):
        mnist.load(data, by="writer")


def test_digits_are_grouped_by_nothing_else(data: Path) -> None:
    with pytest.raises(DataError, match="not by 'digit'"):
        mnist.load(data, by="digit")  # type: ignore[arg-type]


def test_files_are_downloaded_when_asked(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remotes = []
    for name, values in _arrays().items():
        path = tmp_path / "public" / f"{name}.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(idx(values)))
        digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        remotes.append(Remote(path.as_uri(), digest))
    monkeypatch.setattr(mnist, "REMOTES", tuple(remotes))
    split = mnist.load(tmp_path / "new", by="writer", download=True)
    assert split.train.examples == 4
    assert len(list((tmp_path / "new" / "mnist").iterdir())) == 6
