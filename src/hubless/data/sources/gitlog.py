"""Git log: the subjects of the commits of any local clone, one client per author."""

from __future__ import annotations

import os
import secrets
import subprocess
from hashlib import blake2b
from pathlib import Path

import numpy as np

from hubless.data.index import grouped
from hubless.data.population import Population
from hubless.data.sources.table import instants
from hubless.errors import DataError

# none of these can hold the NUL that ends each of them
_FIELDS = ("%H", "%aE", "%aN", "%at", "%s")
_KEY_BYTES = 64
_SETTINGS = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.sshCommand=false",
    "core.gitProxy=false",
    "credential.helper=",
    "gpg.program=false",
    "protocol.allow=never",
)
"""These win over a clone's own, which may be a stranger's, and name programs to run."""


def load(
    clone: str | Path, *, revision: str = "HEAD", key: bytes | None = None, merges: bool = True
) -> Population:
    """Columns `text` and `time` (UTC), by author, in the order of time.

    `clone` is the top folder of a clone, bare or shallow as it may be, and `revision` what its
    history is told from. An author is an e-mail address as the clone's .mailmap has it, in small
    letters, or a name where there is no address; clients stand in the order of their first
    commits, and are named by a keyed hash. The key is random and not kept, unless one is given so
    that names can be compared. Times are those of authoring. Commits without a subject are no
    utterances, and left out; so are merges, if asked.
    """
    if key is not None and not 1 <= len(key) <= _KEY_BYTES:
        raise DataError(f"a key to hash authors with has 1 to {_KEY_BYTES} bytes, not {len(key)}")
    folder = Path(clone).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: give the top folder of a git clone")
    _git(folder, "rev-parse", "--git-dir")
    commit = f"{revision}^{{commit}}"
    try:
        tip = _git(folder, "rev-parse", "--verify", "--end-of-options", commit).decode().split()[-1]
    except DataError as error:
        raise DataError(
            f"{folder} has no commit {revision}: it is empty, or the name is wrong"
        ) from error
    # a clone's own settings could ask for signatures, and name the program that checks them
    options = ["--no-show-signature", "--no-patch", "--no-ext-diff", "--no-textconv"]
    options += ["--encoding=UTF-8", "-z"]
    if not merges:
        options.append("--no-merges")
    output = _git(folder, "log", *options, f"--format={'%x00'.join(_FIELDS)}", tip, "--")
    return _population(output, folder, key or secrets.token_bytes(32))


def _population(output: bytes, folder: Path, key: bytes) -> Population:
    fields = output.split(b"\0")[:-1]
    hashes, addresses, names, times, subjects = (fields[i :: len(_FIELDS)] for i in range(5))

    def place(number: int) -> str:
        return f"{folder}, commit {hashes[number].decode()}"

    moments = np.empty(len(times), np.int64)
    for number, time in enumerate(times):
        try:
            moments[number] = int(time)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{place(number)} has no author time that can be read") from error
    texts = [subject.decode(errors="replace").strip() for subject in subjects]
    spoken = np.array([bool(text) for text in texts], np.bool_)
    if not spoken.any():
        raise DataError(f"{folder}: no commit has a subject")
    # git tells the latest first, so that equal times are turned round too
    order = np.flatnonzero(spoken)[::-1]
    order = order[np.argsort(moments[order], kind="stable")]
    numbers: dict[bytes, int] = {}
    owner = np.empty(len(order), np.int64)
    for row, commit in enumerate(order):
        author = addresses[commit].strip().lower() or names[commit].strip()
        owner[row] = numbers.setdefault(author, len(numbers))
    columns = {
        "text": np.array(texts, np.dtypes.StringDType())[order],
        "time": instants(moments, "author time", place, unit="s")[order],
    }
    rows, offsets = grouped(owner, len(numbers))
    hashed = [blake2b(author, key=key, digest_size=12).hexdigest() for author in numbers]
    return Population(columns, offsets, rows, np.array(hashed))


def _git(folder: Path, *arguments: str) -> bytes:
    """What a git command says; nothing that the clone's own settings name is run."""
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", "--no-pager", *settings, "-C", str(folder.resolve()), *arguments]
    try:
        ran = subprocess.run(
            command,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise DataError("reading a clone needs git, and no program of that name is here") from error
    if ran.returncode:
        message = ran.stderr.decode(errors="replace").strip()
        if "promisor remote" in message:
            raise DataError(
                f"{folder} is a partial clone without some of what its history needs, and nothing "
                "is fetched while it is read: make it whole with git fetch --refetch --no-filter"
            )
        why = message.partition("\n")[0]
        raise DataError(f"{folder} cannot be read as a git repository: {why}")
    return ran.stdout


def _environment(folder: Path) -> dict[str, str]:
    """One that cannot point git to another repository, nor let it reach for a remote."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        # nor does it look for one in the folders above
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        # what a partial clone lacks is fetched by a program that its settings may name
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_SSH_COMMAND": "false",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }
