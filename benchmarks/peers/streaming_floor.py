"""The floor of a member's step: a plain numpy loop over raw float32 files.

No format, no checks, no memory of what was seen before: what is left is the reading and the
arithmetic, on one thread. Chunk by chunk over all files, so that the sum stays in the cache, and
256 KiB at a time: the fastest of all orders and sizes that were tried.
"""

import os
from pathlib import Path

import gauge
import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 18
Floats = NDArray[np.float32]


def draw(params: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(params, dtype=np.float32)


def publish(folder: Path, index: int, values: Floats) -> None:
    temporary = folder / f"member-{index}.tmp"
    with open(temporary, "wb", buffering=0) as file:
        view = memoryview(values).cast("B")
        while view:
            view = view[file.write(view) :]
    os.replace(temporary, folder / f"member-{index}.f32")


def average(folder: Path, own: Floats, members: int) -> Floats:
    examples = [100 + index for index in range(members)]
    shares = [count / sum(examples) for count in examples]
    total = np.empty_like(own)
    buffer = np.empty(CHUNK // 4, dtype=np.float32)
    raw = memoryview(buffer).cast("B")
    files = [open(folder / f"member-{i}.f32", "rb", buffering=0) for i in range(1, members)]  # noqa: SIM115
    for at in range(0, own.size, buffer.size):
        target = total[at : at + buffer.size]
        np.multiply(own[at : at + buffer.size], shares[0], out=target)
        for file, share in zip(files, shares[1:], strict=True):
            part = buffer[: file.readinto(raw) // 4]
            np.multiply(part, share, out=part)
            np.add(target, part, out=target)
    for file in files:
        file.close()
    return total


def main() -> None:
    args = gauge.arguments(__doc__)

    def peers(number: int) -> None:
        for index in range(1, args.members):
            publish(args.folder, index, draw(args.params, number * args.members + index))
        os.sync()

    if args.role == "peers":
        gauge.serve(peers)
        return
    current = [draw(args.params, 0)]

    def step(number: int) -> None:
        publish(args.folder, 0, current[0])
        current[0] = average(args.folder, current[0], args.members)

    gauge.serve(step)


if __name__ == "__main__":
    main()
