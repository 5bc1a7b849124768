"""Modules as lanes can run them: the same params and results, in operations that vectorise.

A convolution over stacked weights becomes a grouped one, which GPUs run slowly; as patches times
weights it is a batched matrix product. cuDNN's recurrent layers do not vectorise at all; written
out step by step they do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Sizes = tuple[int, ...]


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
    return twin


def _is_plain(convolution: nn.Conv2d) -> bool:
    return (
        convolution.groups == 1
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
    )


class _Conv2d(nn.Conv2d):
    """Patches times weights."""

    def forward(self, input: Tensor) -> Tensor:
        ph, pw = int(self.padding[0]), int(self.padding[1])
        if ph or pw:
            input = functional.pad(input, (pw, pw, ph, ph))
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        weight = self.weight.flatten(1)
        if dtype is not None:
            input, weight = input.to(dtype), weight.to(dtype)
        # the compiler cannot see through a function with its own backward under vmap
        patch = _shifted if torch.compiler.is_compiling() else _Patches.apply
        patches, high, wide = patch(input, self.kernel_size, self.stride, self.dilation)
        # [out, examples * high * wide]
        output = (weight @ patches).view(-1, input.shape[0], high, wide).transpose(0, 1)
        if self.bias is not None:
            output = output + self.bias.to(output.dtype)[:, None, None]
        return output


def _shifted(
    input: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> tuple[Tensor, int, int]:
    """As `_Patches`, in operations that a compiler fuses."""
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    high = (input.shape[2] - dh * (kh - 1) - 1) // sh + 1
    wide = (input.shape[3] - dw * (kw - 1) - 1) // sw + 1
    turned = input.transpose(0, 1)
    shifted = [
        turned[:, :, i * dh : i * dh + sh * (high - 1) + 1 : sh][
            ..., j * dw : j * dw + sw * (wide - 1) + 1 : sw
        ]
        for i in range(kh)
        for j in range(kw)
    ]
    return torch.stack(shifted, 1).flatten(2).flatten(0, 1), high, wide


class _Patches(torch.autograd.Function):
    """What a kernel sees at every place, as columns: [in * kernel, examples * high * wide].

    One copy forwards, and one addition per element of the kernel backwards.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes
    ) -> tuple[Tensor, int, int]:
        spans = [dilation[d] * (kernel[d] - 1) + 1 for d in (0, 1)]
        seen = input.unfold(2, spans[0], stride[0]).unfold(3, spans[1], stride[1])
        seen = seen[..., :: dilation[0], :: dilation[1]].permute(1, 4, 5, 0, 2, 3)
        return seen.flatten(3).flatten(0, 2), seen.shape[4], seen.shape[5]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.shape = inputs[0].shape
        ctx.geometry = (*inputs[1:], output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor, None, None, None]:
        n, channels, high, wide = ctx.shape
        (kh, kw), (sh, sw), (dh, dw), (h, w) = ctx.geometry
        parts = gradient.view(channels, kh, kw, n, h, w)
        out = gradient.new_zeros(channels, n, high, wide)
        for i in range(kh):
            for j in range(kw):
                rows = slice(i * dh, i * dh + sh * (h - 1) + 1, sh)
                columns = slice(j * dw, j * dw + sw * (w - 1) + 1, sw)
                out[:, :, rows, columns] += parts[:, i, j]
        return out.transpose(0, 1), None, None, None


class _LSTM(nn.LSTM):
    """One step after another, as the equations have it."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batched = input.ndim == 3
        x = input if batched else input.unsqueeze(1)
        x = x.transpose(0, 1) if self.batch_first and batched else x
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
        gates = functional.linear(x, weight("weight_ih"))
        if self.bias:
            gates = gates + (weight("bias_ih") + weight("bias_hh"))
        recurrent = weight("weight_hh").t()
        outputs: list[Tensor] = []
        steps = range(x.shape[0] - 1, -1, -1) if way else range(x.shape[0])
        for t in steps:
            i, f, g, o = (gates[t] + h @ recurrent).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs[::-1] if way else outputs), h, c
