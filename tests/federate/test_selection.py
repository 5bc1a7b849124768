"""Selection without a server: everybody knows who trains, and nobody has to be asked."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import events
from hubless.errors import (
    DataError,
    FederationError,
    HublessError,
    NotFound,
    ParamsError,
    QuorumMissed,
    SelectionError,
)
from hubless.federate.keys import (
    Incarnation,
    Listing,
    Posted,
    newest,
    parse_listing,
    parse_updates,
    plan_key,
)
from hubless.federate.outside.survey import survey
from hubless.federate.picking.draw import Selection
from hubless.federate.picking.standing import Pick, Standing
from hubless.privacy.mechanisms import Count, Laplace, SparseVector
from hubless.select import Active, Activity, AtMost, Heavy, OptimalSampling, RoundRobin, Uniform
from hubless.select.roster import Roster, Selector
from hubless.signature import Signature
from hubless.store.base import Entry, Store
from hubless.store.folder import FolderStore
from hubless.store.memory import MemoryStore
from hubless.testing.metered import Metered
from tests.support.frequencies import fits, successive
from tests.support.joining import joined
from tests.support.waiting import until

NOTHING: Listing = parse_listing([])


def params(value: float = 1.0) -> dict[str, Any]:
    return {"w": np.full(40, value, np.float32)}


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run all at once; the first failure is raised without waiting for who waits for it."""
    pool = ThreadPoolExecutor(len(jobs))
    try:
        futures = [pool.submit(job) for job in jobs]
        for future in as_completed(futures, timeout=60):
            future.result()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False)


