"""Work side by side, each piece in a process of its own, until all is done or the time is up."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from hubless.study.results import why

Result = TypeVar("Result")


def side_by_side(
    work: Callable[[str, float], Result],
    pieces: Sequence[str],
    deadline: float,
    workers: int,
    first: Sequence[Callable[[], None]] = (),
) -> Iterator[tuple[str, Result | None]]:
    """Each piece with what it came to, as they end; one with None where time is up before all.

    `work` gets the name of a piece and the seconds left, and saves what it does as it goes: a piece
    that finds the memory full is begun again later, with fewer side by side. One that fails in
    another way ends it all, once what is under way has ended. `first` is done before.
    """
    # spawned: a fork of a process that has used a GPU or many threads is not to be relied on
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(pieces))
    failed: Exception | None = None
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for need in [pool.submit(each) for each in first]:
            need.result()
        under_way: dict[Future[Result], str] = {}
        accompanied: set[Future[Result]] = set()
        while under_way or (waiting and failed is None):
            while failed is None and waiting and len(under_way) < workers:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                piece = waiting.pop()
                under_way[pool.submit(_leaving_room, work, piece, left)] = piece
                if len(under_way) > 1:
                    accompanied.update(under_way)
            if not under_way:
                yield waiting[-1], None
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                piece = under_way.pop(future)
                error = future.exception()
                if error is None:
                    yield piece, future.result()
                elif not isinstance(error, Exception):
                    raise error
                elif (
                    failed is None
                    and isinstance(error, torch.OutOfMemoryError)
                    and future in accompanied
                ):
                    waiting.append(piece)
                    workers = max(1, workers - 1)
                    print(f"the memory is full: {workers} side by side from now", file=sys.stderr)
                elif failed is None:
                    failed = error
                    # of a process that died nobody knows which piece it had
                    whose = "" if isinstance(error, BrokenProcessPool) else f" of {piece}"
                    print(f"stopping because{whose}: {why(error)}", file=sys.stderr)
    if failed is not None:
        raise failed


def _leaving_room(work: Callable[[str, float], Result], piece: str, left: float) -> Result:
    """Do the work, and keep no memory that others could use."""
    full: str | None = None
    try:
        result = work(piece, left)
    except torch.OutOfMemoryError as error:
        full = str(error)
    gc.collect()
    torch.cuda.empty_cache()
    if full is not None:
        raise torch.OutOfMemoryError(full)
    return result
