"""What every store has to keep, as tests: subclass with a `store` fixture and run pytest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from hubless.errors import AlreadyExists, NotFound, StoreError, printable
from hubless.store.base import Store


class StoreContract:
    """Subclass, and give it a pytest fixture `store` that is an empty store each time.

    Set `conditional = False` for a store that cannot create only if absent: it then may be used
    in asynchronous mode only. `reopened` gives the same store once more, as another process would
    have it, so that nothing passes that is only remembered. `litter` puts what is no object where
    the store keeps its objects, if anybody can.

        class TestMyStore(StoreContract):
            @pytest.fixture
            def store(self, tmp_path):
                return MyStore(tmp_path)

            def reopened(self, store):
                return MyStore(store.path)
    """

    conditional = True
    racers = 8

    def reopened(self, store: Store) -> Store:
        """The same store, opened anew; a test is skipped where there is no such thing."""
        pytest.skip("this store cannot be opened a second time")

    def litter(self, store: Store) -> Sequence[str]:
        """Leave what is no object in the store, and say what of it has to be named."""
        pytest.skip("nothing but objects can be in this store")

    def test_what_was_put_can_be_read_whole_and_in_part(self, store: Store) -> None:
        store.put("a/b.bin", [b"hello ", memoryview(b"world")])
        assert store.get("a/b.bin") == b"hello world"
        assert bytes(store.read("a/b.bin", 4, 9)) == b"o wor"
        buffer = memoryview(bytearray(16))
        assert bytes(store.read("a/b.bin", 0, 11, buffer)) == b"hello world"

    def test_a_large_object_comes_back_the_same(self, store: Store) -> None:
        body = bytes(range(256)) * (40 << 10)  # 10 MiB: more than one part of an upload
        store.put("large", [body[:1000], body[1000:]])
        assert bytes(store.read("large", 9 << 20, 10 << 20)) == body[9 << 20 : 10 << 20]
        assert store.get("large", limit=1 << 30) == body

    def test_the_buffer_given_to_put_may_change_afterwards(self, store: Store) -> None:
        body = bytearray(b"before")
        store.put("key", [body])
        body[:] = b"after!"
        assert store.get("key") == b"before"

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound) as whole:
            store.get("no/such")
        with pytest.raises(NotFound) as part:
            store.read("no/such", 0, 1)
        assert whole.value.key == part.value.key == "no/such"

    def test_reading_past_the_end_is_an_error(self, store: Store) -> None:
        store.put("short", [b"12345"])
        with pytest.raises(StoreError) as raised:
            store.read("short", 2, 9)
        assert not isinstance(raised.value, NotFound)

    def test_an_object_over_the_limit_is_not_fetched(self, store: Store) -> None:
        store.put("big", [b"x" * 100])
        with pytest.raises(StoreError, match="100"):
            store.get("big", limit=99)

    def test_a_listing_shows_keys_and_sizes_below_a_prefix_only(self, store: Store) -> None:
        for key in ("run/1/a", "run/1/b", "run/10/c", "run/2"):
            store.put(key, [b"x" * len(key)])
        assert [(e.key, e.size) for e in store.list("run/1/")] == [("run/1/a", 7), ("run/1/b", 7)]
        assert [e.key for e in store.list("")] == ["run/1/a", "run/1/b", "run/10/c", "run/2"]
        assert store.list("nothing/") == []

    def test_a_listing_is_complete_beyond_one_page(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: store.put(f"many/{i:04d}", [b"x"]), range(1005)))
        assert [e.key for e in store.list("many/")] == [f"many/{i:04d}" for i in range(1005)]

    def test_deleting_removes_and_deleting_again_is_fine(self, store: Store) -> None:
        store.put("gone/a", [b"1"])
        store.put("gone/b", [b"2"])
        store.delete(["gone/a", "never/was"])
        store.delete(["gone/a"])
        assert [e.key for e in store.list("gone/")] == ["gone/b"]
        store.put("gone/a", [b"3"])
        assert store.get("gone/a") == b"3"

    def test_create_refuses_a_key_that_is_taken(self, store: Store) -> None:
        if not self.conditional:
            pytest.skip("this store cannot create only if absent")
        store.put("once", [b"first"], create=True)
        with pytest.raises(AlreadyExists) as raised:
            store.put("once", [b"second"], create=True)
        assert raised.value.key == "once"
        assert store.get("once") == b"first"

    def test_a_race_to_create_has_one_winner(self, store: Store) -> None:
        if not self.conditional:
            pytest.skip("this store cannot create only if absent")
        for attempt in range(5):
            start = threading.Barrier(self.racers)

            def create(racer: int, attempt: int, start: threading.Barrier) -> bytes | None:
                start.wait()
                try:
                    store.put(f"race/{attempt}", [str(racer).encode()], create=True)
                except StoreError:
                    return None
                return str(racer).encode()

            with ThreadPoolExecutor(self.racers) as pool:
                racing = [pool.submit(create, i, attempt, start) for i in range(self.racers)]
            won = [future.result() for future in racing if future.result()]
            assert won == [store.get(f"race/{attempt}")]

    def test_no_reader_ever_sees_part_of_an_object(self, store: Store) -> None:
        size = 3 << 20
        done = threading.Event()
        returned: set[str] = set()
        torn: list[str] = []

        def watch() -> None:
            while not done.is_set():
                for entry in store.list("whole/"):
                    was_there = entry.key in returned
                    try:
                        body = store.get(entry.key, limit=1 << 30)
                    except NotFound:
                        # a listing may run ahead of a put, never behind one that has returned
                        if was_there:
                            torn.append(entry.key)
                        continue
                    if entry.size != size or body != body[:1] * size:
                        torn.append(entry.key)

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                for i in range(12):
                    store.put(f"whole/{i}", [bytes([i]) * size])
                    returned.add(f"whole/{i}")
            finally:
                done.set()
            watching.result()
        assert torn == []

    def test_a_key_cannot_leave_the_store(self, store: Store) -> None:
        for key in ("../up", "a/../../up", "/etc/x", "a//b", "", ".", "a\\b", "a\0b", "k" * 1100):
            with pytest.raises(ValueError, match="not a key"):
                store.put(key, [b"x"])
            for reading in (lambda k: store.get(k), lambda k: store.read(k, 0, 1)):
                with pytest.raises((ValueError, NotFound)):
                    reading(key)
        assert store.list("") == []

    def test_odd_keys_are_listed_and_read_as_they_were_written(self, store: Store) -> None:
        names = (
            "a b",
            "%2F",
            "#&=+",
            "a:b*c",
            "ü漢🌲",
            "~x",
            "...x",
            "-",
            "{0}",
            "$H",
            "x" * 200,
        )
        keys = sorted(f"odd/{name}/{name}" for name in names)
        for key in keys:
            store.put(key, [key.encode()])
        assert [entry.key for entry in store.list("odd/")] == keys
        assert [store.get(key) for key in keys] == [key.encode() for key in keys]
        store.delete(keys)
        assert store.list("") == []

    def test_what_was_written_is_there_for_whoever_opens_the_store(self, store: Store) -> None:
        other = self.reopened(store)
        assert other is not store
        store.put("mine/a", [b"1"])
        assert [entry.key for entry in other.list("")] == ["mine/a"]
        assert other.get("mine/a") == b"1"
        assert bytes(other.read("mine/a", 0, 1)) == b"1"
        other.put("mine/a", [b"22"])
        other.put("mine/b", [b"333"])
        assert [(entry.key, entry.size) for entry in store.list("mine/")] == [
            ("mine/a", 2),
            ("mine/b", 3),
        ]
        assert store.get("mine/a") == b"22"
        other.delete(["mine/b"])
        with pytest.raises(NotFound):
            store.get("mine/b")

    def test_a_listing_passes_over_what_is_no_object_and_names_it_once(self, store: Store) -> None:
        named: list[str] = []
        store.on_skip = lambda key, reason: named.append(key)
        for key in ("good", "updates/good"):
            store.put(key, [b"x"])
        expected = self.litter(store)
        for _ in range(2):
            assert [entry.key for entry in store.list("")] == ["good", "updates/good"]
            assert [entry.key for entry in store.list("updates/")] == ["updates/good"]
        assert sorted(named) == sorted(map(printable, expected))
        assert expected