class Instant:
    """A clock on which nobody has to wait."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Patient:
    """A member's own clock, on which time passes only while it should: nobody is late by chance.

    Whatever lets it pass is there for the member to see, because it looks after each pause.
    """

    def __init__(self, passes: Callable[[], bool]) -> None:
        self.seconds, self.passes = 0.0, passes

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        if self.passes():
            self.seconds += seconds
        time.sleep(0.005)


class Site:
    """A member and all that it said, through any number of processes."""

    def __init__(self, store: Any, client: str, **terms: Any) -> None:
        self.store, self.client, self.terms = store, client, terms
        self.said: list[events.Event] = []
        self.member: Any = None

    def join(self, **changed: Any) -> Site:
        terms = {**self.terms, **changed}
        self.member = joined(self.store, self.client, events=self.said.append, **terms)
        return self

    def step(self, value: float = 1.0, **said: Any) -> Any:
        return self.member.step(params(value), **{"examples": 1, **said})

    def live(self, rounds: int, number: int) -> dict[int, bytes]:
        """Take part until so many rounds are over: what each ended with, as far as it saw them."""
        if self.member is None:
            self.join()
        results: dict[int, bytes] = {}
        while (r := self.member.version) < rounds:
            result = self.step(10.0 * r + number, examples=number + 1, valuation=float(number))
            results[self.member.version - 1] = result["w"].tobytes()
        return results

    def turns(self) -> int:
        """How often it shared for a round, or heard that it is not picked for one."""
        return len(self.heard(events.Pushed)) + len(self.heard(events.Skipped))

    def heard(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.said if isinstance(event, kind)]

    def picks(self) -> dict[int, list[str]]:
        return {event.round: event.cohort for event in self.heard(events.Picked)}

    def included(self) -> dict[int, list[str]]:
        return {event.round: event.included for event in self.heard(events.Closed)}


def first_cohort(site: Site) -> tuple[str, ...]:
    """Who is picked for the first round."""
    members: tuple[str, ...] = site.member._mode._picking.pick(0, NOTHING).members
    return members


def next_cohort(site: Site, number: int) -> tuple[str, ...]:
    """Who is picked for a round, once the round before it is over."""
    picking, listing = site.member._mode._picking, site.member.member.look()
    members: tuple[str, ...] = picking.pick(number, listing).members
    return members


def sites(store: Any, names: str, **terms: Any) -> list[Site]:
    terms = {"members": list(names), "deadline": 20.0, **terms}
    return [Site(store, name, **terms) for name in names]


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path)


# --------------------------------------------------------------------- publishing


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -1e-320, 1.7e308, math.pi, 1 / 3])
def test_a_key_carries_a_valuation_to_the_last_bit(value: float) -> None:
    posted = Posted("updates/", "a", 3, Incarnation(1, "0" * 8), 5, 2, "0" * 12, valuation=value)
    read = Posted.parse(Entry(posted.key, 0, 0.0))
    assert read == posted
    assert math.copysign(1, read.valuation) == math.copysign(1, value)  # type: ignore[arg-type,union-attr]


@pytest.mark.parametrize("digits", ["7ff0000000000000", "fff0000000000000", "7ff8000000000000"])
def test_a_key_with_a_valuation_that_is_no_number_is_no_update(digits: str) -> None:
    key = f"updates/a=00000000-000100000000-1-0-{'0' * 12}"
    assert Posted.parse(Entry(f"{key}.safetensors", 0, 0.0)) is not None
    assert Posted.parse(Entry(f"{key}-{digits}.safetensors", 0, 0.0)) is None


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_valuation_is_published_where_one_is_given(mode: str, store: Store) -> None:
    terms = {"members": 1} if mode == "sync" else {}
    site = Site(store, "a", **terms).join()
    site.step(examples=7)
    assert survey(store)[1][0].valuation is None
    site.step(examples=7, valuation=np.float32(0.25))
    assert [event.valuation for event in site.heard(events.Pushed)] == [None, 0.25]
    (member,) = survey(store)[1]
    assert (member.valuation, member.trouble) == (0.25, "")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "3", True, [1.0], 10**400])
def test_a_valuation_that_is_no_finite_number_is_refused_and_nothing_written(
    value: Any, store: Store
) -> None:
    with hubless.join(store, "a") as a, pytest.raises(ParamsError, match="valuation must be"):
        a.step(params(), examples=1, valuation=value)
    assert [entry.key for entry in store.list("") if not entry.key.startswith("members/")] == []


def test_an_update_under_a_key_with_another_valuation_is_refused(store: Store) -> None:
    a, b = Site(store, "a").join(), Site(store, "b").join()
    a.step(valuation=1.0)
    (posted,) = parse_updates(store.list("updates/"))
    forged = posted.key.replace("-3ff0000000000000.", "-7fe0000000000000.")
    store.put(forged, [store.get(posted.key)])
    store.delete([posted.key])
    b.step()
    (refused,) = b.heard(events.RefusedUpdate)
    assert (refused.peer, "another object than its key" in refused.reason) == ("a", True)


def test_an_optimizers_hook_publishes_what_was_reported(store: Store) -> None:
    class Hooked:
        def register_step_post_hook(self, hook: Callable[..., None]) -> Any:
            self.hook = hook
            return self

        def remove(self) -> None:
            pass

    site, optimizer = Site(store, "a").join(), Hooked()
    site.member.attach(params(), optimizer, 10)
    site.member.report(valuation=2.5, loss=0.1)
    optimizer.hook()
    (pushed,) = site.heard(events.Pushed)
    assert (pushed.valuation, pushed.metrics) == (2.5, {"loss": 0.1})


# ------------------------------------------------------------------------ private


def test_private_valuations_are_noisy_and_what_they_cost_is_told(store: Store) -> None:
    site = Site(store, "a", private=Laplace(epsilon=1.0, clip=4.0)).join()
    for _ in range(4):
        site.step(valuation=2.0)
    site.step()
    pushed = site.heard(events.Pushed)
    published = [event.valuation for event in pushed]
    assert len(set(published[:4])) > 1 and published[4] is None
    spent = [event.epsilon for event in pushed]
    assert spent == sorted(spent) and spent[3] == spent[4]
    assert spent[0] == pytest.approx(1.0, abs=1e-3) and 3.0 < spent[3] <= 4.0
    listed = newest(parse_updates(store.list("updates/")))["a"]
    assert listed.valuation is None


def test_noise_does_not_depend_on_the_seed() -> None:
    published = []
    for _ in range(2):
        site = Site(MemoryStore(), "a", private=Laplace(1.0, 4.0), seed=3).join()
        for _ in range(4):
            site.step(valuation=2.0)
        published.append([event.valuation for event in site.heard(events.Pushed)])
    assert published[0] != published[1]


@pytest.mark.parametrize(
    "mechanism", [Count(0.25), SparseVector(Count(0.25), epsilon=0.1, threshold=5.0)]
)
def test_what_was_given_away_is_not_forgotten_by_a_restart(mechanism: Any, store: Store) -> None:
    site = Site(store, "a", private=mechanism).join()
    spent = 0.0
    for life in range(3):
        for _ in range(2):
            site.step(valuation=float(10 * life))
            assert site.heard(events.Pushed)[-1].epsilon >= spent
            spent = site.heard(events.Pushed)[-1].epsilon
        site.member.close()
        site.join()
    # six reports, and one more for each life before this one
    site.step(valuation=1.0)
    assert site.heard(events.Pushed)[-1].epsilon >= 0.25 * 7 - 1e-3


def test_a_valuation_that_a_mechanism_cannot_take_is_refused_before_anything_is_written() -> None:
    site = Site(MemoryStore(), "a", private=Count(1.0)).join()
    with pytest.raises(DataError, match="a count is whole"):
        site.step(valuation=1.5)
    assert not site.store.list("updates/")


def test_a_mechanism_whose_cost_is_unknown_is_refused_at_join() -> None:
    class Own:
        def report(self, clients: Any, values: Any, ledger: Any, rng: Any) -> Any:
            return values

    with pytest.raises(FederationError, match="private= takes a mechanism"):
        hubless.join(MemoryStore(), "a", private=Own())


def test_who_is_not_picked_or_comes_late_pays_once_at_most() -> None:
    store = MemoryStore()
    terms = {"selector": Uniform(), "cohort": 1, "unpicked": "train", "seed": 1}
    a, b = (s.join() for s in sites(store, "ab", **terms, private=Count(0.25)))
    for _ in range(6):
        for site in (a, b):
            site.step(valuation=3.0)
    for site in (a, b):
        reports = len(site.heard(events.Pushed))
        assert 0 < reports < 6
        assert site.heard(events.Pushed)[-1].epsilon == pytest.approx(0.25 * reports, abs=1e-3)


# ------------------------------------------------------------------- synchronous


SELECTORS: list[Selector] = [
    Uniform(),
    Activity("n"),
    Activity("1/log", "exact"),
    Active(alpha1=0.5, alpha2=1.0),
    RoundRobin(),
]


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_everybody_knows_who_is_picked_and_only_they_count(
    selector: Selector, store: Store
) -> None:
    rounds = 6
    members = sites(store, "abcdef", selector=selector, cohort=3, seed=5)
    results = together(*(lambda s=s, i=i: s.live(rounds, i) for i, s in enumerate(members)))
    picks = {r: cohort for r, cohort in merged(members).items() if r < rounds}
    assert sorted(picks) == list(range(rounds))
    means = {}
    for r, cohort in picks.items():
        assert len(cohort) == 3
        numbers = ["abcdef".index(name) for name in cohort]
        means[r] = np.average([10 * r + i for i in numbers], weights=[1 + i for i in numbers])
    for site, result in zip(members, results, strict=True):
        shared = {r for r, cohort in picks.items() if site.client in cohort}
        # whoever trains starts from the round before, so nothing depends on who was quick
        assert [int(event.key[7:15]) for event in site.heard(events.Pushed)] == sorted(shared)
        assert set(site.included()) <= set(result)
        # who was held up until two more rounds were closed is told what those came to
        assert all(r not in result and r + 2 <= max(result) for r in shared - set(site.included()))
        assert all(picks[r] == included for r, included in site.included().items())
        assert not shared & {event.round for event in site.heard(events.Skipped)}
        for r, arrived in result.items():
            assert np.allclose(np.frombuffer(arrived, np.float32), means[r])


def turns(members: list[Site], rounds: int, **said: Any) -> dict[int, list[str]]:
    """Rounds of one member each, one call after the other: who is not picked goes on at once."""
    while len(merged(members)) < rounds:
        for number, site in enumerate(members):
            site.step(float(number), examples=2**number, **said)
    return merged(members)


def merged(members: list[Site]) -> dict[int, list[str]]:
    picks: dict[int, list[str]] = {}
    for site in members:
        for number, cohort in site.picks().items():
            assert picks.setdefault(number, cohort) == cohort
    return picks


@pytest.mark.parametrize("f", ["n", "1/log"])
def test_members_are_picked_as_often_as_their_activity_says(f: str) -> None:
    alone = {"selector": Activity(f), "cohort": 1, "unpicked": "train", "seed": 11}
    alone["clock"] = Instant()
    members = [site.join() for site in sites(MemoryStore(), "abcd", **alone)]
    picks = turns(members, 500)
    examples = np.array([1, 2, 4, 8])
    weights = Activity(f).weights(Roster(examples))
    seen: set[str] = set()
    counts: Counter[tuple[int, ...]] = Counter()
    for number in sorted(picks):
        (name,) = picks[number]
        if len(seen) == 4:
            counts[("abcd".index(name),)] += 1
        seen.add(name)
    assert fits(counts, successive(weights.tolist(), 1))


def test_a_member_that_was_never_seen_counts_as_the_median_and_one_without_data_as_one() -> None:
    asked: list[list[int]] = []

    @hubless.select.selector
    def spy(roster: Roster, k: int, rng: np.random.Generator) -> Any:
        asked.append(roster.examples.tolist())
        return [roster.round % len(roster)]

    members = sites(MemoryStore(), "abcd", selector=spy, cohort=1, unpicked="train")
    asked.clear()
    for number, site in enumerate(s.join() for s in members):
        site.step(examples=[100, 7, 0, 9][number])
    first = {tuple(row) for row in asked}
    assert first == {(1, 1, 1, 1), (100, 100, 100, 100), (100, 7, 7, 7), (100, 7, 1, 7)}


def test_a_restart_in_the_middle_changes_nothing(store: Store) -> None:
    terms = {"selector": Active(alpha1=0.5), "cohort": 1, "unpicked": "train", "seed": 2}
    steady = [site.join() for site in sites(MemoryStore(), "abcde", **terms)]
    shaken = [site.join() for site in sites(store, "abcde", **terms)]

    def sweep(members: list[Site]) -> None:
        for number, site in enumerate(members):
            site.step(examples=number, valuation=float((7 * number) % 5))

    for again in range(14):
        sweep(steady)
        sweep(shaken)
        restarted = shaken[again % 5]
        restarted.member.close()
        restarted.join()
    assert len(merged(steady)) >= 14
    assert merged(shaken) == merged(steady)
    sequences = [site.member.member.sequence for site in shaken]
    assert sequences == [site.member.member.sequence for site in steady]


def test_restarts_in_company_change_nothing(tmp_path: Path) -> None:
    terms = {"selector": Activity("sqrt"), "cohort": 2, "seed": 4}
    runs = []
    for folder, restarts in (("steady", False), ("shaken", True)):
        members = sites(tmp_path / folder, "abcd", **terms)

        def live(site: Site, number: int, restarts: bool = restarts) -> None:
            site.live(3 + number % 2, number)
            if restarts:
                # as if killed: whoever closes says that it left, and is not waited for
                site.join()
            site.live(8, number)

        together(*(lambda s=s, i=i, live=live: live(s, i) for i, s in enumerate(members)))
        runs.append({r: cohort for r, cohort in merged(members).items() if r < 8})
        for site in members:
            assert all(runs[-1][r] == included for r, included in site.included().items())
    assert len(runs[0]) == 8
    assert runs[0] == runs[1]


def test_who_joins_late_knows_what_the_others_know(store: Store) -> None:
    terms = {"selector": RoundRobin(), "cohort": 3, "quorum": 2, "deadline": 0.2, "seed": 1}
    everybody = sites(store, "abcd", **terms)
    *early, late = everybody
    away = {"d"}

    def waits_for_who_is_away(site: Site) -> bool:
        drawn = site.member._mode._picking._drawn
        number, pick = drawn.number, drawn.pick
        pushed = [event for s in everybody for event in s.heard(events.Pushed)]
        there = {event.client for event in pushed if int(event.key[7:15]) == number}
        return set(pick.members) <= there | away

    for site in everybody:
        site.terms["clock"] = Patient(lambda site=site: waits_for_who_is_away(site))
    together(*(lambda s=s, i=i: s.live(5, i) for i, s in enumerate(early)))
    picks = merged(early)
    assert any("d" in cohort for cohort in picks.values())
    for site in early:
        for r, included in site.included().items():
            assert included == [name for name in picks[r] if name != "d"]
    # the first rounds are collected by now, and what was known then is still known
    assert not [key for key in store.list("rounds/00000000/") if "/plan-" in key.key]
    away.clear()
    together(*(lambda s=s, i=i: s.live(12, i) for i, s in enumerate(everybody)))
    merged(everybody)
    assert sum("d" in cohort for cohort in late.included().values()) >= 4


def test_a_picked_member_that_is_dead_is_named_to_all_and_nobody_waits_for_ever() -> None:
    store = MemoryStore()
    everybody = sites(store, "abcd", selector=Uniform(), cohort=3, seed=1, deadline=0.3)
    cohort = first_cohort(everybody[0].join())
    dead = cohort[0]
    living = [site for site in everybody if site.client != dead]
    for site in living:
        site.join(clock=Patient(lambda: all(s.turns() == 1 for s in living)))

    def die(site: Site) -> str:
        with pytest.raises(QuorumMissed, match=f"missing: {dead}.*untouched") as raised:
            site.step()
        assert raised.value.missing == [dead]
        return site.client

    assert together(*(lambda s=s: die(s) for s in living)) == [s.client for s in living]
    (idle,) = (site for site in living if site.client not in cohort)
    assert [event.round for event in idle.heard(events.Skipped)] == [0]
    for site in everybody:
        site.terms["deadline"] = 20.0
        site.join()

    def go_on(site: Site) -> Any:
        if site.client == dead:
            # before the others are back, what they shared first would close the round without them
            assert until(lambda: all(s.turns() == 2 for s in living))
        return site.step()

    results = together(*(lambda s=s: go_on(s) for s in everybody))
    assert all(np.allclose(result["w"], 1.0) for result in results)
    assert all(site.included() == {0: list(cohort)} for site in everybody)


def test_a_quorum_closes_without_a_picked_member_that_is_dead() -> None:
    terms = {"selector": Uniform(), "cohort": 3, "quorum": 2, "seed": 1, "deadline": 0.3}
    everybody = sites(MemoryStore(), "abcd", **terms)
    cohort = first_cohort(everybody[0].join())
    living = [site for site in everybody if site.client != cohort[0]]
    for site in living:
        site.join(clock=Patient(lambda: all(s.turns() == 1 for s in living)))
    together(*(lambda s=s: s.step() for s in living))
    for site in living:
        assert site.included() == {0: list(cohort[1:])}


def test_a_late_update_counts_only_where_its_member_is_picked() -> None:
    terms = {"selector": RoundRobin(), "cohort": 2, "quorum": 1, "deadline": 0.2}
    everybody = [s.join() for s in sites(MemoryStore(), "abcd", **terms, unpicked="train")]
    cohort = first_cohort(everybody[0])
    quick, slow = (next(s for s in everybody if s.client == name) for name in cohort)
    quick.step()
    look = slow.member.member.look

    def before() -> Listing:
        slow.member.member.look = look
        return NOTHING

    # as if it had looked before the other closed the round
    slow.member.member.look = before
    mine = params(9.0)
    assert slow.member.step(mine, examples=1) is mine
    (late,) = slow.heard(events.Late)
    assert (late.round, [e.round for e in slow.heard(events.Skipped)]) == (0, [1])
    assert slow.client not in merged(everybody)[1]
    assert len(slow.heard(events.Pushed)) == 1


def test_an_update_of_who_was_not_picked_is_refused_by_name(store: Store) -> None:
    terms = {"selector": Uniform(), "cohort": 2, "seed": 1}
    everybody = [site.join() for site in sites(store, "abcd", **terms)]
    cohort = first_cohort(everybody[0])
    pushy = next(site for site in everybody if site.client not in cohort)
    pushy.member._mode._picking.pick = lambda *_: Pick((pushy.client,), {})
    pushy.member._mode._open.wait = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        pushy.step(50.0)
    results = together(*(lambda s=s: s.step() for s in everybody if s is not pushy))
    assert all(np.allclose(result["w"], 1.0) for result in results)
    reason = f"it was not picked for this round: {', '.join(cohort)} were"
    refused = [event for site in everybody for event in site.heard(events.RefusedUpdate)]
    # whoever comes when others have closed the round takes its result, and reads no update
    assert {(event.peer, event.reason) for event in refused} == {(pushy.client, reason)}
    assert len(refused) == len({event.client for event in refused})
    for site in everybody:
        if site.client in cohort:
            assert site.included() == {0: list(cohort)}


def test_a_bad_update_of_a_picked_member_is_not_known_afterwards(store: Store) -> None:
    everybody = sites(store, "abc", selector=Uniform(), cohort=2, seed=1)
    cohort = first_cohort(everybody[0].join())
    digest = Signature.of(params()).digest
    nonce = Incarnation(1, "0" * 8)
    folder = "rounds/00000000/updates/"
    bad = Posted(folder, cohort[0], 0, nonce, 99, 0, digest, valuation=5.0)
    store.put(bad.key, [b"garbage"])
    honest = [site.join() for site in everybody if site.client != cohort[0]]
    for site in honest:
        site.member._mode._completing._help_after = 0.1
    together(*(lambda s=s: s.step(examples=3, valuation=1.0) for s in honest))
    for site in honest:
        # whoever was not picked may come when the round is over, and then hears nothing of it
        late = {} if site.client not in cohort else {0: [cohort[1]]}
        assert site.included() in (late, {0: [cohort[1]]})
    documents = [json.loads(store.get(plan_key(0, attempt))) for attempt in (0, 1)]
    assert documents[0]["roster"] == documents[1]["roster"]
    assert [len(document["included"]) for document in documents] == [2, 1]
    known = honest[0].member._mode._plans.get(0, 1).known_after(0)
    assert (known[cohort[0]].selected, known[cohort[0]].last_seen) == (1, -1)
    assert (known[cohort[1]].examples, known[cohort[1]].valuation) == (3, 1.0)


def test_a_member_that_rounds_went_by_starts_from_their_result_before_it_shares() -> None:
    terms = {"selector": Activity("n"), "cohort": 1, "seed": 3, "clock": Instant()}
    a, b = sites(MemoryStore(), "ab", **terms)
    a.join(unpicked="train")
    b.join()
    while len(b.heard(events.Pushed)) < 3:
        (name,) = a.member._mode._picking.pick(*_open(a)).members
        if name == "a":
            a.step(4.0)
            continue
        before = b.member.version
        result = b.step(8.0)
        fresh = before == _open(a)[0] - 1
        # trained on what was there before, it would count as if it had seen the rest
        assert np.allclose(result["w"], 8.0 if fresh else 4.0)
    assert len(b.heard(events.Late)) > 0
    versions = [int(event.key.split("-")[3]) for event in b.heard(events.Pushed)]
    rounds = [int(event.key[7:15]) for event in b.heard(events.Pushed)]
    assert versions == rounds


def _open(site: Site) -> tuple[int, Listing]:
    listing = site.member.member.look()
    return max(listing.planned, default=-1) + 1, listing


@pytest.mark.parametrize("quorum", [1, 2])
def test_who_trains_on_closes_a_round_that_was_left_by_those_who_were_picked(quorum: int) -> None:
    terms = {"selector": Uniform(), "cohort": 2, "quorum": quorum, "deadline": 0.1, "seed": 1}
    terms |= {"unpicked": "train", "clock": Instant()}
    everybody = [s.join() for s in sites(MemoryStore(), "abc", **terms)]
    cohort = first_cohort(everybody[0])
    (left,) = (site for site in everybody if site.client not in cohort)
    gone = [site for site in everybody if site is not left][:quorum]

    class Died(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Died

    for site in gone:
        site.member._mode._open.wait = die
        with pytest.raises(Died):
            site.step()
    left.member._mode._completing._help_after = 0.1
    left.step()
    if quorum == 1:
        assert _open(left)[0] == 0, "the other may still come"
        left.member.member.clock.sleep(0.15)
        left.step()
    assert _open(left)[0] == 1
    with suppress(QuorumMissed):
        left.step()
    assert 1 in left.picks()


@pytest.mark.parametrize("unpicked", ["wait", "train"])
def test_others_are_drawn_where_all_who_were_picked_have_left(unpicked: str, store: Store) -> None:
    terms = {"selector": Uniform(), "cohort": 1, "unpicked": unpicked, "deadline": 600.0}
    everybody = [site.join() for site in sites(store, "abcd", **terms)]
    staying = set("abcd")
    for number in range(3):
        living = [site for site in everybody if site.client in staying]
        picked = min(name for site in living[:1] for name in next_cohort(site, number))
        gone = next(site for site in living if site.client == picked)
        gone.member.close()
        staying.remove(picked)
        living.remove(gone)
        if unpicked == "wait":
            together(*(lambda s=s, n=number + 1: s.live(n, 0) for s in living))
        for site in living:
            if not any(entry.key == plan_key(number, 0) for entry in store.list("rounds/")):
                site.step()
    (last,) = staying
    for site in everybody:
        assert not site.heard(events.RefusedUpdate)
    plans = [json.loads(store.get(plan_key(number, 0))) for number in (1, 2)]
    assert plans[-1]["picked"] == [last]
    assert all(plan["passed"] and not plan["passed"].keys() & staying for plan in plans)


def test_where_everybody_is_passed_over_no_selector_is_asked() -> None:
    def first(roster: Roster, k: int, rng: np.random.Generator) -> Any:
        return np.array([0 * int(roster.examples[0])])

    selection, standings = Selection(first, 1), {"a": Standing(), "b": Standing()}
    assert selection.pick(standings, 0).members == ("a",)
    with pytest.raises(SelectionError, match="all members were passed over"):
        selection.pick(standings, 0, passed=dict.fromkeys("ab", Incarnation(1, "0" * 8)))


def test_a_plan_that_passes_over_who_has_not_left_is_refused_by_name() -> None:
    store = MemoryStore()
    everybody = [site.join() for site in sites(store, "abc", selector=Uniform(), cohort=1)]
    (picked,) = first_cohort(everybody[0])
    picking, lives = everybody[0].member._mode._picking, everybody[0].member.member.look().lives
    (following,) = picking._selection.pick_after(picking._drawn.pick, lives, 0).members
    (impatient,) = (site for site in everybody if site.client == following)
    impatient.member.member.gone = lambda listing: {picked}
    look = impatient.member.member.look

    def pretending() -> Listing:
        listing = look()
        return replace(listing, left=listing.lives)

    impatient.member.member.look = pretending
    impatient.step()
    (passed,) = (site for site in everybody if site.client == picked)
    with pytest.raises(FederationError, match=r"follow .*plan-0000\.json.* refuses"):
        passed.step()
    reasons = {event.key: event.reason for event in passed.heard(events.RefusedUpdate)}
    assert reasons[plan_key(0, 0)] == f"it passes {picked} over, who has not left"


def test_who_trains_on_loads_nothing_until_it_is_picked(store: Store) -> None:
    terms = {"selector": RoundRobin(), "cohort": 1, "unpicked": "train"}
    a, b = (site.join() for site in sites(store, "ab", **terms))
    order = {"a": (a, b), "b": (b, a)}[merged_first(a)]
    mine = params(5.0)
    assert order[1].member.step(mine, examples=1) is mine
    assert np.allclose(order[0].step(2.0)["w"], 2.0)
    assert np.allclose(order[1].step(3.0)["w"], 3.0)
    assert [len(site.heard(events.Pushed)) for site in order] == [1, 1]


def merged_first(site: Site) -> str:
    (name,) = first_cohort(site)
    return name


def test_a_members_newest_update_stays_however_long_it_is_not_picked(store: Store) -> None:
    @hubless.select.selector
    def first_then_second(roster: Roster, k: int, rng: np.random.Generator) -> Any:
        return [0 if roster.round == 0 else 1]

    a, b = (s.join() for s in sites(store, "ab", selector=first_then_second, cohort=1))
    for _ in range(7):
        # in step: who is held up for long may close a round again that was collected
        together(a.step, b.step)
    left = [(p.client, p.folder[7:15]) for p in parse_updates(store.list("rounds/"))]
    assert left == [("a", "00000000"), ("b", "00000005"), ("b", "00000006")]
    a.member.close()
    assert a.join().member.member.sequence == 1
    # of rounds that are long over nothing stays but somebody's newest update
    assert min(e.key[7:15] for e in store.list("rounds/") if "/updates/" not in e.key) >= "00000004"


def test_valuations_from_keys_decide_who_trains_under_active_selection(store: Store) -> None:
    selector = Active(alpha1=0.5, alpha2=2.0, alpha3=0.0)
    members = sites(store, "abcdef", selector=selector, cohort=2, seed=3)

    together(*(lambda s=s, i=i: s.live(16, i) for i, s in enumerate(members)))
    picks = merged(members)
    # who was never seen is worth as much as the best, and so everybody is asked early on
    assert {name for number in range(8) for name in picks[number]} == set("abcdef")
    later = Counter(name for number in range(8, 16) for name in picks[number])
    assert set(later) <= set("def") and later["f"] >= later["d"]


def test_a_selector_by_value_without_a_valuation_is_an_error_that_says_what_to_give() -> None:
    for mode in ({}, {"members": ["a", "b"]}):
        site = Site(MemoryStore(), "a", selector=Active(), cohort=1, **mode).join()
        with pytest.raises(ParamsError, match=r"valuation=\.\.\."):
            site.step()
        assert not site.heard(events.Pushed)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"selector": Activity("n")}, r"selector Activity\('n'.*here, Uniform\(\) in the fed"),
        ({"cohort": 3}, "cohort 3 here, 2 in the federation"),
        ({"seed": 1}, "seed 1 here, 0 in the federation"),
        ({"members": ["a", "b", "c", "d"]}, "members .*'d'.* here, "),
        ({"selector": None, "cohort": None}, r"picks who trains by Uniform\(\).*asked for none"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_members_that_would_pick_others_are_refused_at_join(
    changed: dict[str, Any], said: str, shared: bool, store: Store
) -> None:
    terms: dict[str, Any] = {"members": list("abc"), "model": params()}
    terms |= {"selector": Uniform(), "cohort": 2}
    joined(store, "a", **terms)
    if not shared:
        del terms["model"]
    with pytest.raises(FederationError, match=f"(?s){said}"):
        joined(store, "b", **{**terms, **changed})


def test_a_selector_where_the_federation_has_none_is_refused(store: Store) -> None:
    hubless.join(store, "a", pace=hubless.Rounds(members=["a", "b"]), model=params())
    with pytest.raises(FederationError, match="nobody: all members train.*Uniform"):
        hubless.join(
            store, "b", pace=hubless.Rounds(members=["a", "b"]), who=hubless.Selection(Uniform(), 1)
        )


class Nameless:
    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Any:
        return np.arange(k)


NAMED = {"members": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"selector": Uniform(), "cohort": 1, "unpicked": "leave"}, "'wait' or 'train'"),
        ({"selector": "uniform", "cohort": 1}, "takes a selector"),
        ({"selector": Uniform(), "cohort": 0}, "at least 1"),
        ({"selector": Uniform(), "cohort": 1.5}, "whole number"),
        ({"selector": OptimalSampling(), "cohort": 1}, "only simulations do that"),
        ({"selector": Activity("n", "exact", True), "cohort": 1, **NAMED}, "only simulations"),
        ({"selector": Uniform(), "cohort": 1, "members": 3}, "members=.names."),
        ({"selector": Uniform(), "cohort": 1, "quorum": 1}, "members=.names."),
        ({"selector": Uniform(), "cohort": 4, **NAMED}, "cohort=4 is more than the 3 members"),
        (
            {"selector": Uniform(), "cohort": 2, "quorum": 3, **NAMED},
            "quorum= is 3, and the members that are picked are 2",
        ),
        ({"selector": Nameless(), "cohort": 2, **NAMED}, "compare their selectors by their text"),
        ({"selector": Heavy(0.1), "cohort": 2, **NAMED}, "round 0 has no cohort.*AtMost"),
    ],
)
def test_terms_of_selection_that_make_no_sense_are_refused_at_join(
    given: dict[str, Any], said: str, store: Store
) -> None:
    with pytest.raises(HublessError, match=said):
        joined(store, "a", **given)
    assert not store.list("members/")


@pytest.mark.parametrize("picked", [[0, 0], [-1], [7], []])
def test_a_selector_that_picks_nonsense_is_named(picked: list[int], store: Store) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "Odd()"

        def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Any:
            return np.array(picked, np.int64)

    with pytest.raises(SelectionError, match=r"Odd\(\) picked"):
        hubless.join(store, "a", pace=hubless.Rounds(**NAMED), who=hubless.Selection(Odd(), 2))


def test_fewer_than_the_cohort_are_enough_where_the_selector_allows_for_it() -> None:
    members = sites(MemoryStore(), "abc", selector=AtMost(Heavy(0.1)), cohort=2)
    together(*(lambda s=s: s.join().step() for s in members))
    # the others may come when the round is over
    (picked,) = (site for site in members if site.heard(events.Pushed))
    assert picked.included() == {0: [picked.client]}


def forgeries(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    def changed(**columns: Any) -> dict[str, Any]:
        return {**document, "roster": {**document["roster"], **columns}}

    held = document["roster"]
    clean = {key: value for key, value in document.items() if key not in ("picked", "roster")}
    other = next(name for name in "abc" if name not in document["picked"])
    return {
        "no roster": clean,
        "no picked": {k: v for k, v in document.items() if k != "picked"},
        "a list": {**document, "roster": []},
        "no column": {**document, "roster": {k: v for k, v in held.items() if k != "selected"}},
        "a short column": changed(selected=[0]),
        "a text column": changed(selected="000"),
        "strangers": changed(members=["a", "b", "x"]),
        "a member twice": changed(members=["a", "b", "b"]),
        "another order": changed(members=["c", "b", "a"]),
        "names that are none": changed(members=["a", "b", 3]),
        "NaN": changed(valuation=[float("nan"), None, None], valued=[0, -1, -1]),
        "infinite": changed(valuation=[float("inf"), None, None]),
        "a text valuation": changed(valuation=["1", None, None]),
        "a valuation without a round": changed(valuation=[1.0, None, None]),
        "negative counts": changed(selected=[-1, 0, 0]),
        "too many counts": changed(selected=[99, 0, 0]),
        "negative examples": changed(examples=[-5, 0, 0]),
        "absurd examples": changed(examples=[10**18, 0, 0]),
        "counts that are true": changed(selected=[True, 0, 0]),
        "half an example": changed(examples=[0.5, 0, 0]),
        "a round to come": changed(last_selected=[5, -1, -1], selected=[1, 0, 0]),
        "another pick": {**document, "picked": [other]},
        "a stranger picked": {**document, "picked": ["x"]},
        "everybody passed over": {**document, "passed": dict.fromkeys("abc", "000100000000")},
        "passed over in a list": {**document, "passed": ["a"]},
        "everybody picked": {**document, "picked": ["a", "b", "c"]},
    }


KINDS = list(forgeries({"picked": ["a"], "roster": {}}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_roster_is_refused_by_name_and_an_error_where_others_follow_it(kind: str) -> None:
    store = MemoryStore()
    terms = {"selector": Uniform(), "cohort": 1, "unpicked": "train"}
    members = [site.join() for site in sites(store, "abc", **terms)]
    for site in members:
        if len(store.list("rounds/")) == 0:
            site.step()
    document = json.loads(store.get(plan_key(0, 0)))
    store.delete([plan_key(0, 0)])
    store.put(plan_key(0, 0), [json.dumps(forgeries(document)[kind]).encode()])
    (maker,) = {e.key.split("=")[1] for e in store.list("rounds/") if "/slices-" in e.key}
    for again in sites(store, "abc".replace(maker, ""), **{**terms, "members": list("abc")}):
        with pytest.raises(FederationError, match=r"follow .*plan-0000\.json.* refuses"):
            again.join(unpicked="wait").step()
        assert {event.key for event in again.heard(events.RefusedUpdate)} == {plan_key(0, 0)}


def test_a_roster_that_does_not_follow_from_the_round_before_is_noticed() -> None:
    store = MemoryStore()
    terms = {"selector": Uniform(), "cohort": 1, "unpicked": "train"}
    members = [site.join() for site in sites(store, "abc", **terms)]
    turns(members, 3)
    last = max(entry.key for entry in store.list("rounds/") if "/plan-" in entry.key)
    number = int(last[7:15])
    document = json.loads(store.get(last))
    # in order in itself, and it does not change who is drawn
    document["roster"]["examples"] = [n + 1 for n in document["roster"]["examples"]]
    store.delete([last])
    store.put(last, [json.dumps(document).encode()])
    watcher = Site(store, "a", **members[0].terms).join()
    mode = watcher.member._mode
    assert mode._plans.binding(number - 1, watcher.member.member.look()) is not None
    mode._plans.reached = (number - 1, 0)
    watcher.member.pull(params())
    reasons = {event.key: event.reason for event in watcher.heard(events.RefusedUpdate)}
    assert reasons[last] == "its roster does not follow from the round before"


def test_plans_that_are_listed_and_never_there_end_in_an_error() -> None:
    terms = {"selector": Uniform(), "cohort": 1, "clock": Instant()}
    site = Site(MemoryStore(), "a", members=["a"], **terms).join()
    site.step()

    get = site.store.get

    def without_plans(key: str, limit: int = 0) -> bytes:
        if "/plan-" in key:
            raise NotFound(f"there is no {key}", key)
        return bytes(get(key, limit))

    site.store.get = without_plans
    with pytest.raises(FederationError, match="round 0 .* could not be closed"):
        site.join().step()


@pytest.mark.parametrize(
    "selecting", [3, [], {}, {"selector": "x"}, "Uniform()", {"selector": 1, "cohort": "x"}]
)
def test_a_damaged_agreement_on_selection_is_an_error_that_says_so(selecting: Any) -> None:
    store = MemoryStore()
    joined(store, "a", selector=Uniform(), cohort=1, model=params(), **NAMED)
    document = json.loads(store.get("federation.json"))
    store.delete(["federation.json"])
    store.put("federation.json", [json.dumps({**document, "selecting": selecting}).encode()])
    with pytest.raises(FederationError, match=r"federation\.json is damaged"):
        joined(store, "b", selector=Uniform(), cohort=1, **NAMED)


# ------------------------------------------------------------------ asynchronous


def test_asynchronous_members_share_as_often_as_their_activity_says() -> None:
    store = MemoryStore()
    members = [Site(store, name, selector=Activity("n"), cohort=1, seed=6) for name in "abc"]
    for site in members:
        site.join()
    for _ in range(400):
        for number, site in enumerate(members):
            site.step(examples=[10, 20, 50][number])
    # in step, and on the same examples: they agree although nobody asked anybody
    counts = Counter(members[0].picks()[turn][0] for turn in range(2, 400))
    for site in members:
        assert {t: c for t, c in site.picks().items() if t >= 2} == {
            t: c for t, c in members[0].picks().items() if t >= 2
        }
        pushed = len(site.heard(events.Pushed))
        assert pushed + len(site.heard(events.Skipped)) == 400
        assert abs(pushed - counts[site.client]) <= 2
    shares = {("abc".index(name),): count for name, count in counts.items()}
    assert fits(shares, successive([10, 20, 50], 1))


def test_an_asynchronous_member_is_not_held_up_by_a_dead_peer(store: Store) -> None:
    dead = Site(store, "dead", selector=Activity("n"), cohort=1).join()
    dead.step(examples=10**6)
    alive = Site(store, "alive", selector=Activity("n"), cohort=1, seed=2).join()
    mine = params(3.0)
    alive.member.step(mine, examples=1)
    assert len(alive.heard(events.Pushed)) == 1, "who is not known yet shares first"
    for _ in range(20):
        assert alive.member.step(mine, examples=1) is mine
    assert [event.cohort for event in alive.heard(events.Picked)] == [["dead"]] * 20
    assert len(alive.heard(events.Pushed)) == 1


def test_an_asynchronous_member_lists_once_and_reads_nothing_where_it_trains_on(
    tmp_path: Path,
) -> None:
    store = Metered(FolderStore(tmp_path))
    peer = Site(tmp_path, "b", selector=RoundRobin(), cohort=1).join()
    site = Site(store, "a", selector=RoundRobin(), cohort=1).join()
    for _ in range(8):
        peer.step()
        before = len(site.heard(events.Pushed))
        store.requests.clear()
        store.bytes_down = 0
        site.step()
        if len(site.heard(events.Pushed)) == before:
            assert (store.requests, store.bytes_down) == ({"list": 1}, 0)
        elif before:
            assert (store.requests["list"], store.requests["put"]) == (1, 1)
    assert 0 < len(site.heard(events.Pushed)) < 8
    kept = [p for p in parse_updates(store.list("updates/")) if p.client == "a"]
    assert len(kept) <= 2


def test_an_asynchronous_member_may_take_in_what_is_new_without_sharing(store: Store) -> None:
    @hubless.select.selector
    def busy(roster: Roster, k: int, rng: np.random.Generator) -> Any:
        return np.argsort(-roster.examples)[:k]

    heavy = Site(store, "heavy", selector=busy, cohort=1).join()
    light = Site(store, "light", selector=busy, cohort=1, unpicked="wait").join()
    heavy.step(1.0, examples=3)
    light.step(1.0, examples=1)
    heavy.step(5.0, examples=3)
    assert np.allclose(light.step(1.0, examples=1)["w"], 4.0)
    assert len(light.heard(events.Pushed)) == 1
    mine = params(2.0)
    assert light.member.step(mine, examples=1) is mine


def test_processes_of_one_turn_each_are_not_drawn_alike_for_ever() -> None:
    store = MemoryStore()
    Site(store, "b", selector=Uniform(), cohort=1).join().step()
    site = Site(store, "a", selector=Uniform(), cohort=1)
    for _ in range(30):
        site.join().step()
        site.member.close()
    assert 8 <= len(site.heard(events.Pushed)) <= 23


def test_a_peer_with_an_absurd_version_or_bad_updates_does_not_upset_the_draw() -> None:
    store = MemoryStore()
    digest = Signature.of(params()).digest
    for name, signature, version in (("x", digest, 10**12 - 1), ("y", "0" * 12, 0)):
        bad = Posted("updates/", name, 0, Incarnation(1, "0" * 8), 5, version, signature)
        store.put(bad.key, [b"garbage"])
    site = Site(store, "a", selector=RoundRobin(), cohort=1).join()
    for _ in range(5):
        site.step()
    assert {e.peer for e in site.heard(events.RefusedUpdate)} == {"x", "y"}
    assert [event.cohort for event in site.heard(events.Picked)] == [["a"]] * 4


def test_many_members_in_threads_share_a_store_and_pick_in_step(tmp_path: Path) -> None:
    together_now = threading.Barrier(8)

    def live(number: int) -> Site:
        site = Site(tmp_path, f"m{number}", selector=Uniform(), cohort=3, seed=9).join()
        for _ in range(12):
            together_now.wait(30)
            site.step(float(number), examples=number + 1, valuation=1.0)
        return site

    members = together(*(lambda i=i: live(i) for i in range(8)))
    for turn in range(1, 12):
        assert len({tuple(site.picks()[turn]) for site in members}) == 1
