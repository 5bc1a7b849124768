"""The stores and the proxy that other tests lean on behave as those tests assume."""

import http.client
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, S3Store

from tests.support.proxy import faulty
from tests.support.servers import ROOT, Server, launch, stop
from tests.support.waiting import until

ALL = ("seaweedfs", "moto", "azurite", "rclone")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


def _paths(store: ObjectStore, prefix: str) -> set[str]:
    return {entry["path"] for page in obstore.list(store, prefix) for entry in page}


def _read(store: ObjectStore, path: str) -> bytes:
    return bytes(obstore.get(store, path).bytes())


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_objects_can_be_put_read_listed_and_deleted(server: Server) -> None:
    store = server.open()
    obstore.put(store, "basic/one", b"1")
    obstore.put(store, "basic/two", b"22")
    assert _read(store, "basic/two") == b"22"
    assert _paths(store, "basic") == {"basic/one", "basic/two"}
    obstore.delete(store, ["basic/one", "basic/two"])
    assert _paths(store, "basic") == set()


@pytest.mark.parametrize("server", ("seaweedfs", "moto", "azurite"), indirect=True)
def test_create_if_absent_is_honoured(server: Server) -> None:
    store = server.open()
    obstore.put(store, "create/once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "create/once", b"second", mode="create")
    assert _read(store, "create/once") == b"first"


def test_create_if_absent_is_ignored_by_rclone(rclone_server: Server) -> None:
    store = rclone_server.open()
    obstore.put(store, "create/once", b"first", mode="create")
    obstore.put(store, "create/once", b"second", mode="create")
    assert _read(store, "create/once") == b"second"


@pytest.mark.parametrize("server", ("seaweedfs", "moto", "azurite"), indirect=True)
def test_ranges_can_be_read(server: Server) -> None:
    store = server.open()
    obstore.put(store, "range", b"0123456789")
    assert bytes(obstore.get_range(store, "range", start=3, length=4)) == b"3456"


def test_ranges_cannot_be_read_from_rclone(rclone_server: Server) -> None:
    """It sends the right bytes with status 200 instead of 206, which obstore refuses."""
    store = rclone_server.open()
    obstore.put(store, "range", b"0123456789")
    with pytest.raises(BaseError, match="non-partial"):
        obstore.get_range(store, "range", start=3, length=4)


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_proxy_without_faults_is_transparent(server: Server) -> None:
    large = os.urandom(24 << 20)
    with faulty(server) as front:
        store = front.open(retries=0)
        obstore.put(store, "clear/large", large)
        assert _read(store, "clear/large") == large
        assert obstore.head(store, "clear/large")["size"] == len(large)
        with pytest.raises(FileNotFoundError):
            obstore.head(store, "clear/none")
        obstore.delete(store, "clear/large")
        assert _paths(store, "clear") == set()
    assert front.counts["requests"] >= 5
    assert front.counts["errors"] == front.counts["lost"] == front.counts["delayed"] == 0


@pytest.mark.parametrize("server", ("seaweedfs", "azurite"), indirect=True)
def test_proxy_injects_every_fault_and_lost_puts_took_effect(server: Server) -> None:
    total = 400
    with faulty(server, seed=7, error=0.1, lost=0.1, delay=0.1, delay_seconds=0.3) as front:
        store = front.open(retries=0)

        def attempt(index: int) -> tuple[str, float]:
            began = time.monotonic()
            try:
                obstore.put(store, f"fault/{index:03}", b"x", mode="create")
            except BaseError as error:
                refused = "Internal Server Error" in str(error) or "Unavailable" in str(error)
                return ("refused" if refused else "lost"), time.monotonic() - began
            return "done", time.monotonic() - began

        with ThreadPoolExecutor(16) as pool:
            outcomes = list(pool.map(attempt, range(total)))
    stored = _paths(server.open(), "fault")
    named = {
        kind: {f"fault/{index:03}" for index, (seen, _) in enumerate(outcomes) if seen == kind}
        for kind in ("done", "refused", "lost")
    }
    assert front.counts["requests"] == total
    assert len(named["refused"]) == front.counts["errors"]
    assert len(named["lost"]) == front.counts["lost"]
    assert sum(seconds >= 0.3 for _, seconds in outcomes) >= front.counts["delayed"]
    assert min(front.counts.values()) > total // 20
    assert stored == named["done"] | named["lost"]


def test_draws_depend_on_the_seed_alone(moto_server: Server) -> None:
    def draw(seed: int) -> list[bool]:
        with faulty(moto_server, seed=seed, error=0.5) as front:
            address = urlsplit(front.endpoint).netloc
            connection = http.client.HTTPConnection(address, timeout=60)
            seen = []
            for _ in range(40):
                connection.request("GET", "/")
                reply = connection.getresponse()
                reply.read()
                seen.append(reply.status in (500, 503))
            connection.close()
            return seen

    first = draw(1)
    assert first == draw(1)
    assert first != draw(2)


def test_delayed_put_lands_after_its_client_has_gone(seaweedfs_server: Server) -> None:
    direct = seaweedfs_server.open()
    # All of a request that was made is on its way, also if its process ends.
    writer = (
        "import http.client, sys\n"
        "host, target = sys.argv[1:]\n"
        "connection = http.client.HTTPConnection(host)\n"
        "input()\n"
        "connection.request('PUT', target, b'x' * 3_000_000)\n"
        "print('sent', flush=True)\n"
        "connection.getresponse()\n"
        "print('answered', flush=True)\n"
    )
    for delay in (2.5, 10.0, 40.0):
        with faulty(seaweedfs_server, delay=1.0, delay_seconds=delay) as front:
            store = front.open(retries=0)
            assert isinstance(store, S3Store)
            url = urlsplit(obstore.sign(store, "PUT", "late/one", timedelta(hours=1)))
            command = [sys.executable, "-c", writer, url.netloc, f"{url.path}?{url.query}"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            with subprocess.Popen(command, **pipes) as client:
                assert client.stdin is not None and client.stdout is not None
                began = time.monotonic()
                client.stdin.write(b"\n")
                client.stdin.flush()
                assert client.stdout.readline() == b"sent\n"
                client.kill()
                answered = client.stdout.read()
            found = _paths(direct, "late")
            in_time = time.monotonic() - began < delay
            assert until(lambda: _paths(direct, "late") == {"late/one"})
        if in_time:
            break
        # The machine was busy for longer than the delay, which shows nothing.
        obstore.delete(direct, "late/one")
    assert (answered, found) == (b"", set())
    assert len(_read(direct, "late/one")) == 3_000_000


def test_proxy_speaks_chunked_and_expect_continue() -> None:
    """A scripted upstream shows that the bytes pass unchanged."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        upstream = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with faulty(Server("raw", "s3://none", {"endpoint": upstream}, 0, upstream)) as front:
            request = (
                b"PUT /x HTTP/1.1\r\nHost: signed.example\r\nExpect: 100-continue\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            body = b"5;ext=1\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n"
            reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

            def serve() -> bytes:
                accepted, _ = listener.accept()
                with accepted:
                    taken = b""
                    while not taken.endswith(b"Trailer: 1\r\n\r\n"):
                        taken += accepted.recv(4096)
                    accepted.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" + reply)
                return taken

            forwarded = pool.submit(serve)
            parts = urlsplit(front.endpoint)
            with socket.create_connection((parts.hostname, parts.port), timeout=60) as client:
                replies = client.makefile("rb")
                client.sendall(request)
                interim = b"HTTP/1.1 100 Continue\r\n\r\n"
                assert replies.read(len(interim)) == interim
                client.sendall(body)
                assert replies.read(len(reply)) == reply
            assert forwarded.result(60) == request + body


def test_servers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    owner = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.support import servers\n"
        "with servers.rclone(Path(sys.argv[1])) as server:\n"
        "    print(server.endpoint, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", owner, str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        process = launch(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        with process.stdout as output:
            try:
                endpoint = output.readline().decode().strip()
                assert _listens(endpoint)
                process.kill()
                process.wait()
            finally:
                stop(process)
    assert until(lambda: not _listens(endpoint))


def _listens(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=60).close()
    except ConnectionError:  # refused, or reset by a server that is dying at this moment
        return False
    return True
