"""Max pooling over windows that do not overlap, in one kernel each way.

torch's own goes through indices, which takes longer on a GPU than the convolutions before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hubless.train.layers.patches import triton_kernels

_BLOCK = 1024


def max_pool(images: Tensor, side: int) -> Tensor:
    """[examples, channels, height, width], pooled in windows of side x side."""
    if torch.compiler.is_compiling() or not images.is_cuda or triton_kernels() is None:
        return functional.max_pool2d(images, side)
    pooled: Tensor = _Pool.apply(images, side)  # type: ignore[no-untyped-call]
    return pooled


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(images: Tensor, side: int) -> Tensor:
        lanes, pooled, sizes = _prepared(images, side)
        triton_kernels().pool[_grid(pooled)](lanes, pooled, *sizes, BLOCK=_BLOCK)
        return pooled.view(*images.shape[:-2], *pooled.shape[-2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.side = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (images,) = ctx.saved_tensors
        out: Tensor = _Unpool.apply(images, gradient, ctx.side)  # type: ignore[no-untyped-call]
        return out, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, images: Tensor, side: int) -> Any:
        return _Pool.apply(images.movedim(in_dims[0], 0), side), 0  # type: ignore[no-untyped-call]


class _Unpool(torch.autograd.Function):
    @staticmethod
    def forward(images: Tensor, gradient: Tensor, side: int) -> Tensor:
        lanes, pooled, sizes = _prepared(images, side)
        whole = lanes.shape[-2] % side == 0 and lanes.shape[-1] % side == 0
        out = torch.empty_like(lanes) if whole else torch.zeros_like(lanes)
        if out.stride() != lanes.stride():
            lanes, out = lanes.contiguous(), out.contiguous()
            sizes = (*lanes.stride(), *sizes[5:])
        triton_kernels().unpool[_grid(pooled)](
            lanes, gradient.contiguous(), out, *sizes, BLOCK=_BLOCK
        )
        return out.view(images.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, images: Tensor, gradient: Tensor, side: int) -> Any:
        lanes = (images.movedim(in_dims[0], 0), gradient.movedim(in_dims[1], 0))
        return _Unpool.apply(*lanes, side), 0  # type: ignore[no-untyped-call]


def _prepared(images: Tensor, side: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The images with one axis of lanes, room for what is pooled, and what kernels need to know."""
    lanes = images.flatten(0, -5) if images.ndim > 4 else images[None]
    high, wide = lanes.shape[-2] // side, lanes.shape[-1] // side
    pooled = lanes.new_empty(*lanes.shape[:3], high, wide)
    size = pooled[0].numel()
    return lanes, pooled, (*lanes.stride(), size, lanes.shape[2], high, wide, side)


def _grid(pooled: Tensor) -> tuple[int, int]:
    return -(-pooled[0].numel() // _BLOCK), len(pooled)
