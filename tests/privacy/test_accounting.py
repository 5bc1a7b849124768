"""Composition against closed forms, and against the library used in another way."""

from __future__ import annotations

import math
import sys

import dp_accounting
import pytest

from hubless.errors import HublessError, PrivacyError
from hubless.privacy.accounting import Cost, composed, sigma_for

DELTA = 1e-6


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_one_laplace_release_has_a_closed_form(epsilon: float) -> None:
    expected = epsilon + 2 * math.log1p(-1e-3)
    assert composed(((Cost("laplace", epsilon), 1),), 1e-3) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("times", [1, 10, 100, 1000])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_laplace_releases_cost_at_most_their_sum(epsilon: float, times: int) -> None:
    cost = composed(((Cost("laplace", epsilon), times),), DELTA)
    assert cost <= times * epsilon
    # Dwork and Roth (2014), theorem 3.20
    advanced = epsilon * math.sqrt(2 * times * math.log(1 / DELTA))
    advanced += times * epsilon * math.expm1(epsilon)
    assert cost < advanced
    if times >= 100:
        assert cost < 0.9 * times * epsilon


@pytest.mark.parametrize(("kind", "size"), [("laplace", 0.3), ("gaussian", 6.0)])
@pytest.mark.parametrize("times", [3, 40])
def test_the_librarys_own_accountant_agrees(kind: str, size: float, times: int) -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    event = (
        dp_accounting.LaplaceDpEvent(1 / size)
        if kind == "laplace"
        else dp_accounting.GaussianDpEvent(size)
    )
    accountant.compose(event, times)
    ours = composed(((Cost(kind, size), times),), DELTA)  # type: ignore[arg-type]
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


def test_gaussian_releases_add_their_inverse_variances() -> None:
    both = composed(((Cost("gaussian", 4.0), 8), (Cost("gaussian", 8.0), 32)), DELTA)
    assert both == pytest.approx(composed(((Cost("gaussian", 4.0), 16),), DELTA))
    assert composed(((Cost("gaussian", 4.0), 1),), 0.0) == math.inf


def test_releases_of_several_kinds_compose() -> None:
    laplace, pure = (Cost("laplace", 0.2), 30), (Cost("pure", 0.1), 50)
    apart = [composed((each,), DELTA / 2) for each in (laplace, pure)]
    together = composed((laplace, pure), DELTA)
    assert max(apart) < together < sum(apart)
    assert composed((laplace, pure), 0.0) == pytest.approx(0.2 * 30 + 0.1 * 50)
    # whatever is private in the pure sense may be worse than Laplace noise, never better
    assert composed(((Cost("pure", 0.2), 30),), DELTA) > composed((laplace,), DELTA)
    mixed = composed((laplace, (Cost("gaussian", 5.0), 10)), DELTA)
    assert mixed > composed((laplace,), DELTA)


@pytest.mark.parametrize("cost", [Cost("laplace", 40.0), Cost("pure", 1e3), Cost("laplace", 1e-5)])
def test_extreme_costs_have_an_answer(cost: Cost) -> None:
    for times in (1, 20, 300):
        assert 0 < composed(((cost, times),), DELTA) <= cost.size * times


def test_nothing_costs_nothing() -> None:
    assert composed((), DELTA) == composed(((Cost("laplace", 1.0), 0),), DELTA) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (8.0, 1e-3)])
def test_sigma_is_what_the_promise_needs(epsilon: float, delta: float) -> None:
    assert composed(((Cost("gaussian", sigma_for(epsilon, delta)), 1),), delta) == pytest.approx(
        epsilon, rel=1e-6
    )


def test_what_makes_no_sense_is_refused() -> None:
    for size in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PrivacyError, match="size= is a number above 0"):
            Cost("laplace", size)
    with pytest.raises(PrivacyError, match="'laplace', 'gaussian' or 'pure'"):
        Cost("exponential", 1.0)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="delta= is a number above 0 and below 1"):
        sigma_for(1.0, 0.0)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(HublessError, match=r"pip install 'hubless\[privacy\]'"):
        composed(((Cost("laplace", 0.123), 3),), DELTA)
