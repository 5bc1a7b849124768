"""Every named strategy keeps the strategy contract, and gives tensors what it gives arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hubless.params import scaled, to_numpy
from hubless.strategy import Strategy, kinds
from hubless.strategy.look import Seen
from hubless.strategy.optimizers import Replace
from hubless.strategy.weighting import ByStaleness, Capped, Decay, Equally
from hubless.testing import StrategyContract, Update, aggregate

Arrays = dict[str, NDArray[Any]]

FOUND: dict[str, Callable[..., Strategy]] = {**kinds()}
every_strategy = pytest.mark.parametrize("name", sorted(FOUND))


def _params(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(4, 3)).astype(np.float32),
        "turned": np.asfortranarray(rng.normal(size=(3, 5)).astype(np.float32)),
        "scale": np.asarray(rng.normal(), np.float32),
        "half": rng.normal(size=7).astype(np.float16),
        "brain": rng.normal(size=6).astype(ml_dtypes.bfloat16),
        "double": rng.normal(size=2),
        "steps": np.array(1000 * seed + 7),
        "seen": rng.integers(0, 1 << 40, size=3),
        "mask": rng.random(6) < 0.5,
        "none": np.zeros((0, 2), np.float32),
    }


def _tensors(params: Arrays) -> dict[str, torch.Tensor]:
    bits = {name: array.view(np.int16) for name, array in params.items() if array.dtype.kind == "V"}
    return {
        name: torch.tensor(bits[name]).view(torch.bfloat16)
        if name in bits
        else torch.tensor(np.ascontiguousarray(array)).reshape(array.shape)
        for name, array in params.items()
    }


def _wide(array: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(array, np.float64)


class TestEveryNamedStrategy(StrategyContract):
    @pytest.fixture(params=sorted(FOUND))
    def strategy(self, request: pytest.FixtureRequest) -> Strategy:
        return FOUND[request.param]()


@dataclass(frozen=True)
class Nearby:
    """The further an update has gone, the less it counts."""

    look: Literal["norms", "products"]

    def __call__(self, seen: Seen) -> Any:
        return 1 / (1 + seen.norms**3)


class TestAStrategyOfOnesOwnParts(StrategyContract):
    OWN = (Equally(), Capped(3), ByStaleness(Decay("hinge")), Nearby("norms"), Nearby("products"))

    @pytest.fixture(params=OWN, ids=repr)
    def strategy(self, request: pytest.FixtureRequest) -> Strategy:
        return FOUND["FedAvg"](weighting=request.param)


@dataclass(frozen=True)
class Largest:
    """Per element the largest value: bounded memory, and no sum."""

    streaming = True
    linear = False

    def add(self, total: Any, array: Any, weight: float, spent: bool = False) -> Any:
        if total is None:
            return scaled(array, 1.0)
        return np.maximum(total, array) if isinstance(array, np.ndarray) else total.maximum(array)

    def finish(self, total: Any) -> Any:
        return total


class TestAReducerOfOnesOwn(StrategyContract):
    @pytest.fixture
    def strategy(self) -> Strategy:
        return Strategy(Equally(), Largest(), Replace())


def test_the_named_strategies_are_those_there_should_be() -> None:
    assert sorted(FOUND) == [
        "Bulyan",
        "CentredClipping",
        "FedAdagrad",
        "FedAdam",
        "FedAsync",
        "FedAvg",
        "FedAvgM",
        "FedBuff",
        "FedMedian",
        "FedTrimmedMean",
        "FedYogi",
        "GeometricMedian",
        "Krum",
        "MultiKrum",
        "NormBound",
    ]


@every_strategy
def test_a_named_strategy_is_found_in_its_package_by_its_name(name: str) -> None:
    import hubless
    import hubless.strategy

    assert getattr(hubless.strategy, name) is FOUND[name] is getattr(hubless, name)


def test_a_name_that_is_no_strategy_is_not_found() -> None:
    import hubless.strategy

    with pytest.raises(AttributeError, match="FedNothing"):
        hubless.strategy.FedNothing  # noqa: B018


@every_strategy
def test_tensors_give_the_same_numbers_as_arrays_over_several_steps(name: str) -> None:
    strategy = FOUND[name]()
    ours: Any = _params(99)
    theirs: Any = _tensors(ours)
    our_state = their_state = None
    for step in range(4):
        sent = [_params(10 * step + i) for i in range(5)]
        examples = [5, 0, 40, 1, 12]
        ours, our_state = aggregate(
            strategy,
            [Update(f"c{i}", p, n) for i, (p, n) in enumerate(zip(sent, examples, strict=True))],
            ours,
            our_state,
        )
        theirs, their_state = aggregate(
            strategy,
            [
                Update(f"c{i}", _tensors(p), n)
                for i, (p, n) in enumerate(zip(sent, examples, strict=True))
            ],
            theirs,
            their_state,
        )
        for key, array in sent[0].items():
            assert isinstance(theirs[key], torch.Tensor)
            received = to_numpy(key, theirs[key])
            assert received.dtype == ours[key].dtype == array.dtype, key
            assert received.shape == ours[key].shape == array.shape, key
            # one unit in the last place: torch multiplies and adds in one rounding
            loose = {"float16": 2e-3, "bfloat16": 2e-2}.get(array.dtype.name, 1e-5)
            assert np.allclose(_wide(ours[key]), _wide(received), rtol=loose, atol=1e-6), key


@every_strategy
def test_updates_that_agree_leave_the_current_version_as_it_is(name: str) -> None:
    """Where nobody moved there is no gradient, so no optimizer may take a step."""
    params = _params(1)
    updates = [Update(f"c{i}", params, examples=i + 1) for i in range(5)]
    result, _ = aggregate(FOUND[name](), updates, params)
    for key, array in params.items():
        # a rounding error of the mean divided by tau is all that an adaptive step may add
        assert np.allclose(_wide(np.asarray(result[key])), _wide(array), rtol=1e-5, atol=1e-4), key


@every_strategy
def test_the_order_of_updates_does_not_matter(name: str) -> None:
    updates = [Update(f"c{i}", _params(i), examples=i + 1) for i in range(5)]
    straight, _ = aggregate(FOUND[name](), updates, _params(9))
    turned, _ = aggregate(FOUND[name](), updates[::-1], _params(9))
    for key in straight:
        a, b = _wide(np.asarray(straight[key])), _wide(np.asarray(turned[key]))
        assert np.allclose(a, b, rtol=1e-2, atol=1e-2), key


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_mean_is_the_mean_in_every_dtype_shape_and_layout(kind: str) -> None:
    sent = [_params(i) for i in range(3)]
    examples = [1, 2, 5]
    given: list[Any] = sent if kind == "numpy" else [_tensors(params) for params in sent]
    updates = [Update(str(i), p, n) for i, (p, n) in enumerate(zip(given, examples, strict=True))]
    result, _ = aggregate(FOUND["FedAvg"](), updates)
    for key, array in sent[0].items():
        expected = sum(_wide(p[key]) * n / 8 for p, n in zip(sent, examples, strict=True))
        if array.dtype.kind in "ib":
            # of counters and flags the middle one counts, and the last has most of the weight
            expected = _wide(sent[2][key])
        loose = {"float16": 1e-3, "bfloat16": 8e-3}.get(array.dtype.name, 1e-6)
        got = _wide(to_numpy(key, result[key]))
        assert np.allclose(got, expected, rtol=loose, atol=1e-6), key


@pytest.mark.parametrize(
    ("name", "hostile"), [("FedMedian", 2), ("FedTrimmedMean", 1)], ids=["median", "trimmed mean"]
)
def test_a_robust_strategy_stays_among_the_honest_whatever_the_others_send(
    name: str, hostile: int
) -> None:
    rng = np.random.default_rng(5)
    honest = [rng.normal(size=8) for _ in range(5 - hostile)]
    sent = honest + [np.full(8, 1e30 * (-1) ** i) for i in range(hostile)]
    updates = [Update(str(i), {"w": w}, examples=1) for i, w in enumerate(sent)]
    result = np.asarray(aggregate(FOUND[name](), updates)[0]["w"])
    assert (result >= np.min(honest, axis=0) - 1e-9).all()
    assert (result <= np.max(honest, axis=0) + 1e-9).all()


def test_the_text_of_a_strategy_tells_its_settings() -> None:
    texts = {
        repr(strategy)
        for strategy in (
            FOUND["FedAdam"](),
            FOUND["FedAdam"](lr=0.5),
            FOUND["FedAdam"](tau=0.5),
            FOUND["FedAdam"](weighting=Capped(5)),
            FOUND["FedYogi"](lr=0.1),
        )
    }
    assert len(texts) == 5
