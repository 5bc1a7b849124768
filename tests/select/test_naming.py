"""Selectors by name, and from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hubless.select
from hubless.errors import SelectionError
from hubless.select.activity import Activity
from hubless.select.atmost import AtMost
from hubless.select.custom import Custom
from hubless.select.fixed import Fixed
from hubless.select.naming import kinds, named
from hubless.select.oort import Oort
from hubless.select.powerofchoice import PowerOfChoice
from hubless.select.roster import Roster, Selector
from hubless.select.roundrobin import RoundRobin
from hubless.select.share import Heavy, Light
from hubless.select.uniform import Uniform


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("uniform", Uniform()),
        ("activity", Activity()),
        ("activity:1", Activity("1")),
        ("activity:1/log", Activity("1/log")),
        ("activity:n:exact", Activity("n", "exact")),
        ("activity:log:exact:true", Activity("log", "exact", unbiased=True)),
        ("activity:n:exact:unbiased=true", Activity("n", "exact", unbiased=True)),
        ("heavy", Heavy()),
        ("heavy:0.1", Heavy(0.1)),
        ("light:share=0.5", Light(0.5)),
        ("round-robin", RoundRobin()),
        ("power-of-choice:20", PowerOfChoice(20)),
        ("power-of-choice:none", PowerOfChoice()),
        ("oort:30:alpha=1", Oort(preferred=30.0, alpha=1.0)),
        ("fixed:3,1,4", Fixed((3, 1, 4))),
        ("at-most:uniform", AtMost(Uniform())),
        ("at-most:activity:sqrt:exact", AtMost(Activity("sqrt", "exact"))),
    ],
)
def test_a_text_names_a_selector(text: str, meant: Selector) -> None:
    assert named(text) == meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "unifrom",
            "no selector 'unifrom' .*'uniform'.*: there are .*round-robin.*uniform.*file.py",
        ),
        ("", "no selector ''"),
        ("custom", "no selector 'custom'"),
        ("activity:cube", "'cube'"),
        ("activity:n:sometimes", "design cannot be 'sometimes'"),
        ("heavy:a lot", "share cannot be 'a lot'"),
        ("heavy:2", "share= is a number above 0 and at most 1"),
        ("heavy:0.2:0.3", "more settings"),
        ("heavy:size=3", "sets 'size'"),
        ("heavy:0.2:share=0.2", "each once"),
        ("fixed", "leaves out clients"),
        ("at-most", "leaves out selector"),
        ("at-most:nobody", "no selector 'nobody'"),
    ],
)
def test_a_text_that_names_none_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SelectionError, match=complaint):
        named(text)


FILE = """
from dataclasses import dataclass

import numpy as np

from hubless.select import selector
from hubless.select.share import Heavy

@selector
def first(roster, k, rng):
    return np.arange(k)

def plain(roster, k, rng):
    return np.arange(k)

def two(roster, k):
    return np.arange(k)

@dataclass(frozen=True)
class Last:
    many: int = 0

    def __call__(self, roster, k, rng):
        return np.arange(len(roster) - k, len(roster))

@dataclass(frozen=True)
class Needs:
    something: int

    def __call__(self, roster, k, rng):
        return np.arange(k)

heavy = Heavy(0.5)
number = 17
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def test_selectors_are_taken_from_files(file: Path) -> None:
    roster, rng = Roster(np.arange(1, 10)), np.random.default_rng(0)
    assert isinstance(named(f"{file}:first"), Custom)
    assert named(f"at-most:{file}:heavy") == AtMost(Heavy(0.5))
    for name, picked in {"first": [0, 1], "plain": [0, 1], "Last": [7, 8]}.items():
        assert named(f"{file}:{name}")(roster, 2, rng).tolist() == picked
    assert named(f"{file}:heavy") == Heavy(0.5)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("frist", "has no 'frist': it has first, plain, two, Last, Needs"),
        ("two", "not a selector, a function of \\(roster, k, rng\\), but function"),
        ("number", "not a selector.* but int"),
        ("Needs", "cannot be made without settings"),
        ("", "has no ''"),
    ],
)
def test_what_a_file_does_not_have_is_refused(file: Path, name: str, complaint: str) -> None:
    with pytest.raises(SelectionError, match=complaint):
        named(f"{file}:{name}")


def test_a_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match="there is no file .*none.py"):
        named(f"{tmp_path}/none.py:mine")
    (tmp_path / "broken.py").write_text("def mine(:")
    with pytest.raises(SelectionError, match="broken.py cannot be read: SyntaxError"):
        named(f"{tmp_path}/broken.py:mine")


def test_every_selector_is_in_the_packages_namespace() -> None:
    for name, kind in kinds().items():
        assert getattr(hubless.select, name) is kind
    assert hubless.select.named is named
    with pytest.raises(AttributeError, match="Nobody"):
        hubless.select.Nobody  # noqa: B018
