"""A store that fails on purpose: errors before and after the deed, seeded, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from hubless.errors import StoreError
from hubless.store.base import Bytes, Entry, Store
from hubless.store.wrapping import Wrapping

T = TypeVar("T")


class Faulty(Wrapping):
    """Wraps a store; some requests fail unserved, others are served and their reply is lost.

    `before` is called ahead of every request: a test may move its clock there, or end a member.
    """

    def __init__(
        self,
        store: Store,
        rng: np.random.Generator,
        error: float = 0.05,
        lost: float = 0.05,
        before: Callable[[str, str], None] | None = None,
    ) -> None:
        super().__init__(store)
        self.parallel = 1
        self._rng = rng
        self._error = error
        self._lost = lost
        self._before = before or (lambda operation, key: None)

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        self._fail("put", key, lambda: self.store.put(key, parts, create=create))

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return self._fail("get", key, lambda: self.store.get(key, limit))

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        return self._fail("read", key, lambda: self.store.read(key, start, stop, into))

    def list(self, prefix: str) -> list[Entry]:
        return self._fail("list", prefix, lambda: self.store.list(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        self._fail("delete", ",".join(keys), lambda: self.store.delete(keys))

    def _fail(self, operation: str, key: str, serve: Callable[[], T]) -> T:
        self._before(operation, key)
        draw = self._rng.random()
        if draw < self._error:
            raise StoreError(f"injected: {operation} {key} was not served", key)
        result = serve()
        if draw < self._error + self._lost:
            raise StoreError(f"injected: the reply to {operation} {key} was lost", key)
        return result
