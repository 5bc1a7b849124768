"""Simulating on one GPU: the published CIFAR-10 yardstick, a BERT and an LSTM.

    python benchmarks/simulate_gpu.py --data FOLDER [--rounds 1500] [--precision bfloat16]
        [--seeds 1] [--one-lane 0] [--keep FOLDER] [--skip cifar10 bert lstm]

CIFAR-10 as pfl-research has it: 1,000 clients x 50 images, 50 per round, one local epoch, batch
10, SGD 0.1, a CNN of 1.6M parameters, evaluation every 10 rounds. The time is all of it: moving
the data, measuring lanes, capturing or compiling, training, evaluating. The first seed pays for
what is loaded and compiled once per process, and is the time that counts. `--one-lane` also runs
so many seeds with one client at a time, for the accuracy; with `--keep` they go on where they were
interrupted. Prints what it measures as it goes, and one JSON line at the end.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hubless
from hubless.data import iid
from hubless.data.sources import cifar10
from hubless.errors import Diverged
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.job import Cohort, Job
from hubless.study.results import Watch
from hubless.train.losses import accuracy, cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from workloads import Characters, convolutions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_floats(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**batch, "x": batch["x"].float() / 64 - 1.85}


def run_cifar10(
    args: argparse.Namespace, engine: hubless.Local, seed: int, keep: Path | None = None
) -> dict[str, Any]:
    """All rounds at one seed: seconds (since it was resumed), and accuracy unless it diverged."""
    split = cifar10.load(args.data)
    people = split.train.partition(iid(split.train.examples, 1000, seed=seed))
    torch.manual_seed(seed)
    started = time.perf_counter()
    simulation = hubless.Simulation(
        hubless.Task(convolutions(), metrics={"accuracy": accuracy}, prepare=as_floats),
        people,
        recipe=hubless.Recipe(hubless.SGD(0.1), batch=10, precision=args.precision),
        cohort=50,
        seed=seed,
        engine=engine,
        test=split.test,
        evaluate_every=10,
    )
    if keep is not None:
        watch = Watch(keep.name, args.rounds, math.inf, "accuracy")
        simulation.callbacks += [watch, hubless.Checkpoint(keep, every=100)]
        simulation.resume(keep)
    try:
        simulation.run(args.rounds)
    except Diverged as error:
        if keep is None:
            raise
        print(f"seed {seed}: {error}")
    took = time.perf_counter() - started
    last = round([row["accuracy"] for row in simulation.rows if "accuracy" in row][-1], 4)
    done = f"{simulation.round} rounds in {took:.1f} s, accuracy {last}"
    print(f"{engine}, seed {seed}: {done}", flush=True)
    return {"seconds": took, "accuracy": last if simulation.round == args.rounds else None}


def small_bert() -> nn.Module:
    """About 5.3M parameters."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config)


def client_step_us(
    name: str, module: nn.Module, length: int, words: int, batch: int, lanes: int, compiled: bool
) -> float:
    """Microseconds per local step of one client, in so many lanes."""
    rng = np.random.default_rng(0)
    clients, steps = max(lanes, 8), 4
    rows = clients * batch * steps
    columns = {k: rng.integers(1, words, (rows, length)) for k in ("x", "y")}
    people = hubless.Population(columns, np.arange(0, rows + 1, batch * steps))
    keyword = {"input_ids": "x"} if name == "bert" else ("x",)
    job = Job(
        hubless.Task(module, cross_entropy, inputs=keyword),
        hubless.Recipe(hubless.SGD(0.1), batch=batch, precision="tf32"),
        people,
        0,
    )
    executor = LocalExecutor(job, DEVICE)
    executor.adopt(Setup(lanes, compiled))
    params = job.layout.flatten(module).to(DEVICE)
    few = min(clients, lanes or 4)
    cohort = Cohort(0, np.arange(few), np.full(few, 1 / few))
    started = time.perf_counter()
    executor.run(params, cohort)
    wait()
    first = time.perf_counter() - started
    taken = timed(lambda: executor.run(params, cohort), times=5) / (few * steps) * 1e6
    way = "compiled" if compiled else "eager"
    print(f"{name}: {lanes} lanes {way}: {taken:.0f} us per client step (first {first:.1f} s)")
    sys.stdout.flush()
    return taken


def timed(function: Callable[[], Any], times: int) -> float:
    function()
    wait()
    started = time.perf_counter()
    for _ in range(times):
        function()
    wait()
    return (time.perf_counter() - started) / times


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--one-lane", type=int, default=0, help="also so many seeds in one lane")
    parser.add_argument("--keep", help="where runs in one lane are saved as they go")
    parser.add_argument("--skip", nargs="*", default=[])
    args = parser.parse_args()

    def seeds(count: int) -> range:
        return range(args.seed, args.seed + count)

    figures: dict[str, Any] = {}
    if "cifar10" not in args.skip:
        runs = [run_cifar10(args, hubless.Local(), seed) for seed in seeds(args.seeds)]
        figures["cifar10_1500_rounds_s"] = round(runs[0]["seconds"], 2)
        figures["cifar10_accuracy"] = round(float(np.mean([r["accuracy"] for r in runs])), 4)
        figures["cifar10_accuracies"] = [r["accuracy"] for r in runs]
        figures["cifar10_seconds"] = [round(r["seconds"], 2) for r in runs]
    if args.one_lane:
        alone = hubless.Local(lanes=1, compiled=False)
        with tempfile.TemporaryDirectory() as passing:
            kept = Path(args.keep or passing)
            names = {seed: kept / f"one-lane-{seed}" for seed in seeds(args.one_lane)}
            runs = [run_cifar10(args, alone, seed, folder) for seed, folder in names.items()]
        figures["one_lane_accuracies"] = [r["accuracy"] for r in runs]
        figures["one_lane_seconds"] = [round(r["seconds"], 2) for r in runs]
    if "bert" not in args.skip:
        bert = small_bert()
        print(f"BERT of {sum(p.numel() for p in bert.parameters()) / 1e6:.1f}M parameters")
        alone = client_step_us("bert", bert, 16, 8000, 8, 0, False)
        best = min(client_step_us("bert", bert, 16, 8000, 8, lanes, True) for lanes in (32, 128))
        figures.update(bert_client_step_us=round(best, 1), bert_alone_us=round(alone, 1))
    if "lstm" not in args.skip:
        lstm = Characters()
        alone = client_step_us("lstm", lstm, 80, 90, 10, 0, False)
        best = min(client_step_us("lstm", lstm, 80, 90, 10, lanes, False) for lanes in (50, 200))
        figures.update(lstm_client_step_us=round(best, 1), lstm_alone_us=round(alone, 1))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
