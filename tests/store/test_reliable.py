"""Trying again: what was acknowledged is there, a race has one winner, and patience has an end."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hubless.errors import AlreadyExists, NotFound, StoreError, Unsupported
from hubless.rng import stream
from hubless.store.base import Bytes, Store
from hubless.store.memory import MemoryStore
from hubless.store.reliable import Reliable
from hubless.testing.faults import Faulty


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


class Counting:
    """Counts the requests that reach a faulty store."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    def __call__(self, operation: str, key: str) -> None:
        self.requests[operation] += 1


class WithoutConditions(MemoryStore):
    """A store that cannot create only if absent."""

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        raise Unsupported("no conditions here", key)


def _reliable(
    store: Store,
    rng: np.random.Generator,
    error: float = 0.3,
    lost: float = 0.3,
    patience: float = 600.0,
    count: Counting | None = None,
) -> Reliable:
    return Reliable(Faulty(store, rng, error, lost, count), patience, FakeClock())


@pytest.mark.parametrize("seed", range(20))
def test_every_put_that_is_acknowledged_is_there(seed: int) -> None:
    behind = MemoryStore()
    store = _reliable(behind, stream(seed, "faults"), patience=1.0)
    acknowledged = []
    for i in range(100):
        try:
            store.put(f"{i:03d}", [f"body {i}".encode()], create=i % 2 == 0)
        except StoreError:
            continue
        acknowledged.append(i)
    assert len(acknowledged) > 50
    for i in acknowledged:
        assert behind.get(f"{i:03d}") == f"body {i}".encode()


@pytest.mark.parametrize("seed", range(20))
def test_reading_listing_and_deleting_ride_faults_out(seed: int) -> None:
    behind = MemoryStore()
    store = _reliable(behind, stream(seed, "faults"))
    keys = [f"a/{i}" for i in range(10)]
    for key in keys:
        store.put(key, [key.encode()])
    assert [store.get(key) for key in keys] == [key.encode() for key in keys]
    assert [bytes(store.read(key, 1, 3)) for key in keys] == [key.encode()[1:3] for key in keys]
    assert [entry.key for entry in store.list("a/")] == keys
    store.delete(keys)
    assert behind.list("") == []


@pytest.mark.parametrize("seed", range(100))
def test_of_several_creators_under_faults_exactly_one_wins_and_knows_it(seed: int) -> None:
    behind = MemoryStore()
    bodies = [f"member {i}".encode() for i in range(5)]
    start = threading.Barrier(len(bodies))

    def won(body: bytes) -> bool:
        store = _reliable(behind, stream(seed, "faults", body.decode()))
        start.wait()
        try:
            store.put("plan", [body], create=True)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(len(bodies)) as pool:
        winners = [body for body, first in zip(bodies, pool.map(won, bodies), strict=True) if first]
    assert winners == [behind.get("plan")]


@pytest.mark.parametrize("seed", range(100))
def test_a_creator_overtaken_between_its_own_tries_knows_that_it_lost(seed: int) -> None:
    behind = MemoryStore()
    requests = itertools.count()
    at = int(stream(seed, "when").integers(6))
    won: list[bytes] = []

    def rival(operation: str, key: str) -> None:
        if next(requests) == at:
            try:
                behind.put("plan", [b"rival"], create=True)
                won.append(b"rival")
            except AlreadyExists:
                pass

    store = Reliable(
        Faulty(behind, stream(seed, "faults"), 0.4, 0.3, rival), 600.0, clock=FakeClock()
    )
    try:
        store.put("plan", [b"mine"], create=True)
        won.append(b"mine")
    except AlreadyExists:
        pass
    assert won == [behind.get("plan")]


def test_a_create_whose_answer_is_lost_every_time_is_still_known_to_have_won() -> None:
    behind = MemoryStore()
    replies_lost = 0

    class LosesPuts(Faulty):
        def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
            nonlocal replies_lost
            replies_lost += 1
            super().put(key, parts, create=create)
            raise StoreError("the reply was lost", key)

    store = Reliable(LosesPuts(behind, np.random.default_rng(0), 0.0, 0.0), 60.0, clock=FakeClock())
    store.put("plan", [b"mi", b"ne"], create=True)
    assert (behind.get("plan"), replies_lost) == (b"mine", 1)


