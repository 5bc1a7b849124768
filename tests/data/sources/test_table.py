"""Tables of any make: one population from parquet and JSON lines, or the reason and row."""

from __future__ import annotations

import gzip
import json
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from hubless.data import Population, Timeline
from hubless.data.sources import table
from hubless.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"who": "bob", "at": "2016-03-01T12:00:00Z", "said": "héllo", "size": 1},
    {"who": "ann", "at": "2016-02-29T23:30:00-05:00", "said": "hi", "size": 2},
    {"who": "bob", "at": "2016-01-31T23:59:59.999999", "said": "", "size": 3},
]
NAMES: dict[str, Any] = {"client": "who", "time": "at"}


def _lines(folder: Path, rows: list[Any], name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_text(
        "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    )
    return path


def _parquet(folder: Path, name: str = "some.parquet", **columns: Any) -> Path:
    given = {key: [row[key] for row in ROWS] for key in ROWS[0]}
    pl.DataFrame(given | columns).write_parquet(folder / name)
    return folder / name


def _check(people: Population) -> None:
    assert [people.name(i) for i in range(2)] == ["ann", "bob"]
    bob = people.client(1)
    assert bob["text"].tolist() == ["", "héllo"]
    assert bob["size"].tolist() == [3, 1]
    assert bob["time"].tolist() == [
        datetime(2016, 1, 31, 23, 59, 59, 999999),
        datetime(2016, 3, 1, 12),
    ]
    assert people.client(0)["time"][0] == np.datetime64("2016-03-01T04:30")
    assert people.columns["time"].dtype == "datetime64[us]"
    assert isinstance(people.columns["text"].dtype, np.dtypes.StringDType)
    assert people.columns["size"].dtype == np.int64
    assert Timeline.of(people).test.sizes.tolist() == [1, 1]


def test_lines_and_parquet_are_one_population(tmp_path: Path) -> None:
    for path in (_lines(tmp_path, ROWS), _parquet(tmp_path)):
        _check(table.load(path, **NAMES, text="said", columns=["size"]))


def test_lines_may_be_packed_marked_blank_and_in_several_files(tmp_path: Path) -> None:
    raw = _lines(tmp_path, [ROWS[0], "\n", "  \n", ROWS[1]]).read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + raw))
    (tmp_path / "b.ndjson").write_text(json.dumps(ROWS[2]))
    paths: list[str | Path] = [tmp_path / "a.jsonl.gz", str(tmp_path / "b.ndjson")]
    _check(table.load(paths, **NAMES, text="said", columns=["size"]))
    (tmp_path / "b.ndjson").write_text(json.dumps(ROWS[2] | {"at": "?"}))
    with pytest.raises(DataError, match="b.ndjson, line 1: 'at' is '\\?'"):
        table.load(paths, **NAMES, text="said")


def test_features_of_every_kind_are_read(tmp_path: Path) -> None:
    row = {"who": 7, "at": "2016-01-01", "x": [[1, 2.5], [3, 4]], "yes": True, "real": 1}
    other = row | {"who": -7, "x": [[5, 6], [7, 8]], "yes": False, "real": 0.5}
    people = table.load(
        _lines(tmp_path, [row, other]), **NAMES, columns={"x": "x", "y": "yes", "z": "real"}
    )
    assert people.client(1)["x"].tolist() == [[[1.0, 2.5], [3.0, 4.0]]]
    assert [str(people.columns[name].dtype) for name in "yz"] == ["bool", "float64"]
    assert (people.name(0), people.name(1)) == ("-7", "7")
    assert "text" not in people.columns


