"""What a convolution's kernel sees at every place, as the columns of a matrix.

A convolution is then a matrix product, which is how lanes with weights of their own run fast on a
GPU. Where Triton is at hand one kernel gathers all patches and another adds them up again;
elsewhere, and inside compiled code, plain operations do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 1024


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over an image (height, then width), and so what comes out."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def places(self) -> tuple[int, int]:
        """How often the kernel fits, down and across."""
        down, across = (
            (self.image[d] - self.dilation[d] * (self.kernel[d] - 1) - 1) // self.stride[d] + 1
            for d in (0, 1)
        )
        return down, across

    def view(self, image: Tensor, i: int, j: int) -> Tensor:
        """What the kernel's element (i, j) sees at every place, as a view of the image."""
        (high, wide), (sh, sw), (dh, dw) = self.places, self.stride, self.dilation
        rows = slice(i * dh, i * dh + sh * (high - 1) + 1, sh)
        return image[..., rows, j * dw : j * dw + sw * (wide - 1) + 1 : sw]

    @property
    def elements(self) -> list[tuple[int, int]]:
        """The kernel's elements, row by row."""
        return [(i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1])]


def patches(images: Tensor, geometry: Geometry, rows: int = 0) -> Tensor:
    """[examples, channels, height, width] to [channels * kernel, examples * places].

    With `rows`, so many rows: matrix products like round numbers. The first that is left over is
    ones, which is what a bias is multiplied with, the others zeros.

    >>> patches(torch.arange(9.0).view(1, 1, 3, 3), Geometry((3, 3), (2, 2)))
    tensor([[0., 1., 3., 4.],
            [1., 2., 4., 5.],
            [3., 4., 6., 7.],
            [4., 5., 7., 8.]])
    """
    rows = max(rows, images.shape[-3] * len(geometry.elements))
    # the compiler cannot see through a function with its own backward under vmap
    if torch.compiler.is_compiling():
        return _gathered(images, geometry, rows)
    gathered: Tensor = _Gather.apply(images, geometry, rows)  # type: ignore[no-untyped-call]
    return gathered


def _gathered(images: Tensor, geometry: Geometry, rows: int) -> Tensor:
    turned = images.transpose(-4, -3)
    views = [geometry.view(turned, i, j) for i, j in geometry.elements]
    columns = torch.stack(views, -4).flatten(-3).flatten(-3, -2)
    over = rows - columns.shape[-2]
    if over:
        columns = functional.pad(columns, (0, 0, 0, 1), value=1.0)
    return functional.pad(columns, (0, 0, 0, over - 1)) if over > 1 else columns


def _added(columns: Tensor, geometry: Geometry, channels: int) -> Tensor:
    """The reverse: every place's values added to where they were seen."""
    lead, places, elements = columns.shape[:-2], geometry.places, geometry.elements
    examples = columns.shape[-1] // (places[0] * places[1])
    columns = columns[..., : channels * len(elements), :]
    parts = columns.reshape(*lead, channels, len(elements), examples, *places)
    images = columns.new_zeros(*lead, channels, examples, *geometry.image)
    for k, (i, j) in enumerate(elements):
        geometry.view(images, i, j).add_(parts.select(-4, k))
    return images.transpose(-4, -3)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(images: Tensor, geometry: Geometry, rows: int) -> Tensor:
        if images.is_cuda and triton_kernels() is not None:
            return _launch_gather(images, geometry, rows)
        return _gathered(images, geometry, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.geometry, ctx.channels = inputs[1], inputs[0].shape[-3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        added: Tensor = _Add.apply(  # type: ignore[no-untyped-call]
            gradient, ctx.geometry, ctx.channels
        )
        return added, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, images: Tensor, geometry: Geometry, rows: int) -> Any:
        return patches(images.movedim(in_dims[0], 0), geometry, rows), 0


class _Add(torch.autograd.Function):
    """Once is enough: nothing here needs a gradient of the gradient."""

    @staticmethod
    def forward(columns: Tensor, geometry: Geometry, channels: int) -> Tensor:
        if columns.is_cuda and triton_kernels() is not None:
            return _launch_add(columns, geometry, channels)
        return _added(columns, geometry, channels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, columns: Tensor, geometry: Geometry, channels: int) -> Any:
        lanes = columns.movedim(in_dims[0], 0)
        return _Add.apply(lanes, geometry, channels), 0  # type: ignore[no-untyped-call]


def _launch_gather(images: Tensor, geometry: Geometry, rows: int) -> Tensor:
    lead = images.shape[:-4]
    images = images.flatten(0, -5) if lead else images[None]
    lanes, examples, channels = images.shape[:3]
    high, wide = geometry.places
    width = examples * high * wide
    out = images.new_empty(lanes, rows, width)
    moves = (*geometry.kernel, *geometry.stride, *geometry.dilation)
    triton_kernels().gather[(-(-width // _BLOCK), rows, lanes)](
        images, out, *images.stride(), width, channels, high, wide, *moves, BLOCK=_BLOCK
    )
    return out.view(*lead, rows, width)


def _launch_add(columns: Tensor, geometry: Geometry, channels: int) -> Tensor:
    lead, rows = columns.shape[:-2], columns.shape[-2]
    columns = columns.contiguous().view(-1, *columns.shape[-2:])
    lanes, (high, wide) = len(columns), geometry.places
    examples = columns.shape[-1] // (high * wide)
    out = columns.new_empty(lanes, channels, examples, *geometry.image)
    size = out[0].numel()
    moves = (*geometry.kernel, *geometry.stride, *geometry.dilation)
    sizes = (size, rows, examples, *geometry.image, high, wide)
    grid = (-(-size // _BLOCK), lanes)
    triton_kernels().add[grid](columns, out, *sizes, *moves, BLOCK=_BLOCK)
    return out.view(*lead, channels, examples, *geometry.image).transpose(-4, -3)


@lru_cache(maxsize=1)
def triton_kernels() -> Any:
    """Our kernels, or None where there is no Triton."""
    try:
        from hubless.train.layers import kernels
    except ImportError:
        return None
    return kernels