def test_a_create_that_lost_to_a_larger_object_is_told_so_at_once() -> None:
    behind = MemoryStore()
    clock = FakeClock()
    store = Reliable(behind, 60.0, clock)
    behind.put("initial", [bytes((1 << 20) + 8)])
    with pytest.raises(AlreadyExists):
        store.put("initial", [b"small"], create=True)
    with pytest.raises(AlreadyExists):
        store.put("initial", [bytes(1 << 20), b"1234567"], create=True)
    assert clock.time == 0


@pytest.mark.parametrize("patience", [0.0, 1.0, 60.0])
def test_it_gives_up_after_its_patience_and_names_tries_and_cause(patience: float) -> None:
    clock, count = FakeClock(), Counting()
    faulty = Faulty(MemoryStore(), np.random.default_rng(0), error=1.0, before=count)
    store = Reliable(faulty, patience, clock)
    with pytest.raises(StoreError) as raised:
        store.get("some/key")
    tries = count.requests["get"]
    assert f"gave up after {tries} tr" in str(raised.value)
    assert f"in {clock.time:.0f} s" in str(raised.value)
    assert tries >= 3
    assert "injected: get some/key was not served" in str(raised.value)
    assert raised.value.key == "some/key"
    assert isinstance(raised.value.__cause__, StoreError)
    assert patience <= clock.time <= max(patience, 0.2) + 1e-6
    # pauses grow to two seconds, so a minute is some forty tries and not some thousand
    assert max(1, patience / 2) <= tries <= 20 + patience


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.put("k", [b"x"]),
        lambda store: store.put("k", [b"x"], create=True),
        lambda store: store.read("k", 0, 1),
        lambda store: store.list("k/"),
        lambda store: store.delete(["k"]),
    ],
    ids=["put", "create", "read", "list", "delete"],
)
def test_every_operation_gives_up_in_the_end(operation: Callable[[Store], object]) -> None:
    store = _reliable(MemoryStore(), np.random.default_rng(0), error=1.0, patience=5.0)
    with pytest.raises(StoreError, match=r"gave up after \d+ tries in 5 s: injected: "):
        operation(store)


class Down(Faulty):
    """Every request fails, after so many seconds."""

    def __init__(self, clock: FakeClock, seconds: float = 0.0) -> None:
        self.requests: Counter[str] = Counter()

        def pass_time(operation: str, key: str) -> None:
            self.requests[key] += 1
            clock.time += seconds

        super().__init__(MemoryStore(), np.random.default_rng(0), error=1.0, before=pass_time)


def _all_fail(store: Store, keys: Sequence[str]) -> None:
    for key in keys:
        with pytest.raises(StoreError, match="gave up after"):
            store.get(key)


@pytest.mark.parametrize("slow", [0.0, 7.0])
def test_within_a_block_all_operations_share_one_patience(slow: float) -> None:
    clock = FakeClock()
    down = Down(clock, slow)
    store = Reliable(down, 20.0, clock)
    with store.within(1000.0):
        _all_fail(store, ["a", "b"])
        assert clock.time <= 20.0 + 2 * slow
        _all_fail(store, ["c", "d"])
    assert clock.time <= 20.0 + 4 * slow
    assert down.requests["a"] > 1
    assert [down.requests[key] for key in "bcd"] == [1, 1, 1]
    _all_fail(store, ["e"])
    assert down.requests["e"] >= 3


def test_within_a_block_nothing_is_tried_again_after_its_seconds() -> None:
    clock = FakeClock()
    down = Down(clock)
    store = Reliable(down, 600.0, clock)
    with store.within(5.0):
        _all_fail(store, ["a", "b"])
    assert clock.time == pytest.approx(5.0)
    assert down.requests["a"] > 3 and down.requests["b"] == 1


@pytest.mark.parametrize(("outer", "inner"), [(100.0, 3.0), (3.0, 100.0)])
def test_of_blocks_in_one_another_the_tightest_wins(outer: float, inner: float) -> None:
    clock = FakeClock()
    down = Down(clock)
    store = Reliable(down, 10.0, clock)
    with store.within(outer):
        with store.within(inner):
            _all_fail(store, ["a"])
            assert clock.time == pytest.approx(3.0)
        _all_fail(store, ["b"])
    # what the inner block lost, the outer has no more
    assert clock.time == pytest.approx(10.0 if outer > inner else 3.0)


def test_a_block_that_raised_is_over() -> None:
    clock = FakeClock()
    down = Down(clock)
    store = Reliable(down, 10.0, clock)
    with pytest.raises(StoreError), store.within(0.0):
        store.get("a")
    _all_fail(store, ["b"])
    assert (down.requests["a"], clock.time) == (1, pytest.approx(10.0))


