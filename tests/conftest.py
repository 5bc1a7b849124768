"""Session-wide fixtures: one running copy of each real store."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.support import servers
from tests.support.servers import Server, Unavailable


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
