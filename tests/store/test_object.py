"""Buckets: forks, neighbouring prefixes, everything that may be wrong with an address, options."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hubless.errors import NoObject, StoreError, WrongSize
from hubless.store.base import Store
from hubless.store.object import ObjectStore
from hubless.store.reliable import Reliable
from tests.support import litter
from tests.support.servers import Server

# Forked in a process of its own, so that pytest's is neither copied nor stuck.
_FORK = """
import json, multiprocessing, os, sys
from hubless.errors import StoreError
from hubless.store.object import ObjectStore

url, options, operation = json.loads(sys.argv[1])
store = ObjectStore(url, options=options)
store.put("key", [b"x"])
OPERATIONS = {
    "put": lambda: store.put("other", [b"y"]),
    "get": lambda: store.get("key"),
    "read": lambda: store.read("key", 0, 1),
    "list": lambda: store.list(""),
    "delete": lambda: store.delete(["key"]),
    "open": lambda: ObjectStore(url, options=options).get("key"),
}

def child():
    try:
        print("did it", OPERATIONS[operation](), flush=True)
    except StoreError as error:
        print("StoreError:", error, flush=True)

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
if process.exitcode is None:
    process.kill()
    print("hung", flush=True)
assert store.get("key") == b"x"
print("the parent goes on")
"""


def _options(server: Server, **more: str) -> dict[str, str]:
    return {**server.options, **more}


def _run(server: Server) -> str:
    return f"{server.url}/{uuid.uuid4().hex}"


@pytest.fixture
def closed_endpoint() -> Iterator[str]:
    """Where nobody answers, nor can anybody begin to meanwhile: the port is taken."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def mute_endpoint() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


_OPERATIONS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("k/a", [b"x"]),
    "create": lambda store: store.put("k/a", [b"x"], create=True),
    "get": lambda store: store.get("k/a"),
    "read": lambda store: store.read("k/a", 0, 1),
    "list": lambda store: store.list(""),
}
operations = pytest.mark.parametrize("operation", _OPERATIONS)


def _failure(store: Store, operation: str, seconds: float = 30.0) -> str:
    """The message of the StoreError that this raises, in time and fit to be read."""
    started = time.monotonic()
    with pytest.raises(StoreError) as raised:
        _OPERATIONS[operation](store)
    assert time.monotonic() - started < seconds
    message = str(raised.value)
    assert message.startswith(store.url) or f" {store.url}" in message
    assert "\n\n" not in message
    assert "Debug source" not in message
    assert len(message) < 1500
    return message


@pytest.mark.xdist_group("moto")
@pytest.mark.parametrize("operation", ["put", "get", "read", "list", "delete"])
def test_a_forked_child_is_told_so_instead_of_hanging(moto_server: Server, operation: str) -> None:
    task = json.dumps([_run(moto_server), moto_server.options, operation])
    ran = subprocess.run(
        [sys.executable, "-c", _FORK, task], capture_output=True, text=True, timeout=200
    )
    told, after = ran.stdout.splitlines()
    assert told.startswith("StoreError: s3://")
    assert "spawn" in told
    assert after == "the parent goes on"


@pytest.mark.xdist_group("moto")
def test_a_forked_child_that_opens_the_bucket_anew_is_served_or_told_so(
    moto_server: Server,
) -> None:
    task = json.dumps([_run(moto_server), moto_server.options, "open"])
    ran = subprocess.run(
        [sys.executable, "-c", _FORK, task], capture_output=True, text=True, timeout=200
    )
    answer, after = ran.stdout.splitlines()
    assert answer == "did it b'x'" or answer.startswith("StoreError: ")
    assert after == "the parent goes on"


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(name))
        for name in ("seaweedfs", "moto", "azurite", "rclone")
    ],
)
def test_a_run_never_sees_another_whose_name_begins_the_same(
    server: str, request: pytest.FixtureRequest
) -> None:
    running: Server = request.getfixturevalue(f"{server}_server")
    base = _run(running)
    stores = {n: ObjectStore(f"{base}/{n}", options=running.options) for n in ("run1", "run10")}
    for name, store in stores.items():
        store.put("updates/a", [name.encode()])
        store.put("updates10/a", [b"x"])
    for name, store in stores.items():
        assert [entry.key for entry in store.list("")] == ["updates/a", "updates10/a"]
        assert [entry.key for entry in store.list("updates/")] == ["updates/a"]
        assert store.get("updates/a") == name.encode()
    stores["run1"].delete(["updates/a"])
    assert stores["run10"].get("updates/a") == b"run10"


