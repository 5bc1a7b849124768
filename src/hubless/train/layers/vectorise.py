"""Modules as lanes can run them: the same params and results, in operations that vectorise.

A convolution over stacked weights becomes a grouped one, which GPUs run slowly; as patches times
weights it is a batched matrix product. cuDNN's recurrent layers do not vectorise at all; in a
kernel of our own, or written out step by step, they do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hubless.train.layers.patches import Geometry, patches
from hubless.train.layers.pooling import max_pool
from hubless.train.layers.recurrent import fits, recurrence

_ROUND = 8
"""Matrix products of half precision are fast where sizes are multiples of this."""


def vectorised(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy of the module on a device, with each layer in the form that lanes run fastest there.

    >>> lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    >>> x = torch.ones(5, 7, 3)
    >>> torch.allclose(lstm(x)[0], vectorised(lstm, torch.device("cpu"))(x)[0], atol=1e-6)
    True
    """
    twin = copy.deepcopy(module).to(device)
    for part in twin.modules():
        if type(part) is nn.LSTM and not part.proj_size:
            part.__class__ = _LSTM
        elif type(part) is nn.Conv2d and device.type == "cuda" and _is_plain(part):
            part.__class__ = _Conv2d
        elif type(part) is nn.MaxPool2d and device.type == "cuda" and _is_tiling(part):
            part.__class__ = _MaxPool2d
    return twin


def _is_plain(convolution: nn.Conv2d) -> bool:
    return (
        convolution.groups == 1
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
    )


def _is_tiling(pooling: nn.MaxPool2d) -> bool:
    """Whether the windows are squares that do not overlap."""
    return (
        isinstance(pooling.kernel_size, int)
        and pooling.kernel_size == pooling.stride
        and not pooling.padding
        and pooling.dilation == 1
        and not pooling.ceil_mode
        and not pooling.return_indices
    )


class _MaxPool2d(nn.MaxPool2d):
    """The same in one kernel each way."""

    def forward(self, input: Tensor) -> Tensor:
        return max_pool(input, int(self.kernel_size))  # type: ignore[arg-type]


class _Conv2d(nn.Conv2d):
    """Patches times weights."""

    def forward(self, input: Tensor) -> Tensor:
        ph, pw = int(self.padding[0]), int(self.padding[1])
        if ph or pw:
            input = functional.pad(input, (pw, pw, ph, ph))
        weight, device = self.weight.flatten(1), input.device.type
        if self.bias is not None:
            # one more column, and patches have a row of ones for it
            weight = torch.cat([weight, self.bias.to(weight.dtype)[:, None]], 1)
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            input, weight = input.to(dtype), weight.to(dtype)
        image = (input.shape[2], input.shape[3])
        moves = [(sizes[0], sizes[1]) for sizes in (self.kernel_size, self.stride, self.dilation)]
        geometry = Geometry(image, *moves)
        rows = -(-weight.shape[1] // _ROUND) * _ROUND
        weight = functional.pad(weight, (0, rows - weight.shape[1]))
        # [out, examples * places]
        output = weight @ patches(input, geometry, rows)
        return output.view(-1, input.shape[0], *geometry.places).transpose(0, 1)


class _LSTM(nn.LSTM):
    """In one kernel where that fits, else one step after another, as the equations have it."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batched = input.ndim == 3
        x = input if batched else input.unsqueeze(1)
        x = x.transpose(0, 1).contiguous() if self.batch_first and batched else x
        ways = 2 if self.bidirectional else 1
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        for layer in range(self.num_layers):
            outputs = []
            for way in range(ways):
                index = layer * ways + way
                if hx is None:
                    h = c = x.new_zeros(x.shape[1], self.hidden_size)
                else:
                    given = [s if batched else s.unsqueeze(1) for s in hx]
                    h, c = given[0][index], given[1][index]
                output, h, c = self._run(x, h, c, layer, way)
                outputs.append(output)
                hidden.append(h)
                cells.append(c)
            x = outputs[0] if ways == 1 else torch.cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = functional.dropout(x, self.dropout, self.training)
        output = x.transpose(0, 1) if self.batch_first and batched else x
        h_n, c_n = torch.stack(hidden), torch.stack(cells)
        if not batched:
            output, h_n, c_n = output.squeeze(1), h_n.squeeze(1), c_n.squeeze(1)
        return output, (h_n, c_n)

    def _run(
        self, x: Tensor, h: Tensor, c: Tensor, layer: int, way: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight: Callable[[str], Tensor] = lambda name: getattr(  # noqa: E731
            self, f"{name}_l{layer}{'_reverse' if way else ''}"
        )
        bias = weight("bias_ih") + weight("bias_hh") if self.bias else None
        if fits(x, self.hidden_size):
            gates = functional.linear(x, weight("weight_ih"), bias)
            return recurrence(gates, weight("weight_hh"), h, c, reverse=bool(way))
        gates = functional.linear(x, weight("weight_ih"))
        if bias is not None:
            gates = gates + bias
        recurrent = weight("weight_hh").t()
        outputs: list[Tensor] = []
        steps = range(x.shape[0] - 1, -1, -1) if way else range(x.shape[0])
        for t in steps:
            i, f, g, o = (gates[t] + h @ recurrent).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs[::-1] if way else outputs), h, c
