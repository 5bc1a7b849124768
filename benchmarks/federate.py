"""Federating side by side: hubless, flwr-serverless and a bare streaming loop, in one run.

    python benchmarks/federate.py [--params 10000000] [--members 20] [--rounds 5]
    python benchmarks/federate.py --before v0.1.0    # this code beside that of an earlier commit
    python benchmarks/federate.py --look NormBound MultiKrum   # beside strategies that look first

Each contender has a process that plays the peers and one that is measured; they take turns, so
that a noisy machine is noisy for all. Prints a table, and one JSON line at the end.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))
import environments  # noqa: E402


class Contender:
    """Two processes: one plays all peers, the other is measured.

    A contender of hubless also has one that plays whole synchronous rounds.
    """

    def __init__(
        self,
        python: Path | str,
        script: str,
        args: argparse.Namespace,
        source: Path | None = None,
        strategy: str = "FedAvg",
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="hubless-bench-", dir=args.folder)
        self.steps: list[dict[str, Any]] = []
        shared = ["--folder", self.folder, "--params", args.params, "--members", args.members]
        shared += ["--strategy", strategy]
        self.rounds: list[dict[str, Any]] = []
        environment = {**os.environ, **({"PYTHONPATH": str(source)} if source else {})}
        self._processes = {
            role: subprocess.Popen(
                [str(python), str(PEERS / script), role, *map(str, shared)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for role in ("peers", "member", *(["rounds"] if source else []))
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

    def play_rounds(self) -> None:
        """Synchronous rounds of all members, in a folder that is new each time."""
        self.rounds.append(self.ask("rounds", 0))
        shutil.rmtree(Path(self.folder) / "rounds")

    def of_rounds(self, name: str) -> float:
        """The median over all that were played."""
        return statistics.median(played[name] for played in self.rounds)

    @property
    def memory(self) -> int:
        """The largest, which is the first step's: later ones use again what was not given back."""
        return max(step["memory_bytes"] for step in self.steps)


@contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """The package as it was at a commit, in a work tree of its own."""
    with tempfile.TemporaryDirectory(prefix="hubless-before-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit],
            cwd=ROOT,
            check=True,
        )
        try:
            yield tree / "src"
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT)


@contextmanager
def contenders(args: argparse.Namespace) -> Iterator[dict[str, Contender]]:
    with ExitStack() as stack:
        ours, flower = "hubless_member.py", "flwr-serverless"
        started: dict[str, Contender] = {}

        def start(name: str, python: Path | str, script: str, *more: Any) -> None:
            started[name] = Contender(python, script, args, *more)
            stack.callback(started[name].close)

        if not args.before and not args.look:
            start(flower, environments.python_of(flower), "flwr_serverless.py")
        start("streaming floor", sys.executable, "streaming_floor.py")
        if args.before:
            start("before", sys.executable, ours, stack.enter_context(source_of(args.before)))
        start("hubless", sys.executable, ours, ROOT / "src")
        for strategy in args.look:
            start(strategy, sys.executable, ours, ROOT / "src", strategy)
        yield started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=int, default=10_000_000)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the shared folders are made")
    parser.add_argument("--before", metavar="COMMIT", help="compare with the code of this commit")
    parser.add_argument("--look", nargs="+", default=[], metavar="STRATEGY", help="and these")
    args = parser.parse_args()

    with contenders(args) as running:
        for number in range(1, args.rounds + 1):
            for name, contender in running.items():
                contender.ask("peers", number)
                contender.steps.append(contender.ask("member", number))
                seconds = contender.steps[-1]["seconds"]
                print(f"round {number}/{args.rounds}  {name:16} {seconds:7.3f} s", flush=True)
        unchanged = {name: c.ask("member", 0) for name, c in running.items()}
        in_rounds = {
            name: c for name, c in running.items() if name in ("hubless", "before", *args.look)
        }
        for _ in range(3 if args.before else 1):
            for contender in in_rounds.values():
                contender.play_rounds()
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
        ours, floor = running["hubless"], running["streaming floor"]
        title = f"{args.members} members, {args.params / 1e6:g}M float32, one asynchronous step"
        print(f"\n{title}")
        head = ("", "time", "read", "memory above model", "read, nothing new")
        for row in [head, *rows]:
            print("  ".join(cell.rjust(18) for cell in row))
        for name, contender in in_rounds.items():
            print(
                f"synchronous, {name}: {contender.of_rounds('down'):.2f} models down and "
                f"{contender.of_rounds('up'):.2f} up per member and round, "
                f"{contender.of_rounds('round_seconds'):.2f} s for all members in one process"
            )
        requests = unchanged["hubless"]["requests"]
        result = {
            "unchanged_payload_bytes": unchanged["hubless"]["payload_bytes"],
            # what looking for news takes; sharing one's own update is a put (and a delete) more
            "unchanged_requests": sum(requests.get(kind, 0) for kind in ("list", "get", "read")),
            "sync_models_per_member": ours.of_rounds("down"),
            "sync_models_up_per_member": ours.of_rounds("up"),
            "step_over_streaming_floor": ours.median("seconds") / floor.median("seconds"),
        }
        if args.before:
            before = running["before"]
            result |= {
                "async_step_over_before": ours.median("seconds") / before.median("seconds"),
                "async_memory_over_before": ours.memory / before.memory,
                "before_over_streaming_floor": before.median("seconds") / floor.median("seconds"),
                "sync_models_more_than_before": ours.of_rounds("down") - before.of_rounds("down"),
                "sync_round_over_before": ours.of_rounds("round_seconds")
                / before.of_rounds("round_seconds"),
            }
        elif args.look:
            plain = running["hubless"]
            for strategy in args.look:
                seconds = running[strategy].median("seconds") / plain.median("seconds")
                result |= {f"{strategy}_step_over_plain": seconds}
                models = running[strategy].memory / (4 * args.params)
                result |= {f"{strategy}_models_of_memory_above_its_own": models}
                result |= {
                    f"{strategy}_sync_models_per_member": running[strategy].of_rounds("down")
                }
        else:
            theirs = running["flwr-serverless"]
            result |= {
                "async_step_speedup": theirs.median("seconds") / ours.median("seconds"),
                "async_memory_ratio": theirs.memory / ours.memory,
            }
        print(json.dumps({k: round(v, 3) for k, v in result.items()}))


if __name__ == "__main__":
    main()
