"""A round that a member has loaded stands for it, and what it found wrong is never loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import events
from hubless.errors import HublessError, QuorumMissed
from hubless.federate.keys import Listing, Round
from hubless.federate.rounds.slices import Work
from hubless.params import Array
from hubless.signature import Block
from hubless.store.memory import MemoryStore
from tests.support.joining import joined

LARGE = 1 << 20


class Sites:
    """Synchronous members of one store, each with what it said and what it was left with."""

    def __init__(self, names: str, **terms: Any) -> None:
        self.store = MemoryStore()
        self.heard: dict[str, list[events.Event]] = {name: [] for name in names}
        self.results: dict[str, Any] = {}
        terms = {"members": list(names), "deadline": 8.0, **terms}
        self.members = {
            name: joined(self.store, name, events=self.heard[name].append, **terms)
            for name in names
        }

    def __getitem__(self, name: str) -> Any:
        return self.members[name]

    def step(self, names: Sequence[str], value: Callable[[str], Any]) -> dict[str, Any]:
        """All of these step at once; what each got, or its error."""

        def one(name: str) -> None:
            try:
                self.results[name] = self.members[name].step(value(name), examples=1)
            except HublessError as error:
                self.results[name] = error

        threads = [threading.Thread(target=one, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results

    def delete_updates_of(self, name: str) -> None:
        listed = self.store.list("rounds/")
        self.store.delete([e.key for e in listed if f"/updates/{name}=" in e.key])

    def kinds(self, name: str) -> set[str]:
        return {event.kind for event in self.heard[name]}


def ones(size: int = LARGE) -> dict[str, Any]:
    return {"w": np.ones(size, np.float32)}


def test_a_slice_that_was_found_wrong_is_not_loaded_where_it_cannot_be_computed() -> None:
    sites = Sites("ab")
    forger, checker = sites["b"]._mode._completing._results, sites["a"]._mode._completing._results
    honest, reduce = forger.state.advance, checker._reduce

    def tripled(block: Block, total: Array) -> tuple[Array, tuple[()]]:
        return honest(block, total)[0] * 3, ()

    def unchecked(work: Work, round_: Round) -> None:
        return None

    def reduced(work: Work, index: int, round_: Round, parts: Any, finish: Any) -> None:
        reduce(work, index, round_, parts, finish)
        if finish.__name__ == "compare":
            # from here on nobody can compute any slice
            sites.delete_updates_of("b")

    forger.state.advance, forger.check = tripled, unchecked
    checker._reduce = reduced
    results = sites.step("ab", lambda name: ones())
    assert np.unique(results["a"]["w"]).tolist() == [1.0]


def test_memory_that_is_damaged_is_refused_by_name_and_computed() -> None:
    sites = Sites("ab", strategy=hubless.FedAdam())
    member = sites["b"].member
    publish = member.publish

    def damaged(key: str, parts: Sequence[Any]) -> None:
        if "/slices-" in key:
            body = bytearray(b"".join(bytes(part) for part in parts))
            # every block of the memory, as nobody knows which is looked at
            for at in range(len(body) - LARGE * 4 + 64, len(body), 1 << 12):
                body[at] ^= 1
            parts = [bytes(body)]
        publish(key, parts)

    member.publish = damaged
    results = sites.step("ab", lambda name: ones())
    assert results["a"]["w"][:2].tolist() == [1.0, 1.0]
    refused = [e for e in sites.heard["a"] if isinstance(e, events.RefusedUpdate)]
    assert [event.peer for event in refused] == ["b"]


def test_what_a_caller_trains_in_place_is_its_own() -> None:
    sites = Sites("ab", deadline=2.0)
    trained = sites.step("ab", lambda name: ones())["a"]["w"]
    trained += 1
    for index in (0, 1):
        key = f"rounds/00000000/slices-0000/{index:05d}=b=0009deadbeef-{'0' * 32}.safetensors"
        sites.store.put(key, [b"x" * 100])
    with pytest.raises(QuorumMissed, match="model is untouched"):
        sites["a"].step({"w": trained}, examples=1)
    assert np.unique(trained).tolist() == [2.0]
    assert "forged" in sites.kinds("a")


def test_who_only_pulls_closes_no_round_again() -> None:
    sites = Sites("abc", strategy=hubless.FedAdam())

    def value(name: str) -> dict[str, Any]:
        return {"w": np.full(8, float("abc".index(name)), np.float32)}

    sites.step("abc", value)
    sites.delete_updates_of("c")
    sites["a"].pull(value("a"))
    plans = [e.key for e in sites.store.list("rounds/") if "/plan-" in e.key]
    assert plans == ["rounds/00000000/plan-0000.json"]
    ends = sites.step("abc", value)
    assert len({end["w"].tobytes() for end in ends.values()}) == 1


def test_who_delivered_and_left_does_not_count_for_another() -> None:
    sites = Sites("abc", members=3)
    sites.step("abc", lambda name: ones(4))
    sites["c"]._mode.deadline = sites["c"]._mode._open._deadline.ceiling = 0.5
    assert isinstance(sites.step("c", lambda name: ones(4))["c"], QuorumMissed)
    sites["c"].close()
    wait = sites["a"]._mode._open
    listing: Listing = sites["a"].member.look()
    present = wait.present(listing, 1, None)
    staying, missing = wait._staying(wait.quorum, present, listing)
    assert list(present) == ["c"]
    assert (staying.enough, missing) == (3, ["a", "b"])
