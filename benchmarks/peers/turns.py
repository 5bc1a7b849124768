"""What every contender has in common: its arguments, and rounds on request.

With `--rounds` it plays that many and prints one JSON line. With `--serve` it prints a first line
when it is warm, then answers every line "N" on standard input with a JSON line about N rounds.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from workloads import WORKLOADS

WARM_UP = 2


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--processes", type=int, default=2)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--rounds", type=int, default=10)
    how.add_argument("--serve", action="store_true", help="rounds on request, line by line")
    args = parser.parse_args()
    if args.processes < 1 or args.rounds < 1:
        parser.error("at least one process and one round")
    return args


def one_thread() -> None:
    """Of arithmetic, in all processes that this one starts."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"


def keep_stdout() -> TextIO:
    """Standard output for our lines only: what libraries print there goes to standard error."""
    kept = os.fdopen(os.dup(1), "w")
    sys.stdout.flush()
    os.dup2(2, 1)
    return kept


def requests() -> Iterator[int]:
    for line in sys.stdin:
        yield int(line)


def play(
    framework: str,
    args: argparse.Namespace,
    rounds: Callable[[int], list[float]],
    out: TextIO,
    warm_up: int = WARM_UP,
) -> None:
    """Call `rounds`, which plays so many and returns the seconds of each, as the arguments ask."""
    about = {"framework": framework, "workload": args.workload, "processes": args.processes}

    def report(**more: object) -> None:
        print(json.dumps(about | more), file=out, flush=True)

    def measure(number: int) -> None:
        seconds = rounds(number)
        if len(seconds) != number:
            raise SystemExit(f"{framework}: played {len(seconds)} of {number} rounds")
        report(seconds_per_round=statistics.median(seconds), rounds=seconds)

    if warm_up:
        rounds(warm_up)
    if not args.serve:
        measure(args.rounds)
        return
    report(ready=True)
    for number in requests():
        measure(number)
