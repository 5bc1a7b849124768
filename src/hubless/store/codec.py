"""The one codec: safetensors, written and read by hand so that nothing is copied.

An object is a header, then the params' own bytes. The header's metadata carries a digest per
block, so any stretch of whole blocks can be read and checked alone. Any safetensors library
opens these files; nothing in them is ever executed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from hubless.signature import Block, Signature, is_shape, is_tag
from hubless.store.base import Bytes

FORMAT = "1"
_DIGEST_HEX = 16


def encode(
    signature: Signature, flat: NDArray[np.uint8], metadata: Mapping[str, str]
) -> list[Bytes]:
    """The parts of an object that holds these packed params.

    >>> signature = Signature.of({"w": np.ones(2, np.float32)})
    >>> parts = encode(signature, signature.pack({"w": np.ones(2, np.float32)}), {"client": "a"})
    >>> len(parts[1]) == signature.size
    True
    """
    body = flat.data
    digests = "".join(digest(body[block.start : block.stop]) for block in signature.blocks)
    noted = {"hubless": FORMAT, **metadata, "blocks": digests}
    text = json.dumps({"__metadata__": noted, **signature.tensors}).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, body]


def header_limit(signature: Signature) -> int:
    """No honest header of this signature is longer: room for 64 KiB of metadata and all names."""
    return (64 << 10) + signature.longest_tensors + _DIGEST_HEX * len(signature.blocks)


def decode_header(raw: Bytes, signature: Signature) -> dict[str, str]:
    """The metadata of a header that announces exactly this signature; ValueError says what is not.

    `raw` is all that stands before the params.
    """
    announced = int.from_bytes(raw[:8], "little")
    if announced != len(raw) - 8:
        raise ValueError(describe(raw, len(raw) + signature.size, signature))
    metadata, document = _divided(bytes(raw[8:]).rstrip(b" "), signature)
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its header carries no readable metadata")
    if document != signature.tensors:
        raise ValueError(_difference(document, signature))
    if metadata.get("hubless") != FORMAT:
        version = metadata.get("hubless", "none")
        raise ValueError(f"it is written in format {version}, this hubless reads {FORMAT}")
    if len(metadata.get("blocks", "")) != _DIGEST_HEX * len(signature.blocks):
        raise ValueError("its header carries no digests for its blocks")
    return metadata


def describe(raw: Bytes, size: int, signature: Signature) -> str:
    """Why an object of `size` bytes that starts with `raw` cannot be an update, in words."""
    announced = int.from_bytes(raw[:8], "little")
    if len(raw) < 9 or announced > header_limit(signature) or bytes(raw[8:9]) != b"{":
        head = bytes(raw[:2])
        if len(head) == 2 and head[:1] == b"\x80" and head[1:] in b"\x02\x03\x04\x05":
            return "it is a pickle, and hubless never loads pickles"
        if head == b"PK":
            return "it is a zip archive (a torch or numpy file?), not safetensors"
        return f"its {size} bytes are not safetensors"
    if len(raw) >= 8 + announced:
        try:
            document = _parse(bytes(raw[8 : 8 + announced]))
        except ValueError as error:
            return str(error)
        document.pop("__metadata__", None)
        if document != signature.tensors:
            return _difference(document, signature)
    expected = 8 + announced + signature.size
    if size < expected:
        return f"it is truncated: {size} bytes where its header announces {expected}"
    return f"it is larger than declared: {size} bytes where its header announces {expected}"


def block_digests(text: str, first: int, count: int) -> list[str]:
    """The digests of so many blocks, from what a header says of all of them."""
    stop = (first + count) * _DIGEST_HEX
    return [text[i : i + _DIGEST_HEX] for i in range(first * _DIGEST_HEX, stop, _DIGEST_HEX)]


def digest(body: Bytes) -> str:
    """A fast digest against damage (not against forgery: that is what signing is for)."""
    return xxhash.xxh3_64_hexdigest(body)


def fingerprint(*bodies: Bytes) -> str:
    """A digest that nobody can find other bytes for: 32 digits of SHA-256."""
    hashed = hashlib.sha256()
    for body in bodies:
        hashed.update(body)
    return hashed.hexdigest()[:32]


def broken_block(
    body: Bytes, start: int, blocks: Sequence[Block], digests: Sequence[str]
) -> Block | None:
    """The first of these blocks that does not match its digest; `body` begins at byte `start`."""
    for block, expected in zip(blocks, digests, strict=True):
        if digest(body[block.start - start : block.stop - start]) != expected:
            return block
    return None


def _divided(text: bytes, signature: Signature) -> tuple[object, dict[str, object]]:
    """A header's metadata, and the rest.

    Where the rest is what `encode` writes, as it is nearly always, it need not be parsed.
    """
    as_written = signature.written_last
    if text.endswith(as_written):
        document = _parse(text.removesuffix(as_written) + b"}")
        if document.keys() == {"__metadata__"}:
            return document["__metadata__"], signature.tensors
    document = _parse(text)
    return document.pop("__metadata__", {}), document


def _parse(text: bytes) -> dict[str, object]:
    try:
        document = json.loads(
            text, object_pairs_hook=_named_once, parse_float=_no_size, parse_constant=_no_size
        )
    except _Ambiguous:
        raise
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON, so it is not safetensors") from None
    if not isinstance(document, dict):
        raise ValueError("its header is not a JSON object, so it is not safetensors")
    # they would pass for the numbers 0 and 1
    if (b"true" in text or b"false" in text) and _has_truths(document):
        raise _Ambiguous("its header has true or false where a number should be")
    return document


class _Ambiguous(ValueError):
    """A header that readers may take for different things."""


def _named_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
        raise _Ambiguous(f"its header has {twice[:64]!r} twice")
    return document


def _no_size(text: str) -> object:
    raise _Ambiguous(f"its header has the number {text[:32]}, where only whole ones can be")


def _has_truths(document: object) -> bool:
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, bool):
            return True
        if isinstance(value, (dict, list)):
            left.extend(value.values() if isinstance(value, dict) else value)
    return False


def _shapes(document: Mapping[str, object]) -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes = {}
    for name, spec in document.items():
        if not isinstance(spec, dict) or not is_tag(spec.get("dtype")):
            raise ValueError(f"its header describes {name!r} in no known dtype")
        if not is_shape(spec.get("shape")):
            raise ValueError(f"its header gives {name!r} no shape")
        shapes[name] = (str(spec["dtype"]), tuple(spec["shape"]))
    return shapes


def _difference(document: Mapping[str, object], signature: Signature) -> str:
    try:
        lines = signature.differences(Signature.build(_shapes(document)))
    except ValueError as error:
        return str(error)
    except Exception as error:
        return f"its header describes no params: {error}"
    if not lines:
        return "its header places the params at other offsets"
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return "its params are not the federation's: " + "; ".join(lines[:3]) + more
