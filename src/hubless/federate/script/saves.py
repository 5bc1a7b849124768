"""Noticing when a script writes a model to a file, before it does."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hubless.federate.model import own_tensors
from hubless.federate.script.imports import once_imported
from hubless.params import is_tensor

_SAVING = {
    "torch.serialization": ("save",),
    "safetensors.torch": ("save", "save_file", "save_model"),
}
"""What writes models, and what others that do so go through, such as `save_pretrained`."""
_ALIASES = {"torch.serialization": "torch"}
"""Where the same functions are known, too, if these modules were imported before."""
_DEEP = 4
"""So deep in lists, dictionaries and objects a model is looked for."""


@dataclass(frozen=True)
class Saving:
    """What is about to be written, and where to."""

    content: Any
    file: str | None

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Every tensor in it, by the last name on the way there."""
        return _tensors("", self.content, _DEEP)


@contextmanager
def before_saves(hook: Callable[[Saving], None]) -> Iterator[None]:
    """Call the hook before a script writes anything with torch or safetensors."""
    replaced: list[tuple[ModuleType, str, Any]] = []
    saving = False

    def watch(module: ModuleType) -> None:
        for name in _SAVING[module.__name__]:
            plain = getattr(module, name)
            watched = _watched(plain, announce)
            for place in (module, sys.modules.get(_ALIASES.get(module.__name__, ""))):
                if place is not None and vars(place).get(name) is plain:
                    replaced.append((place, name, plain))
                    setattr(place, name, watched)

    def announce(content: Any, file: str | None) -> None:
        nonlocal saving
        # one of these may go through another
        if not saving and replaced:
            saving = True
            try:
                hook(Saving(content, file))
            finally:
                saving = False

    with ExitStack() as stack:
        for name in _SAVING:
            stack.enter_context(once_imported(name, watch))
        try:
            yield
        finally:
            for place, name, plain in replaced:
                setattr(place, name, plain)
            # whoever imported the functions by name holds on to the watched ones
            replaced.clear()


def _watched(plain: Callable[..., Any], announce: Callable[[Any, str | None], None]) -> Any:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def watched(*given: Any, **named: Any) -> Any:
        try:
            content, *target = signature.bind(*given, **named).arguments.values()
        except (TypeError, ValueError):
            # a wrong call is for the function itself to refuse
            return plain(*given, **named)
        announce(content, _path(target[0]) if target else None)
        return plain(*given, **named)

    return watched


def _path(target: object) -> str | None:
    """The name of the file that this is, or that is written to through it."""
    if isinstance(target, (str, os.PathLike)):
        return os.fsdecode(target)
    name = getattr(target, "name", None)
    return name if isinstance(name, str) else None


def _tensors(name: str, content: Any, deep: int) -> Iterator[tuple[str, Any]]:
    if is_tensor(content):
        yield name, content
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(content, torch.nn.Module):
        yield from own_tensors(content).items()
    elif torch is not None and isinstance(content, torch.optim.Optimizer):
        # it refers to the params, which its state leaves out
        return
    elif deep and not isinstance(content, (int, float, str, bytes)):
        for key, inner in _parts(content):
            yield from _tensors(str(key), inner, deep - 1)


def _parts(content: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(content, Mapping):
        yield from content.items()
    elif isinstance(content, (list, tuple, set)):
        yield from enumerate(content)
    else:
        yield from getattr(content, "__dict__", {}).items()
