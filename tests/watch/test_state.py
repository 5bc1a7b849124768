"""Folding: what events amount to, in whatever order, number and condition they come."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubless.errors import StoreError
from hubless.events import to_file
from hubless.watch.feed import open_feed
from hubless.watch.fold.overview import Overview, look
from hubless.watch.fold.run import kinds
from hubless.watch.fold.series import DRAWN
from hubless.watch.fold.strip import COLUMNS, MARKS, SHOWN
from hubless.watch.live.terminal import trouble_line
from hubless.watch.values import MOST_METRICS, Record
from tests.watch import runs

KINDS = sorted({*kinds(), "unknown"})


def folded(source: Path) -> Overview:
    state = Overview()
    look(state, [open_feed(source)])
    return state


def trained(number: int, **fields: Any) -> Record:
    work = {"cohort": [number % 7], "metrics": {"loss": 1 / number}, "seconds": 1.0}
    sizes = {"bytes_down": 10, "bytes_up": 5}
    return {"event": "trained", "client": "s", "time": 1e9 + number, "round": number} | {
        **work,
        **sizes,
        **fields,
    }


def started(number: int = 0, **settings_: Any) -> Record:
    at = {"event": "started", "client": "s", "time": 1e9 + number, "round": number}
    return at | {"settings": {"rounds": 100, "clients": 7, **settings_}}


def shown(row: dict[str, Any]) -> list[set[str]]:
    """What a row's cells say."""
    masks = [ord(cell) - 48 for cell in row["cells"]]
    return [{name for name, bit in MARKS.items() if mask & bit} for mask in masks]


def test_a_simulation_is_summed_up(tmp_path: Path) -> None:
    (run,) = folded(runs.whole_run(tmp_path / "events.jsonl")).to_json()["runs"]
    assert (run["status"], run["reason"]) == ("ended", "complete")
    assert (run["round"], run["rounds"]) == (10, 10)
    assert run["bytes_down"] == run["bytes_up"] == 50 << 20
    assert run["counts"] == {"trained": 5, "late": 1, "idle": 14}
    assert run["facts"]["strategy"] == "FedAvg()"
    points = run["lines"]["accuracy"][""]
    assert [(p[0], p[2]) for p in points[:2]] == [(1, 10 << 20), (2, 20 << 20)]
    assert run["metrics"]["accuracy"] == pytest.approx(points[-1][3], rel=1e-5)
    assert run["left"] is None


def test_the_time_that_is_left_goes_by_the_last_rounds() -> None:
    state = Overview()
    for record in (started(), *(trained(n) for n in range(1, 41))):
        state.apply(record)
    (run,) = state.to_json(now=1e9 + 41)["runs"]
    assert run["left"] == pytest.approx(60.0)
    assert run["status"] == "live"


def test_a_run_that_is_not_heard_of_any_more_is_silent() -> None:
    state = Overview()
    for record in (started(), trained(1), trained(2)):
        state.apply(record)
    assert state.to_json(now=1e9 + 50)["runs"][0]["status"] == "live"
    assert state.to_json(now=1e9 + 500)["runs"][0]["status"] == "silent"
    assert not state.is_over(1e9 + 500)


def test_a_resumed_run_counts_the_rounds_that_it_does_again_once() -> None:
    state, straight = Overview(), Overview()
    for record in (started(), *(trained(n) for n in range(1, 8))):
        state.apply(record)
    state.apply({"event": "ended", "client": "s", "round": 7, "reason": "interrupted"})
    assert state.is_over(1e9)
    for record in (started(4), *(trained(n) for n in range(5, 11))):
        state.apply(record)
    for record in (started(), *(trained(n) for n in range(1, 11))):
        straight.apply(record)
    (run,), (other,) = state.to_json(now=0)["runs"], straight.to_json(now=0)["runs"]
    assert not state.is_over(1e9)
    assert (run["round"], run["bytes_up"]) == (10, 50)
    assert run["lines"] == other["lines"]
    assert run["strip"]["rows"] == other["strip"]["rows"]
    (trouble,) = state.to_json()["trouble"]
    assert "interrupted after 7 rounds" in trouble["text"]


