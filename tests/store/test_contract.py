"""Every store there is keeps the store contract, on real servers where there are such."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from hubless.store import open_store
from hubless.store.base import Store
from hubless.store.object import ObjectStore
from hubless.testing import StoreContract
from tests.support import litter as litters
from tests.support.servers import Server


class _Buckets(StoreContract):
    server: Server

    def fresh(self, server: Server) -> ObjectStore:
        self.server = server
        return ObjectStore(f"{server.url}/{uuid.uuid4().hex}", options=server.options)

    def reopened(self, store: Store) -> Store:
        assert isinstance(store, ObjectStore)
        return ObjectStore(store.url, options=self.server.options)


class _S3(_Buckets):
    names = litters.NAMES

    def litter(self, store: Store) -> Sequence[str]:
        return litters.put(store.url, self.server.options, self.names)


@pytest.mark.xdist_group("seaweedfs")
class TestObjectStoreOnSeaweedFS(_S3):
    # of others it makes paths, as of files
    names = ("two\nlines", "del\x7f")

    @pytest.fixture
    def store(self, seaweedfs_server: Server) -> Store:
        return self.fresh(seaweedfs_server)


@pytest.mark.xdist_group("moto")
class TestObjectStoreOnMoto(_S3):
    @pytest.fixture
    def store(self, moto_server: Server) -> Store:
        return self.fresh(moto_server)


@pytest.mark.xdist_group("azurite")
class TestObjectStoreOnAzurite(_Buckets):
    @pytest.fixture
    def store(self, azurite_server: Server) -> Store:
        return self.fresh(azurite_server)


@pytest.mark.xdist_group("rclone")
class TestObjectStoreOnRclone(_Buckets):
    conditional = False

    @pytest.fixture
    def store(self, rclone_server: Server) -> Store:
        return self.fresh(rclone_server)


@pytest.mark.xdist_group("moto")
def test_a_bucket_opens_by_its_address_and_a_separate_endpoint(moto_server: Server) -> None:
    url = f"{moto_server.url}/{uuid.uuid4().hex}"
    options = {name: value for name, value in moto_server.options.items() if name != "endpoint"}
    opened = open_store(url, endpoint=moto_server.endpoint, options=options)
    opened.put("a/b", [b"hello"])
    assert isinstance(opened, ObjectStore)
    assert ObjectStore(url, options=moto_server.options).get("a/b") == b"hello"


@pytest.mark.xdist_group("azurite")
def test_an_azure_container_opens_by_its_address_and_a_separate_endpoint(
    azurite_server: Server,
) -> None:
    url = f"{azurite_server.url}/{uuid.uuid4().hex}"
    options = dict(azurite_server.options)
    opened = open_store(url, endpoint=options.pop("endpoint"), options=options)
    opened.put("a/b", [b"hello"])
    assert ObjectStore(url, options=azurite_server.options).get("a/b") == b"hello"