def test_a_block_counts_for_other_threads_too_until_they_are_done() -> None:
    clock = FakeClock()
    down = Down(clock)
    store = Reliable(down, 10.0, clock)
    with ThreadPoolExecutor(1) as pool:
        with store.within(1000.0):
            pool.submit(_all_fail, store, ["a"]).result()
            _all_fail(store, ["b"])
        assert down.requests["b"] == 1
        assert clock.time == pytest.approx(10.0)
        # an operation that began inside goes on by the block's patience
        with store.within(1000.0):
            _all_fail(store, ["c"])
            inside, over = threading.Event(), threading.Event()

            def late(operation: str, key: str) -> None:
                inside.set()
                over.wait()
                raise StoreError("late", key)

            store.store = Faulty(MemoryStore(), np.random.default_rng(0), before=late)
            reading = pool.submit(_all_fail, store, ["d"])
            inside.wait()
        over.set()
        reading.result()
    assert clock.time == pytest.approx(20.0)


def test_within_a_block_what_succeeds_costs_no_patience() -> None:
    clock = FakeClock()
    behind = MemoryStore()
    fails = itertools.cycle([True, False])

    def slow(operation: str, key: str) -> None:
        if next(fails):
            clock.time += 0.1
            raise StoreError("now and then", key)
        clock.time += 30.0

    store = Reliable(Faulty(behind, np.random.default_rng(0), 0.0, 0.0, slow), 10.0, clock)
    with store.within(1000.0):
        for i in range(6):
            store.put(str(i), [b"x"])
    assert len(behind.list("")) == 6
    assert clock.time > 180.0


def test_what_a_listing_passes_over_is_told_to_the_wrapped_stores_listener() -> None:
    behind = MemoryStore()
    store = Reliable(behind)
    passed_over: list[tuple[str, str]] = []
    store.on_skip = lambda key, reason: passed_over.append((key, reason))
    behind.on_skip("updates/", "cannot be read")
    assert passed_over == [("updates/", "cannot be read")]
    assert store.on_skip is behind.on_skip


def test_what_is_not_there_is_not_asked_for_again() -> None:
    count = Counting()
    store = _reliable(MemoryStore(), np.random.default_rng(0), 0.0, 0.0, count=count)
    with pytest.raises(NotFound):
        store.get("none")
    with pytest.raises(NotFound):
        store.read("none", 0, 1)
    assert count.requests == {"get": 1, "read": 1}


def test_a_key_that_is_taken_is_not_tried_for_again() -> None:
    count = Counting()
    behind = MemoryStore()
    behind.put("taken", [b"theirs"])
    store = _reliable(behind, np.random.default_rng(0), 0.0, 0.0, count=count)
    with pytest.raises(AlreadyExists) as raised:
        store.put("taken", [b"mine"], create=True)
    assert raised.value.key == "taken"
    # the one get is to see whether the object is our own, from a try whose answer was lost
    assert count.requests == {"put": 1, "get": 1}
    assert behind.get("taken") == b"theirs"


def test_what_the_store_can_never_do_is_not_tried_again() -> None:
    clock = FakeClock()
    with pytest.raises(Unsupported):
        Reliable(WithoutConditions(), 60.0, clock).put("key", [b"x"], create=True)
    assert clock.time == 0


def test_a_mistake_of_the_caller_is_not_tried_again() -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="not a key"):
        Reliable(MemoryStore(), 60.0, clock).put("../up", [b"x"])
    assert clock.time == 0


def test_faults_come_as_seeded_and_in_the_shares_asked_for() -> None:
    def outcomes(seed: int) -> list[tuple[str, bool]]:
        behind = MemoryStore()
        store = Faulty(behind, np.random.default_rng(seed), error=0.2, lost=0.3)
        seen = []
        for _ in range(2000):
            answer = "served"
            try:
                store.put("key", [b"x"])
            except StoreError as error:
                answer = "lost" if "was lost" in str(error) else "unserved"
            seen.append((answer, bool(behind.list(""))))
            behind.delete(["key"])
        return seen

    seen = outcomes(3)
    assert seen == outcomes(3)
    assert seen != outcomes(4)
    counts = Counter(seen)
    assert counts.keys() == {("served", True), ("lost", True), ("unserved", False)}
    assert counts["unserved", False] == pytest.approx(400, abs=60)
    assert counts["lost", True] == pytest.approx(600, abs=70)
