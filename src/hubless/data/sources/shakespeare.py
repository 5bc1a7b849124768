"""Shakespeare's plays: one client per speaking role, predicting the next character.

Roles are found as McMahan et al. (2017) find them, in Project Gutenberg's etext 100 in its
edition of 1994 to 2011: 1,146 roles with more than two lines, of which the last fifth is for tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubless.data import tables
from hubless.data.population import Population
from hubless.data.sources.base import Split, find, read_bytes, source_folder
from hubless.data.sources.sequences import sequences
from hubless.errors import DataError

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CLASSES = ("<pad>", *CHARACTERS, "<other>")
_OTHER = len(CLASSES) - 1
_LEAST_LINES = 3
_AUTHOR = "by William Shakespeare"
_SPEECH = re.compile(r"  ([A-Za-z][A-Za-z ]*)\. (.*)")
# one play is not indented, so its speeches go on until something else begins
_FLUSH_PLAY = "THE COMEDY OF ERRORS"
_FLUSH_SPEECH = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")

Roles = dict[tuple[str, str], list[str]]


def load(data: str | Path | None = None, *, length: int = 80) -> Split:
    """Sequences of `length` characters as uint8, client i of the test set being that of training.

    Reads pg100.txt, plain or .gz, or else shakespeare_roles.parquet with columns `play, role,
    line_no, text`. There is no download: Project Gutenberg replaces its files, so none has a
    digest that stays.
    """
    folder = source_folder("shakespeare", data)
    text, table = find(folder, "pg100.txt"), folder / "shakespeare_roles.parquet"
    if text is not None:
        roles = parse_plays(read_bytes(text).decode("utf-8-sig", errors="replace"))
        if not roles:
            raise DataError(f"{text} has no speeches in the layout of etext 100 as of 1994 to 2011")
    elif table.is_file():
        roles = _read_roles(table)
    else:
        raise DataError(
            f"{folder} lacks pg100.txt (plain or .gz), the complete works in the edition that "
            "Project Gutenberg keeps as https://www.gutenberg.org/files/100/old/: put it there, or "
            "name another folder with data= or HUBLESS_DATA"
        )
    kept = {role: lines for role, lines in roles.items() if len(lines) >= _LEAST_LINES}
    cut = {role: len(lines) - max(len(lines) // 5, 1) for role, lines in kept.items()}
    names = np.array([f"{play}: {role}" for play, role in kept], np.dtypes.StringDType())
    train = [lines[: cut[role]] for role, lines in kept.items()]
    test = [lines[cut[role] :] for role, lines in kept.items()]
    return Split(_examples(train, length, names), _examples(test, length, names), CLASSES)


def parse_plays(text: str) -> Roles:
    r"""The lines of every (play, role), in the order in which they first speak.

    A play starts at its author's line, its title above. A speech starts with two blanks and the
    role's name, and its further lines with four. Names that differ in case are different roles,
    and stage directions inside a speech belong to it: that is how the published counts come about.

    >>> play = ["HAMLET", "", _AUTHOR, "  Ham. To be,", "    or not", "  Oph. My lord!"]
    >>> parse_plays("\n".join(play))
    {('HAMLET', 'Ham'): ['To be,', 'or not'], ('HAMLET', 'Oph'): ['My lord!']}
    """
    plays: list[tuple[str, dict[str, list[str]]]] = []
    lines = text.splitlines()
    speaker: list[str] | None = None
    for number, line in enumerate(lines):
        if line.startswith("End of the Project Gutenberg"):
            break
        if _AUTHOR in line:
            above = reversed(lines[max(number - 7, 0) : max(number - 1, 0)])
            title = next((other.strip() for other in above if other.strip()), "")
            plays.append((title, {}))
            speaker = None
            continue
        if not plays:
            continue
        title, roles = plays[-1]
        flush = title == _FLUSH_PLAY
        speech = (_FLUSH_SPEECH if flush else _SPEECH).match(line)
        if speech and not (flush and speech[1].startswith("ACT ")):
            speaker = roles.setdefault(speech[1], [])
            speaker.append(speech[2])
        elif speech or (flush and line.startswith("<")):
            speaker = None
        elif speaker is not None and (flush or line.startswith("    ")):
            speaker.append(line if flush else line[4:])
    # a poem has no roles, or a single "role" that is a sentence
    return {
        (title, role): part
        for title, roles in plays
        if len(roles) > 1
        for role, part in roles.items()
    }


def _read_roles(path: Path) -> Roles:
    owner, columns = tables.read_parquet(path, "role", ["play", "text"])
    roles: Roles = {}
    for play, role, line in zip(columns["play"], owner, columns["text"], strict=True):
        roles.setdefault((play, role), []).append(line)
    return roles


def _examples(parts: Sequence[Sequence[str]], length: int, names: NDArray[np.str_]) -> Population:
    texts = ["".join(f"{line}\n" for line in lines) for lines in parts]
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    table = np.full(128, _OTHER, np.uint8)
    table[[ord(character) for character in CHARACTERS]] = np.arange(1, _OTHER)
    # beyond ASCII is "other"; 127 is no printable character, so it is too
    tokens = table[np.minimum(codes, 127)]
    sizes = np.array([len(text) for text in texts], np.int64)
    return sequences(tokens, sizes, length, 1, names)
