"""What a package exports, each name imported when it is first asked for.

So a package can name all it has without importing numpy or torch for those who need only a part.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def exported(
    package: str, homes: Mapping[str, str], kinds: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, from the module of each name within the package.

    `kinds` is a module whose function `kinds` finds classes by looking at the package's files:
    they are exported without being listed. `__all__` is what `__dir__` gives.

    >>> getattribute, names = exported("hubless.data", {"Population": "population"})
    >>> getattribute("Population").__name__, names()
    ('Population', ['Population'])
    """

    def discovered() -> Mapping[str, object]:
        classes: Mapping[str, object] = importlib.import_module(f"{package}.{kinds}").kinds()
        return classes

    def names() -> list[str]:
        return sorted({*homes, *(discovered() if kinds else ())})

    def getattribute(name: str) -> object:
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        if name == "__all__":
            return names()
        # classes alone: whatever else is asked for must not import every module
        if kinds and name[:1].isupper() and name in (classes := discovered()):
            return classes[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute, names
