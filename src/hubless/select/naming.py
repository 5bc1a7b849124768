"""Selectors by name: what the command line and settings files call them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import hubless.select
from hubless.checks import meant
from hubless.errors import SelectionError
from hubless.select.custom import Custom, selector, takes_three
from hubless.select.roster import Selector


def kinds() -> dict[str, type[Selector]]:
    """Every class of selectors there is, found by looking at the files of this package.

    >>> "Uniform" in kinds()
    True
    """
    selectors: dict[str, type[Selector]] = {}
    for module in pkgutil.iter_modules(hubless.select.__path__):
        name = f"{hubless.select.__name__}.{module.name}"
        for item in vars(importlib.import_module(name)).values():
            if (
                inspect.isclass(item)
                and item.__module__ == name
                and is_dataclass(item)
                and "__call__" in vars(item)
            ):
                selectors[item.__name__] = cast(type[Selector], item)
    return selectors


def runs_code(text: str) -> bool:
    """Whether the selector that a text names comes from a file, which is run to have it.

    >>> runs_code("at-most:mine.py:fewest"), runs_code("at-most:heavy")
    (True, False)
    """
    return text.rpartition(":")[0].endswith(".py")


def named(text: str) -> Selector:
    """The selector that a text names, with its settings by name or in order after colons.

    `file.py:name` is one from a file: a decorated function, a selector, or a class of them.

    >>> named("activity:n:exact")
    Activity('n', 'exact', unbiased=False)
    >>> named("at-most:heavy:share=0.1")
    AtMost(selector=Heavy(share=0.1))
    >>> named("refreshed:rounds=20:heavy")
    Refreshed(selector=Heavy(share=0.2), rounds=20)
    """
    head, *settings = text.split(":")
    by_name = {_spoken(name): kind for name, kind in kinds().items() if _nameable(kind)}
    path, _, name = text.rpartition(":")
    if head not in by_name and runs_code(text):
        return _from_file(Path(path), name)
    if head not in by_name:
        raise SelectionError(
            f"there is no selector {head!r}{meant(head, by_name)}: there are "
            f"{', '.join(sorted(by_name))}, and file.py:name"
        )
    return _made(text, by_name[head], settings)


def _spoken(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _made(text: str, kind: Any, settings: list[str]) -> Selector:
    hints = get_type_hints(kind)
    order = [field.name for field in fields(kind) if field.init]
    given: dict[str, Any] = {}
    for place, setting in enumerate(settings):
        name, equals, value = setting.partition("=")
        if not equals:
            left = [field for field in order if field not in given]
            if not left:
                raise SelectionError(f"{text!r} has more settings than {order}")
            name, value = left[0], setting
        if name not in order or name in given:
            raise SelectionError(f"{text!r} sets {name!r}: there are {order}, each once")
        if hints[name] is Selector:
            # a selector within a selector takes the rest of the text
            given[name] = named(":".join(settings[place:]))
            break
        try:
            given[name] = _read(value, hints[name])
        except ValueError:
            raise SelectionError(f"{text!r}: {name} cannot be {value!r}") from None
    missing = [
        f.name for f in fields(kind) if f.init and f.default is MISSING and f.name not in given
    ]
    if missing:
        raise SelectionError(f"{text!r} leaves out {', '.join(missing)}")
    made: Selector = kind(**given)
    return made


def _read(text: str, hint: Any) -> Any:
    """A text as what a field holds, or a ValueError."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if option is NoneType and text == "none":
            return None
        if option is bool and text in ("true", "false"):
            return text == "true"
        if get_origin(option) is Literal and text in get_args(option):
            return text
        if get_origin(option) is tuple:
            return tuple(_read(item, get_args(option)[0]) for item in text.split(","))
        if option in (int, float, str):
            with suppress(ValueError):
                return option(text)
    raise ValueError(text)


def _nameable(kind: Any) -> bool:
    """Whether what it cannot do without can be written in a text."""
    hints = get_type_hints(kind)
    needed = [hints[f.name] for f in fields(kind) if f.init and f.default is MISSING]
    return all(hint is Selector or get_origin(hint) is tuple for hint in needed)


def _from_file(path: Path, name: str) -> Selector:
    if not path.is_file():
        raise SelectionError(f"there is no file {path} to take the selector {name!r} from")
    where = f"hubless_selectors_{hashlib.blake2b(bytes(path.resolve()), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(where, path)
    if spec is None or spec.loader is None:
        raise SelectionError(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by its name
    sys.modules[where] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[where]
        raise SelectionError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    own = [
        key
        for key, item in vars(module).items()
        if isinstance(item, Custom) or getattr(item, "__module__", None) == where
    ]
    if name not in vars(module):
        raise SelectionError(f"{path} has no {name!r}: it has {', '.join(own) or 'nothing'}")
    item = vars(module)[name]
    if inspect.isclass(item):
        try:
            item = item()
        except TypeError as error:
            raise SelectionError(
                f"{path}:{name} cannot be made without settings: {error}"
            ) from error
    if inspect.isfunction(item) and takes_three(item):
        return selector(item)
    if not takes_three(item):
        raise SelectionError(
            f"{path}:{name} is not a selector, a function of (roster, k, rng), but "
            f"{type(item).__name__}"
        )
    made: Selector = item
    return made
