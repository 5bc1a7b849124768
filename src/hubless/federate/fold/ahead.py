"""Reading ahead: several jobs under way on threads, their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def read_ahead(jobs: Iterator[Callable[[], T]], parallel: int, depth: int) -> Iterator[T]:
    """Results of jobs, in order, with up to `depth` of them under way on threads."""
    if parallel <= 1:
        for job in jobs:
            yield job()
        return
    with ThreadPoolExecutor(parallel, thread_name_prefix="hubless-read") as pool:
        pending: deque[Future[T]] = deque()
        try:
            for job in jobs:
                pending.append(pool.submit(job))
                if len(pending) >= depth:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
