"""Git: the subjects of commits to public repositories, one client per author."""

from __future__ import annotations

from pathlib import Path

from hubless.data.population import Population
from hubless.data.sources.base import source_folder
from hubless.data.sources.messages import read_messages
from hubless.errors import DataError


def load(data: str | Path | None = None, *, file: str | None = None) -> Population:
    """Columns `text`, `time` (UTC), `repo` and `reverted` (bool), by author, in the order of time.

    Reads a parquet file of the folder `git`, the one that is there or else the one named, with
    columns `user, timestamp, text, repo, reverted`; the last says whether the commit was taken
    back later, as 0 or 1. There is no download: no public file has these columns.
    """
    folder = source_folder("git", data)
    there = sorted(path.name for path in folder.glob("*.parquet"))
    if file is None and len(there) > 1:
        raise DataError(f"{folder} holds {', '.join(there)}: say which with file=")
    if not there or (file is not None and file not in there):
        raise DataError(
            f"{folder} lacks {file or 'a parquet file'}: put one there with a row for each commit "
            "and columns user, timestamp, text, repo, reverted, or name another folder with data= "
            "or HUBLESS_DATA"
        )
    path = folder / (file or there[0])
    return read_messages([path], {"repo": str, "reverted": bool})
