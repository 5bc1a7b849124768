"""Stores: bytes under keys, in memory, in a folder or in a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hubless.errors import StoreError
from hubless.store.base import Entry, Store

__all__ = ["Entry", "Store", "open_store"]

_BUCKETS = ("s3", "gs", "az")


def open_store(
    url: str | Path,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    make: bool = True,
) -> Store:
    """Open a store by its address.

    A path or `file://` is a folder, `memory://name` lives in this process, and `s3://`, `gs://`,
    `az://` name a bucket and a folder in it. Without `make` a folder has to be there.

    >>> open_store("memory://doc").url
    'memory://doc'
    """
    text = str(url)
    scheme, separator, _ = text.partition("://")
    if not separator or scheme == "file":
        from hubless.store.folder import FolderStore

        return FolderStore(unquote(urlsplit(text).path) if separator else text, make=make)
    if scheme == "memory":
        from hubless.store.memory import MemoryStore

        return MemoryStore.named(text)
    if scheme in _BUCKETS:
        from hubless.store.object import ObjectStore

        return ObjectStore(text, endpoint, options)
    raise StoreError(
        f"{text}: no store for {scheme}://; use a folder's path, "
        + ", ".join(f"{s}://bucket/folder" for s in _BUCKETS)
        + " or memory://name"
    )
