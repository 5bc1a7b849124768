"""Arithmetic on a model's named arrays, one way for numpy arrays and torch tensors.

Nothing here imports torch: a tensor can only arrive if its owner did.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hubless.errors import ParamsError

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = NDArray[Any] | torch.Tensor
else:
    Array: TypeAlias = Any

Params: TypeAlias = Mapping[str, Array]
A = TypeVar("A", bound=Any)
PRODUCT_COLUMNS = 1 << 13
"""So many elements of many arrays are multiplied together: they fit into a core's cache."""


def is_tensor(array: object) -> bool:
    """Whether this is a torch tensor, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def to_numpy(name: str, array: object) -> NDArray[Any]:
    """The same values as a numpy array, sharing memory where that is possible."""
    if isinstance(array, np.ndarray):
        return array
    if is_tensor(array):
        try:
            return _tensor_to_numpy(cast("torch.Tensor", array))
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise ParamsError(f"parameter {name!r} cannot be shared: {error}") from error
    if isinstance(array, (bool, int, float, np.generic)):
        return np.asarray(array)
    raise ParamsError(
        f"parameter {name!r} is a {type(array).__name__}, not an array: "
        "pass numpy arrays or torch tensors by name"
    )


def whole_examples(examples: float) -> int:
    """A number of examples as a whole number, or an error where it is none.

    >>> whole_examples(3.0)
    3
    """
    try:
        whole = -1 if isinstance(examples, (bool, str)) else int(examples)
        if whole < 0 or whole != examples:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ParamsError(
            f"examples must be a whole number of at least 0, not {examples!r}"
        ) from None
    if whole >= 10**15:
        raise ParamsError(f"examples={examples} is not a plausible number of examples")
    return whole


def finite(valuation: float) -> float:
    """A valuation as a float, or an error where it is no finite number.

    >>> finite(3)
    3.0
    """
    try:
        value = math.nan if isinstance(valuation, (bool, str)) else float(valuation)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ParamsError(f"valuation must be a finite number or None, not {valuation!r}")
    return value


def assign(target: torch.Tensor, values: NDArray[Any]) -> None:
    """Overwrite a tensor in place, on whatever device it lives."""
    torch = _torch()
    values = values if values.flags.writeable else values.copy()
    with torch.no_grad():
        if str(target.dtype) == "torch.bfloat16":
            bits = torch.from_numpy(values.view(np.int16))
            target.copy_(bits.view(torch.bfloat16))
        else:
            target.copy_(torch.from_numpy(values))


def bfloat16() -> np.dtype[Any]:
    """The bfloat16 dtype for numpy; the package behind it loads only when it is needed."""
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def is_floating(array: Array) -> bool:
    """Whether the values are real numbers rather than counters or flags."""
    if is_tensor(array):
        return bool(cast("torch.Tensor", array).dtype.is_floating_point)
    # ml_dtypes registers its types with kind "V"
    return cast(NDArray[Any], array).dtype.kind in "fV"


def scaled(array: A, weight: float, spent: bool = False) -> A:
    """`array * weight` in a dtype that sums can be kept in; in place, if it may be and fits.

    Half precision sums in float32, counters and flags in float64.

    >>> scaled(np.array([2, 4]), 0.5).dtype
    dtype('float64')
    """
    if is_tensor(array):
        return cast(A, array.to(_sum_dtype_torch(array)) * weight)
    dtype = _sum_dtype(array.dtype)
    if spent and array.dtype == dtype:
        return cast(A, np.multiply(array, dtype.type(weight), out=array))
    # numpy turns arrays without dimensions into scalars, which cannot be added to in place
    return cast(A, np.asarray(np.multiply(array, dtype.type(weight), dtype=dtype, order="C")))


def add_scaled(total: A, array: A, weight: float, spent: bool = False) -> None:
    """`total += array * weight` in place; an array that is `spent` may be overwritten."""
    if is_tensor(total):
        total.add_(array.to(total.dtype), alpha=weight)
        return
    product = array if spent and array.dtype == total.dtype else None
    product = np.multiply(array, total.dtype.type(weight), out=product, dtype=total.dtype)
    np.add(total, product, out=total)


def settle(total: A, like: Array) -> A:
    """Bring a sum back to the dtype it came from; counters are rounded, never turned to floats.

    >>> settle(np.array([2.5, 3.5, 7.2]), np.array([0, 0, 0]))
    array([2, 4, 7])
    """
    if is_tensor(total):
        like = cast("torch.Tensor", like)
        if total.dtype == like.dtype:
            return total
        if not is_floating(like):
            total = total.round()
            if str(like.dtype) != "torch.bool":
                total = total.clamp(*_bounds(_torch().iinfo(like.dtype)))
        return cast(A, total.to(like.dtype))
    dtype = cast(NDArray[Any], like).dtype
    if total.dtype == dtype:
        return total
    if dtype.kind in "iu":
        total = np.clip(np.rint(total), *_bounds(np.iinfo(dtype)))
    elif dtype.kind == "b":
        total = np.rint(total)
    return cast(A, np.asarray(total.astype(dtype)))


def zeros(array: A) -> A:
    """Zeros of the same shape, in the dtype that sums are kept in."""
    if is_tensor(array):
        return cast(A, _torch().zeros_like(array, dtype=_sum_dtype_torch(array)))
    return cast(A, np.zeros(array.shape, _sum_dtype(array.dtype)))


def sign(array: A) -> A:
    """Elementwise sign."""
    return cast(A, array.sign() if is_tensor(array) else np.sign(array))


def stack(arrays: Iterable[A]) -> A:
    """The arrays as rows of one."""
    rows = list(arrays)
    return cast(A, _torch().stack(rows) if is_tensor(rows[0]) else np.stack(rows))


def sort_rows(array: A) -> A:
    """Each column sorted on its own."""
    return cast(A, array.sort(dim=0).values if is_tensor(array) else np.sort(array, axis=0))


def products(
    arrays: Sequence[Array], origin: Array | None, *, alone: bool = False, exact: bool = False
) -> NDArray[np.float64]:
    """The product of each `array - origin` with each other one, or `alone` with itself.

    `exact` gives the same bits on every machine, and takes longer.

    >>> products([np.array([3.0, 4.0]), np.array([0.0, 1.0])], None).tolist()
    [[25.0, 4.0], [4.0, 1.0]]
    """
    total = np.zeros(len(arrays) if alone else (len(arrays), len(arrays)))
    flat = [array.reshape(-1) for array in arrays]
    begin = None if origin is None else origin.reshape(-1)
    columns = PRODUCT_COLUMNS if exact else 4 * PRODUCT_COLUMNS
    for start in range(0, math.prod(arrays[0].shape), columns):
        some = slice(start, start + columns)
        before = None if begin is None else begin[some]
        if exact:
            rows = np.stack([_exact(array[some], before) for array in flat])
            for i in range(len(arrays)):
                others = rows[i : i + 1] if alone else rows[i:]
                products = _sums(others * rows[i])
                total[i if alone else (i, slice(i, None))] += products[0] if alone else products
        elif alone:
            for i, array in enumerate(flat):
                change = _change(array[some], before)
                total[i] += float(change @ change)
        else:
            changes = stack(_change(array[some], before) for array in flat)
            total += to_numpy("products", changes @ changes.T)
    # a product is the same from both sides, to the bit: where two are equally far, that decides
    return total if alone else np.triu(total) + np.triu(total, 1).T


def _sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row: halves are added up, because processors differ in how they sum."""
    length = rows.shape[1]
    while length > 1:
        half = (length + 1) // 2
        rows[:, : length - half] += rows[:, half:length]
        length = half
    return rows[:, 0]


