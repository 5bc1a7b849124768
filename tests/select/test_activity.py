"""Selection by activity: each f as the paper has it, in both designs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hubless.errors import SelectionError, Shortage
from hubless.select.activity import FUNCTIONS, Activity, by_activity
from hubless.select.roster import Ints, Roster
from tests.support.frequencies import drawn, fits, often, successive

SIZES = [3, 0, 1, 20, 7, 2, 90]
PLAIN: dict[str, Callable[[int], float]] = {
    "1": lambda n: 1.0,
    "log": lambda n: math.log(n + 1),
    "sqrt": math.sqrt,
    "n": float,
    "1/log": lambda n: 1 / math.log(n + 1),
}
every_f = pytest.mark.parametrize("f", sorted(FUNCTIONS))


def test_every_f_of_the_paper_is_there() -> None:
    assert FUNCTIONS.keys() == PLAIN.keys()


@every_f
@pytest.mark.parametrize("k", [1, 3])
def test_successive_draws_go_by_f(f: str, k: int) -> None:
    weights = [PLAIN[f](n) if n else 0.0 for n in SIZES]
    roster, rng = Roster(SIZES), np.random.default_rng(1)
    assert fits(drawn(lambda: Activity(f)(roster, k, rng), 1200), successive(weights, k))


@every_f
def test_only_the_available_share_the_chances(f: str) -> None:
    available = np.array([True, True, False, True, True, True, True])
    weights = [PLAIN[f](n) if n and n != 1 else 0.0 for n in SIZES]
    roster, rng = Roster(SIZES, available), np.random.default_rng(2)
    assert fits(drawn(lambda: Activity(f)(roster, 2, rng), 1200), successive(weights, 2))
    exact = Activity(f, "exact")
    chances = exact.inclusion(roster, 2)
    assert chances[[1, 2]].tolist() == [0, 0]
    assert often(lambda: exact(roster, 2, rng), chances, 1500).max() < 5


@every_f
def test_exact_probabilities_are_in_proportion_to_f_and_kept(f: str) -> None:
    rng = np.random.default_rng(3)
    roster = Roster(np.maximum(0, rng.lognormal(2, 2, 300) - 1).astype(np.int64))
    exact = Activity(f, "exact")
    chances = exact.inclusion(roster, 30)
    weights = np.array([PLAIN[f](n) if n else 0.0 for n in roster.examples.tolist()])
    free = (chances > 0) & (chances < 1)
    assert np.ptp(chances[free] / weights[free]) < 1e-12 * (chances[free] / weights[free]).max()
    assert chances.sum() == pytest.approx(30)
    assert (chances[weights == 0] == 0).all()
    assert np.array_equal(exact.inclusion(roster, 30, np.array([7, 2])), chances[[7, 2]])
    assert often(lambda: exact(roster, 30, rng), chances, 1000).max() < 5


@pytest.mark.parametrize("design", ["successive", "exact"])
def test_a_function_of_ones_own(design: str) -> None:
    roster, rng = Roster(SIZES), np.random.default_rng(4)
    squared = Activity(lambda n: n**2.0, design)  # type: ignore[arg-type]
    picked = [int(squared(roster, 1, rng)[0]) for _ in range(1000)]
    share = SIZES[6] ** 2 / sum(n**2 for n in SIZES)
    assert abs(picked.count(6) - 1000 * share) < 5 * math.sqrt(1000 * share * (1 - share))
    assert len(Activity(lambda n: 1, design)(roster, 6, rng)) == 6  # type: ignore[arg-type]


def test_what_a_function_makes_of_no_examples_does_not_count() -> None:
    picked = Activity(lambda n: 1 / n)(Roster([2, 0, 5]), 2, np.random.default_rng(5))
    assert sorted(picked.tolist()) == [0, 2]


@pytest.mark.parametrize("value", [-2.0, math.nan, math.inf])
def test_a_bad_value_names_the_client_and_its_examples(value: float) -> None:
    def f(n: Ints) -> Ints:
        return np.where(n == 17, value, 1.0)

    with pytest.raises(SelectionError, match=f"client 2, with 17 examples, has weight {value}"):
        Activity(f)(Roster([5, 0, 17]), 1, np.random.default_rng(0))
    with pytest.raises(SelectionError, match="client 1, with -3 examples, has weight nan"):
        Activity("sqrt")(Roster([5, -3]), 1, np.random.default_rng(0))


def test_a_function_gives_one_number_per_client() -> None:
    with pytest.raises(SelectionError, match=r"one number per client, 3 of them.*shape \(2,\)"):
        Activity(lambda n: n[:2])(Roster([1, 2, 3]), 1, np.random.default_rng(0))


@pytest.mark.parametrize("design", ["successive", "exact"])
def test_clients_without_examples_cannot_make_up_the_number(design: str) -> None:
    selector = Activity("1", design)  # type: ignore[arg-type]
    with pytest.raises(Shortage, match="3 clients were asked for, and 2 of 4 can be picked") as e:
        selector(Roster([0, 4, 0, 2]), 3, np.random.default_rng(0))
    assert e.value.eligible == [1, 3]
    if design == "exact":
        with pytest.raises(Shortage):
            selector.inclusion(Roster([0, 4, 0, 2]), 3)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SelectionError, match="'cube'"):
        Activity("cube")
    with pytest.raises(SelectionError, match="'successive' or 'exact'"):
        Activity("n", "systematic")  # type: ignore[arg-type]
    with pytest.raises(SelectionError, match="design='exact' has them"):
        Activity("n", unbiased=True)
    with pytest.raises(SelectionError, match="use design='exact'"):
        Activity("n").inclusion(Roster([1, 2]), 1)
    assert Activity("n", "exact", unbiased=True).unbiased


def test_both_designs_share_what_they_keep() -> None:
    roster, rng = Roster(SIZES), np.random.default_rng(6)
    Activity("log")(roster, 2, rng)
    kept = by_activity(roster, "log")
    Activity("log", "exact")(roster, 2, rng)
    assert by_activity(roster, "log") is kept
    roster.put("examples", np.array([0]), 4)
    assert by_activity(roster, "log") is not kept


def test_a_total_over_unequal_clients_is_unbiased() -> None:
    """What the simulation does with `unbiased`: sums weighed by inverse probabilities."""
    rng = np.random.default_rng(7)
    roster = Roster(rng.geometric(0.05, 60))
    selector = Activity("sqrt", "exact", unbiased=True)
    values, chances = rng.normal(1, 1, 60), selector.inclusion(roster, 10)
    estimates = []
    for _ in range(3000):
        picked = selector(roster, 10, rng)
        estimates.append((values[picked] / chances[picked]).sum())
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - values.sum()) < 5 * error
