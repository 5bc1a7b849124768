"""Thousands of seeded schedules of a federation under faults, and proof that they can fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest

from hubless.federate import asynchronous, keys, synchronous
from hubless.federate.asynchronous import Asynchronous
from hubless.federate.keys import Listing, Posted, Round
from hubless.federate.member import Member
from hubless.federate.picking.picking import Picking
from hubless.federate.picking.standing import Pick
from hubless.federate.rounds.completing import Completing
from hubless.federate.rounds.looks import Looks
from hubless.federate.rounds.plans import Plans
from hubless.federate.rounds.results import Results
from hubless.federate.rounds.slices import Work
from hubless.federate.synchronous import Synchronous
from tests.support.schedules.basics import Report, ScheduleFailure
from tests.support.schedules.running import (
    run_async,
    run_hostile_async,
    run_hostile_sync,
    run_select,
    run_sync,
)

# HUBLESS_SCHEDULES=20 runs twenty times as many as fit into every day's tests
TIMES = int(os.environ.get("HUBLESS_SCHEDULES", "1"))
ASYNC, SYNC, SELECT = 1000 * TIMES, 400 * TIMES, 200 * TIMES
HOSTILE_ASYNC, HOSTILE_SYNC = 400 * TIMES, 300 * TIMES
CHUNK = 50


def chunks(seeds: int) -> list[range]:
    return [range(first, first + CHUNK) for first in range(0, seeds, CHUNK)]


def found(run: Callable[[int], Report], seeds: int) -> str:
    """What the first schedule that fails says, or nothing."""
    for seed in range(seeds):
        try:
            run(seed)
        except ScheduleFailure as failure:
            return str(failure)
    return ""


@pytest.mark.parametrize("seeds", chunks(ASYNC), ids=str)
def test_asynchronous_schedules(seeds: range) -> None:
    for seed in seeds:
        run_async(seed)


@pytest.mark.parametrize("seeds", chunks(SYNC), ids=str)
def test_synchronous_schedules(seeds: range) -> None:
    for seed in seeds:
        run_sync(seed)


@pytest.mark.parametrize("seeds", chunks(SELECT), ids=str)
def test_selecting_schedules(seeds: range) -> None:
    for seed in seeds:
        run_select(seed)


@pytest.mark.parametrize("seeds", chunks(HOSTILE_ASYNC), ids=str)
def test_asynchronous_schedules_under_attack(seeds: range) -> None:
    for seed in seeds:
        run_hostile_async(seed)


@pytest.mark.parametrize("seeds", chunks(HOSTILE_SYNC), ids=str)
def test_synchronous_schedules_under_attack(seeds: range) -> None:
    for seed in seeds:
        run_hostile_sync(seed)


EVERY_RUN = (run_async, run_sync, run_select, run_hostile_async, run_hostile_sync)


@pytest.mark.parametrize("run", EVERY_RUN)
def test_a_seed_is_a_schedule(run: Callable[[int], Report]) -> None:
    for seed in range(10):
        assert run(seed) == run(seed)


def test_schedules_have_everything_that_can_go_wrong_in_them() -> None:
    for run in run_select, run_async, run_sync:
        counts = sum((run(seed).counts for seed in range(40)), start=Report(0).counts)
        for what in ("kills", "stalls", "late writes", "bad objects"):
            assert counts[what] >= 10, (run, what, counts)
    assert counts["late"] or counts["quorum missed"]


def test_finds_a_store_that_overwrites_what_exists() -> None:
    complaint = found(lambda seed: run_sync(seed, sabotage="create"), 200)
    assert "python -m tests.support.schedules --mode sync --seed " in complaint


def test_finds_updates_deleted_before_their_successor_is_there() -> None:
    def greedy(self: Asynchronous, listed: list[Posted]) -> None:
        self.member.discard([p.key for p in listed if p.client == self.member.client][-1:])

    with mock.patch.object(Asynchronous, "_collect", greedy):
        assert "is lost" in found(run_async, 20)


def test_finds_updates_that_pile_up() -> None:
    with mock.patch.object(asynchronous, "KEPT_UPDATES", 3):
        assert "superseded" in found(run_async, 50)


def test_finds_updates_taken_in_twice() -> None:
    def forgetful(self: Asynchronous, *arguments: object) -> object:
        self._taken_in.clear()
        return fresh(self, *arguments)

    fresh: Callable[..., object] = Asynchronous._fresh
    with mock.patch.object(Asynchronous, "_fresh", forgetful):
        assert "back to" in found(run_async, 20)


def test_finds_rounds_that_nobody_completes() -> None:
    def helpless(self: Results, work: Work, index: int, round_: Round) -> bool:
        self.computes = index == work.mine
        return make(self, work, index, round_)

    make = Results.make
    with mock.patch.object(Results, "make", helpless):
        assert "could not be completed" in found(run_sync, 100)


def test_finds_rounds_collected_while_they_are_read() -> None:
    with mock.patch.object(synchronous, "KEPT_ROUNDS", 0):
        assert found(run_sync, 100)


def test_finds_picks_drawn_from_a_round_that_may_still_change() -> None:
    def hasty(self: Picking, signature: object, number: int, rounds: Any) -> object:
        return self._plans.newest(number, rounds)

    with mock.patch.object(Picking, "_final", hasty):
        assert found(run_select, 100)


def test_finds_what_plans_forget_of_members() -> None:
    def forgetful(self: Pick, number: int, delivered: Any) -> object:
        return after(self, number, {name: (said[0], None) for name, said in delivered.items()})

    after: Callable[..., object] = Pick.after
    with mock.patch.object(Pick, "after", forgetful):
        assert "has valued" in found(run_select, 20)


def test_finds_a_members_only_trace_deleted_while_it_is_not_picked() -> None:
    def greedy(self: Synchronous, number: int, listing: Listing) -> None:
        rounds = listing.rounds.items()
        old = [p for n, r in rounds if n <= number - 2 for p in r.updates.values()]
        self.member.discard([p.key for p in old if p.client == self.member.client])

    with mock.patch.object(Synchronous, "_collect", greedy):
        assert "is lost" in found(run_select, 20)


# ------------------------------------------------------------------ under attack


@pytest.mark.parametrize("joint", [Results, Looks])
def test_finds_what_is_made_jointly_and_believed(joint: type[Results | Looks]) -> None:
    def unchecked(*arguments: object) -> None:
        pass

    def uncontradicted(*arguments: object) -> list[int]:
        return []

    with (
        mock.patch.object(joint, "check", unchecked),
        mock.patch.object(joint, "contradicted", uncontradicted),
        mock.patch("tests.support.schedules.synchronous.LOOK", float(joint is Looks)),
    ):
        assert "without a word" in found(run_hostile_sync, 2000)


def test_finds_plans_that_may_leave_out_whom_they_like() -> None:
    def trusting(self: Completing, *arguments: object) -> bool:
        return True

    with mock.patch.object(Completing, "is_bad", trusting):
        assert found(run_hostile_sync, 50)


def test_finds_plans_that_are_all_believed() -> None:
    def trusting(self: Plans, *arguments: object) -> str:
        return ""

    with mock.patch.object(Plans, "_objection", trusting):
        assert "more than one way" in found(run_hostile_sync, 50)


def test_finds_members_that_do_not_see_who_writes_under_their_name() -> None:
    def careless(self: Member, *arguments: object, **more: object) -> None:
        return None

    with mock.patch.object(Member, "notice", careless):
        assert "was not told" in found(run_hostile_sync, 20)
        assert "was not told" in found(run_hostile_async, 20)


def test_finds_members_that_delete_what_only_an_impostor_replaces() -> None:
    def credulous(self: Member, listed: Iterable[Posted], keep: int) -> list[str]:
        mine = sorted((p for p in listed if p.client == self.client), key=lambda p: p.rank)
        return [posted.key for posted in mine[:-keep]]

    with mock.patch.object(Member, "superseded", credulous):
        assert "is lost" in found(run_hostile_async, 200)


def test_finds_calls_that_outlast_their_deadline() -> None:
    with mock.patch.object(Member, "is_past", False):
        assert found(run_hostile_sync, 300)


def test_finds_versions_that_nobody_can_have() -> None:
    def endless(updates: object) -> int:
        return keys.VERSIONS

    with mock.patch.object(keys, "furthest_version", endless):
        assert found(run_hostile_async, 100)
