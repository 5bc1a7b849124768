"""A store in a folder: a disk, a network share, anything that is mounted.

Written for this rather than taken from obstore's local store: reads land in a buffer that is
used again, forked processes are safe, and what a killed writer leaves behind is collected.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hubless.errors import AlreadyExists, NotFound, StoreError, Unsupported, WrongSize
from hubless.store.base import Bytes, Entry, Store, check_key, check_prefix

_STAGING = ".staging"
_SYSTEM = ("lost+found", "System Volume Information", "$RECYCLE.BIN", "#recycle")
_ABANDONED_SECONDS = 24 * 3600
_ATTEMPTS = 200
_counter = itertools.count()


class FolderStore(Store):
    """Objects as files. A write is staged beside them and then linked or renamed into place.

    Nothing is synced to disk: an update torn by a power cut is caught by its size and digests
    when it is read, and its client's next one replaces it. The folder is made if it is not there,
    and what killed writers left is collected, unless `make` is False: whoever only looks at a
    folder leaves it as it is.
    """

    request_bytes = 1 << 20
    parallel = 1

    def __init__(self, root: str | Path, *, make: bool = True) -> None:
        self.root = Path(root).expanduser().absolute()
        self.url = self.root.as_uri()
        self._host = re.sub(r"\W", "_", socket.gethostname())
        # containers may share a host's name and all be process 1
        self._nonce = secrets.token_hex(4)
        if not make:
            if not self.root.is_dir():
                raise StoreError(f"there is no folder {self.root}")
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot use folder {self.root}: {error}") from error
        self._collect_abandoned()

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        target = self.root / check_key(key)
        if _STAGING in target.parts:
            raise ValueError(f"{key!r} is not a key: {_STAGING} is where writes are prepared")
        name = f"{self._host}-{os.getpid()}-{self._nonce}-{next(_counter)}"
        staged = self.root / _STAGING / name
        try:
            _write(staged, parts)
            _place(staged, target, create)
        except FileExistsError:
            raise AlreadyExists(f"{key} exists already", key) from None
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error}", key) from error
        finally:
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        descriptor = self._open(key)
        size = os.fstat(descriptor).st_size
        os.close(descriptor)
        if size > limit:
            raise WrongSize(f"{key} has {size} bytes, more than the {limit} expected", key)
        return bytes(self.read(key, 0, size))

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        target = into[: stop - start] if into is not None else memoryview(bytearray(stop - start))
        descriptor = self._open(key)
        try:
            done = 0
            while done < len(target):
                count = os.preadv(descriptor, [target[done:]], start + done)
                if count == 0:
                    raise WrongSize(f"{key} ends at byte {start + done}, before {stop}", key)
                done += count
        except IsADirectoryError:
            raise NotFound(f"{self.root / key} is a folder, not an object", key) from None
        except OSError as error:
            raise StoreError(f"cannot read {self.root / key}: {error}", key) from error
        finally:
            os.close(descriptor)
        return target

    def list(self, prefix: str) -> list[Entry]:
        try:
            entries = list(self._walk(check_prefix(prefix)))
            if not entries:
                os.stat(self.root)  # a share that went away is not an empty one
        except OSError as error:
            raise StoreError(f"cannot list {self.root / prefix}: {error}", prefix) from error
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self.root / check_key(key)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"cannot delete {path}: {error}", key) from error
            # an empty folder is no object; one that a writer fills meanwhile will not go away
            with contextlib.suppress(OSError):
                for parent in path.parents:
                    if parent == self.root:
                        break
                    parent.rmdir()

    def _open(self, key: str) -> int:
        try:
            # without blocking, because somebody may have put a pipe there
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            return os.open(f"{self.root}/{check_key(key)}", flags)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no {key} in {self.root}", key) from None
        except OSError as error:
            raise StoreError(f"cannot read {self.root / key}: {error}", key) from error

    def _walk(self, prefix: str) -> Iterator[Entry]:
        """All files below a prefix; links are not followed, as they may lead anywhere."""
        folders = [prefix]
        while folders:
            prefix = folders.pop()
            try:
                items = list(os.scandir(self.root / prefix))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                if _is_foreign(prefix):
                    continue
                raise
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    if item.name != _STAGING:
                        folders.append(f"{prefix}{item.name}/")
                elif item.is_file(follow_symlinks=False):
                    # its owner may delete it between the two calls
                    with contextlib.suppress(FileNotFoundError):
                        status = item.stat()
                        yield Entry(prefix + item.name, status.st_size, status.st_mtime)

    def _collect_abandoned(self) -> None:
        """Remove what writers that were killed left in the staging folder."""
        with contextlib.suppress(OSError):
            for path in (self.root / _STAGING).iterdir():
                host, _, rest = path.name.partition("-")
                process = rest.partition("-")[0]
                dead = host == self._host and process.isdigit() and not _is_alive(int(process))
                if dead or time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)


def _is_foreign(prefix: str) -> bool:
    """Whether this is what a disk or share keeps for itself in its topmost folder."""
    name = prefix.removesuffix("/")
    return name in _SYSTEM or (name.startswith(".") and "/" not in name)


def _write(path: Path, parts: Sequence[Bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                view = view[file.write(view) :]


def _place(staged: Path, target: Path, create: bool) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            if not create:
                os.replace(staged, target)
            else:
                os.link(staged, target)
            return
        except FileNotFoundError:
            # not made yet, or an owner removed the emptied folder just now: again and again, if
            # need be, as mkdir itself trips over folders that come and go
            if attempt == _ATTEMPTS - 1:
                raise
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if create and error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise Unsupported(
                    f"the file system of {target.parent} has no hard links, so a file cannot be "
                    "created only if it is absent",
                    str(target),
                ) from error
            raise


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
