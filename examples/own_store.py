"""A store of one's own: six methods, and any place that keeps bytes can hold a federation.

Here it is one SQLite file. `hubless.testing.StoreContract` is the test suite that says whether a
store can be relied on; this one passes it.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import hubless
from hubless.errors import AlreadyExists, NotFound, WrongSize
from hubless.store import Bytes, Entry, Store, check_key, check_prefix


class SqliteStore(Store):
    """Objects as rows of a table; a transaction is what makes them appear whole."""

    parallel = 1

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:{path}"
        self._lock = threading.Lock()
        self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._base.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
            "CREATE TABLE IF NOT EXISTS o (key TEXT PRIMARY KEY, body BLOB, at REAL)"
        )

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        row = (check_key(key), b"".join(parts), time.time())
        with self._lock:
            try:
                self._base.execute(
                    f"INSERT {'' if create else 'OR REPLACE '}INTO o VALUES (?, ?, ?)", row
                )
            except sqlite3.IntegrityError:
                raise AlreadyExists(f"{key} exists already", key) from None

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        with self._lock:
            row = self._base.execute("SELECT body FROM o WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise NotFound(f"there is no {key} in {self.url}", key)
        if len(row[0]) > limit:
            raise WrongSize(f"{key} has {len(row[0])} bytes, more than {limit}", key)
        return bytes(row[0])

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        body = self.get(key, limit=1 << 40)
        if stop > len(body):
            raise WrongSize(f"{key} ends at byte {len(body)}, before {stop}", key)
        return memoryview(body)[start:stop]

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        with self._lock:
            rows = self._base.execute("SELECT key, length(body), at FROM o ORDER BY key").fetchall()
        return [Entry(*row) for row in rows if row[0].startswith(prefix)]

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            self._base.executemany("DELETE FROM o WHERE key = ?", [(key,) for key in keys])

    def close(self) -> None:
        self._base.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "federation.db")
        members = {name: hubless.join(SqliteStore(file), name) for name in ("ann", "bob")}
        for _ in range(3):
            for place, member in enumerate(members.values()):
                params = member.step({"w": np.full(3, float(place))}, examples=1)
        print(f"three turns later bob holds {params['w'].round(3).tolist()}, and one file holds")
        print(", ".join(entry.key.split("-")[0] for entry in SqliteStore(file).list("updates/")))
