"""One asynchronous member of hubless, counting its requests."""

import os
from typing import Any

import gauge
import numpy as np

import hubless
from hubless.store.folder import FolderStore
from hubless.store.metered import Metered


def draw(params: int, seed: int) -> dict[str, Any]:
    whole = np.random.default_rng(seed).standard_normal(params, dtype=np.float32)
    return {f"layer-{i}": part for i, part in enumerate(np.array_split(whole, 4))}


def main() -> None:
    args = gauge.arguments(__doc__)
    joined = {}

    def peers(number: int) -> None:
        for index in range(1, args.members):
            if index not in joined:
                # a peer that only shares: what it pulls is not what is measured here
                joined[index] = hubless.join(args.folder, f"member-{index}")
            params = draw(args.params, number * args.members + index)
            federation = joined[index]
            federation._take_in = lambda *_: None  # type: ignore[attr-defined]
            federation.step(params, examples=100 + index)
        os.sync()

    if args.role == "peers":
        gauge.serve(peers)
        return
    store = Metered(FolderStore(args.folder))
    federation = hubless.join(store, "member-0")
    current = [draw(args.params, 0)]

    def step(number: int) -> dict[str, Any]:
        store.requests.clear()
        store.bytes_down = 0
        current[0] = federation.step(current[0], examples=100)
        return {"requests": dict(store.requests), "payload_bytes": store.bytes_down}

    gauge.serve(step)


if __name__ == "__main__":
    main()
