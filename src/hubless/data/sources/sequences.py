"""Next-token examples: each client's text cut into sequences of one length."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubless.data.index import Index, offsets_of, ranges
from hubless.data.population import Population
from hubless.errors import DataError

PAD = 0

Kind = TypeVar("Kind", bound=np.integer[Any])


def sequences(
    tokens: NDArray[Kind], sizes: Index, length: int, start: int, names: NDArray[Any]
) -> Population:
    """Columns `x` and `y` of [length] tokens: at every place, y is what follows on x.

    Client i says the next `sizes[i]` tokens. Every token is predicted once: the first of a client
    from `start`, the others from the one before it. The last sequence of a client is padded with
    0 in x and y, which no token is: leave out of the loss where y is 0.

    >>> says = sequences(np.array([5, 6, 7, 8]), np.array([3, 1]), 2, 1, np.array(["a", "b"]))
    >>> says.client(0)["x"], says.client(0)["y"]
    (array([[1, 5], [6, 0]]), array([[5, 6], [7, 0]]))
    """
    if length < 1:
        raise DataError(f"a sequence is at least 1 token long, not {length}")
    starts = offsets_of(sizes)[:-1]
    before = np.roll(tokens, 1)
    before[starts[sizes > 0]] = start
    offsets = offsets_of(-(-sizes // length))
    place = ranges(offsets[:-1] * length, sizes)
    columns = {}
    for name, values in (("x", before), ("y", tokens)):
        padded = np.full(int(offsets[-1]) * length, PAD, tokens.dtype)
        padded[place] = values
        columns[name] = padded.reshape(-1, length)
    return Population(columns, offsets, None, names)
