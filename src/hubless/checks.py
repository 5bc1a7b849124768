"""What a caller gave, checked before anything is done with it: an error names the argument."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from hubless.errors import HublessError

_LARGEST = sys.float_info.max
_LONGEST = 80


def number(
    name: str,
    value: Any,
    *,
    error: type[HublessError],
    least: float | None = None,
    above: float | None = None,
    most: float = _LARGEST,
    below: float | None = None,
) -> float:
    """A real number within these bounds; a finite one, unless `most` is infinite.

    >>> number("deadline", 2, above=0, error=HublessError)
    2.0
    """
    parts = (("of at least", least), ("above", above), ("below", below))
    bounds = [f"{words} {bound:g}" for words, bound in parts if bound is not None]
    bounds += [f"at most {most:g}"] if most < _LARGEST else []
    given = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            given = float(value)
        except OverflowError:
            given = math.nan
    if (
        not given <= most
        or given == -math.inf
        or (least is not None and given < least)
        or (above is not None and given <= above)
        or (below is not None and given >= below)
    ):
        kind = " ".join(["a number", " and ".join(bounds)]).strip() if bounds else "a finite number"
        raise error(f"{name}= is {kind}, not {shown(value)}")
    return given


def whole(name: str, value: Any, *, error: type[HublessError], least: int) -> int:
    """A whole number from so many on.

    >>> whole("every", 5, least=1, error=HublessError)
    5
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"{name}= is a whole number of at least {least}, not {shown(value)}")
    return int(value)


def flag(name: str, value: Any, *, error: type[HublessError]) -> None:
    """True or False, and nothing that is merely as good as."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise error(f"{name}= is True or False, not {shown(value)}")


def one_of(name: str, value: Any, choices: Sequence[str], *, error: type[HublessError]) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise error(f"{name}= is {', '.join(others)} or {last}, not {shown(value)}")


def meant(word: str, choices: Iterable[str]) -> str:
    """A question whether the word nearest to one that is not there was meant, or nothing.

    >>> meant("unifrom", ["uniform", "heavy"])
    " (did you mean 'uniform'?)"
    """
    near = get_close_matches(word, list(choices), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def fitting(name: str, value: Any, fits: bool, takes: str, *, error: type[HublessError]) -> None:
    """What fits; a class is said to be one, as that is where brackets were forgotten.

    >>> fitting("recipe", 3, False, "a recipe, such as hubless.Recipe()", error=HublessError)
    Traceback (most recent call last):
    hubless.errors.HublessError: recipe= takes a recipe, such as hubless.Recipe(), not 3
    """
    if isinstance(value, type):
        raise error(f"{name}= takes {takes}, and not a class: {value.__name__}(), with brackets")
    if not fits:
        raise error(f"{name}= takes {takes}, not {shown(value)}")


def texts(name: str, value: Any, takes: str, *, error: type[HublessError]) -> None:
    """Several texts, and not one, which would be taken apart into letters."""
    if isinstance(value, str):
        raise error(f"{name}= takes {takes}, in a list: {name}=[{shown(value)}]")
    fits = isinstance(value, Sequence) and all(isinstance(each, str) for each in value)
    fitting(name, value, fits, takes, error=error)


def folder_of(name: str, value: Any, *, error: type[HublessError]) -> Path:
    """A folder's path, whether it is there yet or not.

    >>> folder_of("folder", "runs/first", error=HublessError).name
    'first'
    """
    fits = isinstance(value, str | PathLike) and bool(str(value))
    fitting(name, value, fits, "the path of a folder", error=error)
    path = Path(value)
    there = next((part for part in (path, *path.parents) if part.exists()), path)
    if there.exists() and not there.is_dir():
        raise error(f"{name}= takes the path of a folder, and {there} is a file")
    return path


def takes(function: object, count: int) -> bool:
    """Whether this can be called with so many arguments, as far as one can see.

    >>> takes(max, 3), takes(lambda roster: [], 3), takes(3, 3)
    (True, False, False)
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        # some builtins do not say what they take
        return True
    return True


def shown(value: object) -> str:
    """What was given, in one line and no longer than it takes to know it again.

    >>> shown("a" * 200)[-5:]
    'aa...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
