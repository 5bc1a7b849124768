"""Rounds in Flower's simulation on Ray; needs an environment that has both.

    python flower_rounds.py --workload logreg --processes 2 --rounds 10

One actor per process, one CPU and one thread each. Favourable to Flower: clients run the tuned
loop of trainer.py with data and model kept in every actor, no evaluation, no logging. With
`--serve`, every request is a simulation of its own with a warm-up of its own: an idle one goes
on polling all its nodes, which would disturb whoever's turn it is.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import turns

turns.one_thread()
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# otherwise Ray says at length, for every actor, that it may hide no accelerator
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
# Ray makes its workers give way to everyone else, who would be faster for it in a comparison
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

ONCE = "BENCHMARK_FLOWER_ROUNDS"


def simulate(name: str, processes: int, number: int) -> list[float]:
    """One whole simulation in this process; returns the seconds of each round."""
    import logging

    import flower_client
    import numpy as np
    from flwr.app import ConfigRecord, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from workloads import WORKLOADS

    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ[flower_client.WORKLOAD] = name
    workload = WORKLOADS[name]
    seconds: list[float] = []
    start: list[float] = []

    class Timed(FedAvg):
        """Federated averaging that tells every node whom to play, and notes the time."""

        def configure_train(self, server_round, arrays, config, grid):
            if not start:
                # nodes are registered and actors started while the first round already asks
                while len(list(grid.get_node_ids())) < workload.clients:
                    time.sleep(0.1)
                start.append(time.perf_counter())
            messages = list(super().configure_train(server_round, arrays, config, grid))
            cohort = workload.cohort_of(server_round - 1).tolist()
            for message, client in zip(messages, cohort, strict=True):
                told = ConfigRecord({"client": client})
                message.content = RecordDict({"arrays": arrays, "config": told})
            return messages

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            failed = [reply.error.reason for reply in replies if reply.has_error()]
            if failed or len(replies) != workload.cohort:
                raise RuntimeError(f"{len(replies)} replies, {len(failed)} failed: {failed[:1]}")
            result = super().aggregate_train(server_round, replies)
            seconds.append(time.perf_counter() - start[0])
            sizes = workload.sizes[workload.cohort_of(server_round - 1)]
            trained = [reply.content.metric_records["metrics"] for reply in replies]
            examples = sum(metrics["num-examples"] for metrics in trained)
            steps = sum(metrics["steps"] for metrics in trained)
            expected = int(sizes.sum()), int(np.ceil(sizes / workload.batch).sum())
            if (examples, steps) != expected:
                raise RuntimeError(f"examples and steps {examples, steps} instead of {expected}")
            start[0] = time.perf_counter()
            return result

    server = ServerApp()

    @server.main()
    def main(grid, context) -> None:
        strategy = Timed(
            fraction_train=(workload.cohort + 0.5) / workload.clients,
            fraction_evaluate=0.0,
            min_available_nodes=workload.clients,
        )
        initial = flower_client.record(workload.make_model())
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=number)

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": processes, "num_gpus": 0},
        },
    )
    return seconds


def end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    args = turns.arguments(__doc__)
    if ONCE in os.environ:
        out = turns.keep_stdout()
        threading.Thread(target=end_with_parent, daemon=True).start()
        seconds = simulate(args.workload, args.processes, int(os.environ[ONCE]))
        print(json.dumps(seconds), file=out, flush=True)
        return

    def rounds(number: int) -> list[float]:
        # in a process of its own: Ray and Flower leave nothing behind when it ends
        command = [sys.executable, __file__, "--workload", args.workload]
        command += ["--processes", str(args.processes)]
        environment = dict(os.environ, **{ONCE: str(turns.WARM_UP + number)})
        pipe = subprocess.PIPE
        with (
            # Ray's sockets and logs; the name must be short
            tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
            subprocess.Popen(
                command,
                env=environment | {"RAY_TMPDIR": folder},
                stdin=pipe,
                stdout=pipe,
                text=True,
            ) as run,
        ):
            assert run.stdout is not None
            line = run.stdout.read()
            run.wait()
        if run.returncode or not line:
            raise SystemExit(f"Flower: the simulation failed ({run.returncode}), see above")
        return json.loads(line)[turns.WARM_UP :]

    turns.play("Flower", args, rounds, sys.stdout, warm_up=0)


if __name__ == "__main__":
    main()
