"""Arithmetic on params: numpy arrays and torch tensors give the same, dtype by dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hubless import params as arithmetic
from hubless.errors import ParamsError
from hubless.params import (
    add_scaled,
    assign,
    is_floating,
    is_tensor,
    scaled,
    settle,
    to_numpy,
)

TORCH = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 4), (0,), (2, 0, 3)]
every_dtype = pytest.mark.parametrize("dtype", TORCH)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def _numpy(dtype: str, shape: tuple[int, ...] = (7,), seed: int = 0) -> NDArray[Any]:
    values = np.random.default_rng(seed).normal(size=shape) * 10
    if dtype == "bool":
        return np.asarray(values > 0)
    if dtype == "uint8":
        values = np.abs(values)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return np.asarray(values).astype(kind)


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The tensor of the same values, made without the functions under test."""
    wide = torch.tensor(array.astype(np.float64).tolist(), dtype=torch.float64)
    return wide.reshape(array.shape).to(TORCH[array.dtype.name])


def _wide(array: NDArray[Any] | torch.Tensor) -> NDArray[np.float64]:
    if isinstance(array, torch.Tensor):
        return array.detach().to(torch.float64).numpy()
    return np.asarray(array, np.float64)


def _dtype_name(array: NDArray[Any] | torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


@every_dtype
@every_shape
def test_a_tensor_becomes_the_array_of_the_same_values_and_dtype(
    dtype: str, shape: tuple[int, ...]
) -> None:
    expected = _numpy(dtype, shape)
    array = to_numpy("w", _tensor(expected))
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    assert array.tobytes() == expected.tobytes()


@every_dtype
def test_a_tensor_and_its_array_share_their_memory(dtype: str) -> None:
    tensor = torch.zeros(4, dtype=TORCH[dtype])
    array = to_numpy("w", tensor)
    tensor.fill_(1)
    assert _wide(array).tolist() == [1, 1, 1, 1]
    array[2] = 0
    assert _wide(tensor).tolist() == [1, 1, 0, 1]


def test_an_array_is_taken_as_it_is() -> None:
    array = _numpy("float32")
    assert to_numpy("w", array) is array


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_that_does_not_lie_in_one_piece_keeps_its_values(dtype: str) -> None:
    array = _numpy(dtype, (3, 4))
    turned = to_numpy("w", _tensor(array).t())
    assert turned.shape == (4, 3)
    assert np.array_equal(_wide(turned), _wide(array.T))


def test_a_parameter_that_learns_is_taken_without_its_history() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert to_numpy("w", weight).tolist() == [1, 1]
    assert to_numpy("w", weight * 2).tolist() == [2, 2]


@pytest.mark.parametrize("value", [True, 3, 2.5, np.float32(1.5), np.int64(4)])
def test_a_plain_number_becomes_an_array_without_dimensions(value: object) -> None:
    array = to_numpy("w", value)
    assert array.shape == ()
    assert array.item() == value


@pytest.mark.parametrize("value", [None, "text", [1.0, 2.0], {"w": 1}, object()])
def test_what_is_no_array_is_refused_by_name_and_type(value: object) -> None:
    with pytest.raises(ParamsError, match=r"'body\.w' is a \w+, not an array") as raised:
        to_numpy("body.w", value)
    assert type(value).__name__ in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2).to(torch.float8_e4m3fn),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.zeros(2, device="meta"),
    ],
    ids=["float8", "sparse", "meta"],
)
def test_a_tensor_that_numpy_cannot_hold_is_refused_by_name(
    make: Callable[[], torch.Tensor],
) -> None:
    with pytest.raises(ParamsError, match=r"body\.w"):
        to_numpy("body.w", make())


