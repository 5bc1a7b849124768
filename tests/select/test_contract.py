"""What every selector has to keep, run over every selector there is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hubless.select
from hubless.errors import SelectionError
from hubless.select.roster import Roster, Selector


def _found() -> dict[str, type]:
    """Every class of the package that can be called like a selector and needs no arguments."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(hubless.select.__path__):
        name = f"hubless.select.{module.name}"
        for item in vars(importlib.import_module(name)).values():
            if (
                inspect.isclass(item)
                and item.__module__ == name
                and "__call__" in vars(item)
                and item is not Selector
            ):
                found[item.__name__] = item
    return found


FOUND = _found()
every_selector = pytest.mark.parametrize("name", sorted(FOUND))


def test_the_selectors_are_found() -> None:
    assert "Uniform" in FOUND
    assert "Roster" not in FOUND


@every_selector
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_what_is_picked_is_there_and_there_once(name: str, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 300))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=clients, max_size=clients))
    marks = data.draw(st.none() | st.lists(st.booleans(), min_size=clients, max_size=clients))
    available = None if marks is None else np.array(marks)
    there = clients if available is None else int(available.sum())
    k = data.draw(st.integers(0, there))
    selector: Selector = FOUND[name]()
    picked = selector(Roster(np.array(sizes), available), k, np.random.default_rng(1))
    assert picked.dtype.kind == "i"
    assert len(set(picked.tolist())) == len(picked) == k
    assert set(picked.tolist()) <= set(range(clients))
    if available is not None:
        assert available[picked].all()


@every_selector
def test_the_same_generator_state_picks_the_same(name: str) -> None:
    roster = Roster(np.arange(50_000) % 7 + 1)
    selector: Selector = FOUND[name]()
    picks = [selector(roster, 20, np.random.default_rng(s)).tolist() for s in (5, 5, 6)]
    assert picks[0] == picks[1] != picks[2]


@every_selector
def test_a_selector_says_who_it_is_the_same_way_every_time(name: str) -> None:
    """A checkpoint tells one simulation from another by this text."""
    assert repr(FOUND[name]()) == repr(FOUND[name]())


@every_selector
def test_more_than_there_are_is_refused_with_both_numbers(name: str) -> None:
    selector: Selector = FOUND[name]()
    rng = np.random.default_rng(1)
    with pytest.raises(SelectionError, match="4 clients were asked for, and there are 3"):
        selector(Roster(np.ones(3, np.int64)), 4, rng)
    some = np.array([True, False, True])
    with pytest.raises(SelectionError, match="3 clients were asked for, and 2 of 3 are available"):
        selector(Roster(np.ones(3, np.int64), some), 3, rng)
