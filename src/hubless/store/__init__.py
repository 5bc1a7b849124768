"""Stores: bytes under keys, in memory, in a folder or in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.store.base import Entry as Entry
    from hubless.store.base import Store as Store
    from hubless.store.bucket import Bucket as Bucket
    from hubless.store.opening import open_store as open_store

_HOMES = {
    "Bucket": "bucket",
    "Entry": "base",
    "Store": "base",
    "open_store": "opening",
}

__getattr__, __dir__ = exported(__name__, _HOMES)
