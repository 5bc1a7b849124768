"""A script in several processes: what torchrun would start, each as a part of one member."""

from __future__ import annotations

import argparse
import importlib
import sys

from hubless.cli.parsing import needing
from hubless.cli.script import exit_code
from hubless.errors import HublessError


def launch(options: argparse.Namespace) -> int:
    """Run torchrun with its own options, so that each process joins with ours."""
    with needing("torch", "join"):
        launcher = importlib.import_module("torch.distributed.run")
    its = launcher.parse_args(options.arguments)
    if its.module or its.no_python:
        raise HublessError("hubless join takes a script after torchrun, and not -m or --no-python")
    script = [its.training_script, *its.training_script_args]
    before = options.arguments[: len(options.arguments) - len(script)]
    ours = list(options.own)
    ours.remove(str(options.script))
    argv = sys.argv
    sys.argv = ["torchrun", *before, "-m", "hubless.cli", "join", *ours, "--", *script]
    try:
        launcher.main()
    except SystemExit as leaving:
        return exit_code(leaving)
    finally:
        sys.argv = argv
    return 0
