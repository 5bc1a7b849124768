"""A new kind of event: its class and one handler, and every view shows it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hubless
from hubless import events
from hubless.watch.feed import open_feed
from hubless.watch.fold import strip
from hubless.watch.fold.federation import FederationFold
from hubless.watch.fold.overview import Overview, look
from hubless.watch.fold.run import HeardEvent, handles
from hubless.watch.live.terminal import watch_terminal
from hubless.watch.report.page import write_report
from tests.watch import runs

WATCH = Path(hubless.__file__).parent / "watch"


# what somebody writes who wants a new kind of event: a class in hubless/events.py...
@dataclass(frozen=True, kw_only=True)
class Overheated(events.Event):
    """The machine of a member was too hot to go on."""

    degrees: float
    level = logging.WARNING


# ... and a function in hubless/watch/fold/handlers.py
@handles("overheated")
def overheated(run: FederationFold, event: HeardEvent) -> None:
    if run.own(event, "cooling down"):
        run.mark(event.client, event, strip.WRONG)
        run.wrong(event.client, event, f"it was {event.record.get('degrees')} degrees hot")


@dataclass(frozen=True, kw_only=True)
class Unheard(events.Event):
    """Something that no handler knows of."""

    level = logging.WARNING


def overview_of(path: Path) -> dict[str, Any]:
    overview = Overview()
    look(overview, [open_feed(path)])
    return overview.to_json()


def test_a_new_kind_is_a_class_and_a_handler_and_is_seen_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    say = events.to_file(path)
    update = {
        "key": "updates/a",
        "sequence": 0,
        "examples": 5,
        "bytes": 7,
        "metrics": {"loss": 0.5},
    }
    say(events.Pushed(client="site-a", **update))  # type: ignore[arg-type]
    say(Overheated(client="site-a", degrees=97.0))
    (run,) = overview_of(path)["runs"]
    assert run["counts"] == {"cooling down": 1}
    assert ord(run["strip"]["rows"][0]["cells"][-1]) - 48 & strip.WRONG
    (trouble,) = overview_of(path)["trouble"]
    assert (trouble["client"], trouble["kind"]) == ("site-a", "overheated")
    assert watch_terminal(open_feed(path), once=True) == 0
    shown = capsys.readouterr().out
    assert "1 cooling down" in shown and "overheated: it was 97.0 degrees hot" in shown
    page = write_report([path], tmp_path / "r.html", pictures=False).read_text()
    assert "cooling down" in page and "it was 97.0 degrees hot" in page
    # nothing in the views had to hear of it
    files = [path for path in WATCH.rglob("*") if path.suffix in (".py", ".js", ".css", ".html")]
    assert len(files) > 20
    assert not [path for path in files if "overheated" in path.read_text().lower()]


def test_a_warning_that_nothing_handles_is_shown_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    events.to_file(path)(Unheard(client="site-a"))
    (trouble,) = overview_of(path)["trouble"]
    assert trouble["text"] == "Something that no handler knows of."


@pytest.mark.parametrize("kind", ["impostor", "forged"])
def test_alarms_are_shown_as_what_went_wrong(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.jsonl"
    for client in ("a", "b"):
        runs.say(path, "pushed", client=client, sequence=0, examples=1, bytes=1, metrics={})
    alarm = {"key": "rounds/00000001/slices-0000/x", "reason": "it comes out otherwise"}
    runs.say(path, kind, client="a", **({"peer": "b"} if kind == "forged" else {}), **alarm)
    overview = overview_of(path)
    whose = "b" if kind == "forged" else "a"
    assert [(t["client"], t["kind"]) for t in overview["trouble"]] == [(whose, kind)]
    assert "it comes out otherwise" in json.dumps(overview["trouble"])
    rows = {row["name"]: row["cells"] for row in overview["runs"][0]["strip"]["rows"]}
    assert any(ord(cell) - 48 & strip.WRONG for cell in rows[whose])
