"""A store that tries again: errors are ridden out, and ambiguous writes are settled by reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hubless.errors import AlreadyExists, Denied, NotFound, StoreError, Unsupported, WrongSize
from hubless.patience import Clock, SystemClock, pauses
from hubless.store.base import Bytes, Entry, Store

T = TypeVar("T")

_TRIES = 3


class Reliable(Store):
    """Wraps a store so that each operation is tried until it succeeds or patience runs out.

    Safe because of how keys are used: an object's bytes never change, so writing them again is
    harmless, and a create-only write that failed is ours exactly if our bytes are there.
    """

    def __init__(self, store: Store, patience: float = 60.0, clock: Clock | None = None) -> None:
        self.store = store
        self.url = store.url
        self.request_bytes = store.request_bytes
        self.parallel = store.parallel
        self.patience = patience
        self.clock = clock or SystemClock()

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        if create:
            self._again(lambda: self._create(key, parts), key)
        else:
            self._again(lambda: self.store.put(key, parts), key)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return self._again(lambda: self.store.get(key, limit), key)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        try:
            # nearly all reads are served at once, and there are many
            return self.store.read(key, start, stop, into)
        except (NotFound, WrongSize, Denied, Unsupported):
            raise
        except StoreError:
            return self._again(lambda: self.store.read(key, start, stop, into), key)

    def list(self, prefix: str) -> list[Entry]:
        return self._again(lambda: self.store.list(prefix), prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._again(lambda: self.store.delete(keys), keys[0] if keys else "")

    def close(self) -> None:
        self.store.close()

    def _create(self, key: str, parts: Sequence[Bytes]) -> None:
        try:
            self.store.put(key, parts, create=True)
        except (Unsupported, Denied, WrongSize):
            raise
        except StoreError as error:
            # even "exists already" may be our own write, whose answer was lost on the way
            body = b"".join(parts)
            try:
                ours = self.store.get(key, len(body)) == body
            except NotFound:
                raise error from None
            except WrongSize:
                ours = False
            if not ours:
                raise AlreadyExists(f"{key} exists already", key) from error

    def _again(self, operation: Callable[[], T], key: str) -> T:
        failure: StoreError | None = None
        tries, began = 0, self.clock.now()
        for _ in pauses(self.clock, self.patience, at_least=_TRIES):
            try:
                tries += 1
                return operation()
            except (NotFound, AlreadyExists, WrongSize, Denied, Unsupported):
                raise
            except StoreError as error:
                failure = error
        waited = self.clock.now() - began
        raise StoreError(
            f"gave up after {tries} tries in {waited:.0f} s: {failure}", key
        ) from failure
