"""For all tests: one running copy of each real store, and the same examples every time."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from hypothesis import settings

from tests.support import servers
from tests.support.servers import Server, Unavailable

# what Hypothesis tries is the same in every run; `--hypothesis-profile default` looks further
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
# as in a terminal: what a shell runs in the background is deaf to Ctrl-C, and so are its children
signal.signal(signal.SIGINT, signal.default_int_handler)

# what members remember on their own disk is forgotten with the tests
os.environ["HUBLESS_STATE"] = tempfile.mkdtemp(prefix="hubless-state-")
atexit.register(shutil.rmtree, os.environ["HUBLESS_STATE"], ignore_errors=True)


def _running(context: AbstractContextManager[Server]) -> Iterator[Server]:
    try:
        server = context.__enter__()
    except Unavailable as error:
        pytest.skip(error.reason)
    try:
        yield server
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")))


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Server]:
    yield from _running(servers.moto())


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(servers.azurite(tmp_path_factory.mktemp("azurite")))


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _running(servers.rclone(tmp_path_factory.mktemp("rclone")))
