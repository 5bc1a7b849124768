"""A store: bytes under keys. What every store promises, and no more than the weakest can keep."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from hubless.errors import printable
from hubless.whole import Bytes

__all__ = ["Bytes", "Entries", "Entry", "Store", "check_key", "check_prefix"]

logger = logging.getLogger("hubless")

DEEPEST = 32
"""A key has at most so many parts: folders nested beyond that are somebody's trap."""
_LONGEST = 1024
"""Bytes of the longest key that all of the clouds take."""
_NAMED = 1000
"""So many things that listings pass over are named; somebody may have put millions there."""


class Entry(NamedTuple):
    """One object in a listing; `modified` is the store's own clock and only for people to read."""

    key: str
    size: int
    modified: float


Entries: TypeAlias = list[Entry]
"""What a listing gives, where stores cannot say `list`, which is one of their methods."""


def _warn(key: str, reason: str) -> None:
    logger.warning("%s is passed over: %s", key, reason)


class Store(ABC):
    """Bytes under keys such as `updates/site-a=7.safetensors`.

    An object appears whole or not at all, and a listing shows every object whose put has
    returned (perhaps one whose put has not, and which cannot be read yet).
    `hubless.testing.StoreContract` checks both, and the rest.
    """

    url: str
    request_bytes: int = 8 << 20
    """How much one range read should ask for."""
    parallel: int = 8
    """How many reads are worth having under way at one time."""
    on_skip: Callable[[str, str], None] = staticmethod(_warn)
    """Called with a key and a reason for what a listing has to pass over, once for each."""
    _passed_over: set[str] | None = None

    @abstractmethod
    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        """Write the parts, one after another, as one object.

        With `create`, raise AlreadyExists where the key is taken (Unsupported where the store
        knows that it cannot promise that). Any other error leaves open whether it was written.
        """

    @abstractmethod
    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        """The whole object; WrongSize where it is larger than `limit`, NotFound where none is."""

    @abstractmethod
    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        """The bytes from `start` up to `stop`, in `into` where the store can use it.

        WrongSize where the object is shorter, NotFound where there is none.
        """

    @abstractmethod
    def list(self, prefix: str) -> list[Entry]:
        """Every object whose key starts with `prefix`, a whole path ending in `/` (or empty)."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is none to remove."""

    def close(self) -> None:
        """Give back what the store holds open."""
        return None

    def _pass_over(self, key: str, reason: str) -> None:
        """Name what a listing cannot take in: once, though a run makes many listings."""
        if self._passed_over is None:
            self._passed_over = set()
        if key not in self._passed_over and len(self._passed_over) < _NAMED:
            self._passed_over.add(key)
            self.on_skip(printable(key), printable(reason))


@lru_cache(maxsize=1024)
def check_prefix(prefix: str) -> str:
    """Refuse prefixes that would also match what only starts alike (`run1` and `run10`)."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"a prefix ends in '/', {prefix!r} does not")
    return prefix


def is_key(text: str) -> bool:
    """Whether an object may be under this key on every store.

    >>> is_key("updates/a=1"), is_key("updates//a"), is_key("two\\nlines")
    (True, False, False)
    """
    try:
        check_key(text)
    except ValueError:
        return False
    return text.isprintable()


@lru_cache(maxsize=1024)
def check_key(key: str) -> str:
    """Refuse keys that could leave the store's folder, or that some store cannot have."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise ValueError(f"{key!r} is not a key: use names joined by '/', without '.' or '..'")
    if len(parts) > DEEPEST or len(key.encode()) > _LONGEST:
        raise ValueError(f"{key[:64]!r}... is not a key: it is too long")
    return key
