"""An LSTM's recurrence: all of time in one kernel each way.

Written out step by step it is a dozen small kernels for every step, which a GPU spends its time on
starting. One kernel keeps a lane's recurrent weights on the chip while its examples pass by.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hubless.train.layers.patches import triton_kernels
from hubless.train.layers.precision import in_tf32

_HIDDEN = (16, 32, 64)
"""Sizes whose weights fit on the chip."""

_BLOCK = 16
"""Examples to a program: the fewest a tensor core takes; with twice as many, 64 units spill."""

_UNITS_PER_WARP = 16
"""As wide as one tensor core's product, so that no two warps do the same."""

_STAGES = 3
"""Steps in flight on the way back: one is read while another is worked on."""


def fits(x: Tensor, hidden: int) -> bool:
    """Whether the recurrence over these inputs runs as one kernel here."""
    return (
        hidden in _HIDDEN
        and x.dtype != torch.float64
        and not torch.compiler.is_compiling()
        and _has_kernels(x)
    )


def recurrence(
    gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [time, examples, hidden] and the last h and c of one LSTM layer in one direction.

    `gates` are the inputs' part of the gates with the biases [time, examples, 4 * hidden], `weight`
    the recurrent weights [4 * hidden, hidden], `h` and `c` the state before [examples, hidden].

    >>> lstm, x, zeros = torch.nn.LSTM(3, 4, bias=False), torch.ones(5, 2, 3), torch.zeros(2, 4)
    >>> outputs, _, _ = recurrence(x @ lstm.weight_ih_l0.t(), lstm.weight_hh_l0, zeros, zeros)
    >>> torch.allclose(outputs, lstm(x)[0], atol=1e-6)
    True
    """
    weight, h, c = (tensor.to(gates.dtype) for tensor in (weight, h, c))
    outputs, last, _, _ = _Recur.apply(  # type: ignore[no-untyped-call]
        gates, weight, h, c, reverse
    )
    return outputs, outputs[0 if reverse else -1], last


class _Recur(torch.autograd.Function):
    """Besides outputs and the last cell: all cells and the gates as they opened, for the way back.

    To compute the gates a second time would cost four products a step and save no memory: what
    goes into them, which is as large, would have to be kept instead.
    """

    @staticmethod
    def forward(
        gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, reverse: bool
    ) -> tuple[Tensor, ...]:
        opened = gates.new_empty(gates.shape)
        outputs = gates.new_empty(*gates.shape[:-1], weight.shape[-1])
        cells = torch.empty_like(outputs)
        times = _times(gates, reverse)
        run = partial(_launch, "recur") if _has_kernels(gates) else _recur
        run(times, gates, weight, h, c, outputs, cells, opened)
        # a copy, so that its gradient is of one time and not of all
        return outputs, cells.select(-3, times[-1]).clone(), cells, opened

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, h, c, ctx.reverse = inputs
        outputs, _, cells, opened = output
        ctx.mark_non_differentiable(cells, opened)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, h, c, outputs, cells, opened)

    @staticmethod
    def backward(
        ctx: Any, d_outputs: Tensor | None, d_last: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        weight, h, c, outputs, cells, opened = ctx.saved_tensors
        d_outputs = torch.zeros_like(outputs) if d_outputs is None else d_outputs
        d_last = torch.zeros_like(c) if d_last is None else d_last
        d_gates, d_h, d_c = _Retrace.apply(  # type: ignore[no-untyped-call]
            opened, weight, cells, c, d_outputs, d_last, ctx.reverse
        )
        # every gate but the first saw the output before it; the first saw h
        others = outputs.shape[-3] - 1
        first, later, before = (others, 0, 1) if ctx.reverse else (0, 1, 0)
        d_later = d_gates.narrow(-3, later, others).flatten(-3, -2)
        d_weight = d_later.mT @ outputs.narrow(-3, before, others).flatten(-3, -2)
        d_weight = d_weight + d_gates.select(-3, first).mT @ h
        return d_gates, d_weight, d_h, d_c, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        lanes = _stacked(info.batch_size, in_dims, inputs)
        return _Recur.apply(*lanes), (0, 0, 0, 0)  # type: ignore[no-untyped-call]


class _Retrace(torch.autograd.Function):
    """Once is enough: nothing here needs a gradient of the gradient."""

    @staticmethod
    def forward(
        opened: Tensor,
        weight: Tensor,
        cells: Tensor,
        c: Tensor,
        d_outputs: Tensor,
        d_last: Tensor,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        d_gates, d_h, d_c = (t.new_empty(t.shape) for t in (opened, c, c))
        times = _times(opened, reverse)
        run = partial(_launch, "retrace") if _has_kernels(opened) else _retrace
        run(times, opened, weight, cells, c, d_outputs, d_last, d_gates, d_h, d_c)
        return d_gates, d_h, d_c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        lanes = _stacked(info.batch_size, in_dims, inputs)
        return _Retrace.apply(*lanes), (0, 0, 0)  # type: ignore[no-untyped-call]


def _has_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda and triton_kernels() is not None


def _times(gates: Tensor, reverse: bool) -> range:
    """The steps in the order in which they are taken."""
    steps = gates.shape[-3]
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _stacked(lanes: int, in_dims: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Every tensor with lanes first, repeated for all where they share it."""
    *tensors, reverse = inputs
    stacked = [
        tensor.expand(lanes, *tensor.shape) if lane is None else tensor.movedim(lane, 0)
        for tensor, lane in zip(tensors, in_dims, strict=False)
    ]
    return [*stacked, reverse]


def _launch(name: str, times: range, *tensors: Tensor) -> None:
    """Run a kernel on tensors of which the first has [..., time, examples, 4 * hidden]."""
    *lead, steps, examples, width = tensors[0].shape
    hidden = width // 4
    kernel = getattr(triton_kernels(), name)
    kernel[(-(-examples // _BLOCK), math.prod(lead))](
        *(tensor.contiguous() for tensor in tensors),
        steps,
        examples,
        times[0],
        times.step,
        HIDDEN=hidden,
        BLOCK=_BLOCK,
        PRECISION="tf32" if in_tf32() else "ieee",
        num_warps=hidden // _UNITS_PER_WARP,
        num_stages=_STAGES,
    )


def _recur(
    times: range,
    gates: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    outputs: Tensor,
    cells: Tensor,
    opened: Tensor,
) -> None:
    """What the kernel does, where there is none."""
    for time in times:
        i, f, g, o = (gates[..., time, :, :] + h @ weight.mT).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        outputs[..., time, :, :], cells[..., time, :, :] = h, c
        opened[..., time, :, :] = torch.cat([i, f, g, o], -1)


def _retrace(
    times: range,
    opened: Tensor,
    weight: Tensor,
    cells: Tensor,
    c: Tensor,
    d_outputs: Tensor,
    d_last: Tensor,
    d_gates: Tensor,
    d_h: Tensor,
    d_c: Tensor,
) -> None:
    """What the kernel does, where there is none."""
    d_h.zero_()
    d_c.copy_(d_last)
    for time in reversed(times):
        i, f, g, o = opened[..., time, :, :].chunk(4, -1)
        bent = cells[..., time, :, :].tanh()
        before = c if time == times[0] else cells[..., time - times.step, :, :]
        d_h += d_outputs[..., time, :, :]
        d_c += d_h * o * (1 - bent * bent)
        di, df = d_c * g * i * (1 - i), d_c * before * f * (1 - f)
        dg, do = d_c * i * (1 - g * g), d_h * bent * o * (1 - o)
        d_gates[..., time, :, :] = torch.cat([di, df, dg, do], -1)
        d_h.copy_(d_gates[..., time, :, :] @ weight)
        d_c *= f