def test_a_run_that_starts_anew_stands_beside_the_one_before() -> None:
    state = Overview()
    for record in (
        started(),
        trained(1),
        trained(2, metrics={"other": 1.0}),
        started(),
        trained(1),
    ):
        state.apply(record)
    former, run = state.to_json()["runs"]
    assert (former["name"], former["reason"]) == ("s", "begun anew")
    assert run["name"] == "s (2)"
    assert list(run["lines"]) == ["loss"]
    assert len(run["lines"]["loss"][""]) == 1
    assert run["bytes_up"] == 5


def test_several_runs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    for name in ("uniform", "active"):
        runs.whole_run(tmp_path / "events.jsonl", name)
    run_list = folded(tmp_path / "events.jsonl").to_json()["runs"]
    assert [run["name"] for run in run_list] == ["uniform", "active"]


def test_runs_of_one_name_from_several_places_are_told_apart(tmp_path: Path) -> None:
    feeds = [open_feed(runs.whole_run(tmp_path / f"{name}.jsonl")) for name in "ab"]
    state = Overview()
    look(state, feeds)
    first, second = state.to_json()["runs"]
    assert first["name"] == "simulation"
    assert second["name"] == f"{tmp_path / 'b.jsonl'}: simulation"


def test_a_metric_that_is_not_finite_is_told_and_not_drawn() -> None:
    state = Overview()
    state.apply(started())
    state.apply(trained(1, metrics={"loss": None}))
    assert state.to_json()["runs"][0]["lines"] == {}
    assert "loss is no finite number in round 1" in state.to_json()["trouble"][0]["text"]


def test_memory_and_what_is_sent_stay_bounded_however_long_a_run_is() -> None:
    state, draw = Overview(), random.Random(0)
    state.apply(started(rounds=10_000, clients=1000))
    for number in range(1, 10_001):
        state.apply(trained(number, cohort=draw.sample(range(1000), 20)))
    (run,) = state.to_json(now=0)["runs"]
    points = run["lines"]["loss"][""]
    assert DRAWN // 2 <= len(points) <= DRAWN + 1
    assert (points[0][0], points[-1][0]) == (1, 10_000)
    strip = run["strip"]
    assert len(strip["rows"]) == SHOWN
    assert strip["more"] == 1000 - SHOWN
    assert COLUMNS // 2 <= strip["columns"] <= COLUMNS
    assert strip["columns"] * strip["width"] >= 10_000
    assert len(json.dumps(state.to_json(now=0))) < 150_000
    assert run["facts"]["ever trained"] == "1,000 of 1,000 clients"


def test_the_strip_keeps_the_clients_that_were_active_last() -> None:
    state = Overview()
    state.apply(started(clients=5000))
    for number in range(1, 5001):
        state.apply(trained(number, cohort=[number - 1]))
    strip = state.to_json()["runs"][0]["strip"]
    assert [row["name"] for row in strip["rows"][:2]] == ["4999", "4998"]
    assert strip["more"] == 4800


def test_a_wide_cell_says_how_often() -> None:
    state = Overview()
    state.apply(started())
    for number in range(1, 2 * COLUMNS + 1):
        state.apply(trained(number, cohort=[0, 1] if number % 2 else [0]))
    often, seldom = state.to_json()["runs"][0]["strip"]["rows"]
    assert set(often["levels"]) == {"9"}
    assert set(seldom["levels"]) == {"5"}


def pushed(client: str = "a", sequence: int = 0, **fields: Any) -> Record:
    push = {"event": "pushed", "client": client, "time": 1e9 + sequence, "key": "updates/x"}
    return {**push, "sequence": sequence, "examples": 1000, "bytes": 7, "metrics": {}, **fields}


def joined(client: str, url: str, life: str, time: float = 1e9) -> Record:
    record = {"event": "joined", "client": client, "time": time, "mode": "async"}
    return {**record, "url": url, "incarnation": life}


