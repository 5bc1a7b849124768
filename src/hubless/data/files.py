"""A population on disk: .npy files in a folder, which numpy can map without reading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.data.index import Index, offsets_of
from hubless.errors import DataError

FORMAT = 1
_CONTENTS = "population.json"

Read = tuple[dict[str, NDArray[Any]], Index, Index | None, NDArray[Any] | None]


def write(
    folder: Path,
    columns: Mapping[str, NDArray[Any]],
    offsets: Index,
    rows: Index | None,
    names: NDArray[Any] | Sequence[str] | None,
) -> None:
    """Write a population into a new folder; its table of contents comes last, and completes it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty: save into a new folder")
    arrays = {f"column-{place}": values for place, values in enumerate(columns.values())}
    arrays["offsets"] = offsets
    if rows is not None:
        arrays["rows"] = rows
    if names is not None:
        arrays["names"] = np.asarray(names)
    for what, values in arrays.items():
        if values.dtype.kind not in "biufcmMSUT":
            raise DataError(f"{what} of dtype {values.dtype} cannot be saved without pickle")
    folder.mkdir(parents=True, exist_ok=True)
    for file, values in arrays.items():
        if values.dtype.kind == "T":
            encoded = [text.encode() for text in values.ravel().tolist()]
            sizes = np.fromiter((len(text) for text in encoded), np.int64, len(encoded))
            np.save(folder / f"{file}.utf8.npy", np.frombuffer(b"".join(encoded), np.uint8))
            np.save(folder / f"{file}.ends.npy", offsets_of(sizes)[1:].reshape(values.shape))
        else:
            np.save(folder / f"{file}.npy", values, allow_pickle=False)
    contents = {
        "format": FORMAT,
        "columns": list(columns),
        "strings": [file for file, values in arrays.items() if values.dtype.kind == "T"],
        "rows": rows is not None,
        "names": names is not None,
    }
    (folder / _CONTENTS).write_text(json.dumps(contents, indent=1), encoding="utf-8")


def read(folder: Path, mmap: bool) -> Read:
    """The columns, offsets, rows and names that `write` put there."""
    try:
        contents = json.loads((folder / _CONTENTS).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{folder} holds no saved population: there is no {_CONTENTS}") from None
    except ValueError as error:
        raise DataError(f"{folder / _CONTENTS} is not readable: {error}") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        version = contents.get("format") if isinstance(contents, dict) else None
        raise DataError(f"{folder} is in format {version}, and this hubless reads {FORMAT}")
    names, strings = contents.get("columns"), contents.get("strings")
    if not isinstance(names, list) or not isinstance(strings, list):
        raise DataError(f"{folder / _CONTENTS} does not list the columns: it is damaged")

    def array(file: str) -> NDArray[Any]:
        return _strings(folder, file) if file in strings else _load(folder / f"{file}.npy", mmap)

    columns = {str(name): array(f"column-{i}") for i, name in enumerate(names)}
    rows = array("rows") if contents.get("rows") else None
    return columns, array("offsets"), rows, array("names") if contents.get("names") else None


def _load(path: Path, mmap: bool) -> NDArray[Any]:
    try:
        # copy-on-write, since torch warns of arrays that it may not write to
        return np.asarray(np.load(path, mmap_mode="c" if mmap else None, allow_pickle=False))
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the saved population is incomplete") from None
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


def _strings(folder: Path, file: str) -> NDArray[Any]:
    blob = _load(folder / f"{file}.utf8.npy", mmap=False).tobytes()
    ends = _load(folder / f"{file}.ends.npy", mmap=False)
    bounds = np.concatenate([np.zeros(1, np.int64), ends.ravel()])
    if bounds.dtype != np.int64 or (np.diff(bounds) < 0).any() or bounds[-1] != len(blob):
        raise DataError(f"{folder / file}.ends.npy does not match its text: it is damaged")
    try:
        texts = [blob[start:stop].decode() for start, stop in pairwise(bounds.tolist())]
    except UnicodeDecodeError as error:
        raise DataError(f"{folder / file}.utf8.npy is damaged: {error}") from error
    return np.array(texts, np.dtypes.StringDType()).reshape(ends.shape)
