"""Opening a store by its address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from hubless.errors import StoreError
from hubless.store.base import Store
from hubless.store.credentials import check_address

_BUCKETS = ("s3", "gs", "az")
_SCHEME = re.compile(r"(s3|gs|az|file|memory|https?):/?([^/].*)")
"""An address that lacks a slash would be a folder."""


def open_store(
    url: str | Path,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    make: bool = True,
) -> Store:
    """Open a store by its address.

    A path or `file://` is a folder, `memory://name` lives in this process, and `s3://`, `gs://`,
    `az://` name a bucket and a folder in it. Without `make` a folder has to be there. An address
    has no `?` and no `#`: what follows them would be dropped, and two runs share a folder.

    >>> open_store("memory://doc").url
    'memory://doc'
    """
    text = str(url)
    scheme, separator, rest = text.partition("://")
    check_address(text)
    if not text:
        raise StoreError("an empty address names no place; '.' is the folder where you are")
    if separator and ("?" in rest or "#" in rest):
        raise StoreError(
            f"{text}: an address has no '?' and no '#'; in a name, write %3F and %23 for them"
        )
    if not separator and (near := _SCHEME.match(text)):
        raise StoreError(f"{text} is no address: did you mean {near[1]}://{near[2]}?")
    if scheme not in _BUCKETS and not (endpoint is None and not options):
        raise StoreError(f"endpoint= and options= go with a bucket's address, and {text} is none")
    if not separator or scheme == "file":
        from hubless.store.folder import FolderStore

        return FolderStore(_path(rest) if separator else text, make=make)
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


def _path(rest: str) -> str:
    """The folder that a `file://` address names: its first part would be a machine's name."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise StoreError(
            f"file://{rest} names no folder of this machine; write file:///folder with the whole "
            "path, or the path alone"
        )
    return unquote(slash + path)