@every_dtype
@every_shape
def test_values_assigned_to_a_tensor_come_back_the_same(dtype: str, shape: tuple[int, ...]) -> None:
    values = _numpy(dtype, shape)
    target = torch.zeros(shape, dtype=TORCH[dtype])
    same = target
    assign(target, values)
    assert to_numpy("w", target).tobytes() == values.tobytes()
    assert target is same and tuple(target.shape) == shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_values_can_be_assigned_from_memory_that_must_not_be_written(dtype: str) -> None:
    values = _numpy(dtype)
    values.flags.writeable = False
    target = torch.zeros(7, dtype=TORCH[dtype])
    assign(target, values)
    assert to_numpy("w", target).tobytes() == values.tobytes()
    target.zero_()
    assert values.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_are_assigned_in_any_layout_on_either_side(dtype: str) -> None:
    values = _numpy(dtype, (4, 3)).T
    target = torch.zeros((4, 3), dtype=TORCH[dtype]).t()
    assign(target, values)
    assert np.array_equal(_wide(target), _wide(values))


def test_a_parameter_that_learns_can_be_assigned_and_goes_on_learning() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    assign(weight, np.array([1, 2], np.float32))
    assert weight.tolist() == [1, 2]
    assert weight.requires_grad and weight.is_leaf


@every_dtype
@every_shape
@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0, -1.5])
def test_scaling_gives_the_same_for_both_kinds(
    dtype: str, shape: tuple[int, ...], weight: float
) -> None:
    array = _numpy(dtype, shape)
    ours, theirs = scaled(array, weight), scaled(_tensor(array), weight)
    assert isinstance(ours, np.ndarray)
    assert _dtype_name(ours) == _dtype_name(theirs)
    assert ours.shape == tuple(theirs.shape) == shape
    assert np.array_equal(_wide(ours), _wide(theirs))
    assert np.allclose(_wide(ours), _wide(array) * weight, rtol=1e-6)


@every_dtype
def test_sums_are_kept_in_a_dtype_wide_enough(dtype: str) -> None:
    narrow = dtype in ("float32", "float16", "bfloat16")
    assert _dtype_name(scaled(_numpy(dtype), 1.0)) == ("float32" if narrow else "float64")


@every_dtype
def test_scaling_makes_a_new_array_even_by_one(dtype: str) -> None:
    array = _numpy(dtype)
    tensor = _tensor(array)
    for total in (scaled(array, 1.0), scaled(tensor, 1.0)):
        total += 1
    assert array.tobytes() == _numpy(dtype).tobytes()
    assert to_numpy("w", tensor).tobytes() == array.tobytes()


@every_dtype
@every_shape
def test_adding_gives_the_same_for_both_kinds(dtype: str, shape: tuple[int, ...]) -> None:
    first, second = _numpy(dtype, shape, 1), _numpy(dtype, shape, 2)
    ours, theirs = scaled(first, 0.25), scaled(_tensor(first), 0.25)
    add_scaled(ours, second, 0.75)
    add_scaled(theirs, _tensor(second), 0.75)
    expected = 0.25 * _wide(first) + 0.75 * _wide(second)
    assert np.allclose(_wide(ours), expected, rtol=1e-6, atol=1e-6)
    assert np.allclose(_wide(theirs), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 * (1 << 16)])
def test_adding_reaches_every_element_of_a_long_array(size: int) -> None:
    total = np.zeros(size)
    add_scaled(total, np.ones(size, np.float32), 2.0)
    assert (total == 2).all()


def test_adding_reaches_arrays_in_any_layout() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = array * 1.5
    turned = scaled(np.asfortranarray(array), 0.5)
    add_scaled(turned, array, 1.0)
    assert np.array_equal(turned, expected)
    straight = scaled(array, 0.5)
    add_scaled(straight, np.asfortranarray(array), 1.0)
    assert np.array_equal(straight, expected)
    every_other = np.zeros((3, 8), np.float32)[:, ::2]
    add_scaled(every_other, array, 1.5)
    assert np.array_equal(every_other, expected)


