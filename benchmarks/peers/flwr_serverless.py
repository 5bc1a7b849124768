"""One asynchronous member of flwr-serverless; needs an environment that has it."""

import os
import sys
from pathlib import Path

# this script bears the package's name and its folder leads the path, so the folder goes last
sys.path.sort(key=lambda entry: Path(entry).resolve() == Path(__file__).resolve().parent)

import gauge
import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters
from flwr.server.strategy import FedAvg
from flwr_serverless import AsyncFederatedNode, LocalFolder

ARRAYS = 4


def model(params: int, seed: int) -> Parameters:
    whole = np.random.default_rng(seed).standard_normal(params, dtype=np.float32)
    return ndarrays_to_parameters(np.array_split(whole, ARRAYS))


def node(folder: Path, index: int) -> AsyncFederatedNode:
    return AsyncFederatedNode(
        shared_folder=LocalFolder(str(folder)), strategy=FedAvg(), node_id=f"member-{index}"
    )


def main() -> None:
    args = gauge.arguments(__doc__)

    def peers(number: int) -> None:
        for index in range(1, args.members):
            node(args.folder, index).update_parameters(
                model(args.params, number * args.members + index),
                num_examples=100 + index,
                metrics={},
                epoch=number,
                upload_only=True,
            )
        # otherwise the writing back of these files would be charged to the step
        os.sync()

    if args.role == "peers":
        gauge.serve(peers)
        return
    own = node(args.folder, 0)
    current = [model(args.params, 0)]

    def step(number: int) -> None:
        updated, _ = own.update_parameters(current[0], num_examples=100, metrics={}, epoch=number)
        if updated is not None:
            current[0] = updated

    gauge.serve(step)


if __name__ == "__main__":
    main()
