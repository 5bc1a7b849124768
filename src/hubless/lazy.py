"""What a package exports, each name imported when it is first asked for.

So a package can name all it has without importing numpy or torch for those who need only a part.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache


def exported(
    package: str, kinds: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: what stands below `if TYPE_CHECKING:` in its file.

    Type checkers read those imports, and so does this: they are never run. No name may be that of
    a module of the package, which would hide it. `kinds` is a module whose function `kinds` finds
    classes by looking at the package's files: they are exported without being listed. `__all__` is
    what `__dir__` gives.

    >>> getattribute, names = exported("hubless.privacy")
    >>> getattribute("Laplace").__name__, "Laplace" in names()
    ('Laplace', True)
    """

    @cache
    def homes() -> Mapping[str, str]:
        # who imports a package alone, or a module of it, does without these
        import ast
        import pkgutil

        tree = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
        block = next(node for node in tree.body if isinstance(node, ast.If))
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def discovered() -> Mapping[str, object]:
        classes: Mapping[str, object] = importlib.import_module(f"{package}.{kinds}").kinds()
        return classes

    def names() -> list[str]:
        return sorted({*homes(), *(discovered() if kinds else ())})

    def getattribute(name: str) -> object:
        if name in homes():
            return getattr(importlib.import_module(homes()[name]), name)
        if name == "__all__":
            return names()
        # classes alone: whatever else is asked for must not import every module
        if kinds and name[:1].isupper() and name in (classes := discovered()):
            return classes[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute, names
