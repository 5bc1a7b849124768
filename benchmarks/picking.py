"""Picking 1,000 of one and of ten million clients on one core, by activity and by Algorithm 1.

    python benchmarks/select.py [--clients 1000000 10000000] [--turns 7]

Twice for each selector: where nothing changed since the last draw, and where the examples or
valuations of all clients did. Memory is the most that was held at any moment besides the roster's
own columns, in columns of float64. Prints a table as it goes, and one JSON line about the slowest
selector at the end.
"""

import argparse
import json
import math
import os
import statistics
import time
import tracemalloc

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from hubless.select.active import Active
from hubless.select.activity import FUNCTIONS, Activity
from hubless.select.roster import Roster, Selector
from hubless.select.share import Heavy, Light

K = 1000
LIMITS = {1_000_000: (1.0, 15.0), 10_000_000: (5.0, 150.0)}
NAMES = {1_000_000: "million", 10_000_000: "ten_million"}
SELECTORS: dict[str, Selector] = {
    **{f"activity {f}": Activity(f) for f in FUNCTIONS},
    **{f"activity {f} exact": Activity(f, "exact") for f in FUNCTIONS},
    "heavy": Heavy(),
    "light": Light(),
    "active": Active(),
}


def change(roster: Roster, rng: np.random.Generator) -> None:
    """Everybody has other examples, more than 10^4 times as many for some, and is worth another."""
    clients = len(roster)
    sizes = rng.standard_normal(clients)
    sizes *= 1.8
    np.exp(sizes, out=sizes)
    roster.put("examples", slice(None), np.ceil(sizes, out=sizes))
    # what a loss of about 2 comes to over the root of their number
    np.sqrt(sizes, out=sizes)
    sizes *= 2 * rng.random()
    roster.record_seen(np.arange(clients), sizes)


def timed(selector: Selector, roster: Roster, rng: np.random.Generator) -> float:
    """Milliseconds of a draw."""
    started = time.perf_counter()
    picked = selector(roster, K, rng)
    took = time.perf_counter() - started
    assert len(picked) == K
    return 1e3 * took


def columns_held(selector: Selector, roster: Roster, rng: np.random.Generator) -> float:
    """The most that a first draw and one after a change hold besides the roster, in columns."""
    tracemalloc.start()
    try:
        selector(roster, K, rng)
        first = np.array([0])
        roster.put("examples", first, roster.examples[first])
        roster.put("valuation", first, roster.valuation[first])
        selector(roster, K, rng)
        return tracemalloc.get_traced_memory()[1] / (8 * len(roster))
    finally:
        tracemalloc.stop()


def measure(clients: int, turns: int) -> dict[str, tuple[float, float, float]]:
    """Each selector's milliseconds unchanged and changed, and the columns it holds."""
    figures = {}
    rng = np.random.default_rng(0)
    for name, selector in SELECTORS.items():
        roster = Roster(np.empty(clients, np.int64))
        changed, same = [], []
        for _ in range(turns):
            change(roster, rng)
            changed.append(timed(selector, roster, rng))
            same += [timed(selector, roster, rng) for _ in range(20)]
        unchanged, anew = statistics.median(same), statistics.median(changed)
        fresh = Roster(np.empty(clients, np.int64))
        change(fresh, rng)
        held = columns_held(selector, fresh, rng)
        figures[name] = (unchanged, anew, held)
        print(f"{name:20s}{clients:12,d}{unchanged:10.3f}{anew:10.2f}{held:10.2f}", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=list(LIMITS))
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    print(f"{'1,000 by':20s}{'of':>12s}{'ms':>10s}{'anew ms':>10s}{'columns':>10s}")
    slowest: dict[str, float] = {}
    held = 0.0
    for clients in args.clients:
        figures = measure(clients, args.turns).values()
        name = NAMES.get(clients, str(clients))
        slowest[f"{name}_ms"] = round(max(figure[0] for figure in figures), 3)
        slowest[f"{name}_changed_ms"] = round(max(figure[1] for figure in figures), 2)
        held = max(held, *(figure[2] for figure in figures))
        limits = LIMITS.get(clients, (math.inf, math.inf))
        for value, limit in zip([*slowest.values()][-2:], limits, strict=True):
            if value >= limit:
                print(f"{value} ms of {clients:,d} is over the limit of {limit:g}")
    print(json.dumps({**slowest, "columns": round(held, 2)}))


if __name__ == "__main__":
    main()