@pytest.mark.xdist_group("moto")
def test_a_slash_at_the_end_of_the_address_makes_no_difference(moto_server: Server) -> None:
    url = _run(moto_server)
    ObjectStore(f"{url}/", options=moto_server.options).put("key", [b"x"])
    store = ObjectStore(url, options=moto_server.options)
    assert [entry.key for entry in store.list("")] == ["key"]
    assert ObjectStore(f"{url}/", options=moto_server.options).url == url


@pytest.mark.xdist_group("moto")
@operations
def test_a_bucket_that_does_not_exist_is_named_as_the_trouble(
    moto_server: Server, operation: str
) -> None:
    store = ObjectStore("s3://absent-4711/run", options=moto_server.options)
    message = _failure(store, operation)
    assert "absent-4711" in message
    # reading one key cannot tell that from a key that is not there, and needs not
    if operation not in ("get", "read"):
        assert "bucket" in message.lower()


@pytest.mark.xdist_group("azurite")
@operations
def test_a_container_that_does_not_exist_is_named_as_the_trouble(
    azurite_server: Server, operation: str
) -> None:
    store = ObjectStore("az://absent-4711/run", options=azurite_server.options)
    message = _failure(store, operation)
    assert "absent-4711" in message
    if operation not in ("get", "read"):
        assert "container" in message.lower() or "bucket" in message.lower()


@pytest.mark.xdist_group("seaweedfs")
@operations
def test_wrong_credentials_are_reported_at_once(seaweedfs_server: Server, operation: str) -> None:
    options = _options(seaweedfs_server, secret_access_key="wrong")
    message = _failure(ObjectStore(_run(seaweedfs_server), options=options), operation)
    assert "403" in message
    assert "SignatureDoesNotMatch" in message


@pytest.mark.xdist_group("azurite")
@operations
def test_a_wrong_azure_key_is_reported_at_once(azurite_server: Server, operation: str) -> None:
    options = _options(azurite_server, account_key="d3Jvbmc=")
    message = _failure(ObjectStore(_run(azurite_server), options=options), operation)
    assert "403" in message


@operations
def test_an_endpoint_where_nobody_answers_is_an_error_that_names_it(
    closed_endpoint: str, operation: str
) -> None:
    options = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}
    message = _failure(ObjectStore("s3://bucket/run", closed_endpoint, options), operation)
    assert closed_endpoint in message


@pytest.mark.parametrize("operation", ["put", "get", "list"])
def test_a_timeout_among_the_options_bounds_the_wait_for_a_mute_server(
    mute_endpoint: str, operation: str
) -> None:
    options = {"access_key_id": "a", "secret_access_key": "b", "timeout": "200ms"}
    message = _failure(ObjectStore("s3://bucket/run", mute_endpoint, options), operation)
    assert mute_endpoint in message


_SETTINGS = {
    "allow_http": "true",
    "allow_invalid_certificates": "true",
    "connect_timeout": "5s",
    "default_content_type": "application/octet-stream",
    "http1_only": "true",
    "http2_keep_alive_interval": "5s",
    "http2_keep_alive_timeout": "5s",
    "http2_keep_alive_while_idle": "true",
    "read_timeout": "5s",
    "pool_idle_timeout": "5s",
    "pool_max_idle_per_host": "2",
    "randomize_addresses": "false",
    "timeout": "30s",
    "user_agent": "hubless-test",
}


@pytest.mark.xdist_group("moto")
@pytest.mark.parametrize("name", _SETTINGS)
def test_an_option_for_the_http_client_may_stand_among_those_for_the_bucket(
    moto_server: Server, name: str
) -> None:
    options = _options(moto_server, **{name: _SETTINGS[name]})
    store = ObjectStore(_run(moto_server), options=options)
    store.put("key", [b"x"])
    assert store.get("key") == b"x"


def test_a_client_option_is_recognised_in_capitals_as_obstore_does_for_the_others() -> None:
    options = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "TIMEOUT": "5s"}
    assert ObjectStore("s3://bucket/run", options=options).url == "s3://bucket/run"


@pytest.mark.xdist_group("moto")
def test_a_proxy_among_the_options_is_used(moto_server: Server, closed_endpoint: str) -> None:
    options = _options(moto_server, proxy_url=closed_endpoint)
    _failure(ObjectStore(_run(moto_server), options=options), "list")


