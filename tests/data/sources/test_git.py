"""Git: authors, the subjects of their commits, and which were taken back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from hubless.data.sources import git
from hubless.errors import DataError

COMMITS: dict[str, Any] = {
    "user": ["bob", "ann", "bob"],
    "timestamp": [datetime(2015, 1, day) for day in (1, 2, 3)],
    "text": ["Fix it", "Break it", "Revert"],
    "repo": ["a/b", "a/b", "c/d"],
    "reverted": pl.Series([0, 1, 0], dtype=pl.Int8),
}


def _put(folder: Path, name: str = "a.parquet", **columns: Any) -> None:
    (folder / "git").mkdir(exist_ok=True)
    pl.DataFrame({**COMMITS, **columns}).write_parquet(folder / "git" / name)


@pytest.mark.parametrize("stored", [pl.Int8, pl.Boolean, pl.UInt32])
def test_commits_are_grouped_by_their_authors(tmp_path: Path, stored: Any) -> None:
    _put(tmp_path, reverted=COMMITS["reverted"].cast(stored))
    people = git.load(tmp_path)
    assert [people.name(i) for i in range(len(people))] == ["ann", "bob"]
    assert people.client(1)["text"].tolist() == ["Fix it", "Revert"]
    assert people.client(1)["repo"].tolist() == ["a/b", "c/d"]
    assert people.columns["reverted"].tolist() == [False, True, False]


def test_of_several_files_one_is_named(tmp_path: Path) -> None:
    _put(tmp_path)
    _put(tmp_path, "b.parquet", text=["b"] * 3)
    with pytest.raises(DataError, match=r"a.parquet, b.parquet: say which with file="):
        git.load(tmp_path)
    assert git.load(tmp_path, file="b.parquet").columns["text"].tolist() == ["b"] * 3
    with pytest.raises(DataError, match=r"git lacks c.parquet: put one there"):
        git.load(tmp_path, file="c.parquet")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0, 1, 2], "'reverted' is 2 at row 2, where 0 or 1 is meant"),
        ([0, -1, 1], "'reverted' is -1 at row 1"),
        ([0.0, 1.0, 1.0], "'reverted' is 0.0 at row 0"),
        ([0, None, 1], "'reverted' is null at row 1"),
    ],
)
def test_labels_that_are_none_are_refused_with_their_row(
    tmp_path: Path, label: list[float], message: str
) -> None:
    _put(tmp_path, reverted=pl.Series(label))
    with pytest.raises(DataError, match=message):
        git.load(tmp_path)


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="git lacks a parquet file: put one there.*HUBLESS_DATA"):
        git.load(tmp_path)