@pytest.mark.parametrize(
    ("stored", "unit"),
    [
        (pl.Series([datetime(2016, 2, 29, 12, tzinfo=UTC)] * 3), None),
        (pl.Series([datetime(2016, 2, 29, 12)] * 3).cast(pl.Datetime("ns")), None),
        (
            pl.Series([datetime(2016, 2, 29, 12, tzinfo=UTC)] * 3).dt.convert_time_zone(
                "Asia/Kolkata"
            ),
            None,
        ),
        (["2016-02-29 12:00"] * 3, None),
        (["2016-02-29T17:30:00+05:30"] * 3, None),
        ([" 20160229T120000Z "] * 3, None),
        ([1456747200] * 3, "s"),
        ([1456747200.0] * 3, "s"),
        ([1456747200_000] * 3, "ms"),
        (pl.Series([1456747200_000_000] * 3, dtype=pl.UInt64), "us"),
        ([1456747200_000_000_999] * 3, "ns"),
    ],
    ids=str,
)
def test_times_of_every_make_become_utc(tmp_path: Path, stored: Any, unit: Any) -> None:
    people = table.load(_parquet(tmp_path, at=stored), **NAMES, text="said", unit=unit)
    assert (people.columns["time"] == np.datetime64("2016-02-29T12:00")).all()


def test_dates_are_their_first_moment_and_fractions_of_a_second_count(tmp_path: Path) -> None:
    people = table.load(_parquet(tmp_path, at=[date(2016, 2, 29)] * 3), **NAMES, text="said")
    assert people.columns["time"][0] == np.datetime64("2016-02-29")
    path = _lines(tmp_path, [{"who": 1, "at": 0.25, "x": 1}, {"who": 1, "at": -1, "x": 2}])
    people = table.load(path, **NAMES, columns=["x"], unit="s")
    assert people.columns["x"].tolist() == [2, 1]
    assert people.columns["time"][1] == np.datetime64("1970-01-01T00:00:00.250")


_TIME = "'at' is .*which is no time: write it as"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"at": None}, "'at' is null"),
        ({"at": "yesterday"}, f"{_TIME} 2016"),
        ({"at": ""}, _TIME),
        ({"at": "2015-02-29"}, _TIME),
        ({"at": "2016-12-31T23:59:60Z"}, _TIME),
        ({"at": 7}, r"'at' is 7, where that of .*some.jsonl, line 1 is a text"),
        ({"who": None}, "'who' is null"),
        ({"who": 7}, "'who' is 7, where that of"),
        ({"said": 1.5}, "'said' is 1.5, where that of"),
        ({"said": {"a": 1}}, "'said' is {\"a\": 1}"),
        ({"size": 2**70}, "'size' cannot be kept"),
        ({"said": "\ud800"}, "'said' cannot be kept"),
        ({"size": [1]}, "'size' is \\[1\\], where that of"),
    ],
    ids=str,
)
def test_a_bad_value_in_a_line_is_refused_with_the_line(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = _lines(tmp_path, [ROWS[0], "\n", ROWS[1] | changed, ROWS[2]])
    with pytest.raises(DataError, match=f"some.jsonl, line 3: {message}"):
        table.load(path, **NAMES, text="said", columns=["size"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"who": "ann"', "no JSON: "),
        ("[1, 2]\n", "no JSON object"),
        ('{"who": "ann", "said": "a", "size": 1}\n', "'at' is missing; there are who, said, size"),
        ("[" * 100_000 + "\n", "no JSON: "),
    ],
)
def test_a_bad_line_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=f"line 2: {message}"):
        table.load(_lines(tmp_path, [ROWS[0], line]), **NAMES, text="said")


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = _lines(tmp_path, ROWS)
    path.write_bytes(path.read_bytes() + b'{"who": "caf\xe9"}\n')
    with pytest.raises(DataError, match="line 4: no JSON"):
        table.load(path, **NAMES, text="said")


@pytest.mark.parametrize("values", [[[1, 2], [3]], [[1], 2], [[], []], [[[1]], [[2, 3]]]], ids=str)
def test_lists_of_other_lengths_are_refused(tmp_path: Path, values: list[Any]) -> None:
    rows = [{"who": 1, "at": "2016-01-01", "x": value} for value in values]
    with pytest.raises(DataError, match="line [12]: 'x' is no list of as many values"):
        table.load(_lines(tmp_path, rows), **NAMES, columns=["x"])


@pytest.mark.parametrize("who", [1.5, True, [1]])
def test_clients_in_lines_are_integers_or_texts(tmp_path: Path, who: Any) -> None:
    path = _lines(tmp_path, [ROWS[0] | {"who": who}])
    with pytest.raises(DataError, match="line 1: the client 'who' is neither"):
        table.load(path, **NAMES, text="said")


