"""What every selector has to keep, run over every selector there is."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubless.errors import SelectionError, Shortage
from hubless.select.activity import FUNCTIONS, Activity
from hubless.select.atmost import AtMost
from hubless.select.custom import selector as decorated
from hubless.select.fixed import Fixed, Weighted
from hubless.select.naming import kinds
from hubless.select.powerofchoice import PowerOfChoice
from hubless.select.roster import Ints, Roster, Selector, there
from hubless.select.uniform import Uniform


@decorated
def _few_of_those_there(roster: Roster, k: int, rng: np.random.Generator) -> Ints:
    return rng.permutation(there(roster))[:k]


def _found() -> dict[str, Callable[[int], Selector]]:
    """How each is made for so many clients: all that need no arguments, and some that do."""
    found: dict[str, Callable[[int], Selector]] = {}
    for name, kind in kinds().items():
        needed = [
            parameter
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.default is parameter.empty
        ]
        if not needed:
            found[name] = lambda clients, kind=kind: kind()
    for f in FUNCTIONS:
        for design in ("successive", "exact"):
            found[f"Activity {f} {design}"] = lambda _, f=f, design=design: Activity(f, design)
    found["Activity cubed"] = lambda _: Activity(lambda n: n**3.0)
    found["AtMost"] = lambda _: AtMost(Uniform())
    found["Custom"] = lambda _: _few_of_those_there
    found["Fixed"] = lambda clients: Fixed(tuple(range(clients))[::-1])
    found["Weighted"] = lambda clients: Weighted(1.0 + np.arange(clients) % 3)
    found["PowerOfChoice 300"] = lambda _: PowerOfChoice(300)
    return found


FOUND = _found()
every_selector = pytest.mark.parametrize("name", sorted(FOUND))


def test_the_selectors_are_found() -> None:
    assert {"Uniform", "Activity", "Heavy", "RoundRobin", "Oort", "OptimalSampling"} <= FOUND.keys()
    assert "Roster" not in FOUND
    assert set(kinds()) <= {name.split()[0] for name in FOUND}


@every_selector
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_picked_is_there_and_there_once(name: str, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 300))
    roster = _lived(data.draw(st.integers(0, 2**32)), clients)
    k = data.draw(st.integers(0, len(there(roster))))
    columns = {column: values.copy() for column, values in roster.state().items()}
    short = False
    try:
        picked = FOUND[name](clients)(roster, k, np.random.default_rng(1))
    except Shortage as shortage:
        short, picked = True, np.array(shortage.eligible, np.int64)
    assert len(picked) < k if short else len(picked) == k
    assert picked.dtype == np.int64
    assert len(set(picked.tolist())) == len(picked)
    assert set(picked.tolist()) <= set(there(roster).tolist())
    for column, values in columns.items():
        assert np.array_equal(values, getattr(roster, column), equal_nan=True), column


def _lived(seed: int, clients: int) -> Roster:
    """A roster in the middle of something: some clients known, some empty, some away."""
    rng = np.random.default_rng(seed)
    away, empty, known = rng.choice([0.0, 0.1, 0.9], 3)
    available = None if away == 0 else rng.random(clients) >= away
    sizes = np.where(rng.random(clients) < empty, 0, rng.geometric(0.1, clients))
    roster = Roster(sizes, available, speed=rng.lognormal(0, 1, clients))
    for turn in range(3):
        roster.round = turn
        some = np.flatnonzero(rng.random(clients) < known / 3)
        roster.record_selected(some)
        answered = some[rng.random(len(some)) < 0.8]
        roster.record_seen(answered, rng.normal(2, 2, len(answered)))
    roster.round = 3
    return roster


@every_selector
def test_the_same_generator_state_picks_the_same(name: str) -> None:
    roster = Roster(np.arange(50_000) % 7 + 1)
    selector = FOUND[name](50_000)
    picks = [selector(roster, 20, np.random.default_rng(s)).tolist() for s in (5, 5, 6)]
    assert picks[0] == picks[1]
    assert name == "Fixed" or picks[1] != picks[2]
    afresh = selector(Roster(np.arange(50_000) % 7 + 1), 20, np.random.default_rng(5))
    assert afresh.tolist() == picks[0]


@every_selector
def test_what_changed_is_noticed(name: str) -> None:
    """Selectors keep what makes them fast, and must not go by what is no longer so."""
    before, rng = _lived(3, 200), np.random.default_rng(2)
    selector = FOUND[name](200)
    before.available = None
    sizes, values = rng.geometric(0.01, 200), rng.lognormal(0, 2, 200)
    selector(before, 5, rng)
    after = _lived(3, 200)
    after.available = None
    for roster in (before, after):
        roster.put("examples", slice(None), sizes)
        roster.record_seen(np.arange(200), values)
    picks = [selector(roster, 20, np.random.default_rng(4)) for roster in (before, after)]
    assert picks[0].tolist() == picks[1].tolist()


@every_selector
def test_a_selector_says_who_it_is_the_same_way_every_time(name: str) -> None:
    """A checkpoint tells one simulation from another by this text."""
    assert repr(FOUND[name](4)) == repr(FOUND[name](4))
    assert " at 0x" not in repr(FOUND[name](4))


@every_selector
def test_nobody_is_an_empty_array_and_fewer_are_refused(name: str) -> None:
    selector, rng = FOUND[name](3), np.random.default_rng(1)
    masks: list[NDArray[np.bool_] | None] = [None, np.zeros(3, np.bool_)]
    for available in masks:
        picked = selector(Roster(np.ones(3, np.int64), available), 0, rng)
        assert picked.dtype == np.int64 and picked.shape == (0,)
    with pytest.raises(SelectionError, match="-1 clients were asked for"):
        selector(Roster(np.ones(3, np.int64)), -1, rng)


@every_selector
def test_everybody_can_be_asked_for(name: str) -> None:
    if name in ("Heavy", "Light"):
        pytest.skip("picks from a share of the clients only")
    picked = FOUND[name](40)(Roster(np.arange(1, 41)), 40, np.random.default_rng(1))
    assert sorted(picked.tolist()) == list(range(40))


@every_selector
def test_more_than_there_are_is_refused_with_both_numbers(name: str) -> None:
    if name == "AtMost":
        pytest.skip("does not refuse")
    selector, rng = FOUND[name](3), np.random.default_rng(1)
    with pytest.raises(Shortage, match="4 clients were asked for, and there are 3"):
        selector(Roster(np.ones(3, np.int64)), 4, rng)
    some = np.array([True, False, True])
    with pytest.raises(Shortage, match="3 clients were asked for, and 2 of 3 are available"):
        selector(Roster(np.ones(3, np.int64), some), 3, rng)
    with pytest.raises(Shortage) as refused:
        selector(Roster(np.ones(3, np.int64), some), 3, rng)
    assert refused.value.eligible == [0, 2]
