"""Runs to watch: files of events as simulations write them, and federations with real members."""

from __future__ import annotations

import json
import math
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import hubless
from hubless import events


def say(path: Path, kind: str, **fields: Any) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": kind, "time": time.time(), **fields}) + "\n")


def start(path: Path, name: str = "simulation", rounds: int = 10, clients: int = 20) -> None:
    settings = {"rounds": rounds, "clients": clients, "cohort": 5, "strategy": "FedAvg()"}
    say(path, "started", client=name, round=0, settings=settings)


def train(path: Path, number: int, name: str = "simulation", **fields: Any) -> None:
    clients = fields.pop("clients", 20)
    cohort = random.Random(number).sample(range(clients), min(clients, fields.pop("size", 5)))
    loss = 2 * math.exp(-number / 10)
    record = {
        "client": name,
        "round": number,
        "cohort": cohort,
        "skipped": 0,
        "dropped": 1,
        "metrics": {"train_loss": loss, "accuracy": 1 - loss / 2.2},
        "bytes_down": 5 << 20,
        "bytes_up": 5 << 20,
        "seconds": 0.5,
        "virtual": float(number),
    }
    say(path, "trained", **{**record, **fields})


def end(path: Path, number: int, name: str = "simulation", reason: str = "complete") -> None:
    say(path, "ended", client=name, round=number, reason=reason)


def whole_run(path: Path, name: str = "simulation", rounds: int = 10, **fields: Any) -> Path:
    start(path, name, rounds, fields.get("clients", 20))
    for number in range(1, rounds + 1):
        train(path, number, name, **fields)
    end(path, rounds, name)
    return path


def params(value: float) -> dict[str, Any]:
    return {"w": np.full(1000, value, np.float32)}


def asynchronous(url: Any, steps: int = 3, sites: int = 2, **settings: Any) -> None:
    """Sites that take turns."""
    joined = [hubless.join(url, f"site-{i}", **settings) for i in range(sites)]
    for step in range(steps):
        for i, member in enumerate(joined):
            member.step(params(float(i)), examples=100 * (i + 1), metrics={"loss": 1 / (step + 1)})
            # listings go by the times of files, which some kernels tell in ticks of 10 ms
            time.sleep(0.02)
    for member in joined:
        member.close()


def synchronous(folder: Path, rounds: int = 3, **settings: Any) -> list[events.Event]:
    """Three members, at the same time; what they said."""
    member_events: list[events.Event] = []
    pace = hubless.Rounds(members=3, deadline=60.0)
    settled = {"pace": pace, "events": member_events.append, **settings}

    def member(index: int) -> None:
        with hubless.join(folder, f"m{index}", **settled) as joined:
            while joined.version < rounds:
                joined.step(
                    params(float(index)), examples=10 + index, metrics={"loss": 0.5 + index}
                )

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(member, range(3)))
    return member_events


def spoil_newest(folder: Path, client: str) -> str:
    """Overwrite a client's newest update with a pickle; its key."""
    newest = sorted((folder / "updates").glob(f"{client}=*"))[-1]
    newest.write_bytes(b"\x80\x04garbage")
    return f"updates/{newest.name}"
