"""Triton kernels: importing this needs Triton, which torch brings along for GPUs."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather(
    images,
    out,
    lane_stride,
    example_stride,
    channel_stride,
    row_stride,
    column_stride,
    width,
    channels,
    high: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    dh: tl.constexpr,
    dw: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of the matrix, a block of places: what one element of the kernel sees there."""
    row = tl.program_id(1)
    lane = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    channel = row // (kh * kw)
    i = (row // kw) % kh
    j = row % kw
    example = place // (high * wide)
    y = (place // wide) % high * sh + i * dh
    x = place % wide * sw + j * dw
    seen = tl.load(
        images
        + lane * lane_stride
        + example * example_stride
        + channel * channel_stride
        + y * row_stride
        + x * column_stride,
        mask=inside & (channel < channels),
        other=0,
    )
    rows = tl.num_programs(1)
    tl.store(out + (lane * rows + row) * width + place, seen, mask=inside)


@triton.jit
def add(
    columns,
    out,
    size,
    rows,
    examples,
    height: tl.constexpr,
    length: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    dh: tl.constexpr,
    dw: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of an image's gradient: the sum over all places that saw each of its points."""
    lane = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = at % length
    y = (at // length) % height
    example = (at // (length * height)) % examples
    channel = at // (length * height * examples)
    width = examples * high * wide
    base = columns + lane * rows * width
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(kh):
        for j in tl.static_range(kw):
            down = y - i * dh
            across = x - j * dw
            row, column = down // sh, across // sw
            saw = (down >= 0) & (across >= 0) & (down % sh == 0) & (across % sw == 0)
            saw = saw & (row < high) & (column < wide) & inside
            place = (example * high + row) * wide + column
            seen = base + (channel * kh * kw + i * kw + j) * width + place
            total += tl.load(seen, mask=saw, other=0).to(tl.float32)
    tl.store(out + lane * size + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def pool(
    images,
    out,
    lane_stride,
    example_stride,
    channel_stride,
    row_stride,
    column_stride,
    size,
    channels,
    high: tl.constexpr,
    wide: tl.constexpr,
    side: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest value of each window of side x side."""
    lane = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = at % wide * side
    y = (at // wide) % high * side
    channel = (at // (wide * high)) % channels
    example = at // (wide * high * channels)
    corner = images + lane * lane_stride + example * example_stride + channel * channel_stride
    corner += y * row_stride + x * column_stride
    best = tl.load(corner, mask=inside)
    for i in tl.static_range(side):
        for j in tl.static_range(side):
            value = tl.load(corner + i * row_stride + j * column_stride, mask=inside)
            best = tl.where(value > best, value, best)
    tl.store(out + lane * size + at, best, mask=inside)


@triton.jit
def unpool(
    images,
    gradient,
    out,
    lane_stride,
    example_stride,
    channel_stride,
    row_stride,
    column_stride,
    size,
    channels,
    high: tl.constexpr,
    wide: tl.constexpr,
    side: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each window's gradient, to the first of its largest values."""
    lane = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    x = at % wide * side
    y = (at // wide) % high * side
    channel = (at // (wide * high)) % channels
    example = at // (wide * high * channels)
    corner = lane * lane_stride + example * example_stride + channel * channel_stride
    corner += y * row_stride + x * column_stride
    best = tl.load(images + corner, mask=inside)
    where = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(side):
        for j in tl.static_range(side):
            value = tl.load(images + corner + i * row_stride + j * column_stride, mask=inside)
            where = tl.where(value > best, i * side + j, where)
            best = tl.where(value > best, value, best)
    given = tl.load(gradient + lane * size + at, mask=inside)
    for i in tl.static_range(side):
        for j in tl.static_range(side):
            values = tl.where(where == i * side + j, given, 0.0)
            tl.store(out + corner + i * row_stride + j * column_stride, values, mask=inside)
