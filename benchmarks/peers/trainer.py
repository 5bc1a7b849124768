"""A client's local epoch as a tuned plain torch loop: no loader, no optimizer, one resident model.

The model's parameters are views of one flat vector, so that loading them is one copy. Batches are
cut once per client and kept.
"""

import torch
from workloads import Workload, loss_of


class Trainer:
    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(1)
        data, offsets = workload.make_data()
        self._x, self._y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
        self._offsets = offsets.tolist()
        self._batches: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._batch, self._lr = workload.batch, workload.lr
        self.model = workload.make_model().train()
        self._parameters = list(self.model.parameters())
        self.flat = torch.nn.utils.parameters_to_vector(self._parameters).detach()
        torch.nn.utils.vector_to_parameters(self.flat, self._parameters)

    def examples(self, client: int) -> int:
        return self._offsets[client + 1] - self._offsets[client]

    def train(self, client: int) -> int:
        """One epoch, from the parameters that are in `flat` and into them; returns the steps."""
        batches = self._cut(client)
        for x, y in batches:
            loss_of(self.model, x, y).backward()
            gradients = [parameter.grad for parameter in self._parameters]
            with torch.no_grad():
                torch._foreach_add_(self._parameters, gradients, alpha=-self._lr)
            for parameter in self._parameters:
                parameter.grad = None
        return len(batches)

    def _cut(self, client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if client not in self._batches:
            own = slice(self._offsets[client], self._offsets[client + 1])
            pairs = zip(
                self._x[own].split(self._batch), self._y[own].split(self._batch), strict=True
            )
            self._batches[client] = list(pairs)
        return self._batches[client]
