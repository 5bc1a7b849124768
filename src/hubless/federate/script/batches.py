"""How many examples a model was trained on, counted from the batches that it is called with."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from hubless.federate.model import unwrapped
from hubless.params import is_tensor


class Batches:
    """Counts the examples of a torch module's batches: the first dimension, while it trains.

    A loop may call only parts of a module: then it is the part that saw most. A stretch of training
    may be cut short, by a save or by the script's end. It then counts as much as the longest before
    it, because a model stands for all that it was trained on.
    """

    def __init__(self, module: Any) -> None:
        self._longest = 0
        self._counted: dict[int, int] = {}
        self._hooks: list[Any] = []
        if not hasattr(module, "register_forward_pre_hook"):
            return
        self._is_compiling = sys.modules["torch"].compiler.is_compiling
        self._whole = _called(module)
        for part in (self._whole, *unwrapped(module).children()):
            self._hooks.append(part.register_forward_pre_hook(self._count, with_kwargs=True))

    def take(self) -> int | None:
        """How many examples what is shared now stands for; None where no batch was seen."""
        whole = self._hooks and self._counted.get(id(self._whole))
        count = whole or max(self._counted.values(), default=0)
        self._longest = max(self._longest, count)
        self._counted.clear()
        return self._longest or None

    def remove(self) -> None:
        """Count no more."""
        for hook in self._hooks:
            hook.remove()

    def _count(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        # what is compiled must not depend on numbers that change with each call
        if not self._is_compiling() and module.training:
            sizes = (_size(value) for value in (*given, *named.values()))
            size = next((size for size in sizes if size is not None), 0)
            self._counted[id(module)] = self._counted.get(id(module), 0) + size


def _size(value: Any) -> int | None:
    """How many examples there are in an argument, if it looks like a batch."""
    if is_tensor(value):
        return int(value.shape[0]) if value.ndim else None
    if isinstance(value, list):
        return len(value) if value and is_tensor(value[0]) else None
    parts = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (tuple, Mapping)):
        return next((size for size in map(_size, parts) if size is not None), None)
    return None


def _called(module: Any) -> Any:
    """What a script calls: the module, or what a compiler has put around it."""
    inner = unwrapped(module)
    for item in gc.get_objects():
        if type(item).__name__ == "OptimizedModule" and unwrapped(item) is inner:
            return item
    return inner
