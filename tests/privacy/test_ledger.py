"""The ledger: who spent what, until when a budget lasts, and what a checkpoint keeps."""

from __future__ import annotations

import numpy as np
import pytest

from hubless.errors import PrivacyError
from hubless.privacy.accounting import Cost, composed
from hubless.privacy.ledger import Ledger
from hubless.privacy.mechanisms import Count, Gaussian, Laplace, SparseVector

LAPLACE, PURE = Cost("laplace", 0.1), Cost("pure", 0.2)


def test_what_is_spent_is_what_the_costliest_client_spent() -> None:
    ledger = Ledger(100)
    assert ledger.spent() == 0.0
    for turn in range(40):
        ledger.pay(np.arange(0, 100, 1 + turn % 3), LAPLACE)
    assert ledger.spent() == composed(((LAPLACE, 40),), 1e-6)
    assert ledger.spent(0.0) == pytest.approx(4.0)
    assert ledger.spent(1e-2) < ledger.spent() < ledger.spent(0.0)


def test_who_is_costliest_depends_on_all_kinds_of_releases() -> None:
    ledger = Ledger(3)
    for clients, times, cost in (([0], 9, LAPLACE), ([1], 5, PURE), ([2], 4, PURE)):
        for _ in range(times):
            ledger.pay(np.array(clients), cost)
    for _ in range(4):
        ledger.pay(np.array([2]), LAPLACE)
    # 0.9, 1.0 and 0.8 + 0.4
    assert ledger.spent(0.0) == pytest.approx(1.2)
    ledger.pay(np.array([0, 0][:1]), PURE)
    ledger.pay(np.array([0]), PURE)
    assert ledger.spent(0.0) == pytest.approx(1.3)


def test_columns_nobody_used_take_no_memory() -> None:
    ledger = Ledger(10)
    assert ledger.state() == {}
    ledger.pay(np.array([1]), LAPLACE)
    assert {name: values.tolist() for name, values in ledger.state().items()} == {
        "paid laplace 0.1": [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    }
    with pytest.raises(AttributeError, match="no column 'lasts'"):
        ledger.lasts  # noqa: B018


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_budget_is_never_exceeded_and_what_is_withheld_is_counted(delta: float) -> None:
    ledger, rng = Ledger(3, budget=2.0, delta=delta), np.random.default_rng(1)
    laplace, held = Laplace(epsilon=0.3, clip=5.0), []
    for turn in range(30):
        clients = np.array([0, 2]) if turn < 3 else np.array([0, 1])
        held.append(laplace.report(clients, np.full(2, 2.5), ledger, rng)[0])
    most = max(n for n in range(30) if composed(((laplace.cost, n),), delta) <= 2.0)
    assert ledger.spent() <= 2.0 < composed(((laplace.cost, most + 1),), delta)
    assert ledger.reports.tolist() == [most, most, 3]
    assert ledger.withheld.tolist() == [30 - most, 27 - most, 0]
    # from then on the server keeps what it has
    assert set(held[most:]) == {held[most - 1]} and len(set(held[:most])) > 1


def test_where_not_even_one_report_is_affordable_nothing_is_known() -> None:
    ledger, rng = Ledger(4, budget=0.1), np.random.default_rng(2)
    for mechanism in (Laplace(1.0, 5.0), SparseVector(Count(1.0), 1.0, 3.0), Gaussian(1.0, 5.0)):
        held = mechanism.report(np.array([3, 1]), np.array([1.0, 2.0]), ledger, rng)
        assert np.isnan(held).all()
    assert ledger.spent() == 0.0
    assert ledger.withheld.tolist() == [0, 3, 0, 3]


def test_a_sparse_vector_stays_within_the_budget_too() -> None:
    ledger, rng = Ledger(200, budget=6.0, delta=1e-6), np.random.default_rng(3)
    sparse = SparseVector(Count(epsilon=0.5), epsilon=0.5, threshold=30.0)
    everybody = np.arange(200)
    for _ in range(60):
        sparse.report(everybody, rng.integers(0, 200, 200).astype(np.float64), ledger, rng)
    assert 5.0 < ledger.spent() <= 6.0
    assert (ledger.withheld > 0).all() and (ledger.reports > 3).all()
    # a series is begun only if the report it may end in can be paid as well
    assert not np.isnan(ledger.last).any()


def test_a_checkpoint_keeps_everything() -> None:
    sparse = SparseVector(Laplace(epsilon=2.0, clip=10.0), epsilon=3.0, threshold=4.0)
    everybody = np.arange(50)

    def live(ledger: Ledger, turns: range) -> None:
        for turn in turns:
            rng = np.random.default_rng(turn)
            sparse.report(everybody, rng.uniform(0, 10, 50), ledger, rng)

    straight, first, second = (
        Ledger(50, budget=40.0),
        Ledger(50, budget=40.0),
        Ledger(50, budget=40.0),
    )
    live(straight, range(20))
    live(first, range(9))
    second.restore({name: values.copy() for name, values in first.state().items()})
    assert second.spent() == first.spent() > 0
    live(second, range(9, 20))
    assert second.spent() == straight.spent()
    assert straight.state().keys() == second.state().keys()
    for name, values in straight.state().items():
        assert np.array_equal(values, second.state()[name], equal_nan=True), name


def test_restoring_forgets_what_was_before() -> None:
    ledger = Ledger(5)
    ledger.pay(np.arange(5), LAPLACE)
    ledger.last[:] = 1.0
    ledger.restore({})
    assert ledger.spent() == 0.0 and np.isnan(ledger.last).all()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PrivacyError, match="budget= is a number above 0"):
        Ledger(3, budget=0.0)
    with pytest.raises(PrivacyError, match="delta= is a number of at least 0 and below 1"):
        Ledger(3, delta=1.0)
