"""The package as a whole: what it imports, what it exports, and that all of it is documented."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hubless
from hubless import errors

HEAVY = ["torch", "sklearn", "obstore", "ml_dtypes", "safetensors", "jax", "ray"]
PUBLIC = [
    "Adam",
    "AdamW",
    "Adaptive",
    "Anytime",
    "BestModel",
    "Bucket",
    "Buffered",
    "Bulyan",
    "CentredClipping",
    "Checkpoint",
    "Devices",
    "EarlyStop",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedMedian",
    "FedTrimmedMean",
    "FedYogi",
    "Federation",
    "GeometricMedian",
    "HublessError",
    "Krum",
    "Local",
    "MultiKrum",
    "NormBound",
    "Pace",
    "Participation",
    "Population",
    "Ray",
    "Recipe",
    "Rounds",
    "SGD",
    "Selection",
    "Simulation",
    "Strategy",
    "Task",
    "join",
]
# kernels for GPUs need what torch brings along only for them
NEEDS = {"hubless.train.layers.kernels": "triton"}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(hubless.__path__, f"{hubless.__name__}.")
    if module.name not in NEEDS or importlib.util.find_spec(NEEDS[module.name]) is not None
)
SOURCE = Path(str(hubless.__file__)).parent
ROOT = SOURCE.parents[1]
PACKAGES = [
    ".".join(path.parent.parts[len(SOURCE.parts) - 1 :]) for path in SOURCE.rglob("__init__.py")
]
# packages that import what they export when it is asked for: those that people import from
LAZY = sorted(name for name in PACKAGES if hasattr(importlib.import_module(name), "__all__"))
# what people are shown: pages, examples, and what `hubless new` writes
SHOWN = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((SOURCE / "cli" / "templates").glob("*.py")),
]


def _imported(*arguments: str) -> set[str]:
    """The top-level packages that a Python process imports, as it tells itself."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    names = re.findall(r"^import time:.*\|\s*([\w.]+)$", ran.stderr, re.MULTILINE)
    return {name.split(".")[0] for name in names}


def _own(module: ModuleType) -> Iterator[tuple[str, object]]:
    """The public classes and functions that this module defines itself."""
    for name, item in vars(module).items():
        if name.startswith("_") or getattr(item, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(item) or inspect.isfunction(item):
            yield name, item


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import hubless"),
        ("-m", "hubless.cli", "--help"),
        ("-c", "import hubless; hubless.join('memory://m', 'a').close()"),
        ("-c", "import hubless.strategy; hubless.strategy.kinds()"),
    ],
    ids=["import", "help", "join in memory", "all strategies"],
)
def test_no_framework_is_imported_by_what_needs_none(arguments: tuple[str, ...]) -> None:
    imported = _imported(*arguments)
    assert "hubless" in imported
    assert imported.isdisjoint(HEAVY)


@pytest.mark.parametrize("room", LAZY)
def test_a_room_is_looked_into_without_importing_what_it_exports(room: str) -> None:
    assert "numpy" not in _imported("-c", f"import {room}")


def test_what_is_watched_for_would_be_seen() -> None:
    assert "obstore" in _imported(
        "-c", "from hubless.store.object import ObjectStore; ObjectStore('s3://bucket')"
    )


def test_the_public_namespace_is_exactly_this() -> None:
    assert hubless.__all__ == PUBLIC
    assert dir(hubless) == PUBLIC


