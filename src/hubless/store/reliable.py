"""A store that tries again: errors are ridden out, and ambiguous writes are settled by reading."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from hubless.errors import (
    AlreadyExists,
    Denied,
    NoObject,
    NotFound,
    StoreError,
    Unsupported,
    WrongSize,
)
from hubless.patience import Clock, SharedPatience, SystemClock, pauses
from hubless.store.base import Bytes, Entry, Store
from hubless.store.wrapping import Wrapping

T = TypeVar("T")

_TRIES = 3
_FINAL = (NotFound, NoObject, AlreadyExists, WrongSize, Denied, Unsupported)
"""Errors that another try would only meet again."""


class Reliable(Wrapping):
    """Wraps a store so that each operation is tried until it succeeds or patience runs out.

    Safe because of how keys are used: an object's bytes never change, so writing them again is
    harmless, and a create-only write that failed is ours exactly if our bytes are there.
    """

    def __init__(self, store: Store, patience: float = 60.0, clock: Clock | None = None) -> None:
        super().__init__(store)
        self.patience = patience
        self.clock = clock or SystemClock()
        self._shared: tuple[SharedPatience, ...] = ()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, store: Store) -> Reliable:
        """This store, made reliable if it is not yet."""
        return store if isinstance(store, cls) else cls(store)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let all that happens inside share one patience, and try nothing again after `seconds`.

        Every operation is tried at least once; once that patience is used up, exactly once. It
        counts for all threads that use this store meanwhile. Of blocks in one another the
        tightest wins.

        >>> from hubless.store import MemoryStore
        >>> store = Reliable(MemoryStore(), patience=60)
        >>> with store.within(seconds=5):
        ...     store.list("")
        []
        """
        shared = SharedPatience(self.clock, self.patience, seconds)
        with self._lock:
            self._shared = (*self._shared, shared)
        try:
            yield
        finally:
            with self._lock:
                self._shared = tuple(each for each in self._shared if each is not shared)

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        if create:
            self._again(lambda: self._create(key, parts), key)
        else:
            self._again(lambda: self.store.put(key, parts), key)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return self._again(lambda: self.store.get(key, limit), key)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        return self._again(lambda: self.store.read(key, start, stop, into), key)

    def list(self, prefix: str) -> list[Entry]:
        return self._again(lambda: self.store.list(prefix), prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._again(lambda: self.store.delete(keys), keys[0] if keys else "")

    def ahead(self, jobs: Iterator[Callable[[], T]], depth: int | None = None) -> Iterator[T]:
        """Results of jobs that read, in order, with as many under way as this store is worth."""
        if self.parallel <= 1:
            for job in jobs:
                yield job()
            return
        depth = depth or self.parallel + 1
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="hubless-read") as pool:
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

    def _create(self, key: str, parts: Sequence[Bytes]) -> None:
        try:
            self.store.put(key, parts, create=True)
        except (Unsupported, WrongSize, NoObject):
            raise
        except StoreError as error:
            # even "exists already" may be our own write, whose answer was lost on the way; and who
            # may create and not overwrite can be denied what is there already
            body = b"".join(parts)
            try:
                ours = self.store.get(key, len(body)) == body
            except NotFound:
                raise error from None
            except (WrongSize, NoObject):
                ours = False
            if not ours:
                raise AlreadyExists(f"{key} exists already", key) from error

    def _again(self, operation: Callable[[], T], key: str) -> T:
        began, shared = self.clock.now(), self._shared
        try:
            # nearly all are served at once, and there are many
            return operation()
        except _FINAL:
            raise
        except StoreError as error:
            failure = error
        tries = 1
        for _ in pauses(
            self.clock, self.patience, at_least=_TRIES, shared=shared, failed_since=began
        ):
            try:
                tries += 1
                return operation()
            except _FINAL:
                raise
            except StoreError as error:
                failure = error
        often = "1 try" if tries == 1 else f"{tries} tries"
        waited = self.clock.now() - began
        raise StoreError(f"gave up after {often} in {waited:.0f} s: {failure}", key) from failure
