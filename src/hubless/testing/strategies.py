"""What every strategy has to keep, as tests: subclass with a `strategy` fixture and run pytest."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hubless.errors import StrategyError
from hubless.params import Array
from hubless.strategy.base import Strategy
from hubless.testing import runtimes
from hubless.testing.reference import Update, aggregate


class StrategyContract:
    """Subclass, and give it a pytest fixture `strategy`.

    class TestMine(StrategyContract):
        @pytest.fixture
        def strategy(self):
            return MyStrategy()
    """

    def test_weights_are_shares(self, strategy: Strategy) -> None:
        for own in (None, 0, 2):
            weights = strategy.weights([5, 0, 40, 1], [0, 3, 1, 0], own, _seen(strategy, 4))
            assert weights.shape == (4,)
            assert (weights >= 0).all()
            assert np.isclose(weights.sum(), 1) or (strategy.partial and weights.sum() < 1)

    def test_nobody_having_examples_is_no_division_by_zero(self, strategy: Strategy) -> None:
        products = _seen(strategy, 3)
        weights = strategy.weights([0, 0, 0], [0, 0, 0], products=products)
        assert np.isfinite(weights).all()
        assert weights.sum() > 0

    def test_equal_updates_stay_what_they_are_where_there_is_no_version_to_step_from(
        self, strategy: Strategy
    ) -> None:
        params = _params(1)
        updates = [Update(f"c{i}", params, examples=i + 1) for i in range(5)]
        if strategy.partial:
            # a change from nothing is none
            with pytest.raises(StrategyError):
                aggregate(strategy, updates)
            return
        result, state = aggregate(strategy, updates)
        for name in params:
            assert np.allclose(np.asarray(result[name], float), np.asarray(params[name], float))
        assert state.step == 1

    def test_dtypes_and_shapes_are_kept(self, strategy: Strategy) -> None:
        updates = [Update(f"c{i}", _params(i), examples=i + 1) for i in range(5)]
        current = _params(9)
        state = None
        for _ in range(3):
            result, state = aggregate(strategy, updates, current, state)
            for name, array in current.items():
                assert result[name].dtype == array.dtype, name
                assert result[name].shape == array.shape, name
                assert np.isfinite(np.asarray(result[name], float)).all()
            current = result

    def test_counters_stay_between_the_smallest_and_the_largest(self, strategy: Strategy) -> None:
        updates = [Update(f"c{i}", _params(i), examples=i + 1) for i in range(5)]
        result, _ = aggregate(strategy, updates, _params(9))
        assert 0 <= int(result["batches"]) <= 40

    def test_updates_are_not_changed(self, strategy: Strategy) -> None:
        updates = [Update(f"c{i}", _params(i), examples=i + 1) for i in range(5)]
        aggregate(strategy, updates, _params(9))
        for i, update in enumerate(updates):
            for name, array in _params(i).items():
                assert np.array_equal(np.asarray(update.params[name]), np.asarray(array))

    def test_folding_in_parts_gives_the_same(self, strategy: Strategy) -> None:
        updates = [_params(i)["w"].reshape(-1) for i in range(5)]
        weights = strategy.weights([1, 2, 3, 4, 5], [0] * 5, products=_seen(strategy, 5))

        def fold(part: slice) -> Array:
            total = None
            for array, weight in zip(updates, weights, strict=True):
                total = strategy.reducer.add(total, array[part], float(weight))
            return strategy.reducer.finish(total)

        parts = [np.asarray(fold(slice(0, 5))), np.asarray(fold(slice(5, None)))]
        assert np.array_equal(np.concatenate(parts), np.asarray(fold(slice(None))))

    def test_every_runtime_comes_to_the_same(self, strategy: Strategy) -> None:
        rng = np.random.default_rng(3)
        start = rng.normal(size=40).astype(np.float32)
        sent = [start + rng.normal(size=40).astype(np.float32) for _ in range(7)]
        examples = [10, 11, 12, 13, 14, 15, 16]
        expected = runtimes.by_reference(strategy, start, sent, examples, rounds=2)
        for run in (runtimes.in_rounds, runtimes.simulated):
            result = run(strategy, start, sent, examples, rounds=2)
            off = np.abs(result - expected).max()
            assert np.allclose(result, expected, rtol=1e-4, atol=1e-5), (
                f"{run.__name__}, with what is sent again in a second round, is off by {off:g}"
            )
        expected = runtimes.by_reference_as_one_of_them(strategy, start, sent, examples)
        result = runtimes.without_rounds(strategy, start, sent, examples)
        assert np.allclose(result, expected, rtol=1e-4, atol=1e-5)

    def test_its_text_tells_it_from_one_with_other_settings(self, strategy: Strategy) -> None:
        assert type(strategy).__name__ in repr(strategy)


def _seen(strategy: Strategy, count: int) -> NDArray[np.float64] | None:
    """What a look may come to."""
    changes = np.random.default_rng(count).normal(size=(count, 9))
    products = changes @ changes.T
    return {"": None, "norms": products.diagonal(), "products": products}[strategy.look]


def _params(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(4, 3)).astype(np.float32),
        "half": rng.normal(size=7).astype(np.float16),
        "double": rng.normal(size=2),
        "batches": np.array(10 * (seed % 5)),
        "mask": rng.random(6) < 0.5,
    }