@pytest.mark.parametrize("name", LAZY)
def test_every_exported_name_leads_somewhere(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__ == dir(package) == sorted(package.__all__)
    for own in package.__all__:
        # what is neither a class nor a function may be called otherwise, or nothing
        item = getattr(package, own)
        assert not (inspect.isclass(item) or inspect.isfunction(item)) or item.__name__ == own


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_what_it_has_or_is_a_command_or_a_docstring_alone(name: str) -> None:
    folder = SOURCE.parent.joinpath(*name.split("."))
    body = ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body
    assert (name in LAZY) + (folder / "__main__.py").is_file() + (len(body) == 1) == 1


@pytest.mark.parametrize("name", LAZY)
def test_no_exported_name_is_that_of_a_module_beside_it(name: str) -> None:
    package = importlib.import_module(name)
    beside = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert beside.isdisjoint(package.__all__)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_people_are_shown_is_imported_from_where_it_is_exported(path: Path) -> None:
    imports = re.compile(r"^from (hubless[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
    for home, names in imports.findall(path.read_text(encoding="utf-8")):
        for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names)):
            # the vocabulary has no packages, and a source is a module
            word = home.count(".") == 1 and home not in PACKAGES
            source = home == "hubless.data.sources" and f"{home}.{name}" in MODULES
            assert word or source or name in importlib.import_module(home).__all__, (home, name)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_pages_lead_to_is_exported(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for place in re.findall(r"\]\[(hubless[\w.]+)\]|^::: (hubless[\w.]+)", text, re.MULTILINE):
        names = "".join(place).split(".")
        home = next(m for n in range(len(names), 0, -1) if (m := ".".join(names[:n])) in MODULES)
        above = [room for room in LAZY[1:] if home.startswith(f"{room}.")]
        # modules as a whole, and those of the vocabulary and of studies, lead to no export
        if home == ".".join(names) or not above:
            continue
        # a source is a module
        if above[-1] == "hubless.data.sources" and not home.endswith(".base"):
            continue
        exported = getattr(importlib.import_module(above[-1]), names[home.count(".") + 1])
        assert exported is getattr(importlib.import_module(home), names[home.count(".") + 1])


@pytest.mark.parametrize("name", LAZY)
def test_a_name_that_is_not_exported_is_not_there(name: str) -> None:
    with pytest.raises(AttributeError, match=f"{name}.*FedNothing"):
        importlib.import_module(name).FedNothing  # noqa: B018


@pytest.mark.parametrize("name", LAZY)
def test_type_checkers_see_the_same_names_as_the_interpreter(name: str) -> None:
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(package.__all__)


def test_no_public_function_shares_a_packages_name() -> None:
    folders = {name.split(".")[1] for name in MODULES}
    assert folders.isdisjoint(PUBLIC)


def test_a_class_name_means_one_thing_in_the_whole_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert "simulate/simulation.py" in homes["Simulation"]
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert not twice


@pytest.mark.parametrize("name", ["hubless", *MODULES])
def test_every_module_class_and_function_says_what_it_is_for(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, name
    for own, item in _own(module):
        # a dataclass without a docstring is given its signature for one
        written = item.__doc__ or ""
        assert written.strip() and not written.startswith(f"{own}("), f"{name}.{own}"


@pytest.mark.parametrize("name", ["hubless", *MODULES])
def test_every_module_starts_with_one_sentence(name: str) -> None:
    module = importlib.import_module(name)
    first = str(module.__doc__).split("\n", 1)[0]
    assert first.endswith("."), first


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in str(errors.__doc__).splitlines():
        match = re.match(r"^((?:[│ ]   )*)(├── |└── )?(\w+)(?:\s{2,}|$)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + bool(match[2])
        above = [(level, name) for level, name in above if level < depth]
        drawn[match[3]] = above[-1][1] if above else None
        above.append((depth, match[3]))
    real = {
        name: None if item is errors.HublessError else item.__bases__[0].__name__
        for name, item in _own(errors)
        if inspect.isclass(item)
    }
    assert drawn == real
    assert len(real) >= 13
    assert issubclass(errors.HublessError, Exception)


@pytest.mark.parametrize(
    "name", sorted(name for name, item in _own(errors) if inspect.isclass(item))
)
def test_every_error_can_be_sent_to_another_process(name: str) -> None:
    kind = getattr(errors, name)
    arguments = {
        "ClientFailed": ("text", 17, 3),
        "Diverged": ("text", 17, 3),
        "Shortage": ("text", [1, 2]),
        "SignatureMismatch": ("text", ["w: other"]),
        "QuorumMissed": ("text", ["site-b"]),
        "Refused": ("site-b", "updates/b/1", "it is a pickle"),
    }.get(name, ("text",))
    error = kind(*arguments)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
