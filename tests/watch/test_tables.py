"""Tables: what events said, in rows that can be counted on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubless.errors import DataError
from hubless.select.activity import Activity
from hubless.simulate.times import Buffered
from hubless.watch.fold.federation import ALL
from hubless.watch.fold.overview import Overview
from hubless.watch.report.comparison import compare, sentences
from hubless.watch.report.sources import read_sources
from hubless.watch.report.tables import Tables, tables_of
from tests.watch.reports import MEMBERS, SIZES, federated, made_up, simulated
from tests.watch.test_state import FIELDS, KINDS, anything


def _tables(*sources: Path) -> Tables:
    material = read_sources(sources)
    return tables_of(material.simulations, material.federations)


def _written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _trained(number: int, time: float, **fields: Any) -> dict[str, Any]:
    plain = {"event": "trained", "client": "a", "time": time, "round": number, "cohort": [number]}
    return {**plain, "metrics": {"loss": 1 / number}, "bytes_up": 5, "bytes_down": 5, **fields}


def _pushed(sequence: int, time: float = 1.0, loss: float = 1.0) -> dict[str, Any]:
    record = {"event": "pushed", "client": "a", "time": time, "key": "updates/a", "bytes": 7}
    return {**record, "sequence": sequence, "examples": 5, "metrics": {"loss": loss}}


def _started(number: int, time: float, **settings: Any) -> dict[str, Any]:
    return {"event": "started", "client": "a", "time": time, "round": number, "settings": settings}


def test_rounds_are_those_of_the_history(tmp_path: Path) -> None:
    ran = simulated(tmp_path / "a.jsonl")
    tables = _tables(tmp_path / "a.jsonl")
    history = ran.history
    assert tables.rounds["round"].to_list() == history["round"].to_list()
    for name in ("train_loss", "loss", "accuracy"):
        assert tables.rounds[name].to_list() == pytest.approx(history[name].to_list())
    total = (history["bytes_down"] + history["bytes_up"]).sum()
    assert tables.rounds["bytes"].to_list()[-1] == total
    assert tables.rounds["elapsed"].is_sorted()
    assert set(tables.metrics) == {"train_loss", "loss", "accuracy"}


def test_participation_counts_who_trained_and_on_what(tmp_path: Path) -> None:
    ran = simulated(tmp_path / "a.jsonl", rounds=9)
    tables = _tables(tmp_path / "a.jsonl")
    counts = dict(zip(tables.participation["client"], tables.participation["times"], strict=True))
    selected = ran.roster.selected
    assert counts == {str(c): n for c, n in enumerate(selected) if n and SIZES[c]}
    for client, examples in zip(
        tables.participation["client"], tables.participation["examples"], strict=True
    ):
        assert examples == SIZES[int(client)]


def test_picks_show_a_selector_that_prefers_the_heavy(tmp_path: Path) -> None:
    simulated(tmp_path / "a.jsonl", selector=Activity("n"), rounds=60, cohort=2)
    picks = _tables(tmp_path / "a.jsonl").picks
    ratio = dict(zip(picks["decile"], picks["ratio"], strict=True))
    assert ratio[10] > 2 > 0.8 > ratio.get(1, 0.0)
    assert sum(picks["times"]) == pytest.approx(sum(picks["uniform"]))


def test_picks_by_quantiles_share_out_who_stands_on_a_border(tmp_path: Path) -> None:
    settings = {"clients": 50, "activity": [4.0] * 11}
    path = _written(
        tmp_path / "a.jsonl",
        _started(0, 0, **settings),
        _trained(1, 1, cohort=[1, 2], examples=[4, 4]),
    )
    picks = _tables(path).picks
    assert picks["ratio"].to_list() == pytest.approx([1.0] * 10)


def test_deciles_phases_and_labels_are_as_they_were_said(tmp_path: Path) -> None:
    simulated(tmp_path / "a.jsonl")
    tables = _tables(tmp_path / "a.jsonl")
    assert set(tables.deciles["metric"]) == {"loss", "accuracy"}
    assert set(tables.deciles["round"]) == {2, 4, 6}
    assert set(tables.deciles["decile"]) == set(range(1, 11))
    assert set(tables.phases["phase"]) == {"select", "train", "evaluate", "everything else"}
    assert tables.labels["examples"].sum() == sum(SIZES)
    for decile in tables.labels.partition_by("decile"):
        assert decile["share"].sum() == pytest.approx(1)


def test_staleness_of_a_buffered_run_is_counted(tmp_path: Path) -> None:
    simulated(tmp_path / "a.jsonl", pace=Buffered(4, 2), rounds=10)
    tables = _tables(tmp_path / "a.jsonl")
    assert tables.staleness["times"].sum() == 20
    assert tables.staleness["staleness"].max() > 0


def test_what_was_done_again_after_a_kill_counts_once(tmp_path: Path) -> None:
    path = _written(
        tmp_path / "a.jsonl",
        _started(0, 100),
        *(_trained(number, 100 + number) for number in (1, 2, 3, 4)),
        _started(2, 1000),
        _trained(3, 1001, metrics={"loss": 0.5}),
    )
    tables = _tables(path)
    assert tables.rounds["round"].to_list() == [1, 2, 3]
    assert tables.rounds["loss"].to_list() == [1, 0.5, 0.5]
    assert tables.rounds["elapsed"].to_list() == [1, 2, 3]
    assert tables.rounds["bytes"].to_list() == [10, 20, 30]


def test_a_second_run_in_one_file_is_another_run(tmp_path: Path) -> None:
    path = _written(
        tmp_path / "a.jsonl", _started(0, 0), _trained(1, 1), _started(0, 9), _trained(1, 10)
    )
    assert _tables(path).rounds["run"].to_list() == ["a", "a (2)"]


def test_runs_of_one_name_in_two_files_are_two(tmp_path: Path) -> None:
    for name in ("first", "second"):
        simulated(tmp_path / f"{name}.jsonl", rounds=1)
    assert [run.name for run in read_sources([tmp_path]).simulations] == ["first", "second"]


def test_a_simulation_and_a_federation_of_one_name_are_told_apart(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.jsonl", _started(0, 0), _trained(1, 1), _pushed(0))
    material = read_sources([path])
    assert material.names == ["a", "a (2)"]


@pytest.mark.parametrize("file", ["events.jsonl", "only.jsonl"])
def test_runs_in_folders_are_called_by_their_folders(tmp_path: Path, file: str) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        simulated(folder / file, rounds=1)
    assert read_sources(folders).names == ["first", "second"]


def test_one_file_of_events_is_called_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    simulated(tmp_path / "first" / "events.jsonl", rounds=1)
    assert read_sources([tmp_path / "first" / "events.jsonl"]).names == ["first"]


def test_two_federations_of_one_client_in_one_file_are_two(tmp_path: Path) -> None:
    records = []
    for place, url in enumerate(("file:///one", "file:///two")):
        join = {"event": "joined", "client": "a", "time": 10.0 * place, "url": url}
        records.append({**join, "mode": "async", "incarnation": f"0001{place}"})
        records += [_pushed(n, time=10.0 * place + n, loss=float(place)) for n in range(3)]
    for source in (_written(tmp_path / "a.jsonl", *records), tmp_path):
        tables = _tables(source)
        assert tables.members["updates"].to_list() == [3, 3]
        own = tables.rounds.filter(tables.rounds["client"] == "a")
        assert own["loss"].to_list() == [0.0] * 3 + [1.0] * 3


def test_updates_that_no_longer_lie_in_a_folder_are_counted(tmp_path: Path) -> None:
    tables = _tables(_written(tmp_path / "a.jsonl", _pushed(7), _pushed(8)))
    assert tables.members["updates"].to_list() == [9]
    assert tables.rounds.filter(tables.rounds["client"] == "a")["round"].to_list() == [8, 9]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_federation_has_a_row_for_each_update_of_each_member(tmp_path: Path, mode: Any) -> None:
    federated(tmp_path / "meet", mode)
    tables = _tables(tmp_path / "meet")
    own = tables.rounds.filter(tables.rounds["client"] != ALL)
    assert len(own) == 12
    assert set(own["client"]) == set(MEMBERS)
    assert own["round"].max() == 4
    last = own.filter(own["round"] == 4).sort("client")
    assert last["loss"].to_list() == pytest.approx([0.25, 1.25, 2.25])
    assert tables.members["updates"].to_list() == [4, 4, 4]
    assert tables.members["examples"].to_list() == [10, 20, 30]
    assert tables.members["status"].to_list() == ["left"] * 3
    assert tables.members["rounds"].to_list() == [4 * (mode == "sync")] * 3
    assert tables.staleness.is_empty() == (mode == "sync")


def test_troubles_are_counted_by_whose_they_are_and_why(tmp_path: Path) -> None:
    def record(kind: str, **fields: Any) -> dict[str, Any]:
        return {"event": kind, "client": "a", "time": 1.0, **fields}

    path = _written(
        tmp_path / "a.jsonl",
        *(record("refused", peer="b", key=f"k{n}", reason="too large") for n in (1, 2, 2)),
        record("late", round=3),
        record("late", round=3),
        record("offline", reason="no network"),
    )
    tables = _tables(path)
    rows = {(row["client"], row["kind"]): row["times"] for row in tables.troubles.to_dicts()}
    assert rows == {("b", "refused"): 2, ("a", "late"): 1, ("a", "offline"): 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"round": "3"},
        {"round": 10**40},
        {"metrics": [1]},
        {"metrics": {"loss": "much", "x" * 9000: 1, "round": 3}},
        {"metrics": {"loss": None}},
        {"cohort": ["a", None], "examples": {"b": 1}},
        {"cohort": [10**30]},
        {"cohort": [[1], [2, 3]]},
        {"cohort": [3], "examples": [-(10**12)]},
        {"time": None, "seconds": "long"},
        {"deciles": {"loss": 3}, "phases": [1], "staleness": ["x"]},
        {"bytes_up": -1e308, "bytes_down": 1e308},
        {"client": {"a": "\ud800"}},
    ],
)
def test_a_hostile_record_is_passed_over(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = _written(
        tmp_path / "a.jsonl", _started(0, 0), _trained(1, 1), {**_trained(2, 2), **fields}
    )
    tables = _tables(path)
    assert tables.rounds["loss"].to_list()[0] == 1.0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), anything, max_size=8)
        ),
        max_size=12,
    )
)
def test_no_records_can_break_what_a_report_is_made_of(
    records: list[tuple[str, dict[str, Any]]],
) -> None:
    overview = Overview()
    for kind, fields in records:
        overview.apply({"client": "a", **fields, "event": kind})
    overview.check(2e9)
    simulations, federations = overview.simulations, overview.federations
    compared = compare(tables_of(simulations, federations, 2e9), simulations, federations, 2e9)
    assert len(sentences(compared, simulations)) > 0


def test_a_torn_last_line_and_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    simulated(path, rounds=3)
    whole = path.read_bytes()
    path.write_bytes(b'\x00\xff\nnull\n{"event": 3}\n{"event": "unheard of"}\n' + whole[:-200])
    assert _tables(path).rounds["round"].to_list()[:2] == [1, 2]


def test_nothing_to_report_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("no JSON\n")
    with pytest.raises(DataError, match="nothing to report"):
        read_sources([tmp_path / "a.jsonl"])


def test_ten_thousand_rounds_of_a_hundred_take_seconds(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with open(path, "w") as file:
        file.writelines(made_up(5000, 10_000, 100))
    # seconds of this process: other tests may want the same cores
    started = time.process_time()
    tables = _tables(path)
    assert time.process_time() - started < 20
    assert tables.participation["times"].sum() == 1_000_000
    assert tables.picks["ratio"].to_list() == pytest.approx([1.0] * 10, abs=0.15)


def test_a_simulation_without_a_start_still_has_its_rounds() -> None:
    overview = Overview()
    overview.apply(_trained(1, 50.0, seconds=2.0))
    overview.apply(_trained(2, 53.0, seconds=3.0))
    assert tables_of(overview.simulations).rounds["elapsed"].to_list() == [2.0, 5.0]
