"""Federating side by side: hubless, flwr-serverless and a bare streaming loop, in one run.

    python benchmarks/federate.py [--params 10000000] [--members 20] [--rounds 5]

Each contender has a process that plays the peers and one that is measured; they take turns, so
that a noisy machine is noisy for all. Prints a table, and one JSON line at the end.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hubless
from hubless.store.folder import FolderStore
from hubless.store.metered import Metered

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))
import environments  # noqa: E402


class Contender:
    """Two processes: one plays all peers, the other is measured."""

    def __init__(self, python: Path | str, script: str, args: argparse.Namespace) -> None:
        self.folder = tempfile.mkdtemp(prefix="hubless-bench-", dir=args.folder)
        self.steps: list[dict[str, Any]] = []
        shared = ["--folder", self.folder, "--params", args.params, "--members", args.members]
        self._processes = {
            role: subprocess.Popen(
                [str(python), str(PEERS / script), role, *map(str, shared)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for role in ("peers", "member")
        }

    def ask(self, role: str, number: int) -> dict[str, Any]:
        process = self._processes[role]
        assert process.stdin is not None and process.stdout is not None
        print(number, file=process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def close(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        shutil.rmtree(self.folder)

    def median(self, name: str) -> float:
        """Over all steps but the first, which touches memory for the first time."""
        return statistics.median(step[name] for step in self.steps[1:] or self.steps)

    @property
    def memory(self) -> int:
        """The largest, which is the first step's: later ones use again what was not given back."""
        return max(step["memory_bytes"] for step in self.steps)


@contextmanager
def contenders(args: argparse.Namespace) -> Iterator[dict[str, Contender]]:
    with ExitStack() as stack:
        started = {}
        for name, python, script in (
            ("flwr-serverless", environments.python_of("flwr-serverless"), "flwr_serverless.py"),
            ("streaming floor", sys.executable, "streaming_floor.py"),
            ("hubless", sys.executable, "hubless_member.py"),
        ):
            started[name] = Contender(python, script, args)
            stack.callback(started[name].close)
        yield started


def synchronous_traffic(args: argparse.Namespace) -> tuple[float, float]:
    """Models downloaded and uploaded per member and round, all members in this process."""
    folder = tempfile.mkdtemp(prefix="hubless-bench-", dir=args.folder)
    model = args.params * 4
    traffic: list[tuple[float, float]] = []

    def member(index: int) -> None:
        store = Metered(FolderStore(folder))
        with hubless.join(store, f"member-{index}", mode="sync", members=args.members) as joined:
            params = {"w": np.full(args.params, index, np.float32)}
            for _ in range(2):
                store.bytes_down = store.bytes_up = 0
                params = joined.step(params, examples=100)
            expected = (args.members - 1) / 2
            assert np.allclose(params["w"], expected), "the average is wrong"
        traffic.append((store.bytes_down / model, store.bytes_up / model))

    threads = [threading.Thread(target=member, args=(i,)) for i in range(args.members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shutil.rmtree(folder)
    assert len(traffic) == args.members, "a member failed"
    return max(down for down, _ in traffic), max(up for _, up in traffic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=int, default=10_000_000)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the shared folders are made")
    args = parser.parse_args()

    with contenders(args) as running:
        for number in range(1, args.rounds + 1):
            for name, contender in running.items():
                contender.ask("peers", number)
                contender.steps.append(contender.ask("member", number))
                seconds = contender.steps[-1]["seconds"]
                print(f"round {number}/{args.rounds}  {name:16} {seconds:7.3f} s", flush=True)
        unchanged = {name: c.ask("member", 0) for name, c in running.items()}
        rows = []
        for name, contender in running.items():
            rows.append(
                (
                    name,
                    f"{contender.median('seconds'):.3f} s",
                    f"{contender.median('bytes_read') / 1e6:.0f} MB",
                    f"{contender.memory / 2**20:.0f} MiB",
                    f"{unchanged[name]['bytes_read'] / 1e6:.1f} MB",
                )
            )
        ours, theirs = running["hubless"], running["flwr-serverless"]
        floor = running["streaming floor"]
        down, up = synchronous_traffic(args)
        title = f"{args.members} members, {args.params / 1e6:g}M float32, one asynchronous step"
        print(f"\n{title}")
        head = ("", "time", "read", "memory above model", "read, nothing new")
        for row in [head, *rows]:
            print("  ".join(cell.rjust(18) for cell in row))
        print(f"synchronous: {down:.2f} models down and {up:.2f} up per member and round\n")
        requests = unchanged["hubless"]["requests"]
        result = {
            "async_step_speedup": theirs.median("seconds") / ours.median("seconds"),
            "async_memory_ratio": theirs.memory / ours.memory,
            "unchanged_payload_bytes": unchanged["hubless"]["payload_bytes"],
            # what looking for news takes; sharing one's own update is a put (and a delete) more
            "unchanged_requests": sum(requests.get(kind, 0) for kind in ("list", "get", "read")),
            "sync_models_per_member": down,
            "sync_models_up_per_member": up,
            "step_over_streaming_floor": ours.median("seconds") / floor.median("seconds"),
        }
        print(json.dumps({k: round(v, 3) for k, v in result.items()}))


if __name__ == "__main__":
    main()
