"""Measure one member's step in flwr-serverless, with every other member's update in the folder."""

# Run it with the Python of an environment that has flwr-serverless; it prints one line of JSON.

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

# This script bears the package's name and its folder leads the path, so the folder goes last.
sys.path.sort(key=lambda entry: Path(entry).resolve() == Path(__file__).resolve().parent)

import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters
from flwr.server.strategy import FedAvg
from flwr_serverless import AsyncFederatedNode, LocalFolder

ARRAYS = 4


def model(params: int, seed: int) -> Parameters:
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal(params, dtype=np.float32)
    return ndarrays_to_parameters(np.array_split(whole, ARRAYS))


def node(folder: Path, index: int) -> AsyncFederatedNode:
    return AsyncFederatedNode(
        shared_folder=LocalFolder(str(folder)), strategy=FedAvg(), node_id=f"member-{index}"
    )


def fill(folder: Path, params: int, members: int, step: int) -> None:
    """Upload a new update of every member but the measured one."""
    for index in range(1, members):
        node(folder, index).update_parameters(
            model(params, step * members + index),
            num_examples=100 + index,
            metrics={},
            epoch=step,
            upload_only=True,
        )
    # Otherwise the writing back of these files would be charged to the step.
    os.sync()


def field(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise KeyError(name)


def resident(name: str) -> int:
    return field("/proc/self/status", name) * 1024


def member(folder: Path, params: int) -> None:
    """Take one measured step for every line on standard input."""
    me = node(folder, 0)
    current = model(params, 0)
    for epoch, _ in enumerate(sys.stdin):
        # 5 resets the high-water mark to what is resident now: the imports and the model.
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        read = field("/proc/self/io", "rchar")
        start = time.perf_counter()
        updated, _ = me.update_parameters(current, num_examples=100, metrics={}, epoch=epoch)
        seconds = time.perf_counter() - start
        result = {
            "seconds": seconds,
            "bytes_read": field("/proc/self/io", "rchar") - read,
            "memory_bytes": resident("VmHWM") - before,
        }
        current = updated
        # Two names for one model would keep the old one alive through the next step.
        del updated
        print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--params", type=int, default=10_000_000)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.member:
        member(args.folder, args.params)
        return

    command = [sys.executable, __file__, "--member"]
    command += ["--folder", str(args.folder), "--params", str(args.params)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None

        def step() -> dict[str, float]:
            print("step", file=child.stdin, flush=True)
            return json.loads(child.stdout.readline())

        steps = []
        for number in range(1, args.steps + 1):
            fill(args.folder, args.params, args.members, number)
            steps.append(step())
        unchanged = step()
        child.stdin.close()

    result = {
        "seconds": [round(one["seconds"], 4) for one in steps],
        "bytes_read": max(one["bytes_read"] for one in steps),
        "memory_bytes": max(one["memory_bytes"] for one in steps),
        "unchanged_bytes_read": unchanged["bytes_read"],
        "version": version("flwr-serverless"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
