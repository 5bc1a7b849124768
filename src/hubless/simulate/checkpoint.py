"""Checkpoints: a simulation's state in one file, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import DataError, ParamsError
from hubless.signature import Signature
from hubless.store import codec
from hubless.whole import write_whole

NAME = "checkpoint.safetensors"
_HEADER_LIMIT = 1 << 30


def write(folder: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Path:
    """Write arrays and facts; whatever stood there stays until the new file is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    signature = Signature.of(arrays)
    text = json.dumps(facts)
    digest = codec.digest(text.encode())
    metadata = {"facts": text, "digest": digest, "signature": signature.to_json()}
    parts = codec.encode(signature, signature.pack(arrays), metadata)
    write_whole(folder / NAME, parts, sync=True)
    return folder / NAME


def read(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays and facts of a folder's checkpoint, checked against their digests."""
    path = folder / NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"there is no checkpoint in {folder}: {NAME} is missing") from None
    length = 8 + int.from_bytes(raw[:8], "little")
    try:
        if not 8 < length <= min(len(raw), _HEADER_LIMIT):
            raise ValueError("it is truncated")
        header = json.loads(raw[8:length])["__metadata__"]
        signature = Signature.from_json(header["signature"])
        if len(raw) != length + signature.size:
            raise ValueError("it is truncated, or longer than it should be")
        metadata = codec.decode_header(raw[:length], signature)
        body = memoryview(raw)[length:]
        blocks = signature.blocks
        digests = codec.block_digests(metadata["blocks"], 0, len(blocks))
        if codec.broken_block(body, 0, blocks, digests):
            raise ValueError("its bytes do not match their digests")
        if codec.digest(metadata["facts"].encode()) != metadata["digest"]:
            raise ValueError("its header does not match its digest")
        facts = json.loads(metadata["facts"])
    except (ValueError, KeyError, TypeError, ParamsError) as error:
        raise DataError(f"{path} cannot be used: {error}") from None
    return signature.unpack(np.frombuffer(body, np.uint8)), facts
