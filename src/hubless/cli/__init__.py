"""The command line: `hubless demo`, `new`, `run`, `join`, `ls`, `check`, `pull`, `watch`..."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hubless import __version__
from hubless.cli.federation import add_federation
from hubless.cli.join import add_join
from hubless.cli.machine import add_demo, add_env
from hubless.cli.parsing import Command
from hubless.cli.policy import add_policy
from hubless.cli.runs import add_runs, add_views
from hubless.errors import HublessError, printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    0 is success, 1 a refusal that was explained, 2 a wrong call, 3 that something was left
    unfinished, 130 that it was interrupted; a script that is run decides for itself.
    """
    options = parser().parse_args(arguments)
    try:
        return int(options.handler(options))
    except HublessError as error:
        if options.traceback:
            raise
        lines = [printable(line) for line in str(error).splitlines()]
        print(f"hubless {options.command}:", "\n".join(lines), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def parser() -> Command:
    """The whole command line."""
    whole = Command(
        prog="hubless",
        description="Federated learning without a hub.",
        epilog="hubless COMMAND --help says more about each.",
    )
    whole.add_argument("--version", action="version", version=f"hubless {__version__}")
    commands = whole.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )
    for add in (add_demo, add_runs, add_join, add_federation, add_policy, add_views, add_env):
        add(commands)
    return whole
