"""Chat: the messages of freeCodeCamp's Gitter rooms, one client per user."""

from __future__ import annotations

from pathlib import Path

from hubless.data.population import Population
from hubless.data.sources.base import source_folder
from hubless.data.sources.messages import read_messages
from hubless.errors import DataError


def load(data: str | Path | None = None) -> Population:
    """Columns `text`, `time` (UTC) and `room`, every user's messages in the order of time.

    Reads all parquet files of the folder `chat`, with columns `user, timestamp, text, room`. There
    is no download: no public file has these columns.
    """
    folder = source_folder("chat", data)
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise DataError(
            f"{folder} holds no parquet file: put one there with a row for each message and "
            "columns user, timestamp, text, room, or name another folder with data= or HUBLESS_DATA"
        )
    return read_messages(paths, {"room": str})
