"""A signature: the names, dtypes and shapes that members must share, and their order in memory.

All arrays of one dtype lie next to each other, so a whole model is a handful of flat vectors.
Those are cut into blocks: what is read, checked and reduced at one time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import ParamsError
from hubless.params import Params, bfloat16, to_numpy

BLOCK_BYTES = 1 << 20
"""Small enough that a block stays in a core's cache while it is checked and folded."""
_LARGEST = 1 << 42

_DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F32": ("float32", 4),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "BOOL": ("bool", 1),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
}
_TAGS = {name: tag for tag, (name, _) in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter: its dtype as safetensors names it, its shape, and its bytes in the whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of bytes of one dtype."""

    start: int
    stop: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Signature:
    """What two members must agree on before their params can be averaged.

    >>> signature = Signature.of({"w": np.zeros((2, 3), np.float32), "steps": np.array(7)})
    >>> [(s.name, s.dtype, s.start) for s in signature.specs]
    [('steps', 'I64', 0), ('w', 'F32', 8)]
    """

    specs: tuple[Spec, ...]

    @classmethod
    def of(cls, params: Params) -> Signature:
        """The signature of these params."""
        arrays = {n: a if isinstance(a, np.ndarray) else to_numpy(n, a) for n, a in params.items()}
        return cls.build({name: (_tag(name, a), a.shape) for name, a in arrays.items()})

    @classmethod
    def build(cls, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> Signature:
        """Lay named dtypes and shapes out in the one order that everybody uses."""
        if not shapes:
            raise ParamsError("there are no parameters to share")
        specs: list[Spec] = []
        start = 0
        order = list(_DTYPES)
        if "__metadata__" in shapes:
            raise ParamsError("a parameter cannot be called '__metadata__': safetensors uses that")
        for name in sorted(shapes, key=lambda n: (order.index(shapes[n][0]), n)):
            tag, shape = shapes[name]
            stop = start + math.prod(shape) * _DTYPES[tag][1]
            specs.append(Spec(name, tag, tuple(shape), start, stop))
            start = stop
        if start == 0:
            raise ParamsError("all parameters are empty: there is nothing to share")
        if start > _LARGEST:
            raise ParamsError(f"a model of {start} bytes is not plausible")
        return cls(tuple(specs))

    @cached_property
    def size(self) -> int:
        """Bytes of all params together."""
        return self.specs[-1].stop

    @cached_property
    def tensors(self) -> dict[str, object]:
        """The params as a safetensors header announces them."""
        return {
            s.name: {"dtype": s.dtype, "shape": list(s.shape), "data_offsets": [s.start, s.stop]}
            for s in self.specs
        }

    @cached_property
    def written_last(self) -> bytes:
        """How a header ends that hubless wrote, whatever its metadata."""
        return f", {json.dumps(self.tensors)[1:]}".encode()

    @cached_property
    def longest_tensors(self) -> int:
        """So many bytes announce the params at most, however a library spells them."""
        return sum(len(json.dumps(s.name)) + 24 * len(s.shape) + 96 for s in self.specs)

    @cached_property
    def digest(self) -> str:
        """Twelve characters that differ whenever anything in the signature does."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=6).hexdigest()

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The whole as blocks of at most `BLOCK_BYTES`, none of which mixes dtypes."""
        blocks: list[Block] = []
        for tag in _DTYPES:
            run = [s for s in self.specs if s.dtype == tag]
            if not run:
                continue
            for start in range(run[0].start, run[-1].stop, BLOCK_BYTES):
                stop = min(start + BLOCK_BYTES, run[-1].stop)
                blocks.append(Block(start, stop, numpy_dtype(tag)))
        return tuple(blocks)

    def to_json(self) -> str:
        """The signature as text; equal signatures give equal texts."""
        return json.dumps({s.name: [s.dtype, list(s.shape)] for s in self.specs}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Read what `to_json` wrote."""
        shapes = {n: (d, tuple(shape)) for n, (d, shape) in json.loads(text).items()}
        if not all(d in _DTYPES and is_shape(shape) for d, shape in shapes.values()):
            raise ParamsError("the signature has unknown dtypes or shapes")
        return cls.build(shapes)

    def differences(self, mine: Signature) -> list[str]:
        """Every parameter in which `mine` departs from this signature, one line each."""
        ours = {s.name: s for s in self.specs}
        yours = {s.name: s for s in mine.specs}
        lines = []
        for name in sorted(ours.keys() | yours.keys()):
            a, b = ours.get(name), yours.get(name)
            if a is None and b is not None:
                lines.append(f"{name}: only here ({_describe(b)}), the federation has none")
            elif b is None and a is not None:
                lines.append(f"{name}: missing here, the federation has {_describe(a)}")
            elif a and b and (a.dtype, a.shape) != (b.dtype, b.shape):
                lines.append(f"{name}: {_describe(b)} here, {_describe(a)} in the federation")
        return lines

    def pack(self, params: Params, into: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Copy params into one contiguous stretch of bytes, a new one if none is given."""
        flat = np.empty(self.size, np.uint8) if into is None else into
        for name, view in self.unpack(flat).items():
            array = params[name]
            view[...] = array if isinstance(array, np.ndarray) else to_numpy(name, array)
        return flat

    def unpack(self, flat: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The named arrays as views into packed bytes."""
        return {
            s.name: flat[s.start : s.stop].view(numpy_dtype(s.dtype)).reshape(s.shape)
            for s in self.specs
        }

    def names_within(self, start: int, stop: int) -> list[str]:
        """The parameters that have bytes between `start` and `stop`."""
        return [s.name for s in self.specs if s.start < stop and s.stop > start]


def numpy_dtype(tag: str) -> np.dtype[Any]:
    """The numpy dtype behind a safetensors tag such as `F32`."""
    return bfloat16() if tag == "BF16" else np.dtype(_DTYPES[tag][0])


def is_shape(shape: object) -> bool:
    """Whether this is a shape: whole numbers of at least 0."""
    return isinstance(shape, (list, tuple)) and all(type(n) is int and n >= 0 for n in shape)


def is_tag(tag: object) -> bool:
    """Whether this is a dtype that can be shared."""
    return isinstance(tag, str) and tag in _DTYPES


def _tag(name: str, array: NDArray[Any]) -> str:
    try:
        return _TAGS[array.dtype.name]
    except KeyError:
        raise ParamsError(
            f"parameter {name!r} has dtype {array.dtype}, which cannot be shared; "
            f"convert it to one of {', '.join(_TAGS)} or leave it out with share="
        ) from None


def _describe(spec: Spec) -> str:
    return f"{_DTYPES[spec.dtype][0]}{list(spec.shape)}"
