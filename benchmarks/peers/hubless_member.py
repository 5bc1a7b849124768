"""One asynchronous member of hubless, counting its requests; or a whole synchronous federation."""

import os
import threading
import time
from typing import Any

import gauge
import numpy as np

import hubless
from hubless.store.folder import FolderStore

try:
    from hubless.testing.metered import Metered
except ImportError:
    # where it was in earlier code, which this is compared with
    from hubless.store.metered import Metered  # type: ignore[no-redef,import-not-found]


def draw(params: int, seed: int) -> dict[str, Any]:
    whole = np.random.default_rng(seed).standard_normal(params, dtype=np.float32)
    return {f"layer-{i}": part for i, part in enumerate(np.array_split(whole, 4))}


class OwnOnly(FolderStore):
    """Shows a client nothing but what it shared itself, so that it has nothing to take in."""

    def __init__(self, folder: str, client: str) -> None:
        super().__init__(folder)
        self._client = client

    def list(self, prefix: str) -> list[Any]:
        return [e for e in super().list(prefix) if "=" not in e.key or f"{self._client}=" in e.key]


def rounds(args: Any) -> dict[str, Any]:
    """Synchronous rounds of all members in this process: seconds, and models of traffic."""
    model = args.params * 4
    traffic: list[tuple[float, float]] = []
    seconds: list[float] = []

    strategy = getattr(hubless, args.strategy)()
    terms: dict[str, Any] = {"strategy": strategy}
    if hasattr(hubless, "Rounds"):
        terms |= {"pace": hubless.Rounds(members=args.members)}
    else:
        # earlier code, which this is compared with
        terms |= {"mode": "sync", "members": args.members}
    if getattr(strategy, "partial", False):
        terms |= {"model": {"w": np.zeros(args.params, np.float32)}}

    def member(index: int) -> None:
        store = Metered(FolderStore(args.folder / "rounds"))
        with hubless.join(store, f"member-{index}", **terms) as joined:
            params = {"w": np.full(args.params, index, np.float32)}
            # the first ones touch memory for the first time, and have fewer rounds to list
            for _ in range(4):
                store.bytes_down = store.bytes_up = 0
                started = time.perf_counter()
                params = joined.step(params, examples=100)
            traffic.append((store.bytes_down / model, store.bytes_up / model))
            seconds.append(time.perf_counter() - started)
            expected = (args.members - 1) / 2 if args.strategy == "FedAvg" else params["w"][0]
            assert np.allclose(params["w"], expected), "the average is wrong"

    threads = [threading.Thread(target=member, args=(i,)) for i in range(args.members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(traffic) == args.members, "a member failed"
    down, up = max(down for down, _ in traffic), max(up for _, up in traffic)
    return {"down": down, "up": up, "round_seconds": max(seconds)}


def main() -> None:
    args = gauge.arguments(__doc__)
    joined: dict[int, hubless.Federation] = {}

    def peers(number: int) -> None:
        for index in range(1, args.members):
            if index not in joined:
                client = f"member-{index}"
                joined[index] = hubless.join(OwnOnly(args.folder, client), client)
            params = draw(args.params, number * args.members + index)
            joined[index].step(params, examples=100 + index)
        os.sync()

    if args.role == "peers":
        gauge.serve(peers)
        return
    if args.role == "rounds":
        gauge.serve(lambda _: rounds(args))
        return
    store = Metered(FolderStore(args.folder))
    strategy = getattr(hubless, args.strategy)()
    federation = hubless.join(store, "member-0", strategy=strategy)
    current = [draw(args.params, 0)]

    def step(number: int) -> dict[str, Any]:
        store.requests.clear()
        store.bytes_down = 0
        current[0] = federation.step(current[0], examples=100)
        return {"requests": dict(store.requests), "payload_bytes": store.bytes_down}

    gauge.serve(step)


if __name__ == "__main__":
    main()
