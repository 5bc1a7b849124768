"""Measure a member in a process of its own: seconds, bytes read, memory above the model."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def field(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise KeyError(name)


def measured(step: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    # 5 resets the high-water mark to what is resident now: the imports and the model
    Path("/proc/self/clear_refs").write_text("5")
    before = field("/proc/self/status", "VmRSS")
    read = field("/proc/self/io", "rchar")
    start = time.perf_counter()
    more = step()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes_read": field("/proc/self/io", "rchar") - read,
        "memory_bytes": (field("/proc/self/status", "VmHWM") - before) * 1024,
        **(more or {}),
    }


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("role", choices=["peers", "member", "rounds"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--params", type=int, default=10_000_000)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--strategy", default="FedAvg")
    return parser.parse_args()


def serve(act: Callable[[int], dict[str, Any] | None]) -> None:
    """Do the thing once for every line on standard input, which gives its number."""
    for line in sys.stdin:
        number = int(line)
        print(json.dumps(measured(lambda number=number: act(number))), flush=True)
