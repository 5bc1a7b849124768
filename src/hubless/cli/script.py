"""Running somebody's script as Python would run it."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hubless.checks import meant
from hubless.errors import HublessError


def check_script(path: Path) -> None:
    """Refuse what is not a file before anything is begun for it."""
    if path.is_dir():
        raise HublessError(f"{path} is a folder, and a file is needed: a script to run")
    if not path.is_file():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = meant(path.name, (each.name for each in beside if each.is_file()))
        raise HublessError(f"there is no file {path} to run{near}")


def check_events(path: Path) -> None:
    """Refuse a file that nothing can be appended to, before each event would fail on it."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise HublessError(f"cannot write events to {path}: {error.strerror}") from error


def run_script(path: Path, arguments: Sequence[str]) -> int:
    """Run a file as `python FILE ARGUMENTS` would; what it exits with.

    What the script raises is shown as Python shows it, and is 1. Errors that hubless raises on
    purpose and interrupts are left to the caller.
    """
    argv, paths = sys.argv, sys.path
    sys.argv = [str(path), *arguments]
    if not sys.flags.safe_path:
        # the first entry is where this program lies, and for a script where the script lies
        sys.path = [str(path.resolve().parent), *paths[1:]]
    try:
        # whole, so that the script may change its folder and still find itself
        runpy.run_path(str(path.absolute()), run_name="__main__")
        return 0
    except SystemExit as leaving:
        return exit_code(leaving)
    except (HublessError, KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:
        traceback.print_exception(type(error), error, _within(error.__traceback__, path))
        return 1
    finally:
        sys.argv, sys.path = argv, paths


def exit_code(leaving: SystemExit) -> int:
    """What a process ends with that leaves like this; a text is said, as Python does."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def _within(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """The traceback from the script on: how it came to be run is nobody's concern."""
    script = path.resolve()
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).resolve() != script:
        trace = trace.tb_next
    return trace
