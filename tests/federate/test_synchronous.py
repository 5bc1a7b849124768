"""Synchronous mode: rounds that end, that all end alike, and that nobody can hold up for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
import hubless.strategy
from hubless import events
from hubless.errors import QuorumMissed
from hubless.federate import keys
from hubless.store.folder import FolderStore
from hubless.store.memory import MemoryStore
from hubless.testing import Update, aggregate
from hubless.testing.metered import Metered
from tests.support.waiting import until, wait_at_most


def params(value: float, size: int = 1_400_000) -> dict[str, Any]:
    """Over five blocks of float32, and a counter."""
    return {"w": np.full(size, value, np.float32), "steps": np.array(int(10 * value))}


def together(count: int, job: Callable[[int], Any]) -> list[Any]:
    """Run all at once; the first failure is raised without waiting for who waits for it."""
    pool = ThreadPoolExecutor(count)
    try:
        futures = [pool.submit(job, i) for i in range(count)]
        for future in as_completed(futures, timeout=100):
            future.result()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False)


@pytest.mark.parametrize("name", sorted(hubless.strategy.kinds()))
def test_all_members_end_every_round_with_what_the_strategy_gives(
    name: str, tmp_path: Path
) -> None:
    strategy = hubless.strategy.kinds()[name]()
    rng = np.random.default_rng(5)
    trained = [
        [{"w": rng.normal(size=700_000).astype(np.float32), "n": np.array(i)} for i in range(3)]
        for _ in range(3)
    ]

    start = {"w": np.zeros(700_000, np.float32), "n": np.array(0)} if strategy.partial else None
    pace = hubless.Rounds(members=3)

    def member(index: int) -> list[dict[str, Any]]:
        with hubless.join(
            tmp_path, f"m{index}", pace=pace, strategy=strategy, model=start
        ) as joined:
            return [joined.step(trained[r][index], examples=10 + index) for r in range(3)]

    results = together(3, member)
    expected, state = start, None
    for r in range(3):
        updates = [Update(f"m{i}", trained[r][i], 10 + i, version=r) for i in range(3)]
        expected, state = aggregate(strategy, updates, expected, state)
        for result in results:
            assert result[r]["w"].tobytes() == results[0][r]["w"].tobytes()
            assert np.allclose(result[r]["w"], expected["w"], atol=1e-5)
            assert result[r]["n"] == expected["n"]


def test_two_models_of_download_per_member_at_any_number_of_members(tmp_path: Path) -> None:
    size = 4_000_000

    def member(index: int) -> tuple[int, int]:
        store = Metered(FolderStore(tmp_path))
        with hubless.join(store, f"m{index}", pace=hubless.Rounds(members=8)) as joined:
            # helping out those who are late costs more, and here nobody is, however slow it goes
            joined._mode._completing._help_after = float("inf")  # type: ignore[attr-defined]
            store.bytes_down = store.bytes_up = 0
            joined.step(params(float(index), size), examples=1)
            return store.bytes_down, store.bytes_up

    for down, up in together(8, member):
        assert down <= 2.0 * 4 * size
        assert up <= 1.2 * 4 * size


def test_a_round_closes_with_a_quorum_at_the_deadline_and_the_late_one_joins_the_next(
    tmp_path: Path,
) -> None:
    names = ["a", "b", "c"]
    said: list[events.Event] = []
    both, closed = threading.Barrier(2), threading.Event()

    def member(index: int) -> list[float]:
        with hubless.join(
            tmp_path,
            names[index],
            pace=hubless.Rounds(members=names, quorum=2, deadline=60.0),
            events=said.append if index == 2 else (),
        ) as joined:
            if index == 2:
                assert closed.wait(60)
                # as if it had looked before the others closed the round
                return [_step_late(joined, 0, params(9.0))]
            first = _step_in_company(joined, both, params(float(index)))
            closed.set()
            second = joined.step(params(float(index)), examples=1)
            return [float(first["w"][0]), float(second["w"][0])]

    results = together(3, member)
    assert results[0][0] == results[1][0] == 0.5
    assert len({results[0][1], results[1][1], results[2][0]}) == 1
    assert any(isinstance(e, events.Late) for e in said)


def _step_in_company(joined: Any, others: threading.Barrier, mine: dict[str, Any]) -> Any:
    """A step with a short deadline that begins when the others have shared too, however late."""
    post = joined.member.post

    def posting(*args: Any) -> Any:
        posted = post(*args)
        others.wait(60)
        return posted

    joined.member.post = posting
    patient = wait_at_most(joined, 0.3)
    result = joined.step(mine, examples=1)
    joined.member.post = post
    wait_at_most(joined, patient)
    return result


def _step_late(joined: Any, number: int, mine: dict[str, Any]) -> float:
    looked = joined.member.look

    def before() -> Any:
        joined.member.look = looked
        listing = looked()
        return replace(listing, rounds={n: r for n, r in listing.rounds.items() if n < number})

    joined.member.look = before
    return float(joined.step(mine, examples=1)["w"][0])


def test_too_few_members_end_in_an_error_that_names_who_is_missing(tmp_path: Path) -> None:
    with hubless.join(
        tmp_path, "a", pace=hubless.Rounds(members=["a", "b", "c"], quorum=2, deadline=0.2)
    ) as a:
        mine = params(1.0, 10)
        with pytest.raises(QuorumMissed, match="1 of the 2.*missing: b, c.*untouched") as raised:
            a.step(mine, examples=1)
        assert raised.value.missing == ["b", "c"]
        assert (mine["w"] == 1.0).all()


def test_a_missed_quorum_can_be_waited_for_again(tmp_path: Path) -> None:
    def join(client: str) -> hubless.Federation:
        return hubless.join(tmp_path, client, pace=hubless.Rounds(members=2, deadline=0.3))

    with join("a") as a, join("b") as b:
        with pytest.raises(QuorumMissed, match="1 not seen yet"):
            a.step(params(1.0), examples=1)
        for member in (a, b):
            wait_at_most(member, 60.0)

        def again(index: int) -> Any:
            if index == 1:
                # if b came before a waits again, what a shared first would close the round
                assert until(
                    lambda: len(FolderStore(tmp_path).list("rounds/00000000/updates/")) == 2
                )
            return (a, b)[index].step(params(3.0 - 3 * index), examples=1)

        results = together(2, again)
        assert np.allclose(results[0]["w"], 1.5)
        assert np.allclose(results[1]["w"], 1.5)


def test_a_slice_whose_owner_died_is_computed_by_the_others(tmp_path: Path) -> None:
    names = ["a", "b", "c"]

    def join(client: str) -> Any:
        joined = hubless.join(tmp_path, client, pace=hubless.Rounds(members=names, deadline=60.0))
        joined._mode._completing._help_after = 0.2  # type: ignore[attr-defined]
        return joined

    dead = join("c")

    class Died(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Died

    dead._mode._open.wait = die
    with pytest.raises(Died):
        dead.step(params(2.0), examples=1)
    results = together(2, lambda i: join(names[i]).step(params(float(i)), examples=1))
    assert np.allclose(results[0]["w"], 1.0)
    assert results[0]["w"].tobytes() == results[1]["w"].tobytes()


@pytest.mark.parametrize("strategy", [hubless.FedAvg(), hubless.FedAdam()])
def test_a_member_that_returns_continues_from_the_last_round(
    strategy: hubless.Strategy, tmp_path: Path
) -> None:
    def join(client: str) -> hubless.Federation:
        return hubless.join(tmp_path, client, pace=hubless.Rounds(members=2), strategy=strategy)

    a, b = join("a"), join("b")
    expected, state = None, None
    results: list[Any] = []
    for r in range(4):
        if r == 2:
            a.close()
            a = join("a")
            assert np.array_equal(a.pull(params(0.0))["w"], results[0]["w"])
        trained = [params(float(r)), params(float(r + 2))]
        results = together(2, lambda i, t=trained: (a, b)[i].step(t[i], examples=1))  # noqa: B023
        updates = [Update("ab"[i], trained[i], 1, version=r) for i in range(2)]
        expected, state = aggregate(strategy, updates, expected, state)
        for result in results:
            assert np.allclose(result["w"], expected["w"], atol=1e-6)


def test_rounds_that_are_over_are_collected(tmp_path: Path) -> None:
    def member(index: int) -> None:
        with hubless.join(tmp_path, f"m{index}", pace=hubless.Rounds(members=3)) as joined:
            for r in range(6):
                joined.step(params(float(r)), examples=1)

    together(3, member)
    rounds = keys.parse_listing(FolderStore(tmp_path).list("rounds/")).rounds
    assert max(rounds) == 5
    assert all(len(rounds[n].updates) == 0 for n in rounds if n < 3)
    assert min(rounds) >= 2


def test_the_result_reaches_somebody_who_only_looks(tmp_path: Path) -> None:
    store = MemoryStore()

    def member(index: int) -> None:
        with hubless.join(store, f"m{index}", pace=hubless.Rounds(members=2)) as joined:
            joined.step(params(float(index)), examples=1)

    together(2, member)
    with hubless.join(store, "m2", pace=hubless.Rounds(members=2)) as joined:
        assert np.allclose(joined.pull(params(9.0))["w"], 0.5)


def test_a_slice_that_was_damaged_is_computed_again(tmp_path: Path) -> None:
    store = MemoryStore()

    def member(index: int) -> None:
        with hubless.join(store, f"m{index}", pace=hubless.Rounds(members=2)) as joined:
            joined.step(params(float(index)), examples=1)

    together(2, member)
    (damaged, *_) = [e for e in store.list("rounds/") if "/slices-" in e.key]
    body = bytearray(store.get(damaged.key, 1 << 30))
    body[-5] ^= 255
    store.put(damaged.key, [body])
    said: list[events.Event] = []
    with hubless.join(store, "m0", pace=hubless.Rounds(members=2), events=said.append) as joined:
        assert np.allclose(joined.pull(params(9.0))["w"], 0.5)
    (refused,) = [e for e in said if isinstance(e, events.RefusedUpdate)]
    assert refused.key == damaged.key


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_a_server_optimizer_remembers_floats_of_different_width_side_by_side(name: str) -> None:
    strategy = hubless.strategy.kinds()[name]()
    store = MemoryStore()
    expected, state = None, None
    for r in range(3):
        trained = {
            "bias": np.full(3, r + 0.25, np.float16),
            "temperature": 0.7 * r,  # a Python float is a float64
            "w": np.full(8, r + 1.0, np.float32),
        }
        # a process for each round, so that what is remembered comes from the slices
        with hubless.join(store, "a", pace=hubless.Rounds(members=1), strategy=strategy) as a:
            result = a.step(trained, examples=1)
        arrays = {n: np.asarray(v) for n, v in trained.items()}
        expected, state = aggregate(strategy, [Update("a", arrays, 1, r)], expected, state)
        for param, value in expected.items():
            assert result[param].dtype == value.dtype
            assert np.allclose(result[param], value, atol=1e-3 if param == "bias" else 1e-6)


class Slow(MemoryStore):
    """A store in which time passes, but only while a slice goes up; it notes when each did."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.slices: list[tuple[float, float]] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def put(self, key: str, parts: Any, *, create: bool = False) -> None:
        began = self.seconds
        if "/slices-" in key:
            self.seconds += 100.0
            self.slices.append((began, self.seconds))
        super().put(key, parts, create=create)


