"""Where sources look, and downloads: nothing appears under its name that is not right."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hubless.data.sources import base
from hubless.data.sources.base import Remote
from hubless.errors import DataError

BODY = b"the very bytes" * 1000
DIGEST = "sha256:" + hashlib.sha256(BODY).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/gone"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[:-1] if self.path.startswith("/short") else BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_is_downloaded_into_a_new_folder(url: str, tmp_path: Path, kind: str) -> None:
    digest = f"{kind}:{hashlib.new(kind, BODY).hexdigest()}"
    path = base.download(Remote(f"{url}/some/train.gz", digest), tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "train.gz"
    assert path.read_bytes() == BODY
    assert [file.name for file in path.parent.iterdir()] == ["train.gz"]


@pytest.mark.parametrize(
    ("remote", "digest", "message"),
    [
        ("/wrong.gz", "md5:" + "0" * 32, "where 00000000000000000000000000000000 is right"),
        ("/short.gz", DIGEST, "broke off at 13999 of 14000 bytes"),
        ("/gone.gz", DIGEST, "could not be fetched.*404"),
    ],
    ids=["wrong digest", "truncated", "not there"],
)
def test_a_bad_download_leaves_nothing_and_keeps_what_was_there(
    url: str, tmp_path: Path, remote: str, digest: str, message: str
) -> None:
    kept = tmp_path / remote[1:]
    kept.write_bytes(b"old")
    with pytest.raises(DataError, match=message):
        base.download(Remote(url + remote, digest), tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.read_bytes() == b"old"


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # bound but not listening: nobody answers here, and nobody else can
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x.gz"
        with pytest.raises(DataError, match="x.gz could not be fetched"):
            base.download(Remote(url, DIGEST), tmp_path, timeout=5)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="could not be fetched into"):
        base.download(Remote(f"{url}/x.gz", DIGEST), tmp_path / "file")


def test_files_are_required_downloaded_or_explained(url: str, tmp_path: Path) -> None:
    remotes = [Remote(f"{url}/set/{name}.gz", DIGEST) for name in ("one", "two", "three")]
    (tmp_path / "one").touch()
    with pytest.raises(DataError, match=r"lacks two \(plain.*download=True.*/set"):
        base.require(tmp_path, ["one", "two"], remotes, asked=False)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    base.require(tmp_path, ["one", "two"], remotes, asked=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two.gz"]


def test_the_data_folder_is_the_one_named_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HUBLESS_DATA", raising=False)
    assert base.source_folder("mnist") == tmp_path / ".cache" / "hubless" / "data" / "mnist"
    monkeypatch.setenv("HUBLESS_DATA", "~/elsewhere")
    assert base.source_folder("mnist") == tmp_path / "elsewhere" / "mnist"
    assert base.source_folder("mnist", "/data") == Path("/data/mnist")


def test_the_cache_folder_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HUBLESS_CACHE", raising=False)
    assert base.cache_folder("x") == tmp_path / ".cache" / "hubless" / "x"
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "c"))
    assert base.cache_folder("x") == tmp_path / "c" / "x"


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(BODY)
    for damaged in (whole[:-9], b"no gzip", whole[:20] + b"\xff\xff" + whole[22:]):
        (tmp_path / "x.gz").write_bytes(damaged)
        with pytest.raises(DataError, match="x.gz cannot be read"):
            base.read_bytes(tmp_path / "x.gz")
