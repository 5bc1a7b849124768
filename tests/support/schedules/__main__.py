"""Run seeded schedules of a federation, and show what the first that fails did."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.support.schedules.basics import ScheduleFailure
from tests.support.schedules.running import WORLDS, run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="run seeded schedules of a federation")
    parser.add_argument("--mode", choices=sorted(WORLDS), default="async")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:STOP")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--trace", action="store_true", help="show all operations")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args(arguments)
    first, _, stop = options.seeds.partition(":")
    seeds = range(int(first), int(stop)) if options.seed is None else [options.seed]
    began, failed, counts = time.perf_counter(), [], Counter[str]()
    for seed in seeds:
        try:
            report = run(options.mode, seed, keep=None if options.trace else 60)
            counts.update(report.counts)
        except ScheduleFailure as failure:
            failed.append(seed)
            shown = f"seed {seed}: {failure.what.splitlines()[0]}" if options.go_on else failure
            print(shown, flush=True)
            if not options.go_on:
                break
        if (seed + 1) % 500 == 0:
            print(f"{seed + 1} in {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{time.perf_counter() - began:.1f} s, {len(failed)} failed: {failed[:20]}")
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