@pytest.mark.parametrize("huge", [1e306, -1e306, 1e99])
def test_a_members_huge_metric_is_gone_once_it_says_another(huge: float) -> None:
    state = Overview()
    state.apply(pushed("a", metrics={"loss": 1.0}))
    state.apply(pushed("b", metrics={"loss": huge}))
    json.dumps(state.to_json(), allow_nan=False)
    state.apply(pushed("b", 1, metrics={"loss": 3.0}))
    assert state.to_json()["runs"][0]["metrics"] == {"loss": 2.0}


def test_what_no_clock_page_or_sum_can_hold_is_passed_over() -> None:
    state = Overview("folder \udcff")
    state.apply(started())
    for number in (1, 2):
        state.apply(trained(number, seconds=1e308, time=1e300, metrics={"loss": 1e308}))
    state.apply(pushed("site \ud800", metrics={"\udfff": 1.0}))
    document = json.dumps(state.to_json(), allow_nan=False, ensure_ascii=False)
    assert "site ?" in document.encode().decode()
    assert "loss is no finite number" in trouble_line(state.troubles[0])


def test_a_client_that_joins_elsewhere_is_in_another_federation() -> None:
    state = Overview()
    for place, url in enumerate(("file:///one", "file:///two")):
        state.apply(joined("a", url, f"0001{place}"))
        for sequence in range(3):
            state.apply(pushed("a", sequence, metrics={"loss": 10.0 * place + sequence}))
    first, second = state.to_json()["runs"]
    assert (first["name"], second["name"]) == ("federation", "federation 2")
    assert first["updates"] == second["updates"] == 3
    assert (first["metrics"], second["metrics"]) == ({"loss": 2.0}, {"loss": 12.0})
    assert second["facts"]["url"] == "file:///two"


def test_a_folder_that_is_known_by_two_paths_is_one_federation() -> None:
    state = Overview()
    for url in ("file:///here", "file:///moved"):
        for client in "ab":
            state.apply(joined(client, url, f"0001{client}"))
            state.apply(pushed(client))
    # whoever comes later is known under one of them only
    state.apply(joined("c", "file:///moved", "0001c"))
    (run,) = state.to_json()["runs"]
    assert (run["updates"], run["facts"]["members"]) == (2, "3")


def test_names_of_metrics_stay_bounded_however_many_there_are() -> None:
    state = Overview()
    state.apply(started())
    for number in range(1, 201):
        state.apply(trained(number, metrics={f"m{number}": 1.0, "loss": 1.0}))
        state.apply(pushed("a", number, metrics={f"m{number}": 1.0}))
    simulation, federation = state.to_json()["runs"]
    assert len(simulation["metrics"]) == MOST_METRICS
    assert federation["metrics"] == {"m200": 1.0}


def test_members_and_rounds_of_a_federation_are_summed_up(tmp_path: Path) -> None:
    member_events = runs.synchronous(tmp_path / "run", rounds=3)
    state = Overview()
    for event in member_events:
        state.apply(json.loads(event.to_json()))
    (run,) = state.to_json()["runs"]
    assert (run["kind"], run["round"], run["in_rounds"]) == ("federation", 3, True)
    assert (run["status"], run["counts"]) == ("ended", {"left": 3})
    # who is slow makes others wait, and some say so
    rows = {r["name"]: [cell - {"waited"} for cell in shown(r)] for r in run["strip"]["rows"]}
    assert rows == dict.fromkeys(("m0", "m1", "m2"), [{"trained"}] * 3)
    lines = run["lines"]["loss"]
    assert set(lines) == {"all members", "m0", "m1", "m2"}
    # weighted by their 10, 11 and 12 examples
    assert lines["all members"][-1][3] == pytest.approx((5 + 16.5 + 30) / 33, rel=1e-5)
    assert run["metrics"]["loss"] == lines["all members"][-1][3]


def test_what_members_and_their_store_both_tell_counts_once(tmp_path: Path) -> None:
    runs.asynchronous(tmp_path, steps=2, events=to_file(tmp_path / "events.jsonl"))
    both = folded(tmp_path).to_json()["runs"][0]
    alone = folded(tmp_path / "events.jsonl").to_json()["runs"][0]
    assert both["updates"] == alone["updates"] == 4
    assert both["bytes_up"] == alone["bytes_up"]
    assert both["counts"] == alone["counts"] == {"left": 2}
    for line, points in alone["lines"]["loss"].items():
        # their clocks differ a little
        assert [(p[0], p[3]) for p in both["lines"]["loss"][line]] == [(p[0], p[3]) for p in points]


