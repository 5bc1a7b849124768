"""CUDA graphs: many kernels for the price of one launch."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

logger = logging.getLogger("hubless")

_WARM_UPS = 3


class Graphs:
    """Functions that change the same `state`, as graphs that work in the same memory."""

    def __init__(self, state: Sequence[Tensor]) -> None:
        self._state = state
        self._last: torch.cuda.CUDAGraph | None = None

    def captured(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function of tensors of the same shapes, captured when it is first called."""
        graph: torch.cuda.CUDAGraph | None = None
        inputs: list[Tensor] = []
        failed = False

        def replay(*given: Tensor) -> None:
            nonlocal graph, failed
            if graph is None and not failed:
                inputs.extend(g.clone() for g in given)
                try:
                    graph = capture(lambda: function(*inputs), self._state, self._last)
                    self._last = graph
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    failed = True
                    reason = str(error).splitlines()[0]
                    logger.warning("not captured as a CUDA graph, so slower: %s", reason)
            if graph is None:
                function(*given)
                return
            torch._foreach_copy_(inputs, list(given))
            graph.replay()

        return replay


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
    graph, pool = torch.cuda.CUDAGraph(), None if beside is None else beside.pool()
    recording = torch.cuda.graph(graph, pool, capture_error_mode="thread_local")
    try:
        try:
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    function()
        finally:
            torch.cuda.current_stream().wait_stream(side)
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
