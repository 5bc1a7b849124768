"""A federation of real processes, one of which is killed: every view says so, and how it ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hubless.watch.feed import open_feed
from hubless.watch.live.web import serving
from hubless.watch.report.sources import read_sources

PATIENCE = 120.0
SITE = """
import sys, time
from pathlib import Path
import numpy as np
import hubless
from hubless.events import Pushed

folder, name, mode, stop = sys.argv[1:]

def say(event):
    if isinstance(event, Pushed):
        print(event.bytes, flush=True)

rounds = hubless.Rounds(members=2, quorum=1, deadline=3.0)
pace = rounds if mode == "sync" else hubless.Anytime()
with hubless.join(folder, name, pace=pace, events=say) as federation:
    while not Path(stop).exists():
        federation.step({"w": np.ones(1000, np.float32)}, examples=10, metrics={"loss": 0.5})
        time.sleep(0.2)
"""


class Site:
    """A process that takes part until it is stopped, and the sizes of what it shared."""

    def __init__(self, folder: Path, name: str, mode: str, stop: Path) -> None:
        command = [sys.executable, "-c", SITE, str(folder), name, mode, str(stop)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def sizes(self, end: Callable[[], None]) -> list[int]:
        end()
        output, _ = self.process.communicate(timeout=PATIENCE)
        return [int(line) for line in output.split()]


def until(name: str, there: Callable[[], Any]) -> Any:
    """What this gives as soon as it gives something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := there():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{name} never came")


@contextmanager
def terminal(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`hubless watch`, and the file that it writes to."""
    out = folder.with_name("terminal.txt")
    with open(out, "w") as file:
        command = [sys.executable, "-m", "hubless.cli", "watch", str(folder)]
        process = subprocess.Popen(command, stdout=file, text=True)
        try:
            yield process, out
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_killed_member_is_silent_within_seconds_and_the_end_is_told_as_it_was(
    tmp_path: Path, mode: str
) -> None:
    folder, stop = tmp_path / "run", tmp_path / "stop"
    with (
        terminal(folder) as (watching, out),
        serving(open_feed(folder, wait=True), interval=0.2) as url,
    ):

        def page() -> dict[str, Any]:
            with urllib.request.urlopen(f"{url}state.json", timeout=PATIENCE) as answer:
                return dict(json.load(answer))

        def counts() -> dict[str, int]:
            return dict(page()["runs"][0]["counts"]) if page()["runs"] else {}

        until("a word that nothing is there", lambda: "there is no" in page()["awaited"])
        until("the terminal's", lambda: "waiting: there is no" in out.read_text())
        alive, killed = (Site(folder, name, mode, stop) for name in ("site-a", "site-b"))
        until("updates of both", lambda: page()["runs"] and page()["runs"][0]["updates"] > 12)
        assert set(counts()) <= {"training", "waiting"}
        sent = killed.sizes(lambda: killed.process.send_signal(signal.SIGKILL))
        # members of a busy machine are slower, and what is too long goes by their own pace
        until("silence", lambda: counts().get("silent") == 1)
        until("the terminal's word", lambda: "1 silent" in out.read_text())
        state = page()
        assert state["runs"][0]["status"] == "live"
        assert [(t["client"], t["kind"]) for t in state["trouble"]] == [("site-b", "silent")]
        sent_too = alive.sizes(stop.touch)
        until("the end", lambda: page()["runs"][0]["status"] == "ended")
        assert watching.wait(PATIENCE) == 0
        (run,) = page()["runs"]
        assert run["counts"] == {"silent": 1, "left": 1}
        # what was written just before the end may not have been told of
        written = len(sent) + len(sent_too)
        assert written <= run["updates"] <= written + 1
        assert run["bytes_up"] == pytest.approx(sum(sent) + sum(sent_too), abs=max(sent) + 64)
        line = out.read_text().splitlines()[-1]
        assert re.match(r"federation: ended, .*\b1 silent 1 left|.*1 left 1 silent", line)
    (meeting,) = read_sources([folder]).federations
    assert meeting.updates == run["updates"]
    assert meeting.round == run["round"]
    assert meeting.bytes_up == pytest.approx(run["bytes_up"], rel=0.01)
    if mode == "sync":
        assert meeting.members["site-a"].rounds == pytest.approx(len(sent_too), abs=2)
