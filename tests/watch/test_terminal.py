"""The terminal view: drawn in place in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hubless.errors import HublessError, StoreError
from hubless.watch.feed import open_feed
from hubless.watch.live.terminal import sparkline, watch_terminal
from tests.watch import runs

WATCH = (
    "import sys; from hubless.watch.feed import open_feed; "
    "from hubless.watch.live.terminal import watch_terminal; "
    "sys.exit(watch_terminal(open_feed(sys.argv[1]), interval=0.05))"
)


def in_terminal(source: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The view in a terminal of its own, and the end of it that can be read."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-c", WATCH, str(source)]
    shown = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    return shown, ours


def read_until(terminal: int, wanted: str, seconds: float = 120.0) -> str:
    """What the terminal showed, without its control sequences, until this or its end."""
    raw, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                raw += os.read(terminal, 1 << 16)
            except OSError:
                break
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode(errors="replace"))
        if wanted in text:
            return text
    raise AssertionError(f"{wanted!r} never came; what came ends in {raw[-2000:]!r}")


def test_a_run_is_drawn_while_it_goes_on_and_the_view_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    runs.start(path)
    runs.train(path, 1)
    runs.train(path, 2)
    shown, terminal = in_terminal(path)
    text = read_until(terminal, "14 idle")
    assert "round 2 of 10" in text
    assert re.search(r"accuracy +[▁▂▃▄▅▆▇█]{2} +0\.2", text)
    assert "live" in text
    runs.train(path, 3)
    runs.end(path, 3, reason="stopped")
    # all of it: a terminal may be read in the middle of a line
    read_until(terminal, "stopped  round 3 of 10")
    assert shown.wait(60) == 0
    os.close(terminal)


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    runs.start(path)
    shown, terminal = in_terminal(path)
    read_until(terminal, "round 0 of 10")
    shown.send_signal(signal.SIGINT)
    assert shown.wait(60) == 0
    rest = b""
    try:
        while select.select([terminal], [], [], 0.5)[0]:
            rest += os.read(terminal, 1 << 16)
    except OSError:
        pass
    assert b"Traceback" not in rest
    os.close(terminal)


def test_elsewhere_it_says_plain_lines_and_each_only_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs.whole_run(tmp_path / "events.jsonl")
    assert watch_terminal(open_feed(path), interval=0.01) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("simulation: complete, round 10 of 10, 100.0 MiB, train_loss 0.7358, ")
    assert line.endswith("5 trained 1 late 14 idle")


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([1e308, -1e308], "█▁"),
        ([0.0, 1e-310], "▁█"),
        ([float("nan"), 0.0, 1.0, float("inf")], "▁█"),
        ([], ""),
    ],
)
def test_a_sparkline_is_drawn_whatever_the_values(values: list[float], drawn: str) -> None:
    assert sparkline(values, 8) == drawn


def test_a_run_that_failed_is_an_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    runs.start(path)
    runs.end(path, 0, reason="failed")
    assert watch_terminal(open_feed(path), interval=0.01) == 1


def test_once_says_how_a_federation_stands_and_who_was_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.asynchronous(tmp_path, steps=2)
    runs.spoil_newest(tmp_path, "site-1")
    assert watch_terminal(open_feed(tmp_path), once=True) == 0
    line, trouble = capsys.readouterr().out.splitlines()
    assert line.startswith("federation: ended, 4 updates, ")
    assert "2 left" in line
    assert "site-1 refused: it is a pickle" in trouble


def test_what_would_act_upon_a_terminal_is_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    runs.say(path, "offline", client="a\x1b[2J", reason="\x1b]0;owned\x07\nsecond line")
    assert watch_terminal(open_feed(path), once=True) == 0
    output = capsys.readouterr().out
    assert "owned" in output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", output)


def test_a_store_that_cannot_be_read_is_said_once_and_by_once_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        name = "broken"
        polls = 0

        def poll(self) -> list[dict[str, object]]:
            self.polls += 1
            if self.polls > 3:
                raise KeyboardInterrupt
            raise StoreError("the share went away")

    assert watch_terminal(Broken(), interval=0.0) == 0
    assert capsys.readouterr().out.count("the share went away") == 1
    with pytest.raises(HublessError, match="went away"):
        watch_terminal(Broken(), once=True)
