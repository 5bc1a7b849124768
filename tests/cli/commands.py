"""Running the real commands in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "hubless.cli"]
PATIENCE = 240
"""Seconds for what takes some on an idle machine: nothing is promised here about time."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def hubless(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env={**ENVIRONMENT, **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def start(*words: str | Path, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events_in(path: Path) -> list[dict[str, Any]]:
    """Every line of a file, each of which has to be whole."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds_in(path: Path) -> list[str]:
    return [event["event"] for event in events_in(path)]


def wait_until(fact: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a fact that a process brings about."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        if process.poll() is not None:
            raise AssertionError(f"it ended before that: {process.communicate()}")
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
