"""Selectors of one's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hubless.errors import SelectionError
from hubless.select.activity import Activity
from hubless.select.custom import Custom, described, selector
from hubless.select.roster import Roster


def test_a_decorated_function_is_a_selector() -> None:
    @selector
    def oddly(roster: Roster, k: int, rng: np.random.Generator) -> list[int]:
        return [2 * i + 1 for i in range(k)]

    assert isinstance(oddly, Custom)
    picked = oddly(Roster(np.ones(9, np.int64)), 3, np.random.default_rng(0))
    assert picked.dtype == np.int64 and picked.tolist() == [1, 3, 5]


@pytest.mark.parametrize("thing", [lambda roster, k: [], lambda: [], 7, "uniform", None])
def test_what_does_not_take_three_arguments_is_refused(thing: Callable[..., list[int]]) -> None:
    with pytest.raises(SelectionError, match=r"three arguments, \(roster, k, rng\)"):
        selector(thing)


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ([0, 1, 2], "3 clients, where 2 were asked for"),
        ([0], "1 clients, where 2 were asked for"),
        ([1, 1], "a client more than once"),
        ([0, 5], "not among 0 to 4"),
        ([-1, 0], "not among 0 to 4"),
        ([0, 3], "a client that is not available"),
        ([0.5, 1.5], "float64 of shape"),
        ([[0, 1]], "int64 of shape"),
        (None, "object of shape"),
    ],
)
def test_what_it_returns_is_checked(returned: list[int], complaint: str) -> None:
    wrong = selector(lambda roster, k, rng: returned)
    roster = Roster(np.ones(5, np.int64), np.array([True, True, True, False, True]))
    with pytest.raises(SelectionError, match=f"selector .*lambda.* returned .*{complaint}"):
        wrong(roster, 2, np.random.default_rng(0))


def test_its_text_is_the_same_in_every_process_and_tells_functions_apart(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    source = "def mine(roster, k, rng):\n    return {}\nother = lambda n: n + {}\n"
    program = (
        "from hubless.select.naming import named; from hubless.select import Activity; import sys;"
        "s = named(sys.argv[1] + ':mine');"
        "print(s, Activity(sys.modules[s.function.__module__].other))"
    )
    said = []
    for number in (1, 1, 2):
        file.write_text(source.format(number, number))
        ran = subprocess.run(
            [sys.executable, "-B", "-c", program, str(file)], capture_output=True, text=True
        )
        said.append(ran.stdout)
        assert "selector mine" in ran.stdout, ran.stderr
    assert said[0] == said[1] != said[2]


def test_functions_without_a_source_have_a_text_too() -> None:
    made = [eval(f"lambda roster, k, rng: {number}") for number in (1, 1, 2)]
    assert described(made[0]) == described(made[1]) != described(made[2])
    assert repr(Activity(np.sqrt)) == repr(Activity(np.sqrt)) != repr(Activity(np.cbrt))


def test_functions_of_one_text_that_hold_different_things_are_told_apart() -> None:
    def power(p: float, root: Callable[[float], float] = abs) -> Callable[[float], float]:
        return lambda n: root(n) ** p

    def square(n: float) -> float:
        return n * n

    def cube(n: float) -> float:
        return n * n * n

    assert described(power(0.3)) == described(power(0.3))
    assert described(power(0.3)) != described(power(0.9))
    assert described(power(1, square)) != described(power(1, cube))
    assert repr(Activity(power(0.3))) != repr(Activity(power(0.9)))  # type: ignore[arg-type]


def test_what_a_function_writes_down_does_not_make_it_another() -> None:
    picks: list[int] = []

    def noting(roster: Roster, k: int, rng: np.random.Generator) -> list[int]:
        picks.append(k)
        return list(range(k))

    before = described(noting)
    noting(Roster([1]), 1, np.random.default_rng(0))
    assert picks == [1] and described(noting) == before


def test_a_function_that_calls_itself_is_described() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else down(n - 1)

    assert described(down) == described(down)
