"""CUDA graphs: many kernels for the price of one launch."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

_WARM_UPS = 3


def capture(
    function: Callable[[], None],
    state: Sequence[Tensor],
    beside: torch.cuda.CUDAGraph | None = None,
) -> torch.cuda.CUDAGraph:
    """What a function does on the device, to be replayed; `state` is what it changes.

    Capturing runs the function a few times first, and afterwards the state is as it was, and so
    is what random numbers are drawn from: a run that is resumed captures at another time. It works
    in the same memory as the graph `beside` it, so that they must not be replayed at once.
    """
    before, drawn = [array.clone() for array in state], torch.cuda.get_rng_state()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), None if beside is None else beside.pool()
    recording = torch.cuda.graph(graph, pool, capture_error_mode="thread_local")
    try:
        with _nothing_freed(), recording:
            function()
    finally:
        torch._foreach_copy_(list(state), before)
    torch.cuda.set_rng_state(drawn)
    return graph


@contextlib.contextmanager
def _nothing_freed() -> Iterator[None]:
    """An old graph that is collected while another is captured spoils the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
