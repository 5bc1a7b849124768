"""Tables: parquet and Hugging Face columns become arrays, and what cannot is named."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from hubless.data import Population
from hubless.errors import DataError


def _written(folder: Path, name: str = "some.parquet", **columns: Any) -> Path:
    pl.DataFrame(columns).write_parquet(folder / name)
    return folder / name


def test_rows_are_grouped_by_their_client(tmp_path: Path) -> None:
    path = _written(tmp_path, user=["b", "a", "b"], x=[1.5, 2.5, 3.5], y=[1, 0, 1])
    people = Population.from_parquet(path, client="user")
    assert [people.name(i) for i in range(2)] == ["a", "b"]
    assert people.client(1)["x"].tolist() == [1.5, 3.5]
    assert set(people.columns) == {"x", "y"}


def test_clients_may_be_numbers(tmp_path: Path) -> None:
    path = _written(tmp_path, site=[20, 3, 20], y=[1, 2, 3])
    people = Population.from_parquet(path, client="site")
    assert [people.name(0), people.name(1)] == ["3", "20"]


def test_columns_are_chosen_or_given_other_names(tmp_path: Path) -> None:
    path = _written(tmp_path, user=["a"], text=["hi"], label=[1], rest=[2])
    assert list(Population.from_parquet(path, client="user", columns=["label"]).columns) == [
        "label"
    ]
    renamed = Population.from_parquet(path, client="user", columns={"x": "text", "y": "label"})
    assert renamed.client(0)["x"].tolist() == ["hi"]
    assert renamed.client(0)["y"].tolist() == [1]


def test_the_client_may_be_a_column_too(tmp_path: Path) -> None:
    path = _written(tmp_path, user=["b", "a"], y=[1, 2])
    people = Population.from_parquet(path, client="user", columns={"who": "user"})
    assert people.client(0)["who"].tolist() == ["a"]


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    one = _written(tmp_path, "1.parquet", user=["a", "b"], y=[1, 2])
    two = _written(tmp_path, "2.parquet", user=["a"], y=[3])
    assert Population.from_parquet([one, str(two)], client="user").client(0)["y"].tolist() == [1, 3]


def test_every_kind_of_column_becomes_an_array_of_its_dtype(tmp_path: Path) -> None:
    path = _written(
        tmp_path,
        user=["a", "a"],
        small=pl.Series([1, 2], dtype=pl.Int8),
        real=pl.Series([0.5, float("nan")], dtype=pl.Float32),
        yes=[True, False],
        when=[datetime.datetime(2015, 7, 1), datetime.datetime(2016, 6, 30)],
        word=["zwölf", ""],
        kind=pl.Series(["x", "y"], dtype=pl.Categorical),
        fixed=pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int16, 2)),
        listed=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        nested=[[[1], [2]], [[3], [4]]],
    )
    columns = Population.from_parquet(path, client="user").columns
    kinds = {name: (str(values.dtype), values.shape[1:]) for name, values in columns.items()}
    assert kinds == {
        "small": ("int8", ()),
        "real": ("float32", ()),
        "yes": ("bool", ()),
        "when": ("datetime64[us]", ()),
        "word": ("StringDType()", ()),
        "kind": ("StringDType()", ()),
        "fixed": ("int16", (2,)),
        "listed": ("float64", (3,)),
        "nested": ("int64", (2, 1)),
    }
    assert all(values.flags.writeable for values in columns.values())
    assert columns["nested"].tolist() == [[[1], [2]], [[3], [4]]]
    assert columns["word"].tolist() == ["zwölf", ""]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, None, 3], "column 'x' is null at row 1"),
        ([[1, 2], [3, None], [4, 5]], "column 'x' is null at row 1"),
        ([[1, 2], [3, 4], [5]], "column 'x' at row 2 holds 1 values and the first 2"),
        ([[[1], [2]], [[3], [4]], [[5], [6, 7]]], "column 'x' at row 2 holds 2 values"),
        ([[], [], []], "column 'x' at row 0 holds 0 values"),
        ([b"1", b"2", b"3"], "column 'x' holds Binary"),
        ([{"a": 1}] * 3, "column 'x' holds Struct"),
    ],
    ids=str,
)
def test_what_is_no_array_is_named_with_its_column(
    tmp_path: Path, column: list[Any], message: str
) -> None:
    path = _written(tmp_path, user=["a", "a", "b"], x=column)
    with pytest.raises(DataError) as caught:
        Population.from_parquet(path, client="user")
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_row_of_nobody_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path, user=["a", None], y=[1, 2])
    with pytest.raises(DataError, match="column 'user' is null at row 1"):
        Population.from_parquet(path, client="user")


def test_clients_are_neither_fractions_nor_lists(tmp_path: Path) -> None:
    path = _written(tmp_path, user=[0.5, 1.5], y=[1, 2])
    with pytest.raises(DataError, match="'user' holds neither integers nor strings"):
        Population.from_parquet(path, client="user")


def test_a_column_that_is_not_there_is_named_among_those_that_are(tmp_path: Path) -> None:
    path = _written(tmp_path, user=["a"], y=[1])
    with pytest.raises(DataError, match="no column 'z'; there are user, y"):
        Population.from_parquet(path, client="user", columns=["y", "z"])
    with pytest.raises(DataError, match="no column 'who'"):
        Population.from_parquet(path, client="who")
    with pytest.raises(DataError, match="give a list"):
        Population.from_parquet(path, client="user", columns="y")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="bad.parquet cannot be read as parquet"):
        Population.from_parquet(tmp_path / "bad.parquet", client="user")
    with pytest.raises(DataError, match="absent.parquet cannot be read"):
        Population.from_parquet(tmp_path / "absent.parquet", client="user")


def test_an_empty_table_is_a_population_of_nobody(tmp_path: Path) -> None:
    path = _written(
        tmp_path, user=pl.Series([], dtype=pl.String), x=pl.Series([], dtype=pl.List(pl.Int64))
    )
    assert len(Population.from_parquet(path, client="user")) == 0


def test_a_hugging_face_dataset_is_read_as_it_stands() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "user": datasets.Value("string"),
            "image": datasets.Array2D((2, 3), "float32"),
            "pair": datasets.Sequence(datasets.Value("int64"), length=2),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    images = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    pairs = [[1, 2], [3, 4], [5, 6]]
    rows = {"user": ["b", "a", "b"], "image": images.tolist(), "pair": pairs, "label": [0, 1, 1]}
    dataset = datasets.Dataset.from_dict(rows, features=features).select([2, 0, 1])
    people = Population.from_huggingface(
        dataset, client="user", columns={"x": "image", "pair": "pair", "y": "label"}
    )
    assert [people.name(0), people.name(1)] == ["a", "b"]
    assert np.array_equal(people.client(1)["x"], images[[2, 0]])
    assert people.client(1)["pair"].tolist() == [[5, 6], [1, 2]]
    assert people.client(1)["y"].tolist() == [1, 0]
    with pytest.raises(DataError, match="the dataset has no column 'z'"):
        Population.from_huggingface(dataset, client="user", columns=["z"])


def test_a_machine_without_polars_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(DataError, match=r"pip install 'hubless\[data\]'"):
        Population.from_parquet("some.parquet", client="user")


def test_nothing_but_numpy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, hubless.data, hubless.data.sources.cifar10, hubless.data.sources.wikitext\n"
        "print({'torch', 'polars', 'PIL', 'pyarrow', 'datasets'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