@pytest.mark.xdist_group("moto")
def test_a_server_that_the_environment_names_is_spoken_to_as_it_says(
    moto_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {name.removeprefix("aws_"): value for name, value in moto_server.options.items()}
    for name, value in {"endpoint_url": moto_server.endpoint, **options}.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    store = ObjectStore(_run(moto_server))
    store.put("key", [b"x"])
    assert store.get("key") == b"x"


@pytest.mark.xdist_group("moto")
def test_options_may_carry_the_prefix_of_their_cloud(moto_server: Server) -> None:
    options = {f"aws_{name}": value for name, value in moto_server.options.items()}
    store = ObjectStore(_run(moto_server), options=options)
    store.put("key", [b"x"])
    assert [entry.key for entry in store.list("")] == ["key"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"no_such_option": "x"}, "no_such_option"),
        ({"timeout": "bananas"}, "bananas"),
        ({"connect_timeout": "soon"}, "soon"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_clear_error(
    options: dict[str, str], named: str
) -> None:
    with pytest.raises(StoreError, match=f"cannot open s3://bucket/run: .*{named}") as raised:
        ObjectStore("s3://bucket/run", options=options)
    assert "\n" not in str(raised.value)


def test_an_azure_key_that_is_no_key_is_a_clear_error_that_does_not_tell_it() -> None:
    options = {"account_name": "hubless", "account_key": "no base64!"}
    with pytest.raises(StoreError, match=r"cannot open az://box/run: .*Access Key") as raised:
        ObjectStore("az://box/run", options=options)
    assert "no base64!" not in str(raised.value)


class _Unhurried(BaseHTTPRequestHandler):
    """Takes what is put there, and its time to say so: for some far more than for others."""

    ended: threading.Event

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.ended.wait(1.5 if self.path.endswith("/slow") else 30)
        with contextlib.suppress(ConnectionError):
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def unhurried_endpoint() -> Iterator[str]:
    _Unhurried.ended = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unhurried) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        _Unhurried.ended.set()
        server.shutdown()
        thread.join()


def test_what_has_to_go_up_in_one_piece_gets_the_time_that_a_slow_link_takes(
    unhurried_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubless.store.object._TIMEOUT_SECONDS", 1)
    options = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    large = bytes(6_000_000)
    store = ObjectStore("s3://bucket/run", unhurried_endpoint, options)
    store.put("slow", [large], create=True)
    with pytest.raises(StoreError):
        store.put("slower", [b"x"], create=True)
    # a timeout that was asked for is kept
    hasty = ObjectStore("s3://bucket/run", unhurried_endpoint, {**options, "timeout": "200ms"})
    with pytest.raises(StoreError):
        hasty.put("slower", [large], create=True)


def test_what_is_too_large_for_one_piece_is_refused_at_once_and_told_what_to_do(
    closed_endpoint: str,
) -> None:
    options = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}
    store = ObjectStore("s3://bucket/run", closed_endpoint, options)
    parts = [memoryview(bytes(1 << 20))] * 5121
    with pytest.raises(WrongSize, match=r"run/initial: .*5 GiB.*without model="):
        Reliable(store).put("initial", parts, create=True)


@pytest.mark.xdist_group("moto")
def test_a_listing_is_complete_beyond_one_page_though_some_keys_are_none(
    moto_server: Server,
) -> None:
    store = ObjectStore(_run(moto_server), options=moto_server.options)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.put(f"many/{i:04d} a+b", [b"x"]), range(1005)))
    before = store.list("")
    assert len(before) == 1005
    taken = litter.put(store.url, moto_server.options, ["many/0500//x", "many/../up"])
    passed_over: list[str] = []
    store.on_skip = lambda key, reason: passed_over.append(key)
    assert store.list("") == before
    assert store.list("many/") == before
    assert sorted(passed_over) == sorted(taken)


@pytest.mark.xdist_group("moto")
def test_where_keys_that_are_none_cannot_be_passed_over_one_is_named_at_once(
    moto_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a machine's own role would do it: the library has the secret, and nobody else
    url = _run(moto_server)
    ObjectStore(url, options=moto_server.options).put("good", [b"x"])
    litter.put(url, moto_server.options, ["updates//x"])
    monkeypatch.setattr("hubless.store.anykeys.Signer.of", lambda bucket, settings: None)
    store = Reliable(ObjectStore(url, options=moto_server.options), patience=60)
    with pytest.raises(NoObject, match="updates//x"):
        store.list("")
    assert store.get("good") == b"x"
