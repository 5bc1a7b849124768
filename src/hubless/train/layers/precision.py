"""Whether a GPU may round float32 to TF32 in matrix products, which torch has two names for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

_products: Any = torch.backends.cuda.matmul


def in_tf32() -> bool:
    """Whether matrix products are in TF32 here."""
    return bool(_products.fp32_precision == "tf32")


@contextlib.contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Matrix products of a GPU in TF32, within a block."""
    if not wanted or in_tf32():
        yield
        return
    put: Callable[[str], None] = torch.set_float32_matmul_precision
    try:
        before, high = torch.get_float32_matmul_precision(), "high"
    except RuntimeError:
        # whoever has used the newer name is refused the older one
        put = partial(setattr, _products, "fp32_precision")
        before, high = _products.fp32_precision, "tf32"
    put(high)
    try:
        yield
    finally:
        put(before)
