"""Texts as numbers: one small code per character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import DataError

PAD, UNKNOWN = 0, 1
CHARACTERS = "".join(map(chr, range(32, 127)))
"""Printable ASCII; code 2 stands for the first of them."""
CODES = 2 + len(CHARACTERS)
"""How many codes there are, those for padding and for the unknown included."""

_TABLE = np.full(128, UNKNOWN, np.uint8)
_TABLE[32:127] = np.arange(2, CODES)
_TABLE[[ord(blank) for blank in "\t\n\r"]] = _TABLE[ord(" ")]


def characters(texts: NDArray[Any] | Sequence[str], length: int) -> NDArray[np.uint8]:
    """The first `length` characters of every text as codes, [texts, length], padded with 0.

    Tabs and ends of lines count as blanks; what is beyond ASCII is 1, the unknown.

    >>> characters(["Hi!", "née"], 4)
    array([[42, 75,  3,  0],
           [80,  1, 71,  0]], dtype=uint8)
    """
    if length < 1:
        raise DataError(f"texts are cut to at least 1 character, not {length}")
    listed = texts.tolist() if isinstance(texts, np.ndarray) else texts
    cut = [text[:length] for text in listed]
    sizes = np.fromiter(map(len, cut), np.int64, len(cut))
    joined = "".join([text.ljust(length) for text in cut])
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    # the last place of the table, DEL, is unknown too
    codes = _TABLE[np.minimum(points, 127)].reshape(len(cut), length)
    codes[np.arange(length) >= sizes[:, None]] = PAD
    return codes
