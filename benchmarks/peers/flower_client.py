"""The client side of flower_rounds.py, in a module of its own.

Ray's workers import it by name, so that what it keeps here (data, model) stays in each of them;
what lies in the main script would be sent along, and begun anew, with every message.
"""

import os

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from trainer import Trainer
from workloads import WORKLOADS

WORKLOAD = "BENCHMARK_WORKLOAD"
kept: list[Trainer] = []
app = ClientApp()


def record(model: torch.nn.Module) -> ArrayRecord:
    arrays = {name: Array(value.detach().numpy()) for name, value in model.named_parameters()}
    return ArrayRecord(arrays)


@app.train()
def train(message: Message, context: Context) -> Message:
    if not kept:
        kept.append(Trainer(WORKLOADS[os.environ[WORKLOAD]]))
    trainer = kept[0]
    content = message.content
    arrays = content.array_records["arrays"]
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(torch.from_numpy(np.asarray(arrays[name].numpy())))
    client = int(content.config_records["config"]["client"])
    steps = trainer.train(client)
    metrics = MetricRecord({"num-examples": trainer.examples(client), "steps": steps})
    reply = RecordDict({"arrays": record(trainer.model), "metrics": metrics})
    return Message(content=reply, reply_to=message)
