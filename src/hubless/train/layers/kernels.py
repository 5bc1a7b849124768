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
    values = tl.load(
        images
        + lane * lane_stride
        + example * example_stride
        + channel * channel_stride
        + y * row_stride
        + x * column_stride,
        mask=inside & (channel < channels),
        other=0,
    )
    values = tl.where(row == channels * kh * kw, 1.0, values)
    rows = tl.num_programs(1)
    tl.store(out + (lane * rows + row) * width + place, values, mask=inside)


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
            source = base + (channel * kh * kw + i * kw + j) * width + place
            total += tl.load(source, mask=saw, other=0).to(tl.float32)
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


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=["steps", "examples", "start", "move"])
def recur(
    gates,
    weight,
    h_first,
    c_first,
    outputs,
    cells,
    opened,
    steps,
    examples,
    start,
    move,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A lane's block of examples through all of an LSTM's time, with the weights at hand."""
    lane = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    unit = tl.arange(0, HIDDEN)
    inside = example < examples
    turned = weight + lane * 4 * HIDDEN * HIDDEN + unit[None, :] * HIDDEN + unit[:, None]
    to_i = tl.load(turned)
    to_f = tl.load(turned + HIDDEN * HIDDEN)
    to_g = tl.load(turned + 2 * HIDDEN * HIDDEN)
    to_o = tl.load(turned + 3 * HIDDEN * HIDDEN)
    first = (lane * examples + example) * HIDDEN + unit[None, :]
    h = tl.load(h_first + first, mask=inside, other=0).to(to_i.dtype)
    c = tl.load(c_first + first, mask=inside, other=0).to(tl.float32)
    for step in range(steps):
        row = (lane * steps + start + step * move) * examples + example
        at = row * HIDDEN + unit[None, :]
        gate = row * 4 * HIDDEN + unit[None, :]
        i = tl.load(gates + gate, mask=inside, other=0).to(tl.float32)
        f = tl.load(gates + gate + HIDDEN, mask=inside, other=0).to(tl.float32)
        g = tl.load(gates + gate + 2 * HIDDEN, mask=inside, other=0).to(tl.float32)
        o = tl.load(gates + gate + 3 * HIDDEN, mask=inside, other=0).to(tl.float32)
        i = tl.sigmoid(i + tl.dot(h, to_i, input_precision=PRECISION))
        f = tl.sigmoid(f + tl.dot(h, to_f, input_precision=PRECISION))
        g = _tanh(g + tl.dot(h, to_g, input_precision=PRECISION))
        o = tl.sigmoid(o + tl.dot(h, to_o, input_precision=PRECISION))
        c = f * c + i * g
        h = (o * _tanh(c)).to(to_i.dtype)
        tl.store(outputs + at, h, mask=inside)
        tl.store(cells + at, c.to(to_i.dtype), mask=inside)
        tl.store(opened + gate, i.to(to_i.dtype), mask=inside)
        tl.store(opened + gate + HIDDEN, f.to(to_i.dtype), mask=inside)
        tl.store(opened + gate + 2 * HIDDEN, g.to(to_i.dtype), mask=inside)
        tl.store(opened + gate + 3 * HIDDEN, o.to(to_i.dtype), mask=inside)


@triton.jit(do_not_specialize=["steps", "examples", "start", "move"])
def retrace(
    opened,
    weight,
    cells,
    c_first,
    d_outputs,
    d_last,
    d_gates,
    d_h,
    d_c,
    steps,
    examples,
    start,
    move,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same way back: gradients of the gates at every time and of the first state."""
    lane = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    unit = tl.arange(0, HIDDEN)
    inside = example < examples
    block = weight + lane * 4 * HIDDEN * HIDDEN + unit[:, None] * HIDDEN + unit[None, :]
    of_i = tl.load(block)
    of_f = tl.load(block + HIDDEN * HIDDEN)
    of_g = tl.load(block + 2 * HIDDEN * HIDDEN)
    of_o = tl.load(block + 3 * HIDDEN * HIDDEN)
    first = (lane * examples + example) * HIDDEN + unit[None, :]
    dh = tl.zeros((BLOCK, HIDDEN), tl.float32)
    dc = tl.load(d_last + first, mask=inside, other=0).to(tl.float32)
    end = start + (steps - 1) * move
    last = ((lane * steps + end) * examples + example) * HIDDEN + unit[None, :]
    c = tl.load(cells + last, mask=inside, other=0).to(tl.float32)
    for step in range(steps):
        row = (lane * steps + end - step * move) * examples + example
        at = row * HIDDEN + unit[None, :]
        gate = row * 4 * HIDDEN + unit[None, :]
        i = tl.load(opened + gate, mask=inside, other=0).to(tl.float32)
        f = tl.load(opened + gate + HIDDEN, mask=inside, other=0).to(tl.float32)
        g = tl.load(opened + gate + 2 * HIDDEN, mask=inside, other=0).to(tl.float32)
        o = tl.load(opened + gate + 3 * HIDDEN, mask=inside, other=0).to(tl.float32)
        dh += tl.load(d_outputs + at, mask=inside, other=0).to(tl.float32)
        # the first cell is kept apart from those that came of it
        earlier = cells + at - move * examples * HIDDEN
        earlier = tl.where(step < steps - 1, earlier, c_first + first)
        before = tl.load(earlier, mask=inside, other=0).to(tl.float32)
        bent = _tanh(c)
        dc += dh * o * (1 - bent * bent)
        di = (dc * g * i * (1 - i)).to(of_i.dtype)
        df = (dc * before * f * (1 - f)).to(of_i.dtype)
        dg = (dc * i * (1 - g * g)).to(of_i.dtype)
        do = (dh * bent * o * (1 - o)).to(of_i.dtype)
        tl.store(d_gates + gate, di, mask=inside)
        tl.store(d_gates + gate + HIDDEN, df, mask=inside)
        tl.store(d_gates + gate + 2 * HIDDEN, dg, mask=inside)
        tl.store(d_gates + gate + 3 * HIDDEN, do, mask=inside)
        dh = tl.dot(di, of_i, input_precision=PRECISION)
        dh = tl.dot(df, of_f, dh, input_precision=PRECISION)
        dh = tl.dot(dg, of_g, dh, input_precision=PRECISION)
        dh = tl.dot(do, of_o, dh, input_precision=PRECISION)
        dc *= f
        c = before
    tl.store(d_h + first, dh.to(of_i.dtype), mask=inside)
    tl.store(d_c + first, dc.to(of_i.dtype), mask=inside)
