"""What every selector has to keep, run over every selector there is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hubless.select.activity import FUNCTIONS, Activity
from hubless.select.atmost import AtMost
from hubless.select.custom import selector as decorated
from hubless.select.fixed import Fixed, Weighted
from hubless.select.naming import kinds
from hubless.select.powerofchoice import PowerOfChoice
from hubless.select.roster import Ints, Roster, Selector, there
from hubless.select.uniform import Uniform
from hubless.testing import SelectorContract


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


def test_the_selectors_are_found() -> None:
    assert {"Uniform", "Activity", "Heavy", "RoundRobin", "Oort", "OptimalSampling"} <= FOUND.keys()
    assert "Roster" not in FOUND
    assert set(kinds()) <= {name.split()[0] for name in FOUND}


def make_of(names: list[str]) -> Any:
    @pytest.fixture(params=names)
    def make(self: object, request: pytest.FixtureRequest) -> Callable[[int], Selector]:
        return FOUND[request.param]

    return make


class TestEverySelector(SelectorContract):
    make = make_of(sorted(FOUND.keys() - {"AtMost", "Fixed", "Heavy", "Light"}))


class TestOneThatPicksFewer(SelectorContract):
    refuses = False
    make = make_of(["AtMost"])


class TestOneThatPicksTheSame(SelectorContract):
    chooses = False
    make = make_of(["Fixed"])


class TestThoseThatPickFromAPart(SelectorContract):
    takes_all = False
    make = make_of(["Heavy", "Light"])
