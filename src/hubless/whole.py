"""Files that are whole or not there, whoever else may write to their folder.

Each write goes to a new file under a random name, which is renamed into place once it is complete.
Nobody can guess the name, so nobody can plant a link or a pipe there that a write would go through.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def random_name() -> str:
    """A name that nobody can guess, for a file that is being written."""
    return f"{secrets.token_hex(16)}.part"


def write_new(
    path: str | Path, parts: Iterable[Bytes], *, folder: int | None = None, sync: bool = False
) -> None:
    """Write a file that is not there yet; where anything stands in its place, FileExistsError.

    The path counts from `folder`, a descriptor, if that is given. With `sync` the bytes are on the
    disk when this returns. A write that fails, or is interrupted, leaves nothing.
    """
    descriptor = os.open(path, _NEW, 0o666, dir_fd=folder)
    try:
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                while len(view):
                    view = view[os.write(descriptor, view) :]
            if sync:
                os.fsync(descriptor)
        finally:
            # a share may say only now that it is full
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=folder)
        raise


def write_whole(path: Path, content: str | Iterable[Bytes], *, sync: bool = False) -> None:
    """Write a file, or replace it; what stood there stays until the new one is complete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "note", "done")
    ...     (Path(folder) / "note").read_text()
    'done'
    """
    parts = [content.encode()] if isinstance(content, str) else content
    staged = path.with_name(f".{path.name[:32]}.{random_name()}")
    write_new(staged, parts, sync=sync)
    try:
        staged.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise
