"""Asynchronous mode: nobody waits, every update counts once, and the folder is the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import events
from hubless.errors import StoreError
from hubless.federate.keys import newest, parse_updates
from hubless.store.base import Bytes
from hubless.store.folder import FolderStore
from hubless.store.memory import MemoryStore
from hubless.strategy.weighting import ByStaleness, Decay
from hubless.testing.metered import Metered


def params(value: float, size: int = 600_000) -> dict[str, Any]:
    """Over two blocks of float32, and a counter."""
    return {"w": np.full(size, value, np.float32), "steps": np.array(int(10 * value))}


def test_params_are_averaged_by_examples_and_of_counters_the_middle_one_counts(
    tmp_path: Path,
) -> None:
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        a.step(params(1.0), examples=30)
        result = b.step(params(5.0), examples=10)
    assert np.allclose(result["w"], 2.0)
    assert (result["steps"], result["steps"].dtype) == (10, np.int64)


def test_an_update_counts_once_and_nothing_unchanged_is_downloaded(tmp_path: Path) -> None:
    store = Metered(FolderStore(tmp_path))
    with hubless.join(tmp_path, "a") as a, hubless.join(store, "b") as b:
        a.step(params(1.0), examples=1)
        b.step(params(3.0), examples=1)
        store.requests.clear()
        store.bytes_down = 0
        mine = params(7.0)
        result = b.step(mine, examples=1)
        assert result is mine
        assert store.bytes_down == 0
        assert store.requests == {"put": 1, "list": 1}


def test_all_peers_can_be_averaged_in_every_time(tmp_path: Path) -> None:
    with (
        hubless.join(tmp_path, "a") as a,
        hubless.join(tmp_path, "b", pace=hubless.Anytime(peers="all")) as b,
    ):
        a.step(params(1.0), examples=1)
        for value in (3.0, 7.0):
            assert np.allclose(b.step(params(value), examples=1)["w"], (1 + value) / 2)


def test_a_member_that_returns_goes_on_counting_and_can_pull_what_all_have(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        for value in (1.0, 2.0, 3.0):
            a.step(params(value), examples=1)
        b.step(params(5.0), examples=3)
        sequence, version = a.member.sequence, a.version
    said: list[events.Event] = []
    with hubless.join(tmp_path, "a", events=said.append) as again:
        (joined,) = said
        assert isinstance(joined, events.Joined)
        assert joined.resumed
        assert (again.member.sequence, again.version) == (sequence, version)
        assert np.allclose(again.pull(params(0.0))["w"], (3.0 + 3 * 5.0) / 4)


def test_own_superseded_updates_are_collected_and_nobody_elses(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        for _ in range(5):
            a.step(params(1.0), examples=1)
        b.step(params(1.0), examples=1)
        kept = parse_updates(store.list("updates/"))
        assert [(p.client, p.sequence) for p in kept] == [("a", 3), ("a", 4), ("b", 0)]


def test_staleness_is_known_to_the_strategy(tmp_path: Path) -> None:
    said: list[events.Event] = []
    strategy = hubless.FedAvg(ByStaleness(Decay("polynomial", a=1.0)))
    with (
        hubless.join(tmp_path, "slow") as slow,
        hubless.join(tmp_path, "fast", strategy=strategy, events=said.append) as fast,
    ):
        for _ in range(3):
            fast.step(params(1.0), examples=1)
        slow.step(params(5.0), examples=1)
        result = fast.step(params(1.0), examples=1)
        pulled = said[-1]
        assert isinstance(pulled, events.Pulled)
        # three versions behind: a quarter of a fresh one's weight
        assert pulled.weights["slow"] == pytest.approx(0.25 / 1.25)
        assert pulled.staleness == {"slow": 3}
        assert np.allclose(result["w"], (1.0 + 0.25 * 5.0) / 1.25)


def test_each_member_may_have_its_own_strategy(tmp_path: Path) -> None:
    with (
        hubless.join(tmp_path, "a") as a,
        hubless.join(tmp_path, "b") as b,
        hubless.join(tmp_path, "c", strategy=hubless.FedMedian()) as c,
    ):
        a.step(params(1.0), examples=1)
        assert np.allclose(b.step(params(9.0), examples=1)["w"], 5.0)
        assert np.allclose(c.step(params(2.0), examples=1)["w"], 2.0)


def test_a_server_optimizer_carries_its_memory_from_step_to_step(tmp_path: Path) -> None:
    strategy = hubless.FedAvgM(lr=1.0, momentum=0.5)
    with hubless.join(tmp_path, "a") as a:
        a.step(params(0.0), examples=1)
        b = hubless.join(tmp_path, "b", strategy=strategy, model=params(0.0))
        a.step(params(1.0), examples=1)
        first = b.step(params(0.0), examples=1)
        assert np.allclose(first["w"], 0.5)
        a.step(params(1.0), examples=1)
        second = b.step(first, examples=1)
        # towards 0.75 from 0.5, with half of the last step's 0.5 on top
        assert np.allclose(second["w"], 0.5 + 0.25 + 0.25)


def test_only_what_matches_the_patterns_is_shared(tmp_path: Path) -> None:
    def model(value: float) -> dict[str, Any]:
        return {"body.w": np.full(4, value), "head.w": np.full(2, value)}

    with (
        hubless.join(tmp_path, "a", share=["body.*"]) as a,
        hubless.join(tmp_path, "b", share=["body.*"]) as b,
    ):
        a.step(model(1.0), examples=1)
        result = b.step(model(3.0), examples=1)
    assert (result["body.w"] == 2.0).all()
    assert (result["head.w"] == 3.0).all()


def test_every_and_participation_leave_calls_out(tmp_path: Path) -> None:
    said: list[events.Event] = []
    with hubless.join(tmp_path, "a", every=3, events=said.append) as a:
        for _ in range(9):
            a.step(params(1.0, 10), examples=1)
    assert len([e for e in said if isinstance(e, events.Pushed)]) == 3
    said.clear()
    with hubless.join(
        tmp_path, "b", who=hubless.Participation(0.4, seed=1), events=said.append
    ) as b:
        for _ in range(200):
            b.step(params(1.0, 10), examples=1)
    pushed = len([e for e in said if isinstance(e, events.Pushed)])
    assert pushed + len([e for e in said if isinstance(e, events.Skipped)]) == 200
    assert 60 <= pushed <= 100


def test_all_start_from_the_first_members_params(tmp_path: Path) -> None:
    hubless.join(tmp_path, "a", model=params(1.0, 10))
    b = hubless.join(tmp_path, "b", model=params(2.0, 10))
    assert np.allclose(b.pull(params(2.0, 10))["w"], 1.0)


class Unplugged(MemoryStore):
    """A store that can be taken off the network."""

    online = True

    def put(self, key: str, parts: Any, *, create: bool = False) -> None:
        self._check()
        super().put(key, parts, create=create)

    def list(self, prefix: str) -> Any:
        self._check()
        return super().list(prefix)

    def _check(self) -> None:
        if not self.online:
            raise StoreError("the network is down")


def test_a_member_that_is_offline_trains_on_and_catches_up() -> None:
    store = Unplugged()
    said: list[events.Event] = []
    with (
        hubless.join(store, "a") as a,
        hubless.join(hubless.Bucket(store, patience=0.05), "b", events=said.append) as b,
    ):
        a.step(params(1.0), examples=1)
        store.online = False
        mine = params(3.0)
        assert b.step(mine, examples=1) is mine
        assert isinstance(said[-1], events.Offline)
        assert "network is down" in said[-1].reason
        store.online = True
        assert np.allclose(b.step(mine, examples=1)["w"], 2.0)


class Hasty(MemoryStore):
    """A store in which a peer replaces its update whenever somebody starts to read it."""

    def __init__(self) -> None:
        super().__init__()
        self.replacements: list[tuple[str, list[Bytes]]] = []

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        if self.replacements:
            fresh, parts = self.replacements.pop()
            super().put(fresh, parts)
            self.delete([key])
        return super().read(key, start, stop, into)


def test_an_update_that_is_replaced_while_it_is_read_is_taken_in_its_newest_form() -> None:
    store, aside = Hasty(), MemoryStore()
    with hubless.join(store, "a") as a, hubless.join(aside, "a") as later:
        a.step(params(1.0), examples=1)
        later.member.incarnation = a.member.incarnation
        for value in (8.0, 9.0):
            later.step(params(value), examples=1)
        fresh = newest(parse_updates(aside.list("updates/")))["a"]
        store.replacements.append((fresh.key, [aside.get(fresh.key, 1 << 30)]))
        with hubless.join(store, "b") as b:
            assert np.allclose(b.step(params(1.0), examples=1)["w"], 5.0)


def test_memory_does_not_grow_with_the_number_of_peers(tmp_path: Path) -> None:
    import tracemalloc

    size = 2_000_000
    peaks = []
    for count in (2, 8):
        folder = tmp_path / str(count)
        for i in range(count):
            with hubless.join(folder, f"peer-{i}") as peer:
                peer.step(params(1.0, size), examples=1)
        with hubless.join(folder, "me") as me:
            mine = params(2.0, size)
            tracemalloc.start()
            me.step(mine, examples=1)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    # six peers more, and not half a model more: one or two more pieces on their way are chance
    assert peaks[1] - peaks[0] < 4 * size / 2
    assert peaks[1] < 2.5 * 4 * size + (4 << 20)


def test_a_write_of_a_former_life_that_lands_late_is_never_taken_for_news() -> None:
    store = MemoryStore()
    for _ in range(8):  # a nonce that ranks higher by chance must not matter
        first = hubless.join(store, "a")
        lost: list[tuple[str, Any]] = []
        first.store.put = lambda key, parts, create=False, lost=lost: lost.append((key, parts))  # type: ignore[method-assign]
        hubless.join(store, "b").step(params(1.0, 10), examples=1)
        first.step(params(100.0, 10), examples=1)
        ((zombie, parts),) = [(k, p) for k, p in lost if k.startswith("updates/")]
        again = hubless.join(store, "a")
        again.step(params(3.0, 10), examples=1)
        store.put(zombie, parts)
        again.step(params(3.0, 10), examples=1)
        kept = newest(parse_updates(store.list("updates/")))["a"]
        assert kept.incarnation == again.member.incarnation


def test_a_process_that_takes_one_step_draws_its_participation_anew_each_time() -> None:
    said: list[events.Event] = []
    store = MemoryStore()
    for _ in range(40):
        with hubless.join(store, "a", who=hubless.Participation(0.5), events=said.append) as a:
            a.step(params(1.0, 10), examples=1)
    assert 10 <= len([e for e in said if isinstance(e, events.Pushed)]) <= 30


def test_the_first_params_are_held_against_the_federations_own_limit() -> None:
    store = MemoryStore()
    large = {"variance": np.full(8, 1e10)}
    hubless.join(store, "a", model=large, limit=1e12)
    b = hubless.join(store, "b", limit=1e12)
    assert np.array_equal(b.pull({"variance": np.zeros(8)})["variance"], large["variance"])


class Outrun(MemoryStore):
    """A store in which a peer shares, twice, before anybody gets through what it shared."""

    peer: hubless.Federation | None = None

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        peer, self.peer = self.peer, None
        if peer is not None and key.startswith("updates/a="):
            for value in (1.0, 3.0):
                peer.step(params(value), examples=1)
        self.peer = peer
        return super().read(key, start, stop, into)


def test_a_peer_that_cannot_be_read_fast_enough_is_named_and_tried_again() -> None:
    store = Outrun()
    said: list[events.Event] = []
    with hubless.join(store, "a") as a, hubless.join(store, "b", events=said.append) as b:
        a.step(params(1.0), examples=1)
        store.peer = a
        mine = params(5.0)
        assert b.step(mine, examples=1) is mine
        (missed,) = [e for e in said if isinstance(e, events.RefusedUpdate)]
        assert missed.peer == "a"
        assert "replaced faster than it could be read" in missed.reason
        store.peer = None
        assert np.allclose(b.step(mine, examples=1)["w"], 4.0)
        assert len([e for e in said if isinstance(e, events.RefusedUpdate)]) == 1
