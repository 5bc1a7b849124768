"""Doing something to a module as soon as somebody imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextmanager
def once_imported(name: str, then: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call with this module: at once if it is imported, or else right after somebody imports it."""
    finder = _Awaited(name, then)
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.withdraw()


class _Awaited(MetaPathFinder):
    """Calls back once a module has been imported, by whoever else finds it."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        self.withdraw()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        vars(spec.loader)["exec_module"] = executed
        return spec

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
