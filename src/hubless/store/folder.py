"""A store in a folder: a disk, a network share, anything that is mounted.

Whoever may write to the folder may put links, pipes and folders of its own there. So every key is
reached from the federation's folder one part after another, and no link is followed on the way:
nothing outside is ever read, written or deleted. The federation's folder itself may be a link, as
the user named it.

Written for this rather than taken from obstore's local store: reads land in a buffer that is
used again, forked processes are safe, and what a killed writer leaves behind is collected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from hubless.errors import AlreadyExists, NoObject, NotFound, StoreError, Unsupported, WrongSize
from hubless.store.base import DEEPEST, Bytes, Entries, Entry, Store, check_key, check_prefix
from hubless.whole import random_name, write_new

_STAGING = ".staging"
_STAGED = re.compile(r"[0-9a-f]{32}\.part")
_SYSTEM = ("lost+found", "System Volume Information", "$RECYCLE.BIN", "#recycle")
_ABANDONED_SECONDS = 24 * 3600
_ATTEMPTS = 200
_ROOT = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER = _ROOT | os.O_NOFOLLOW
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
# without blocking, because somebody may have put a pipe there
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CLOSED = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG)
_IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EOPNOTSUPP)
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


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
        self._path = str(self.root)
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
        place = check_key(key).split("/")
        if place[0] == _STAGING:
            raise ValueError(f"{key!r} is not a key: {_STAGING} is where writes are prepared")
        try:
            staging = self._enter([_STAGING], make=True)
            try:
                staged = random_name()
                write_new(staged, parts, folder=staging)
                try:
                    self._place(staging, staged, place, create)
                except BaseException:
                    _unlink(staged, staging)
                    raise
                if create:
                    _unlink(staged, staging)
            finally:
                os.close(staging)
        except FileExistsError:
            raise AlreadyExists(f"{key} exists already", key) from None
        except OSError as error:
            raise self._failed("write", key, error) from error

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        descriptor, size = self._open(key)
        try:
            if size > limit:
                raise WrongSize(f"{key} has {size} bytes, more than the {limit} expected", key)
            return bytes(self._fill(descriptor, key, 0, memoryview(bytearray(size))))
        finally:
            os.close(descriptor)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        target = into[: stop - start] if into is not None else memoryview(bytearray(stop - start))
        descriptor, _ = self._open(key)
        try:
            return self._fill(descriptor, key, start, target)
        finally:
            os.close(descriptor)

    def list(self, prefix: str) -> list[Entry]:
        place = check_prefix(prefix).split("/")[:-1]
        entries: Entries = []
        try:
            # a share that went away is not an empty one
            root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if place:
                    self._gather_inside(entries, root, place, "", 0)
                else:
                    self._gather(entries, root, "", 0)
            finally:
                os.close(root)
        except OSError as error:
            raise StoreError(f"cannot list {self.root / prefix}: {error}", prefix) from error
        return sorted(entries, key=itemgetter(0))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            place = check_key(key).split("/")
            try:
                self._delete(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise self._failed("delete", key, error) from error

    def _open(self, key: str) -> tuple[int, int]:
        """A descriptor of the file under a key, and its size."""
        *folders, name = check_key(key).split("/")
        try:
            folder = self._enter(folders)
            try:
                descriptor = os.open(name, _FILE, dir_fd=folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            raise NotFound(f"there is no {key} in {self.root}", key) from None
        except OSError as error:
            failure = self._failed("read", key, error)
            if isinstance(error, NotADirectoryError) and not isinstance(failure, NoObject):
                failure = NotFound(f"there is no {key} in {self.root}", key)
            raise failure from error
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor, status.st_size
        os.close(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise NotFound(f"{self.root / key} is a folder, not an object", key)
        raise NoObject(f"cannot read {self.root / key}: it is neither a file nor a folder", key)

    def _fill(self, descriptor: int, key: str, start: int, target: memoryview) -> memoryview:
        done = 0
        try:
            while done < len(target):
                count = os.preadv(descriptor, [target[done:]], start + done)
                if count == 0:
                    stop = start + len(target)
                    raise WrongSize(f"{key} ends at byte {start + done}, before {stop}", key)
                done += count
        except OSError as error:
            raise StoreError(f"cannot read {self.root / key}: {error}", key) from error
        return target

    def _enter(self, folders: Sequence[str], *, make: bool = False) -> int:
        """A descriptor of the folder that these parts lead to, through no link."""
        if not folders:
            return os.open(self._path, _ROOT)
        # the way to the federation's folder is the user's: it may have links in it
        reached = _subfolder(f"{self._path}/{folders[0]}", None, make)
        for name in folders[1:]:
            try:
                inner = _subfolder(name, reached, make)
            finally:
                os.close(reached)
            reached = inner
        return reached

    def _place(self, staging: int, staged: str, place: Sequence[str], create: bool) -> None:
        *folders, name = place
        for attempt in range(_ATTEMPTS):
            try:
                folder = self._enter(folders, make=True)
                try:
                    if create:
                        self._link(staging, staged, folder, name)
                    else:
                        os.replace(staged, name, src_dir_fd=staging, dst_dir_fd=folder)
                finally:
                    os.close(folder)
                return
            except FileNotFoundError:
                # an owner removed the emptied folder just now: again and again, if need be
                if attempt == _ATTEMPTS - 1:
                    raise
                os.stat(staged, dir_fd=staging)

    def _link(self, staging: int, staged: str, folder: int, name: str) -> None:
        try:
            os.link(staged, name, src_dir_fd=staging, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise Unsupported(
                f"the file system of {self.root} has no hard links, so a file cannot be created "
                "only if it is absent",
                name,
            ) from error

    def _gather(self, entries: Entries, folder: int, prefix: str, depth: int) -> None:
        """Add the files below a folder; what cannot be an object is passed over."""
        with os.scandir(folder) as items:
            for item in items:
                key = prefix + item.name
                if key == _STAGING:
                    continue
                try:
                    if item.is_file(follow_symlinks=False):
                        if "\\" in key or not _is_text(item.name):
                            self._pass_over(key, "its name cannot be a key's")
                            continue
                        status = item.stat(follow_symlinks=False)
                        entries.append(Entry(key, status.st_size, status.st_mtime))
                    elif not item.is_dir(follow_symlinks=False):
                        self._pass_over(key, self._obstacle(key) or "it is no file")
                    else:
                        self._gather_inside(entries, folder, [item.name], prefix, depth)
                except FileNotFoundError:
                    # its owner may delete it between the two calls
                    continue
                except PermissionError as error:
                    self._pass_over(key, f"it cannot be looked at: {error.strerror}")

    def _gather_inside(
        self, entries: Entries, folder: int, place: Sequence[str], prefix: str, depth: int
    ) -> None:
        """Add the files below a folder in a folder, if it is one that can be listed."""
        name, *rest = place
        prefix = f"{prefix}{name}/"
        if depth >= DEEPEST:
            self._pass_over(prefix, f"it lies more than {DEEPEST} folders deep")
            return
        try:
            inner = os.open(name, _FOLDER if rest else _LISTED, dir_fd=folder)
        except OSError as error:
            if error.errno in _CLOSED and not _is_foreign(prefix):
                self._pass_over(prefix, self._obstacle(prefix) or str(error.strerror))
            elif error.errno not in (*_CLOSED, errno.ENOENT):
                raise
            return
        try:
            if rest:
                self._gather_inside(entries, inner, rest, prefix, depth + 1)
            else:
                self._gather(entries, inner, prefix, depth + 1)
        finally:
            os.close(inner)

    def _delete(self, place: Sequence[str]) -> None:
        *folders, name = place
        chain = [os.open(self._path, _ROOT)]
        try:
            for folder in folders:
                chain.append(_subfolder(folder, chain[-1], make=False))
            os.unlink(name, dir_fd=chain[-1])
            # an empty folder is no object; one that a writer fills meanwhile will not go away
            with contextlib.suppress(OSError):
                for folder, within in zip(reversed(folders), reversed(chain[:-1]), strict=True):
                    os.rmdir(folder, dir_fd=within)
        finally:
            for descriptor in chain:
                os.close(descriptor)

    def _obstacle(self, key: str) -> str:
        """What stands in the way to a key that should not, in words; for errors only."""
        parts = key.removesuffix("/").split("/")
        for count in range(1, len(parts) + 1):
            path = "/".join(parts[:count])
            try:
                mode = os.lstat(f"{self._path}/{path}").st_mode
            except OSError:
                return ""
            if stat.S_ISLNK(mode):
                return f"{path} is a link, and links are not followed"
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                return f"{path} is neither a file nor a folder"
            if path == _STAGING and not stat.S_ISDIR(mode):
                return f"{path} is no folder"
        return ""

    def _failed(self, what: str, key: str, error: OSError) -> StoreError:
        """The error to raise for a key; what stands in its way stays there, however often tried."""
        place = f"cannot {what} {self.root / key}"
        obstacle = self._obstacle(key) or self._obstacle(_STAGING)
        if obstacle and what != "read":
            obstacle = f"{obstacle}. Remove it"
        if obstacle and error.errno in _IN_THE_WAY:
            return NoObject(f"{place}: {obstacle}", key)
        return StoreError(f"{place}: {error}", key)

    def _collect_abandoned(self) -> None:
        """Remove what this user's writers that were killed left in the folder of staged writes.

        By age alone: containers may share a host's name and number their processes alike.
        """
        try:
            staging = self._enter([_STAGING])
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed("use", _STAGING, error) from error
        try:
            listed = os.open(".", _LISTED, dir_fd=staging)
        except PermissionError:
            # somebody else's, and a write will say so
            return
        finally:
            os.close(staging)
        try:
            with os.scandir(listed) as items:
                for item in items:
                    if _STAGED.fullmatch(item.name) and _is_abandoned(item):
                        _unlink(item.name, listed)
        except OSError as error:
            raise StoreError(f"cannot list {self.root / _STAGING}: {error}") from error
        finally:
            os.close(listed)


def _subfolder(name: str, within: int | None, make: bool) -> int:
    """A descriptor of a folder in a folder, which is made if it is not there."""
    try:
        return os.open(name, _FOLDER, dir_fd=within)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=within)
    return os.open(name, _FOLDER, dir_fd=within)


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _is_abandoned(item: os.DirEntry[str]) -> bool:
    """Whether this is a file that a writer of this user began long ago."""
    try:
        status = item.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    is_mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return is_mine and time.time() - status.st_mtime > _ABANDONED_SECONDS


def _is_foreign(prefix: str) -> bool:
    """Whether this is what a disk or share keeps for itself in its topmost folder."""
    name = prefix.removesuffix("/")
    return name in _SYSTEM or (name.startswith(".") and "/" not in name)


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
