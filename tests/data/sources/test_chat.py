"""Chat: users, their messages in the order of time, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from hubless.data import Population
from hubless.data.sources import chat
from hubless.errors import DataError

START = datetime(2016, 3, 1, 12, tzinfo=UTC)
MESSAGES: dict[str, list[Any]] = {
    "user": ["bob", "ann", "bob"],
    "timestamp": [START, START + timedelta(hours=1), START + timedelta(hours=2)],
    "text": ["hello", "how do I échapper?", "no idea"],
    "room": ["php", "java", "php"],
}


def _put(folder: Path, name: str = "a.parquet", **columns: Any) -> Path:
    path = folder / "chat" / name
    path.parent.mkdir(exist_ok=True)
    pl.DataFrame({**MESSAGES, **columns}).write_parquet(path)
    return path


def _texts(people: Population) -> dict[str, list[str]]:
    return {people.name(i): people.client(i)["text"].tolist() for i in range(len(people))}


def test_messages_are_grouped_by_their_users(tmp_path: Path) -> None:
    _put(tmp_path)
    people = chat.load(tmp_path)
    assert _texts(people) == {"ann": ["how do I échapper?"], "bob": ["hello", "no idea"]}
    bob = people.client(1)
    assert bob["room"].tolist() == ["php", "php"]
    assert bob["time"].dtype == "datetime64[us]"
    assert bob["time"][0] == np.datetime64("2016-03-01T12:00")
    assert isinstance(people.columns["text"].dtype, np.dtypes.StringDType)


def test_all_files_of_the_folder_are_read(tmp_path: Path) -> None:
    _put(tmp_path, "b.parquet")
    _put(tmp_path, "a.parquet", user=["cy"] * 3)
    assert [people.name(i) for people in [chat.load(tmp_path)] for i in range(3)] == [
        "ann",
        "bob",
        "cy",
    ]


def test_messages_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    _put(tmp_path, timestamp=MESSAGES["timestamp"][::-1])
    assert _texts(chat.load(tmp_path))["bob"] == ["no idea", "hello"]


@pytest.mark.parametrize("zone", ["America/New_York", None])
def test_times_of_other_zones_become_utc_and_those_of_none_are(
    tmp_path: Path, zone: str | None
) -> None:
    said = pl.Series(MESSAGES["timestamp"])
    said = said.dt.convert_time_zone(zone) if zone else said.dt.replace_time_zone(None)
    _put(tmp_path, timestamp=said)
    assert chat.load(tmp_path).columns["time"][0] == np.datetime64("2016-03-01T12:00")
    assert zone is None or START.astimezone(ZoneInfo(zone)).hour == 7


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamp": [None, START, START]}, "'timestamp' is null at row 0"),
        ({"timestamp": ["2016-03-01", "soon", "2016"]}, "row 1: 'timestamp' is 'soon'"),
        ({"timestamp": [1, 2, 3]}, "'timestamp' holds int64"),
        ({"text": ["a", None, "b"]}, "'text' is null at row 1"),
        ({"text": ["a", "b", " \n"]}, "'text' is empty at row 2: drop the row"),
        ({"text": [1, 2, 3]}, "'text' holds int64, not strings"),
        ({"user": ["ann", "", "bob"]}, "'user' is empty at row 1"),
        ({"user": [1, 2, 3]}, "'user' holds int64, not strings"),
        ({"room": ["php", "", "php"]}, "'room' is empty at row 1"),
    ],
)
def test_what_is_wrong_is_refused_with_its_row(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    _put(tmp_path, **columns)
    with pytest.raises(DataError, match=f"a.parquet.*{message}"):
        chat.load(tmp_path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = _put(tmp_path)
    pl.read_parquet(path).drop("room").write_parquet(path)
    with pytest.raises(DataError, match="has no column 'room'; there are user, timestamp, text"):
        chat.load(tmp_path)


def test_files_without_messages_are_refused(tmp_path: Path) -> None:
    path = _put(tmp_path)
    pl.read_parquet(path).clear().write_parquet(path)
    with pytest.raises(DataError, match="holds no messages"):
        chat.load(tmp_path)


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="chat holds no parquet file: put one there.*HUBLESS_DATA"):
        chat.load(tmp_path)
