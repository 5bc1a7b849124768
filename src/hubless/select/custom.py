"""Selectors of one's own: a decorated function."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hubless.checks import takes
from hubless.errors import SelectionError
from hubless.select.roster import Ints, Roster, refuse_shortage

Function = Callable[[Roster, int, np.random.Generator], ArrayLike]


@dataclass(frozen=True, repr=False)
class Custom:
    """A function as a selector; what it returns is checked.

    A digest of its text is part of its name, so that a run is not resumed with another function.

    Args:
        function: Takes (roster, k, rng) and returns k different places in the roster, of clients
            that are available. It is pure: chance comes from `rng` alone.
    """

    function: Function

    def __post_init__(self) -> None:
        if not takes_three(self.function):
            raise SelectionError(
                f"a selector is a function of three arguments, (roster, k, rng): "
                f"{described(self.function)} is not"
            )

    def __repr__(self) -> str:
        return f"selector {described(self.function)}"

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        picked = np.asarray(self.function(roster, k, rng))
        if picked.size == 0:
            picked = picked.astype(np.int64)
        wrong = None
        if picked.ndim != 1 or picked.dtype.kind not in "iu":
            wrong = f"{picked.dtype} of shape {picked.shape}, not client numbers in a flat array"
        elif len(picked) != k:
            wrong = f"{len(picked)} clients, where {k} were asked for"
        elif k and not 0 <= picked.min() <= picked.max() < len(roster):
            wrong = f"clients that are not among 0 to {len(roster) - 1}"
        elif len(np.unique(picked)) < k:
            wrong = "a client more than once"
        elif roster.available is not None and not roster.available[picked].all():
            wrong = "a client that is not available"
        if wrong:
            raise SelectionError(f"{self!r} returned {wrong}")
        return picked.astype(np.int64)


def selector(function: Function) -> Custom:
    """Make a function of (roster, k, rng) a selector, as a decorator.

    Args:
        function: Takes the roster, how many to pick and a generator, and returns k different places
            in the roster.

    >>> @selector
    ... def newest(roster, k, rng):
    ...     return np.argsort(roster.last_seen)[-k:]
    >>> newest(Roster([3, 4, 5]), 1, np.random.default_rng(0))
    array([2])
    """
    return Custom(function)


def takes_three(function: object) -> bool:
    """Whether this can be called with three arguments, as far as one can see.

    >>> takes_three(max), takes_three(lambda roster: []), takes_three(3)
    (True, False, False)
    """
    return takes(function, 3)


def described(function: Any) -> str:
    """A function's name and a digest of what it does, the same in every process.

    >>> described(takes_three) == described(takes_three)
    True
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        # typed in, or not a function at all: what it is made of, but for where it lies in memory
        code = getattr(function, "__code__", None)
        made = (code.co_code, code.co_names, code.co_consts) if code else function
        text = without_addresses(made)
    text += "".join(map(without_addresses, _at_hand(function, set())))
    return f"{name} {hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def _at_hand(function: Any, seen: set[int]) -> Iterator[Any]:
    """What a function has at hand besides its arguments: two of one text may differ in that.

    But for what may change while it is used, such as a list that it writes down its picks in.
    """
    if id(function) in seen:
        return
    seen.add(id(function))
    cells = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    defaults = (getattr(function, name, None) for name in ("__defaults__", "__kwdefaults__"))
    for item in (*cells.values(), *defaults):
        if inspect.isfunction(item):
            yield item.__code__.co_code
            yield from _at_hand(item, seen)
        elif isinstance(item, (bool, int, float, complex, str, bytes, tuple, frozenset)):
            yield item


def without_addresses(item: object) -> str:
    """What something is, the same in every process.

    >>> without_addresses(takes_three)
    '<function takes_three>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(item))
