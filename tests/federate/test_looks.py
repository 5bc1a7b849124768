"""Looks in rounds: members find out together what whole updates are like, and check each other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import hubless
from hubless import events
from hubless.errors import FederationError, Refused
from hubless.federate import arrived_at, keys
from hubless.federate.fold import Flat, Own
from hubless.federate.looking import looks, steps_of
from hubless.signature import Signature
from hubless.store.base import Store
from hubless.store.folder import FolderStore
from hubless.store.memory import MemoryStore
from hubless.store.reliable import Reliable
from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace, ServerAdam
from hubless.strategy.reducers import Mean
from hubless.testing.metered import Metered

SIZE = 3 << 20


class Site:
    """A member that looks, and what it heard."""

    def __init__(self, store: Store, number: int, of: int, strategy: Strategy) -> None:
        self.store, self.said = Metered(store), list[events.Event]()
        pace = hubless.Rounds(members=[f"m{i:02d}" for i in range(of)], deadline=120)
        self.start = np.zeros(SIZE, np.float32)
        self.member: Any = hubless.join(
            self.store,
            f"m{number:02d}",
            pace=pace,
            strategy=strategy,
            model={"w": self.start} if strategy.partial else None,
            events=self.said.append,
        )
        self.jointly = self.member._mode._completing
        self.jointly._help_after = 0.2

    def step(self, value: float) -> Any:
        self.store.bytes_down = 0
        model = np.full(SIZE, value, np.float32)
        return self.member.step({"w": model}, examples=10)["w"]

    def heard(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.said if isinstance(event, kind)]


def named_in_first_round(site: Site) -> set[str]:
    """Whose records this member refused, or found to be wrong."""
    named = [*site.heard(events.Forged), *site.heard(events.RefusedUpdate)]
    return {e.peer for e in named if e.key.startswith("rounds/00000000/looks-")}


def played(sites: Sequence[Site], values: Sequence[float]) -> list[Any]:
    with ThreadPoolExecutor(len(sites)) as pool:
        return list(pool.map(Site.step, sites, values))


@pytest.mark.parametrize("strategy", [hubless.MultiKrum(), hubless.NormBound()], ids=repr)
def test_what_a_member_downloads_does_not_grow_with_the_members(
    strategy: Strategy, tmp_path: Path
) -> None:
    sites = [Site(FolderStore(tmp_path), i, 12, strategy) for i in range(12)]
    for site in sites:
        # helping out those who are late costs more, and here nobody is, however slow it goes
        site.jointly._help_after = float("inf")
    results = played(sites, [1.0 + i / 100 for i in range(11)] + [1e4])
    assert len({result.tobytes() for result in results}) == 1
    assert results[0].max() < 2
    for site in sites:
        # slices twice, a stretch of all updates, a unit of each record, and the records; once,
        # the params that changes are from
        assert site.store.bytes_down < (4.2 + strategy.partial) * 4 * SIZE
    listing = sites[0].member.member.look()
    records = [made for made in listing.rounds[0].made if "/looks-" in made.key]
    assert len(records) == 12
    assert sum(made.size for made in records) < 4 * SIZE / 8


def test_who_publishes_a_false_record_is_named_and_decides_nothing() -> None:
    store = MemoryStore()
    sites = [Site(store, i, 6, hubless.MultiKrum()) for i in range(6)]
    forger = sites[5]
    honest = forger.jointly._looks._seen

    def flattered(*arguments: Any) -> Any:
        return honest(*arguments) * 0.0

    def unchecked(*arguments: Any) -> None:
        return None

    forger.jointly._looks._seen, forger.jointly._looks.check = flattered, unchecked
    results = played(sites, [1.0, 1.1, 1.2, 1.3, 1.4, 666.0])
    # who had ended the round before the record came hears of it in the next one
    played(sites, [1.0, 1.1, 1.2, 1.3, 1.4, 666.0])
    for site, result in zip(sites[:5], results, strict=False):
        assert result.max() < 2
        assert named_in_first_round(site) == {"m05"}


def test_a_record_that_no_changes_can_have_is_refused_by_name() -> None:
    store = MemoryStore()
    sites = [Site(store, i, 6, hubless.MultiKrum()) for i in range(6)]
    forger = sites[5]
    honest = forger.jointly._looks._seen

    def absurd(*arguments: Any) -> Any:
        seen = honest(*arguments)
        # further apart than their lengths allow
        seen[:, 1] = -1e12
        return seen

    forger.jointly._looks._seen = absurd
    results = played(sites, [1.0, 1.1, 1.2, 1.3, 1.4, 666.0])
    played(sites, [1.0, 1.1, 1.2, 1.3, 1.4, 666.0])
    for site, result in zip(sites[:5], results, strict=False):
        assert result.max() < 2
        # nobody has to read it who was done before: it contradicts what this member made
        assert named_in_first_round(site) == {"m05"}
        reasons = {event.reason for event in site.heard(events.RefusedUpdate)}
        assert reasons <= {"its products are none of any changes"}


def test_a_damaged_record_is_refused_by_name_and_made_again() -> None:
    store = MemoryStore()
    sites = [Site(store, i, 3, hubless.MultiKrum()) for i in range(3)]
    member = sites[2].member.member
    publish = member.publish

    def damaged(key: str, parts: Sequence[Any]) -> None:
        body = bytearray(b"".join(bytes(part) for part in parts))
        if "/looks-" in key:
            body[-1] ^= 1
        publish(key, [bytes(body)])

    member.publish = damaged
    for site in sites:
        # everybody waits for it, and reads it
        site.jointly._help_after = float("inf")
    results = played(sites, [1.0, 1.1, 1.2])
    assert len({result.tobytes() for result in results}) == 1
    for site in sites[:2]:
        refused = [e.key for e in site.heard(events.RefusedUpdate) if "/looks-" in e.key]
        assert refused and all("=m02=" in key for key in refused)


def test_slices_name_the_looks_that_they_follow() -> None:
    store = MemoryStore()
    sites = [Site(store, i, 3, hubless.MultiKrum()) for i in range(3)]
    played(sites, [1.0, 1.1, 1.2])
    listing = keys.parse_listing(store.list(""))
    made = [made for made in listing.rounds[0].made if "/slices-" in made.key]
    (followed,) = {each.look for each in made}
    assert len(followed) == 32
    assert all(each.key.endswith(f"-{followed}.safetensors") for each in made)


def test_looks_leave_with_their_rounds() -> None:
    store = MemoryStore()
    sites = [Site(store, i, 2, hubless.MultiKrum()) for i in range(2)]
    for _ in range(4):
        played(sites, [1.0, 1.1])
    left = {entry.key.split("/")[1] for entry in store.list("rounds/") if "/looks-" in entry.key}
    assert left == {"00000002", "00000003"}


@pytest.mark.parametrize("look", ["norms", "products"])
def test_a_record_comes_to_the_same_bits_however_much_is_read_at_a_time(look: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = {"a": ((200_000,), "f4"), "b": ((300_001,), "f8"), "n": ((7,), "i8")}
    signature = Signature.of({name: np.zeros(*given) for name, given in arrays.items()})

    def update() -> Own:
        params = {name: rng.normal(size=size).astype(of) for name, (size, of) in arrays.items()}
        return Own(signature, signature.pack(params), lambda: None)

    sources = [update() for _ in range(5)]
    current: Flat = update().flat
    steps = steps_of(signature, range(len(signature.blocks)))
    units = [steps[:7], steps[7:20], steps[20:]]
    seen = []
    for most in (1 << 16, 1 << 20, 8 << 20):
        store = Reliable(MemoryStore())
        store.request_bytes = most
        seen.append(looks(signature, units, sources, look, store, current))
    alone = [
        looks(signature, [unit], sources, look, Reliable(MemoryStore()), current)[0]
        for unit in units
    ]
    assert all(np.array_equal(each, seen[0]) for each in [*seen, np.stack(alone)])
    changes = [
        np.concatenate(
            [
                signature.unpack(flat)[name].astype(float) - signature.unpack(current)[name]
                for name in ("a", "b")
            ]
        )
        for flat in (source.flat for source in sources)
    ]
    expected = np.array([[a @ b for b in changes] for a in changes])
    expected = expected.diagonal() if look == "norms" else expected
    np.testing.assert_allclose(seen[0].sum(0), expected, rtol=1e-6)


@pytest.mark.parametrize("strategy", [hubless.MultiKrum(), hubless.FedAvg()], ids=repr)
def test_whether_an_update_is_bad_does_not_depend_on_how_much_of_it_is_read(
    strategy: Strategy,
) -> None:
    store = MemoryStore()
    sites = [Site(store, i, 3, strategy) for i in range(3)]
    hot = np.ones(SIZE, np.float32)
    # over any whole block less than what counts as diverged, and far more over a part of one
    hot.reshape(-1, 1 << 18)[:, 1 << 16 : 1 << 17] = 1.9e6
    with ThreadPoolExecutor(3) as pool:
        own = [np.full(SIZE, 1.1, np.float32), np.full(SIZE, 1.2, np.float32), hot]
        results = list(pool.map(lambda s, w: s.member.step({"w": w}, examples=1), sites, own))
    assert len({result["w"].tobytes() for result in results}) == 1
    for site in sites:
        assert not site.heard(events.RefusedUpdate)
        assert all(len(event.included) == 3 for event in site.heard(events.Closed))


def test_garbage_to_start_from_is_an_error_where_changes_are_bounded() -> None:
    store = MemoryStore()
    store.put(keys.INITIAL, [b"x" * 50])
    sites = [Site(store, i, 2, hubless.NormBound(bound=1.0)) for i in range(2)]
    with pytest.raises(FederationError, match=r"initial\.safetensors cannot be used"):
        played(sites, [5.0, 5.0])


@dataclass(frozen=True)
class Odd:
    """A weighting that nobody but its members knows."""

    look: Literal["norms", "products"]
    partial: bool = False

    def __call__(self, seen: Any) -> Any:
        return np.minimum(1 / (1 + seen.norms), 0.4)


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(Odd("norms"), Mean(), Replace()),
        Strategy(Odd("norms", partial=True), Mean(), Replace()),
        Strategy(Odd("products"), Mean(), ServerAdam()),
    ],
    ids=["norms", "partial", "with memory"],
)
def test_who_does_not_know_the_strategy_reads_what_its_members_agree_about(
    strategy: Strategy,
) -> None:
    store, refused = MemoryStore(), list[Refused]()
    pace, start = hubless.Rounds(members=2), {"w": np.zeros(1000, np.float32)}
    members = [
        hubless.join(store, name, pace=pace, strategy=strategy, model=start) for name in "ab"
    ]
    for value in (1.0, 2.0, 3.0):
        model = {"w": np.full(1000, value, np.float32)}
        with ThreadPoolExecutor(2) as pool:
            steps = [pool.submit(member.step, model, examples=1) for member in members]
            result, _ = (step.result() for step in steps)
    agreement, arrived = arrived_at(store, refused.append)
    assert arrived is not None
    assert np.array_equal(agreement.signature.unpack(arrived.flat)["w"], result["w"])
    assert not refused
