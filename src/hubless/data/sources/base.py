"""Where sources find their files, and how they download them when asked to."""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from hubless.data.population import Population
from hubless.errors import DataError


@dataclass(frozen=True)
class Split:
    """What a source gives: examples to train on and to test on, as columns `x` and `y`.

    `classes` says what each value of `y` stands for: `classes[y]`.
    """

    train: Population
    test: Population
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Remote:
    """A public file, and the digest that it is known to have, as "md5:..." or "sha256:..."."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def source_folder(source: str, data: str | Path | None = None) -> Path:
    """The folder of a source: under `data`, else $HUBLESS_DATA, else ~/.cache/hubless/data."""
    root = data or os.environ.get("HUBLESS_DATA") or Path.home() / ".cache" / "hubless" / "data"
    return Path(root).expanduser() / source


def cache_folder(what: str) -> Path:
    """Where what was slow to make is kept: under $HUBLESS_CACHE, else ~/.cache/hubless."""
    root = os.environ.get("HUBLESS_CACHE") or Path.home() / ".cache" / "hubless"
    return Path(root).expanduser() / what


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files that is there, each as it is or with .gz.

    >>> find(Path("no-such-folder"), "train.txt") is None
    True
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def require(folder: Path, names: Sequence[str], remotes: Sequence[Remote], asked: bool) -> None:
    """See to it that these files (or their .gz) are there: downloaded if asked, else an error."""
    missing = [name for name in names if find(folder, name) is None]
    by_name = {remote.name.removesuffix(".gz"): remote for remote in remotes}
    if missing and not asked:
        urls = sorted({by_name[name].url.rsplit("/", 1)[0] for name in missing})
        raise DataError(
            f"{folder} lacks {', '.join(missing)} (plain or .gz): put them there, name another "
            f"folder with data= or HUBLESS_DATA, or pass download=True to fetch them from "
            f"{' and '.join(urls)}"
        )
    for name in missing:
        download(by_name[name], folder)


def read_bytes(path: Path) -> bytes:
    """The contents of a file, unpacked if its name ends in .gz."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; is it complete?") from error


def download(remote: Remote, folder: Path, timeout: float = 60.0) -> Path:
    """Fetch a file into a folder; it appears there only when its digest is right."""
    kind, _, expected = remote.digest.partition(":")
    digest, size = hashlib.new(kind, usedforsecurity=False), 0
    request = urllib.request.Request(remote.url, headers={"User-Agent": "hubless"})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(request, timeout=timeout) as response,
            tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch,
        ):
            part = Path(scratch, remote.name)
            with part.open("wb") as file:
                while block := response.read(1 << 20):
                    digest.update(block)
                    size += file.write(block)
            announced = response.headers.get("Content-Length", str(size))
            if str(size) != announced:
                raise DataError(f"{remote.url} broke off at {size} of {announced} bytes: try again")
            if digest.hexdigest() != expected:
                raise DataError(
                    f"{remote.url} gave {size} bytes of {kind} {digest.hexdigest()} where "
                    f"{expected} is right: they were not kept; get the file by other means and put "
                    f"it in {folder}"
                )
            return part.replace(folder / remote.name)
    except (OSError, HTTPException) as error:
        raise DataError(f"{remote.url} could not be fetched into {folder}: {error}") from error