def test_every_trouble_shows_in_the_strip_the_counts_and_the_list() -> None:
    state = Overview()
    for name in "abcd":
        state.apply({"event": "joined", "client": name, "time": 1.0, "mode": "sync"})
    state.apply({"event": "late", "client": "a", "time": 2.0, "round": 4})
    key = "rounds/00000004/updates/b=1"
    for refuser in "acd":
        record = {"event": "refused", "client": refuser, "peer": "b", "time": 3.0, "key": key}
        state.apply({**record, "reason": "parameter 'w' holds NaN or infinity"})
    state.apply({"event": "offline", "client": "c", "time": 4.0, "reason": "no network"})
    state.apply({"event": "skipped", "client": "d", "time": 5.0, "step": 1, "round": 4})
    document = state.to_json(now=6.0)
    (run,) = document["runs"]
    assert run["counts"] == {"late": 1, "refused": 1, "offline": 1, "idle": 1}
    rows = {row["name"]: shown(row)[-1] for row in run["strip"]["rows"]}
    assert rows == {"a": {"late"}, "b": {"refused"}, "c": {"offline"}, "d": {"skipped"}}
    assert [(t["client"], t["kind"]) for t in document["trouble"]] == [
        ("c", "offline"),
        ("b", "refused"),
        ("a", "late"),
    ]


def test_a_trouble_that_repeats_takes_one_line() -> None:
    state = Overview()
    for _ in range(50):
        state.apply({"event": "offline", "client": "c", "time": 4.0, "reason": "no network"})
    (trouble,) = state.to_json()["trouble"]
    assert trouble["times"] == 50


def test_a_member_that_says_nothing_is_silent_and_one_that_left_stays_gone() -> None:
    state = Overview()
    for sequence in range(3):
        push = {"event": "pushed", "client": "a", "time": 10.0 * sequence + 1, "key": "updates/a"}
        state.apply({**push, "sequence": sequence, "examples": 1, "bytes": 7, "metrics": {}})
    assert state.to_json(now=30.0)["runs"][0]["counts"] == {"training": 1}
    assert state.to_json(now=300.0)["runs"][0]["counts"] == {"silent": 1}
    state.apply({"event": "left", "client": "a", "time": 40.0, "steps": 3})
    state.apply({"event": "closed", "client": "b", "time": 41.0, "round": 0, "included": ["a"]})
    assert state.to_json(now=42.0)["runs"][0]["counts"] == {"left": 1, "training": 1}
    state.apply({"event": "joined", "client": "a", "time": 50.0, "mode": "sync"})
    assert state.to_json(now=51.0)["runs"][0]["counts"] == {"joined": 1, "training": 1}


@pytest.mark.parametrize(("gap", "quiet"), [(0.2, 5.0), (1.0, 5.0), (3.0, 9.0), (40.0, 120.0)])
def test_what_is_too_long_a_silence_goes_by_a_members_own_pace(gap: float, quiet: float) -> None:
    state = Overview()
    for sequence in range(5):
        state.apply(pushed("a", sequence, time=1e9 + gap * sequence))
    last = 1e9 + 4 * gap
    assert state.to_json(now=last + quiet - 0.1)["runs"][0]["counts"] == {"training": 1}
    assert state.to_json(now=last + quiet + 0.1)["runs"][0]["counts"] == {"silent": 1}
    state.check(last + 12.0 * gap + quiet)
    (trouble,) = state.to_json()["trouble"]
    assert (trouble["client"], trouble["kind"]) == ("a", "silent")
    assert f"it used to share every {gap:.1f} s" in trouble["text"]


def test_a_member_that_comes_back_is_restarted_and_one_that_left_has_joined() -> None:
    state = Overview()
    state.apply(joined("a", "file:///x", "0001aa"))
    state.apply(joined("a", "file:///x", "0002bb", time=1e9 + 1))
    (run,) = state.to_json(now=1e9 + 2)["runs"]
    assert run["counts"] == {"restarted": 1}
    state.apply({"event": "left", "client": "a", "time": 1e9 + 3})
    state.apply(joined("a", "file:///x", "0003cc", time=1e9 + 4))
    (run,) = state.to_json(now=1e9 + 5)["runs"]
    assert run["counts"] == {"joined": 1}


