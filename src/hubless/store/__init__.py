"""Stores: bytes under keys, in memory, in a folder or in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.store.base import Bytes as Bytes
    from hubless.store.base import Entries as Entries
    from hubless.store.base import Entry as Entry
    from hubless.store.base import Store as Store
    from hubless.store.base import check_key as check_key
    from hubless.store.base import check_prefix as check_prefix
    from hubless.store.base import is_key as is_key
    from hubless.store.bucket import Bucket as Bucket
    from hubless.store.folder import FolderStore as FolderStore
    from hubless.store.memory import MemoryStore as MemoryStore
    from hubless.store.object import ObjectStore as ObjectStore
    from hubless.store.opening import open_store as open_store
    from hubless.store.reliable import Reliable as Reliable

__getattr__, __dir__ = exported(__name__)