def _exact(array: Array, origin: Array | None) -> NDArray[np.float64]:
    row = to_numpy("row", array).astype(np.float64)
    return row if origin is None else row - to_numpy("origin", origin).astype(np.float64)


def _change(array: A, origin: A | None) -> A:
    """`array - origin`, in single precision at least: few enough are summed up for that."""
    row = scaled(array, 1.0)
    if origin is not None:
        row -= origin
    return row


def _tensor_to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        # numpy has no bfloat16 of its own, so the bits travel as int16
        return tensor.contiguous().view(_torch().int16).numpy().view(bfloat16())
    return tensor.numpy()


def _bounds(info: Any) -> tuple[float, float]:
    """The range of an integer type as floats that convert back without overflowing."""
    high = float(info.max)
    return float(info.min), high if high <= info.max else float(np.nextafter(high, 0))


def _torch() -> ModuleType:
    return sys.modules["torch"]


def _sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind in "fV":
        return np.dtype(np.float32) if dtype.itemsize <= 4 else np.dtype(np.float64)
    return np.dtype(np.float64)


def _sum_dtype_torch(tensor: torch.Tensor) -> torch.dtype:
    narrow = tensor.dtype.is_floating_point and tensor.element_size() <= 4
    dtype: torch.dtype = getattr(_torch(), "float32" if narrow else "float64")
    return dtype