def test_rounds_that_nobody_saw_are_drawn_by_the_numbers_of_the_updates() -> None:
    state = Overview()
    state.apply({**joined("a", "file:///x", "0001aa"), "mode": "sync"})
    for number in (3, 9):
        key = f"rounds/0000000{number}/updates/a=x"
        state.apply(pushed("a", number, key=key, time=1e9 + number))
    (run,) = state.to_json(now=1e9 + 10)["runs"]
    assert shown(run["strip"]["rows"][0]) == [{"trained"}] * 10
    assert (run["updates"], run["bytes_up"]) == (10, 70)
    # one round took a second, whenever somebody looked
    assert state.to_json(now=1e9 + 9 + 5.1)["runs"][0]["counts"] == {"waiting": 1}
    state.apply({"event": "closed", "client": "", "time": 1e9 + 9, "round": 9, "included": ["a"]})
    assert state.to_json(now=1e9 + 9 + 5.1)["runs"][0]["counts"] == {"silent": 1}


def test_a_thousand_members_take_a_bounded_number_of_lines() -> None:
    state = Overview()
    for i in range(1000):
        push = {"event": "pushed", "client": f"site-{i}", "time": 1.0 + i, "key": "updates/x"}
        state.apply({**push, "sequence": 0, "examples": 1, "bytes": 7, "metrics": {"loss": i}})
    (run,) = state.to_json(now=1.0)["runs"]
    assert len(run["lines"]["loss"]) < 12
    assert run["metrics"]["loss"] == pytest.approx(499.5)
    assert len(run["strip"]["rows"]) == SHOWN
    assert run["strip"]["more"] == 800


class Ahead:
    """A store whose clock is an hour ahead."""

    name = "ahead"
    sequence = 0

    def poll(self) -> list[Record]:
        self.sequence += 1
        when = time.time() + 3600
        return [pushed("a", n, time=when + n / 10) for n in range(self.sequence, self.sequence + 3)]


def test_a_clock_that_is_ahead_does_not_hide_a_silence() -> None:
    state, feed = Overview(), Ahead()
    for _ in range(2):
        look(state, [feed])
        (run,) = state.to_json(now=time.time() + 6)["runs"]
        assert run["counts"] == {"silent": 1}
        assert state.to_json(now=time.time())["runs"][0]["counts"] == {"training": 1}


class Broken:
    name = "broken"

    def poll(self) -> list[Record]:
        raise StoreError("the share went away")


def test_a_feed_that_cannot_be_read_is_said_until_it_can_be() -> None:
    state = Overview()
    assert look(state, [Broken()])
    assert state.to_json()["unreachable"] == "the share went away"
    assert not look(state, [Broken()])
    assert look(state, [])
    assert state.to_json()["unreachable"] == ""


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a", "b", "sync", "rounds/00000003/updates/a=1", "rounds/x/", "updates/a"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=6,
)
FIELDS = [
    *("client", "time", "key", "sequence", "examples", "bytes", "metrics", "round", "cohort"),
    *("included", "missing", "reason", "peer", "settings", "staleness", "version", "mode", "url"),
    *("seconds", "dropped", "skipped", "bytes_up", "bytes_down"),
]


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), anything, max_size=8)
        ),
        max_size=12,
    )
)
def test_no_record_can_break_it_nor_what_it_says(records: list[tuple[str, dict[str, Any]]]) -> None:
    state = Overview()
    for kind, fields in records:
        state.apply({**fields, "event": kind})
    document = json.dumps(state.to_json(now=1e9), allow_nan=False)
    assert len(document) < 500_000


def test_folding_imports_nothing_heavy() -> None:
    modules = "hubless.watch.feed, hubless.watch.live.terminal, hubless.watch.live.web"
    code = f"import sys, {modules}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "rich", "starlette", "uvicorn", "numpy"}.isdisjoint(ran.stdout.split())