@pytest.mark.parametrize(
    ("stored", "unit", "message"),
    [
        ([None, "2016-01-01", "2016-01-01"], None, "'at' is null at row 0"),
        (["2016-01-01", "2016-01-01", "?"], None, "row 2: 'at' is '\\?', which is no time"),
        ([1, 2, 3], None, "'at' holds int64: store it as a datetime, or say with unit="),
        ([1.0, float("nan"), 2.0], "s", "row 1: 'at' is nan, which in s"),
        ([1.0, 2.0, float("inf")], "s", "row 2: 'at' is inf"),
        ([1, 1456747200_000_000, 2], "s", "row 1: .*beyond the years 1 to 9999: is the unit right"),
        ([True, False, True], "s", "'at' holds bool, which is no time"),
        ([[1], [2], [3]], "s", "'at' holds int64, which is no time"),
    ],
    ids=str,
)
def test_bad_times_of_a_table_are_refused_with_their_row(
    tmp_path: Path, stored: Any, unit: Any, message: str
) -> None:
    with pytest.raises(DataError, match=f"some.parquet.*{message}"):
        table.load(_parquet(tmp_path, at=stored), **NAMES, text="said", unit=unit)


def test_what_is_asked_for_must_make_sense(tmp_path: Path) -> None:
    path = _parquet(tmp_path)
    with pytest.raises(DataError, match="name a column with text= or columns="):
        table.load(path, **NAMES)
    with pytest.raises(DataError, match=r"give a list, columns=\['size'\]"):
        table.load(path, **NAMES, columns="size")
    with pytest.raises(DataError, match="columns= names 'text', which stands for .*'said'"):
        table.load(path, **NAMES, text="said", columns={"text": "size"})
    with pytest.raises(DataError, match="'size' holds int64, not strings"):
        table.load(path, **NAMES, text="size")
    with pytest.raises(DataError, match="unit='h': times are counted in s, ms, us or ns"):
        table.load(path, client="who", time="size", text="said", unit="h")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no column 'absent'; there are who"):
        table.load(path, **NAMES, text="absent")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent.jsonl cannot be read"):
        table.load(tmp_path / "absent.jsonl", **NAMES, text="said")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 1000)[:-12])
    with pytest.raises(DataError, match="cut.jsonl.gz"):
        table.load(tmp_path / "cut.jsonl.gz", client="a", time="b", text="c")
    (tmp_path / "raw.jsonl.gz").write_bytes(b"{}\n")
    with pytest.raises(DataError, match="raw.jsonl.gz cannot be read"):
        table.load(tmp_path / "raw.jsonl.gz", **NAMES, text="said")
    for paths in ("a.csv", ["a.jsonl", "b.parquet"], []):
        with pytest.raises(DataError, match="all end in .parquet, or all in .jsonl"):
            table.load(paths, **NAMES, text="said")
    for path in (_lines(tmp_path, ["\n"], "empty.jsonl"), tmp_path / "empty.parquet"):
        pl.read_parquet(_parquet(tmp_path)).clear().write_parquet(tmp_path / "empty.parquet")
        with pytest.raises(DataError, match="there are no rows"):
            table.load(path, **NAMES, text="said")


def test_lines_need_no_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    _check(table.load(_lines(tmp_path, ROWS), **NAMES, text="said", columns=["size"]))


def test_no_row_is_lost_however_they_stand(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start = datetime(2016, 1, 1, tzinfo=UTC)
    rows = [
        {"who": int(who), "at": (start + timedelta(seconds=int(at))).isoformat(), "x": number}
        for number, (who, at) in enumerate(rng.integers(0, 30, (200, 2)))
    ]
    people = table.load(_lines(tmp_path, rows), **NAMES, columns=["x"])
    seen = {}
    for client in range(len(people)):
        own = people.client(client)
        keys = list(zip(own["time"].tolist(), own["x"].tolist(), strict=True))
        # equal times stay in the order of the file
        assert keys == sorted(keys)
        seen.update({x: int(people.name(client)) for x in own["x"].tolist()})
    assert seen == {row["x"]: row["who"] for row in rows}
