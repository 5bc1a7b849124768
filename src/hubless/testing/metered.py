"""A store that counts: requests by kind, and bytes each way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from hubless.store.base import Bytes, Entry, Store
from hubless.store.wrapping import Wrapping


class Metered(Wrapping):
    """Wraps a store and counts what passes.

    >>> from hubless.store import MemoryStore
    >>> store = Metered(MemoryStore())
    >>> store.put("a", [b"12345"])
    >>> store.requests["put"], store.bytes_up
    (1, 5)
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.requests: Counter[str] = Counter()
        self.bytes_up = 0
        self.bytes_down = 0
        self._lock = threading.Lock()

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        self._count("put", up=sum(memoryview(part).nbytes for part in parts))
        self.store.put(key, parts, create=create)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        body = self.store.get(key, limit)
        self._count("get", down=len(body))
        return body

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        self._count("read", down=stop - start)
        return self.store.read(key, start, stop, into)

    def list(self, prefix: str) -> list[Entry]:
        self._count("list")
        return self.store.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._count("delete")
        self.store.delete(keys)

    def _count(self, kind: str, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.requests[kind] += 1
            self.bytes_up += up
            self.bytes_down += down
