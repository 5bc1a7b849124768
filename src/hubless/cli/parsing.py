"""What the commands' parsers have in common; nothing that takes time to import."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from hubless.errors import HublessError

Handler = Callable[[argparse.Namespace], int]

URL = "a folder, s3://bucket/run, gs://bucket/run, az://bucket/run"

_BUCKETS = ("s3://", "gs://", "az://")
_ALIKE = 0.87
"""How like one of its own an option is that a command takes for a slip."""
_SOLD_AS = {"sklearn": "scikit-learn"}
"""Packages that are installed under another name than they are imported by."""


class Command(argparse.ArgumentParser):
    """The parser of one command; one that runs a script hands on what is meant for it.

    After so many words as `words_before_script`, the script the last of them, whatever the command
    does not know goes to the script in its order, and so does everything after `--`.

    >>> command = Command(prog="run")
    >>> command.words_before_script = 1
    >>> _ = command.add_argument("script"), command.add_argument("--out")
    >>> own = command.parse_args(["train.py", "--lr", "0.1", "--out", "runs", "--", "--out", "x"])
    >>> own.out, own.arguments
    ('runs', ['--lr', '0.1', '--out', 'x'])
    >>> command.parse_args(["--out", "runs", "--", "train.py", "--out", "x"]).arguments
    ['--out', 'x']
    """

    words_before_script: int | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        self._takes_value: dict[str, bool] = {}
        super().__init__(*given, **{**named, "allow_abbrev": False})

    def add_argument(self, *given: Any, **named: Any) -> argparse.Action:
        action = super().add_argument(*given, **named)
        self._takes_value |= {name: action.nargs != 0 for name in action.option_strings}
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self.words_before_script is None or args is None:
            return super().parse_known_args(args, namespace)
        own, handed_on = self._divided(args, self.words_before_script)
        options, unknown = super().parse_known_args(own, namespace)
        options.own, options.arguments = own, handed_on
        return options, unknown

    def _divided(self, given: Sequence[str], words: int) -> tuple[list[str], list[str]]:
        own: list[str] = []
        handed_on: list[str] = []
        left = list(given)
        while left:
            word = left.pop(0)
            name = word.partition("=")[0]
            scripts_own = bool(self.words_before_script) and name in ("-h", "--help")
            if word == "--":
                return [*own, *left[:words]], [*handed_on, *left[words:]]
            if name in self._takes_value and (words or not scripts_own):
                own.append(word)
                if self._takes_value[name] and name == word:
                    own += left[:1]
                    del left[:1]
            elif words:
                own.append(word)
                words -= not word.startswith("-")
            else:
                self._check_meant(name)
                handed_on.append(word)
        return own, handed_on

    def _check_meant(self, name: str) -> None:
        """Refuse what looks like an option of this command's, misspelt; a script has its own."""
        is_long = name.startswith("--") and name not in self._takes_value
        near = get_close_matches(name, self._takes_value, 1, _ALIKE) if is_long else []
        if near:
            self.error(f"did you mean {near[0]}? To give the script {name}, write -- before it")


def add_command(
    commands: Any, name: str, handler: Handler, *, json: bool = True, **named: Any
) -> Command:
    """A new command, with what every command takes; without a description, its help is one."""
    text: str = named["help"]
    named.setdefault("description", f"{text[0].upper()}{text[1:]}.")
    command: Command = commands.add_parser(name, **named)
    if json:
        command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--traceback", action="store_true", help="show where an error came from")
    command.set_defaults(handler=handler, command=name, parser=command)
    return command


def add_bucket(command: Command) -> None:
    """The options that say how a bucket is reached."""
    command.add_argument("--endpoint", help="where an S3, GCS or Azure server of your own answers")
    command.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for the bucket, such as region=eu-west-1; may be given again",
    )


def bucket_settings(options: argparse.Namespace, *addresses: str) -> dict[str, str]:
    """What was given with `--option`; where no address is a bucket's, nothing may be."""
    settings = {}
    for setting in options.option:
        key, separator, value = setting.partition("=")
        if not separator:
            raise HublessError("--option takes KEY=VALUE, and one that was given has no '='")
        settings[key] = value
    if addresses and not any(address.startswith(_BUCKETS) for address in addresses):
        for name, given in (("--endpoint", options.endpoint), ("--option", settings)):
            if given:
                raise HublessError(f"{name} goes with a bucket's address, such as s3://bucket/run")
    return settings


@contextmanager
def needing(extra: str, command: str) -> Iterator[None]:
    """Say which extra brings what is not installed, instead of where it was looked for."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hubless"):
            raise
        raise HublessError(
            f"hubless {command} needs {_SOLD_AS.get(package, package)}: "
            f"pip install 'hubless[{extra}]'"
        ) from error
