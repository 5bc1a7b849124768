"""Saved populations: what is opened is what was saved, mapped, and never a pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubless.data import Population
from hubless.errors import DataError


def _people() -> Population:
    columns: dict[str, NDArray[Any]] = {
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "a/b ü": np.array([1, 2, 3, 4], np.int8),
        "when": np.array(["2015-07-01", "2015-08-01", "2016-01-01", "2016-02-01"], "M8[ms]"),
        "text": np.array(["one", "", "zwölf", "a\0b"], np.dtypes.StringDType()),
    }
    return Population.by(columns, np.array(["b", "a", "b", "é"], np.dtypes.StringDType()))


def _same(one: Population, other: Population) -> None:
    assert list(one.columns) == list(other.columns)
    assert [one.name(i) for i in range(len(one))] == [other.name(i) for i in range(len(other))]
    for i in range(len(one)):
        mine, theirs = one.client(i), other.client(i)
        for name in one.columns:
            assert mine[name].dtype == theirs[name].dtype
            assert np.array_equal(mine[name], theirs[name])


@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_opened_is_what_was_saved(tmp_path: Path, mmap: bool) -> None:
    _people().save(tmp_path / "people")
    _same(Population.open(tmp_path / "people", mmap=mmap), _people())


def test_a_population_in_order_and_without_names_stays_so(tmp_path: Path) -> None:
    Population({"y": np.arange(3)}, np.array([0, 1, 3])).save(tmp_path / "people")
    again = Population.open(str(tmp_path / "people"))
    assert again.rows is None and again.names is None
    assert again.sizes.tolist() == [1, 2]


def test_numbers_are_mapped_and_the_file_never_changes(tmp_path: Path) -> None:
    _people().save(tmp_path / "people")
    opened = Population.open(tmp_path / "people")
    assert isinstance(opened.columns["x"].base, np.memmap)
    opened.columns["x"][:] = -1
    _same(Population.open(tmp_path / "people"), _people())


def test_empty_columns_can_be_saved(tmp_path: Path) -> None:
    nothing = {"x": np.zeros((0, 3)), "t": np.array([], np.dtypes.StringDType())}
    Population.pooled(nothing).save(tmp_path / "people")
    assert Population.open(tmp_path / "people").columns["x"].shape == (0, 3)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(DataError, match="not empty"):
        _people().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_objects_are_not_saved(tmp_path: Path) -> None:
    people = Population.pooled({"x": np.array([{}, []], object)})
    with pytest.raises(DataError, match="without pickle"):
        people.save(tmp_path / "people")
    assert not (tmp_path / "people").exists()


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    _people().save(tmp_path / "people")
    np.save(tmp_path / "people" / "column-0.npy", np.array([{}] * 4, object), allow_pickle=True)
    with pytest.raises(DataError, match="column-0.npy is damaged"):
        Population.open(tmp_path / "people")


@pytest.mark.parametrize("mmap", [True, False])
def test_a_truncated_file_is_named(tmp_path: Path, mmap: bool) -> None:
    _people().save(tmp_path / "people")
    path = tmp_path / "people" / "column-0.npy"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="column-0.npy is damaged"):
        Population.open(tmp_path / "people", mmap=mmap)


def test_text_that_lost_its_end_is_named(tmp_path: Path) -> None:
    _people().save(tmp_path / "people")
    np.save(tmp_path / "people" / "column-3.utf8.npy", np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="column-3.ends.npy does not match"):
        Population.open(tmp_path / "people")


def test_text_that_is_no_text_is_named(tmp_path: Path) -> None:
    _people().save(tmp_path / "people")
    path = tmp_path / "people" / "column-3.utf8.npy"
    np.save(path, np.full_like(np.load(path), 0xFF))
    with pytest.raises(DataError, match="column-3.utf8.npy is damaged"):
        Population.open(tmp_path / "people")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    _people().save(tmp_path / "people")
    (tmp_path / "people" / "rows.npy").unlink()
    with pytest.raises(DataError, match="rows.npy is missing"):
        Population.open(tmp_path / "people")


def test_a_folder_without_a_population_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no saved population"):
        Population.open(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("{", "not readable"),
        ("[]", "format None"),
        (json.dumps({"format": 9}), "format 9"),
        (json.dumps({"format": 1, "columns": 2}), "does not list the columns"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, contents: str, message: str) -> None:
    (tmp_path / "population.json").write_text(contents)
    with pytest.raises(DataError, match=message):
        Population.open(tmp_path)
