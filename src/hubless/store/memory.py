"""A store in this process's memory, shared by all who open the same name."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from hubless.errors import AlreadyExists, NotFound, WrongSize
from hubless.store.base import Bytes, Entry, Store, check_key, check_prefix

_named: dict[str, MemoryStore] = {}
_lock = threading.Lock()


class MemoryStore(Store):
    """Objects in a dict: for tests, notebooks and threads.

    >>> store = MemoryStore()
    >>> store.put("a/b", [b"he", b"llo"])
    >>> store.get("a/b")
    b'hello'
    """

    parallel = 1

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def named(cls, url: str) -> MemoryStore:
        """The one store of this name in this process."""
        with _lock:
            return _named.setdefault(url, cls(url))

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        body = b"".join(parts)
        with self._lock:
            if create and key in self._objects:
                raise AlreadyExists(f"{key} exists already", key)
            self._objects[check_key(key)] = (body, time.time())

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        body = self._body(key)
        if len(body) > limit:
            raise WrongSize(f"{key} has {len(body)} bytes, more than the {limit} expected", key)
        return body

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        body = self._body(key)
        if stop > len(body):
            raise WrongSize(f"{key} ends at byte {len(body)}, before {stop}", key)
        return memoryview(body)[start:stop]

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        with self._lock:
            return [
                Entry(key, len(body), modified)
                for key, (body, modified) in sorted(self._objects.items())
                if key.startswith(prefix)
            ]

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def _body(self, key: str) -> bytes:
        try:
            return self._objects[key][0]
        except KeyError:
            raise NotFound(f"there is no {key} in {self.url}", key) from None
