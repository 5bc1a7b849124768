"""Stores around a store: what they do not change themselves is the wrapped one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hubless.errors import Unsupported
from hubless.masked import masked
from hubless.store.base import Bytes, Entry, Store


class Wrapping(Store):
    """Hands everything on to the store that it wraps."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # a store of the user's own may go by any address, and addresses are shown
        self.url = masked(store.url)
        self.request_bytes = store.request_bytes
        self.parallel = store.parallel

    @property
    def on_skip(self) -> Callable[[str, str], None]:
        """The wrapped store's."""
        return self.store.on_skip

    @on_skip.setter
    def on_skip(self, skipped: Callable[[str, str], None]) -> None:
        self.store.on_skip = skipped

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        self.store.put(key, parts, create=create)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return self.store.get(key, limit)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        return self.store.read(key, start, stop, into)

    def list(self, prefix: str) -> list[Entry]:
        return self.store.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.store.delete(keys)

    def close(self) -> None:
        self.store.close()


class ReadOnly(Wrapping):
    """A store that is only looked at."""

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        raise Unsupported(f"{self.url} is only looked at: {key} was not written", key)

    def delete(self, keys: Sequence[str]) -> None:
        raise Unsupported(f"{self.url} is only looked at: nothing was deleted")
