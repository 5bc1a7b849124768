"""This machine: `hubless demo` shows what hubless does on it, `hubless env` what there is."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
from typing import Any

from hubless import __version__
from hubless.cli.parsing import add_command, needing
from hubless.cli.printing import in_bytes, print_table

_PACKAGES = (
    "numpy",
    "obstore",
    "ml_dtypes",
    "xxhash",
    "torch",
    "polars",
    "ray",
    "scikit-learn",
    "datasets",
    "transformers",
    "dp-accounting",
    "altair",
    "rich",
    "starlette",
    "uvicorn",
)

_FAST = ("--clients", "300", "--rounds", "15", "--epochs", "8")
"""What makes the demo a matter of seconds."""


def add_demo(commands: Any) -> None:
    """Add `demo`, which knows its own options."""
    demo = add_command(
        commands,
        "demo",
        _demo,
        json=False,
        help="see what hubless does, in a minute and without data of your own",
        usage="hubless demo [--folder DIR] [--fast] [...]",
    )
    demo.words_before_script = 0
    demo.epilog = "Also: --clients N, --rounds N, --epochs N, --only fleet or sites."
    demo.add_argument("--folder", help="where to keep everything (a new folder if not given)")
    demo.add_argument("--fast", action="store_true", help="the same, smaller and sooner")


def add_env(commands: Any) -> None:
    """Add `env`."""
    env = add_command(
        commands, "env", _env, help="versions and what the machine has, for bug reports"
    )
    env.add_argument(
        "--full", action="store_true", help="also ask torch which devices it sees (slower)"
    )


def _demo(options: argparse.Namespace) -> int:
    from hubless.cli.script import exit_code

    folder = [] if options.folder is None else ["--folder", options.folder]
    arguments = [*folder, *(_FAST if options.fast else []), *options.arguments]
    with needing("demo", "demo"):
        from hubless.demo import main

        try:
            return main(arguments)
        except SystemExit as leaving:
            return exit_code(leaving)


def _env(options: argparse.Namespace) -> int:
    packages = _packages()
    facts: dict[str, Any] = {
        "hubless": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "compiler": _compiler(),
        "gpus": _gpus(),
    }
    if options.full:
        facts["torch"] = _torch()
    if options.json:
        print(json.dumps({**facts, "packages": packages}))
        return 0
    rows = [(name.removesuffix("_bytes"), _text(name, value)) for name, value in facts.items()]
    rows[3:3] = [(name, version or "not installed") for name, version in packages.items()]
    print_table(rows)
    return 0


def _text(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return "unknown" if value is None else in_bytes(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(key, item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none found"
    return "none found" if value is None else str(value)


def _packages() -> dict[str, str | None]:
    """The versions that are installed, from their own records and so without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _cores() -> int | None:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _compiler() -> str | None:
    """The C++ compiler that torch would compile with, if there is one."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++", "cl"):
        if name and (path := shutil.which(name)):
            return path
    return None


def _gpus() -> list[str]:
    """The GPUs that the NVIDIA driver's own tool names."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        output = subprocess.run(
            asked, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.splitlines() if line.strip()]


def _torch() -> dict[str, Any] | None:
    """What torch itself says; importing it takes seconds."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"version": str(torch.__version__), "cuda": torch.version.cuda, "devices": devices}
