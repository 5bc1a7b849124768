"""Rounds in pfl; needs an environment that has it.

    python pfl_rounds.py --workload logreg --processes 2 --rounds 10

Every process is a pfl worker with one thread, started the way pfl documents for one machine: a
rank and the addresses in the environment. Favourable to pfl: user datasets and their batches stay
in memory as tensors, the fused optimizer, unequal users balanced by their sizes, no evaluation and
no metrics printed, and the device named so that it is not looked up at every batch.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise

import turns

turns.one_thread()

RANK = "PFL_WORKER_RANK"
ADDRESSES = "PFL_WORKER_ADDRESSES"


class Workers:
    """All processes of one pfl run; each gets every request, and the first one answers."""

    def __init__(self, workload: str, processes: int) -> None:
        environment = dict(os.environ, PFL_PYTORCH_DEVICE="cpu")
        if processes > 1:
            ports = free_ports(processes)
            environment[ADDRESSES] = ",".join(f"127.0.0.1:{port}" for port in ports)
        # pfl names a part of torch by its old name, and torch says so in every process
        command = [sys.executable, "-W", "ignore::FutureWarning", __file__, "--serve"]
        command += ["--workload", workload, "--processes", str(processes)]
        self._workers = [
            subprocess.Popen(
                command,
                env=environment | {RANK: str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
                # a worker has helpers of its own, and all of them end together
                start_new_session=True,
            )
            for rank in range(processes)
        ]

    def play(self, number: int) -> list[float]:
        for worker in self._workers:
            assert worker.stdin is not None
            # one that has died shows as a missing answer
            with contextlib.suppress(BrokenPipeError):
                print(number, file=worker.stdin, flush=True)
        answers = self._workers[0].stdout
        assert answers is not None
        line = answers.readline()
        if not line:
            raise SystemExit("pfl: a worker failed; see what it printed above")
        return json.loads(line)["rounds"]

    def close(self) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def work(args) -> None:
    """One pfl worker: the same program in every process."""
    out = turns.keep_stdout()

    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from workloads import WORKLOADS, loss_of

    torch.set_num_threads(1)
    # the same on every worker: pfl draws the same cohort everywhere and each takes its part
    np.random.seed(0)
    workload = WORKLOADS[args.workload]
    sizes = workload.sizes

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = workload.make_model().train()

        def loss(self, x, y):
            return loss_of(self.inner, x, y)

        @torch.no_grad()
        def metrics(self, x, y):
            # asked for in the very first round only, which nobody measures
            return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}

    class Clock(TrainingProcessCallback):
        """Times each central iteration, and sees that it trained whom it should."""

        def on_train_begin(self, *, model):
            self.seconds: list[float] = []
            self.start = time.perf_counter()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            self.seconds.append(time.perf_counter() - self.start)
            cohort = workload.cohort_of(central_iteration)
            seen = aggregate_metrics.to_simple_dict()
            users = next(v for k, v in seen.items() if "number of devices" in k)
            # summed over users here, and averaged over them when it is shown
            points = next(v for k, v in seen.items() if "number of data points" in k) * users
            expected = int(sizes[cohort].sum())
            if users != workload.cohort or abs(points - expected) > 0.5:
                raise RuntimeError(f"trained {users} users with {points} examples, not {expected}")
            self.start = time.perf_counter()
            return False, Metrics()

    data, offsets = workload.make_data()
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    users = [
        PyTorchTensorDataset((x[begin:end], y[begin:end]), user_id=str(user))
        for user, (begin, end) in enumerate(pairwise(offsets.tolist()))
    ]
    unequal = bool(np.ptp(sizes))
    federated = FederatedDataset(
        users.__getitem__,
        MinimizeReuseUserSampler(workload.order.tolist()),
        user_id_to_weight=dict(enumerate(sizes.tolist())) if unequal else None,
    )
    module = Module()
    model = PyTorchModel(
        model=module,
        local_optimizer_create=partial(torch.optim.SGD, fused=True),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    # users that are all alike weigh the same by pfl's default, without the extra pass
    weighting = [WeightByDatapoints()] if unequal else []
    backend = SimulatedBackend(federated, federated, postprocessors=weighting)
    algorithm = FederatedAveraging()
    local = NNTrainHyperParams(
        local_batch_size=workload.batch, local_num_epochs=1, local_learning_rate=workload.lr
    )
    played = [0]

    def rounds(number: int) -> list[float]:
        played[0] += number
        clock = Clock()
        algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=played[0],
                evaluation_frequency=10**9,
                train_cohort_size=workload.cohort,
                val_cohort_size=0,
            ),
            backend,
            model,
            local,
            callbacks=[clock],
            send_metrics_to_platform=False,
        )
        return clock.seconds

    for number in turns.requests():
        print(json.dumps({"rounds": rounds(number)}), file=out, flush=True)


def main() -> None:
    args = turns.arguments(__doc__)
    if RANK in os.environ:
        work(args)
        return
    workers = Workers(args.workload, args.processes)
    try:
        turns.play("pfl", args, workers.play, sys.stdout)
    finally:
        workers.close()


if __name__ == "__main__":
    main()
