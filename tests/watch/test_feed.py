"""Feeds: files that grow, tear and are replaced, and federations that nobody speaks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import events
from hubless.errors import FederationError, HublessError, StoreError, Unsupported
from hubless.select import Uniform
from hubless.store.reliable import Reliable
from hubless.testing.metered import Metered
from hubless.watch.feed import Feed, Feeds, open_feed
from hubless.watch.listing import FederationFeed
from tests.support.servers import Server
from tests.watch import runs


def polled(feed: Feed) -> list[dict[str, Any]]:
    return list(feed.poll())


def kinds(records: list[dict[str, object]]) -> list[object]:
    return [record["event"] for record in records]


def texts(records: list[dict[str, object]]) -> list[str]:
    return sorted(json.dumps(record, sort_keys=True) for record in records)


def test_a_file_is_read_on_from_where_it_was_read_to(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    runs.start(path)
    feed = open_feed(path)
    assert feed.name == str(path)
    assert kinds(polled(feed)) == ["started"]
    assert polled(feed) == []
    runs.train(path, 1)
    runs.train(path, 2)
    assert [record["round"] for record in polled(feed)] == [1, 2]
    assert polled(feed) == []


def test_what_hubless_writes_is_what_a_feed_reads(tmp_path: Path) -> None:
    event = events.Waiting(client="a", round=3, present=1, missing=["b"], seconds=float("nan"))
    events.to_file(tmp_path / "events.jsonl")(event)
    (record,) = polled(open_feed(tmp_path))
    assert record == {**json.loads(event.to_json()), "seconds": None}


def test_a_line_that_is_still_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "nothing", "client": "a"}\n{"event": "nothing", "cli')
    feed = open_feed(path)
    assert [r["client"] for r in polled(feed)] == ["a"]
    with open(path, "a") as file:
        file.write('ent": "b"}\n')
    assert [r["client"] for r in polled(feed)] == ["b"]


def test_a_run_that_was_killed_within_a_line_and_went_on_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "trained", "client": "s", "metr')
    runs.say(path, "started", client="s", round=7, settings={})
    assert [(r["event"], r["round"]) for r in polled(open_feed(path))] == [("started", 7)]


def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    odd = [b"", b"no JSON", b"[1, 2]", b'"text"', b'{"no": "event"}', b'{"event": 7}', b"\xff\x00"]
    deep = b'{"event": ' + b"[" * 100_000
    path.write_bytes(b"\n".join([*odd, deep, b'{"event": "left", "x": NaN}', b""]))
    assert polled(open_feed(path)) == [{"event": "left", "x": None}]


def test_a_file_that_is_replaced_or_cut_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    runs.whole_run(path)
    feed = open_feed(path)
    assert len(polled(feed)) == 12
    path.write_text('{"event": "left", "client": "cut"}\n')
    assert [r["client"] for r in polled(feed)] == ["cut"]
    other = tmp_path / "other"
    runs.whole_run(other)
    other.replace(path)
    assert len(polled(feed)) == 12
    path.unlink()
    assert polled(feed) == []


def test_a_folder_is_read_in_the_order_of_time_and_new_files_are_found(tmp_path: Path) -> None:
    for name, times in {"a": (1, 4), "b": (2, 3)}.items():
        for when in times:
            runs.say(tmp_path / f"{name}.jsonl", "left", client=name, time=when)
    feed = open_feed(tmp_path)
    assert [(r["client"], r["time"]) for r in polled(feed)] == [
        ("a", 1),
        ("b", 2),
        ("b", 3),
        ("a", 4),
    ]
    runs.say(tmp_path / "c.jsonl", "left", client="c")
    (tmp_path / "notes.txt").write_text('{"event": "left", "client": "no"}\n')
    assert [r["client"] for r in polled(feed)] == ["c"]


def test_where_there_is_nothing_to_watch_one_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(HublessError, match="there is no .*missing"):
        open_feed(missing)
    with pytest.raises(FederationError, match="nothing to watch"):
        open_feed(tmp_path)
    with pytest.raises(FederationError, match="there is no federation at memory://nobody"):
        open_feed("memory://nobody")
    with pytest.raises(StoreError, match="no store for ftp"):
        open_feed("ftp://host")
    assert list(tmp_path.iterdir()) == []


def test_a_federation_tells_who_joined_and_what_they_shared(tmp_path: Path) -> None:
    runs.asynchronous(tmp_path)
    feed = open_feed(tmp_path)
    records = polled(feed)
    assert kinds(records).count("joined") == 2
    pushed = [r for r in records if r["event"] == "pushed"]
    assert [(r["client"], r["sequence"]) for r in pushed] == [
        ("site-0", 0),
        ("site-1", 0),
        ("site-0", 1),
        ("site-1", 1),
        ("site-0", 2),
        ("site-1", 2),
    ]
    # what does not lie there any more was left behind by those who left
    losses = [r["metrics"]["loss"] for r in pushed]
    assert losses == pytest.approx([1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3], rel=1e-5)
    assert pushed[-1]["examples"] == 200
    assert pushed[-1]["bytes"] > 4000
    assert polled(feed) == []


def test_the_listing_tells_the_same_as_the_members(tmp_path: Path) -> None:
    member_events: list[events.Event] = []
    runs.asynchronous(tmp_path, steps=1, events=member_events.append)
    records = [
        json.loads(e.to_json()) for e in member_events if e.kind in ("joined", "pushed", "left")
    ]
    listed = polled(open_feed(tmp_path))
    for record in (*records, *listed):
        del record["time"]
        record.pop("steps", None)
    assert texts(listed) == texts(records)


def test_new_updates_are_told_once_each(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as member:
        feed = open_feed(tmp_path)
        assert kinds(polled(feed)) == ["joined"]
        for step in range(4):
            member.step(runs.params(1.0), examples=5, metrics={"loss": float(step)})
            (record,) = polled(feed)
            assert (record["sequence"], record["metrics"]) == (step, {"loss": float(step)})
    with hubless.join(tmp_path, "a"):
        (again,) = polled(feed)
    assert (again["event"], again["resumed"]) == ("joined", True)


def test_an_update_that_members_would_refuse_is_told_as_refused(tmp_path: Path) -> None:
    runs.asynchronous(tmp_path)
    key = runs.spoil_newest(tmp_path, "site-1")
    (refused,) = [r for r in polled(open_feed(tmp_path)) if r["event"] == "refused"]
    assert (refused["peer"], refused["key"]) == ("site-1", key)
    assert "pickle" in refused["reason"]


def test_rounds_are_told_with_who_was_in_them(tmp_path: Path) -> None:
    runs.synchronous(tmp_path, rounds=3)
    records = polled(open_feed(tmp_path))
    closed = [r for r in records if r["event"] == "closed"]
    assert closed[-1]["round"] == 2
    assert closed[-1]["included"] == ["m0", "m1", "m2"]
    assert not {"late", "waiting", "refused"} & set(kinds(records))


def test_who_is_picked_is_told_from_the_plans(tmp_path: Path) -> None:
    pace = hubless.Rounds(["m0", "m1", "m2"], deadline=60.0)
    who = hubless.Selection(Uniform(), 2)
    member_events = runs.synchronous(tmp_path, rounds=2, pace=pace, who=who)
    drawn = {e.round: sorted(e.cohort) for e in member_events if isinstance(e, events.Picked)}
    picked = {
        r["round"]: sorted(r["cohort"])
        for r in polled(open_feed(tmp_path))
        if r["event"] == "picked"
    }
    assert picked
    assert picked == {number: drawn[number] for number in picked}


def test_an_open_round_is_waited_for_and_a_round_without_someone_is_late_for_it(
    tmp_path: Path,
) -> None:
    runs.synchronous(tmp_path, rounds=1)
    feed = open_feed(tmp_path)
    polled(feed)
    # what the third member would leave if it was killed while it waits
    (last,) = (tmp_path / "rounds/00000000/updates").glob("m2=*")
    opened = tmp_path / "rounds/00000001/updates"
    opened.mkdir(parents=True)
    name = last.name.replace("=00000000-", "=00000001-")
    (opened / name).write_bytes(last.read_bytes())
    records = polled(feed)
    (waiting,) = [r for r in records if r["event"] == "waiting"]
    assert (waiting["client"], waiting["round"], waiting["present"]) == ("m2", 1, 1)
    assert waiting["missing"] == ["m0", "m1"]
    plan = json.loads((tmp_path / "rounds/00000000/plan-0000.json").read_text())
    plan["included"] = [
        key.replace("00000000/updates", "00000001/updates").replace("=00000000-", "=00000001-")
        for key in plan["included"]
        if "m2=" not in key
    ]
    # nobody closes a round with what is not there
    for key in plan["included"]:
        (tmp_path / key).write_bytes(last.read_bytes())
    (tmp_path / "rounds/00000001/plan-0000.json").write_text(json.dumps(plan))
    (tmp_path / "rounds/00000002/updates").mkdir(parents=True)
    later = tmp_path / "rounds/00000002/updates" / name.replace("=00000001-", "=00000002-")
    later.write_bytes(last.read_bytes())
    records = polled(feed)
    assert [(r["client"], r["round"]) for r in records if r["event"] == "late"] == [("m2", 1)]
    assert [r["included"] for r in records if r["event"] == "closed"] == [["m0", "m1"]]


def test_a_damaged_plan_is_told_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    runs.synchronous(tmp_path, rounds=1)
    (tmp_path / "rounds/00000000/plan-0000.json").write_text("{")
    feed = open_feed(tmp_path)
    (reason,) = [r["reason"] for r in polled(feed) if r["event"] == "offline"]
    assert "rounds/00000000/plan-0000.json binds nobody: it is damaged" in reason
    assert polled(feed) == []


def test_watching_writes_nothing_and_collects_nothing(tmp_path: Path) -> None:
    runs.asynchronous(tmp_path)
    dead = tmp_path / ".staging" / f"{'x' * 8}-1-abc-0"
    dead.parent.mkdir(exist_ok=True)
    dead.write_bytes(b"left by a killed writer")
    os.utime(dead, (0, 0))

    def tree() -> list[tuple[str, int]]:
        return sorted((str(p), p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))

    before = tree()
    feed = FederationFeed(tmp_path)
    polled(feed)
    polled(feed)
    assert tree() == before
    with pytest.raises(Unsupported, match="only looked at"):
        feed.store.put("a", [b""])
    with pytest.raises(Unsupported, match="only looked at"):
        feed.store.delete(["a"])


def test_a_look_costs_two_listings_and_a_header_for_each_new_update(tmp_path: Path) -> None:
    runs.asynchronous(tmp_path, steps=3, sites=4)
    feed = FederationFeed(tmp_path)
    store = Metered(feed.store.store)
    feed.store = Reliable(store)
    polled(feed)
    # two updates of each still lie there
    assert store.requests == {"list": 2, "read": 8, "get": 4}
    assert store.bytes_down < 8 * 1000 * 4
    polled(feed)
    assert store.requests == {"list": 4, "read": 8, "get": 4}


def test_a_store_that_is_gone_is_an_error_that_a_view_can_show(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    runs.asynchronous(folder)
    feed = FederationFeed(folder)
    feed.store.patience = 0.01
    folder.rename(tmp_path / "away")
    with pytest.raises(StoreError, match="cannot list"):
        polled(feed)
    (tmp_path / "away").rename(folder)
    assert kinds(polled(feed)).count("pushed") == 6


def test_files_in_a_federations_folder_are_read_too(tmp_path: Path) -> None:
    runs.asynchronous(tmp_path, steps=1)
    runs.say(tmp_path / "site-0.jsonl", "offline", client="site-0", reason="no network")
    feed = open_feed(tmp_path)
    assert isinstance(feed, Feeds)
    assert kinds(polled(feed))[-1] == "offline"


@pytest.mark.xdist_group("moto")
def test_a_federation_in_a_bucket_is_watched_like_one_in_a_folder(moto_server: Server) -> None:
    url, options = f"{moto_server.url}/watched", moto_server.options
    with pytest.raises(FederationError, match="there is no federation"):
        open_feed(url, options=options)
    runs.asynchronous(hubless.Bucket(url, options=options), steps=2)
    feed = open_feed(url, options=options)
    records = polled(feed)
    assert sorted(kinds(records)) == ["joined"] * 2 + ["left"] * 2 + ["pushed"] * 4
    assert [r["metrics"] for r in records if r.get("sequence") == 1] == [{"loss": 0.5}] * 2
    assert np.ptp([r["time"] for r in records]) < 60
    assert polled(feed) == []
