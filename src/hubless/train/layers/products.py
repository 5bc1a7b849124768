"""Products of large matrices on a CPU, by whichever library is the faster one there.

torch leaves products of float32 to MKL, which keeps to AVX2 on AMD's processors: where these have
AVX-512, oneDNN takes less than half the time.
"""

from __future__ import annotations

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b.T`, where nothing has to be differentiated.

    >>> product(torch.ones(2, 3), torch.ones(4, 3))
    tensor([[3., 3., 3., 3.],
            [3., 3., 3., 3.]])
    """
    if _has_onednn and a.device.type == "cpu" and a.numel() and b.numel():
        result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return result
    return a @ b.t()


_has_onednn = hasattr(torch.ops.mkldnn, "_linear_pointwise")
