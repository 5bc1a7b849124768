"""Synchronous rounds without a server: a quorum, a deadline, and a member that dies.

Three members train in rounds that all end with the same bytes. One of them falls silent; the others
wait for it until the deadline, close the round as a quorum of two, and go on.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import hubless
from hubless.events import Closed, Event

MEMBERS = ["ann", "bob", "cyd"]
ROUNDS, DEADLINE = 4, 4.0
rounds: list[tuple[int, list[str], float]] = []
lock = threading.Lock()


def listen(event: Event) -> None:
    """Note which rounds were closed, and with whom."""
    if isinstance(event, Closed) and event.client == "ann":
        with lock:
            rounds.append((event.round, event.included, event.seconds))


def member(name: str) -> bytes:
    """Train towards a number of one's own; cyd stops after two rounds without a word."""
    goal, params = float(MEMBERS.index(name)), {"w": np.zeros(4)}
    federation = hubless.join(
        "memory://sync-rounds",
        name,
        pace=hubless.Rounds(members=MEMBERS, quorum=2, deadline=DEADLINE),
        events=listen,
    )
    while federation.version < ROUNDS:
        if name == "cyd" and federation.version == 2:
            return b""
        trained = {"w": params["w"] + 0.5 * (goal - params["w"])}
        params = federation.step(trained, examples=10)
    federation.close()
    return params["w"].tobytes()


if __name__ == "__main__":
    with ThreadPoolExecutor(len(MEMBERS)) as pool:
        ends = list(pool.map(member, MEMBERS))
    for number, included, seconds in rounds:
        print(f"round {number + 1}: {', '.join(included)} after {seconds:.1f} s")
    same = ends[0] == ends[1]
    print(f"ann and bob ended with {'the same bytes' if same else 'DIFFERENT params'}")
    raise SystemExit(0 if same else 1)
