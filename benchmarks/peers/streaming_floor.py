"""Measure the floor of one member's step: a plain numpy loop over raw float32 files."""

# No format, no checks, no skipping of what was seen before: what is left is the reading and the
# arithmetic. It prints the same line of JSON as the peers beside it.

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def draw(params: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(params, dtype=np.float32)


def place(folder: Path, index: int) -> Path:
    return folder / f"member-{index}.f32"


def weights(members: int) -> list[float]:
    examples = [100 + index for index in range(members)]
    return [count / sum(examples) for count in examples]


def publish(folder: Path, index: int, values: Floats) -> None:
    temporary = folder / f"member-{index}.tmp"
    with open(temporary, "wb", buffering=0) as file:
        view = memoryview(values).cast("B")
        while view:
            view = view[file.write(view) :]
    os.replace(temporary, place(folder, index))


def fill(folder: Path, params: int, members: int, step: int) -> None:
    """Write a new update of every member but the measured one."""
    for index in range(1, members):
        publish(folder, index, draw(params, step * members + index))
    # Otherwise the writing back of these files would be charged to the step.
    os.sync()


def by_peer(folder: Path, own: Floats, members: int, chunk: int) -> Floats:
    """Take the files one after another, each streamed through one small buffer."""
    share = weights(members)
    total = own * np.float32(share[0])
    buffer = np.empty(chunk // 4, dtype=np.float32)
    raw = memoryview(buffer).cast("B")
    for index in range(1, members):
        with open(place(folder, index), "rb", buffering=0) as file:
            at = 0
            # A short read within a regular file happens only at its end, so floats stay whole.
            while count := file.readinto(raw) // 4:
                part = buffer[:count]
                # In place: a second buffer would only take more of the cache.
                np.multiply(part, share[index], out=part)
                target = total[at : at + count]
                np.add(target, part, out=target)
                at += count
    return total


def by_chunk(folder: Path, own: Floats, members: int, chunk: int) -> Floats:
    """Take the same chunk of all files before the next, so that the sum stays in the cache."""
    share = weights(members)
    total = np.empty_like(own)
    buffer = np.empty(chunk // 4, dtype=np.float32)
    raw = memoryview(buffer).cast("B")
    files = [open(place(folder, index), "rb", buffering=0) for index in range(1, members)]  # noqa: SIM115
    try:
        for at in range(0, own.size, buffer.size):
            target = total[at : at + buffer.size]
            np.multiply(own[at : at + buffer.size], share[0], out=target)
            for file, weight in zip(files, share[1:], strict=True):
                part = buffer[: file.readinto(raw) // 4]
                np.multiply(part, weight, out=part)
                np.add(target, part, out=target)
    finally:
        for file in files:
            file.close()
    return total


ORDERS = {"peer": by_peer, "chunk": by_chunk}


def field(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise KeyError(name)


def resident(name: str) -> int:
    return field("/proc/self/status", name) * 1024


def member(args: argparse.Namespace) -> None:
    """Take one measured step for every line on standard input."""
    average = ORDERS[args.order]
    current = draw(args.params, 0)
    for _ in sys.stdin:
        # 5 resets the high-water mark to what is resident now: the imports and the model.
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        read = field("/proc/self/io", "rchar")
        start = time.perf_counter()
        publish(args.folder, 0, current)
        updated = average(args.folder, current, args.members, args.chunk)
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
    parser.add_argument("--chunk", type=int, default=1 << 18, help="bytes, a multiple of 4")
    parser.add_argument("--order", choices=ORDERS, default="peer")
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.member:
        member(args)
        return

    args.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--member", *sys.argv[1:]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None

        def step() -> dict[str, Any]:
            print("step", file=child.stdin, flush=True)
            answer: dict[str, Any] = json.loads(child.stdout.readline())
            return answer

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
        "version": f"numpy {np.__version__}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
