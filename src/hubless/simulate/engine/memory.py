"""Memory that one step frees stays at hand for the next.

glibc gives large blocks back to the system as soon as they are free, and a step that asks for them
again gets them page by page, each from the kernel and filled with zeros: an LSTM spent a seventh
of its time on that. With another allocator nothing of this happens, and nothing needs to.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 32 << 20
"""Larger blocks come from the system each time, whatever is asked for."""
_KEPT = 1 << 30


def keep_freed() -> None:
    """Have this process keep up to a gigabyte that it has freed."""
    if libc := _glibc():
        # either alone makes it worse: a threshold that is set no longer adapts
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Return to the system what is kept."""
    if libc := _glibc():
        libc.malloc_trim(ctypes.c_size_t(0))


@cache
def _glibc() -> Any:
    """The C library, where it is one whose allocator can be told."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
