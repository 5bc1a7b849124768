"""Events: one line each, told to everyone, and no listener can stop a run."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from hubless import events
from hubless.events import Event, Events, Left, Nothing, Pulled, Pushed, RefusedUpdate, to_file


def _pushed(**changes: object) -> Pushed:
    values: dict[str, object] = {
        "client": "site-a",
        "key": "updates/site-a/1",
        "sequence": 1,
        "examples": 120,
        "bytes": 2048,
        "metrics": {"loss": 0.5},
    }
    return Pushed(**{**values, **changes})  # type: ignore[arg-type]


def _kinds() -> list[type[Event]]:
    found = [item for item in vars(events).values() if isinstance(item, type)]
    return [item for item in found if issubclass(item, Event) and item is not Event]


def test_an_event_is_one_line_of_json_that_says_everything() -> None:
    line = _pushed(time=12.5, metrics={"loss": 0.5, "note\n": 1.0}).to_json()
    assert "\n" not in line
    assert json.loads(line) == {
        "event": "pushed",
        "client": "site-a",
        "time": 12.5,
        "key": "updates/site-a/1",
        "sequence": 1,
        "examples": 120,
        "bytes": 2048,
        "metrics": {"loss": 0.5, "note\n": 1.0},
    }


def test_numbers_from_numpy_are_written_like_others() -> None:
    event = _pushed(examples=np.int64(120), metrics={"loss": np.float32(0.5)})
    document = json.loads(event.to_json())
    assert (document["examples"], document["metrics"]) == (120, {"loss": 0.5})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_no_number_still_gives_json_that_everybody_reads(value: float) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(_pushed(metrics={"loss": value}).to_json(), parse_constant=refuse)


def test_a_refused_update_goes_by_the_name_its_documentation_gives() -> None:
    event = RefusedUpdate(client="a", peer="b", key="k", reason="r")
    assert event.kind == "refused"


def test_no_two_events_go_by_one_name() -> None:
    kinds = _kinds()
    assert len(kinds) >= 10
    names = {kind.__name__.lower() for kind in kinds}
    assert len(names) == len(kinds)


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_events_are_frozen_and_know_their_client_and_time(kind: type[Event]) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert {"client", "time"} <= fields
    assert "level" not in fields
    assert kind.level in (logging.INFO, logging.WARNING)
    event = object.__new__(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.client = "other"  # type: ignore[misc]


def test_every_listener_hears_every_event_in_order() -> None:
    first: list[Event] = []
    second: list[Event] = []
    emitter = Events([first.append, second.append])
    said = [_pushed(), Nothing(client="a", version=2), Left(client="a", steps=3)]
    for event in said:
        emitter.emit(event)
    assert first == second == said


def test_a_listener_that_fails_is_logged_and_the_others_still_hear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("the disk is full")

    emitter = Events([fail, heard.append])
    with caplog.at_level(logging.INFO, logger="hubless"):
        emitter.emit(Left(client="a", steps=3))
    assert len(heard) == 1
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == ["a listener failed on left"]
    assert errors[0].exc_info is not None
    assert "the disk is full" in str(errors[0].exc_info[1])


def test_an_interrupt_is_not_swallowed_by_a_listener() -> None:
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Events([interrupt]).emit(Left(client="a", steps=3))


def test_what_a_person_should_look_at_is_logged_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="hubless"):
        Events().emit(Nothing(client="a", version=1))
        Events().emit(RefusedUpdate(client="a", peer="b", key="k", reason="too large"))
        Events().emit(events.Offline(client="a", reason="no network"))
        Events().emit(events.Late(client="a", round=3))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "WARNING", "WARNING"]
    assert "too large" in caplog.records[1].getMessage()


def test_the_list_of_listeners_given_is_not_changed() -> None:
    given = [lambda event: None]
    emitter = Events(given)
    emitter.listeners.append(lambda event: None)
    assert len(given) == 1


def test_a_file_gets_one_line_per_event_after_those_it_had(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "before"}\n')
    emitter = Events([to_file(path), to_file(str(path))])
    pulled = Pulled(
        client="ä", peers={"b": 4}, weights={"b": 0.25}, version=2, bytes=9, seconds=0.1, time=1.0
    )
    emitter.emit(pulled)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"event": "before"}
    assert lines[1] == lines[2]
    assert lines[1]["client"] == "ä"
    assert lines[1]["weights"] == {"b": 0.25}