@every_dtype
@every_shape
def test_a_sum_settles_into_the_dtype_it_came_from(dtype: str, shape: tuple[int, ...]) -> None:
    like = _numpy(dtype, shape)
    ours = settle(scaled(like, 1.0), like)
    theirs = settle(scaled(_tensor(like), 1.0), _tensor(like))
    assert ours.dtype == like.dtype and theirs.dtype == TORCH[dtype]
    assert ours.shape == tuple(theirs.shape) == shape
    assert ours.tobytes() == to_numpy("w", theirs).tobytes() == like.tobytes()


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_counters_are_rounded_to_the_nearest_alike(dtype: str) -> None:
    total = np.array([0.4, 0.5, 0.6, 1.5, 2.5, 99.7])
    like = np.zeros(6, dtype)
    ours = settle(total, like)
    theirs = settle(torch.from_numpy(total.copy()), _tensor(like))
    assert ours.tolist() == theirs.tolist() == [0, 0, 1, 2, 2, 100]
    assert total.tolist() == [0.4, 0.5, 0.6, 1.5, 2.5, 99.7]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_a_counter_that_would_overflow_stays_at_its_bound_alike(dtype: str) -> None:
    bounds = np.iinfo(dtype)
    total = np.array([float(bounds.max) * 1.5, float(bounds.min) * 1.5 - 1])
    like = np.zeros(2, dtype)
    # int64's largest has no float of its own, so the nearest below has to do
    largest = bounds.max if dtype != "int64" else int(np.nextafter(2.0**63, 0))
    assert settle(total, like).tolist() == [largest, bounds.min]
    theirs = settle(torch.from_numpy(total.copy()), _tensor(like))
    assert theirs.tolist() == [largest, bounds.min]


def test_flags_go_with_the_majority_alike() -> None:
    total = np.array([0.0, 0.4, 0.6, 1.0])
    like = np.zeros(4, bool)
    ours, theirs = settle(total, like), settle(torch.from_numpy(total.copy()), _tensor(like))
    assert ours.tolist() == theirs.tolist() == [False, False, True, True]


@every_dtype
@every_shape
def test_zeros_are_zeros_of_the_dtype_sums_are_kept_in(dtype: str, shape: tuple[int, ...]) -> None:
    array = _numpy(dtype, shape)
    for like in (array, _tensor(array)):
        zeros = arithmetic.zeros(like)
        assert tuple(zeros.shape) == shape
        assert not _wide(zeros).any()
        assert _dtype_name(zeros) == _dtype_name(scaled(like, 1.0))


def test_zeros_are_zeros_whatever_the_values_were() -> None:
    array = np.array([np.inf, np.nan, -np.inf, -1.0], np.float32)
    for like in (array, torch.from_numpy(array.copy())):
        assert _wide(arithmetic.zeros(like)).tolist() == [0, 0, 0, 0]


@every_dtype
def test_floating_is_what_can_hold_a_fraction_alike(dtype: str) -> None:
    floats = ("float64", "float32", "float16", "bfloat16")
    array = _numpy(dtype)
    assert is_floating(array) == is_floating(_tensor(array)) == (dtype in floats)


def test_only_a_tensor_is_a_tensor() -> None:
    assert is_tensor(torch.ones(1)) and is_tensor(torch.nn.Parameter(torch.ones(1)))
    assert not any(is_tensor(value) for value in (np.ones(1), 1.0, [1.0], None))


def test_signs_stacks_and_sorted_columns_are_the_same_for_both_kinds() -> None:
    rows = [np.array([3.0, -1.0, 0.0]), np.array([1.0, -2.0, 5.0]), np.array([2.0, 0.0, -5.0])]
    tensors = [torch.from_numpy(row.copy()) for row in rows]
    ours, theirs = arithmetic.stack(iter(rows)), arithmetic.stack(iter(tensors))
    assert ours.tolist() == theirs.tolist() == [row.tolist() for row in rows]
    signs = [[1, -1, 0], [1, -1, 1], [1, 0, -1]]
    assert arithmetic.sign(ours).tolist() == arithmetic.sign(theirs).tolist() == signs
    columns = [[1, -2, -5], [2, -1, 0], [3, 0, 5]]
    assert arithmetic.sort_rows(ours).tolist() == columns
    assert arithmetic.sort_rows(theirs).tolist() == columns
    assert ours.tolist() == [row.tolist() for row in rows]