def test_the_time_that_a_member_spends_on_its_own_slice_is_no_waiting_for_others() -> None:
    store = Slow()
    names = ["a", "b", "c"]

    def join(client: str) -> Any:
        return hubless.join(store, client, pace=hubless.Rounds(members=names), clock=store)

    class Died(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Died

    for client in "bc":
        dead = join(client)
        dead._mode._open.wait = die
        with pytest.raises(Died):
            dead.step(params(1.0), examples=1)
    alive = join("a")
    alive.step(params(1.0), examples=1)
    own, second, third = store.slices
    help_after = alive._mode._completing._help_after
    assert second[0] - own[1] >= help_after
    # once the others are late they stay so, however long it takes to help out
    assert third[0] - second[1] < help_after


def test_who_finds_that_rounds_went_by_hears_that_it_was_late(tmp_path: Path) -> None:
    pace = hubless.Rounds(["a", "b"], quorum=1, deadline=0.05)
    said: list[events.Event] = []
    with (
        hubless.join(tmp_path, "a", pace=pace) as a,
        hubless.join(tmp_path, "b", pace=pace, events=said.append) as b,
    ):
        for member in (b, a, a, b):
            member.step(params(1.0, 10), examples=1)
    assert [event.round for event in said if isinstance(event, events.Late)] == [2]
