"""The codec: any safetensors library reads what it writes, and it takes nothing that is altered."""

from __future__ import annotations

import copy
import io
import json
import pickle
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hubless.errors import ParamsError
from hubless.signature import BLOCK_BYTES, Signature
from hubless.store import codec

Arrays = dict[str, NDArray[Any]]

NUMPY_DTYPES = ["f8", "i8", "u8", "f4", "i4", "u4", "f2", "i2", "u2", "?", "i1", "u1"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
# the machine may be busy with other tests, so no example is judged by its time
fewer = settings(max_examples=60)
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")


@st.composite
def arrays(draw: st.DrawFn, bfloat16: bool = True) -> Arrays:
    """Named arrays of every dtype that can be shared, of any bits: nan and infinities included."""
    named: Arrays = {}
    for name in draw(st.sets(NAMES, min_size=1, max_size=6)):
        code = draw(st.sampled_from([*NUMPY_DTYPES, *(["bf16"] if bfloat16 else [])]))
        shape = draw(SHAPES)
        if code == "bf16":
            bits = draw(hnp.arrays(np.uint16, shape))
            named[name] = bits.view(ml_dtypes.bfloat16)
        else:
            named[name] = draw(hnp.arrays(np.dtype(code), shape))
    assume(any(array.size for array in named.values()))
    return named


def _encoded(params: Arrays, **metadata: str) -> tuple[Signature, bytes, bytes]:
    signature = Signature.of(params)
    head, body = codec.encode(signature, signature.pack(params), metadata)
    return signature, bytes(head), bytes(body)


def _head(document: object) -> bytes:
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


SIMPLE: Arrays = {
    "body.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "body.bias": np.ones(3, np.float32),
    "steps": np.array(7),
    "head": np.ones(4, ml_dtypes.bfloat16),
}


@fewer
@given(arrays(bfloat16=False))
def test_the_safetensors_library_reads_the_same_arrays_back(params: Arrays) -> None:
    _, head, body = _encoded(params, client="site-a")
    loaded = safetensors.numpy.load(head + body)
    assert loaded.keys() == params.keys()
    assert all(_same_bits(loaded[name], array) for name, array in params.items())


@fewer
@given(arrays())
def test_safetensors_for_torch_reads_the_same_tensors_back(params: Arrays) -> None:
    _, head, body = _encoded(params)
    loaded = safetensors.torch.load(head + body)
    assert loaded.keys() == params.keys()
    for name, array in params.items():
        tensor = loaded[name]
        assert tuple(tensor.shape) == array.shape
        assert tensor.element_size() == array.itemsize
        assert (tensor.dtype == torch.bfloat16) == (array.dtype == ml_dtypes.bfloat16)
        if array.size:
            bits = tensor.reshape(-1).view(torch.uint8).numpy()
            assert bits.tobytes() == array.tobytes()


@fewer
@given(arrays())
def test_a_header_is_recognised_by_its_own_signature_and_keeps_its_metadata(
    params: Arrays,
) -> None:
    signature, head, body = _encoded(params, client="site-ä", metrics='{"loss": 0.5}')
    assert len(head) % 8 == 0
    assert len(head) <= codec.header_limit(signature)
    metadata = codec.decode_header(head, signature)
    assert metadata["client"] == "site-ä"
    assert metadata["metrics"] == '{"loss": 0.5}'
    digests = codec.block_digests(metadata["blocks"], 0, len(signature.blocks))
    assert codec.broken_block(body, 0, signature.blocks, digests) is None


@fewer
@given(arrays(), st.data())
def test_every_flipped_byte_of_the_body_is_caught(params: Arrays, data: st.DataObject) -> None:
    signature, head, body = _encoded(params)
    digests = codec.block_digests(
        codec.decode_header(head, signature)["blocks"], 0, len(signature.blocks)
    )
    at = data.draw(st.integers(0, len(body) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = bytearray(body)
    damaged[at] ^= flip
    broken = codec.broken_block(damaged, 0, signature.blocks, digests)
    assert broken is not None
    assert broken.start <= at < broken.stop


def test_every_single_byte_of_a_body_is_watched() -> None:
    signature, head, body = _encoded(SIMPLE)
    digests = codec.block_digests(
        codec.decode_header(head, signature)["blocks"], 0, len(signature.blocks)
    )
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 1
        broken = codec.broken_block(damaged, 0, signature.blocks, digests)
        assert broken is not None and broken.start <= at < broken.stop, at


def test_a_stretch_of_whole_blocks_is_checked_alone() -> None:
    params: Arrays = {"w": np.arange(BLOCK_BYTES, dtype=np.float32), "n": np.arange(3)}
    signature, head, body = _encoded(params)
    digests = codec.block_digests(
        codec.decode_header(head, signature)["blocks"], 0, len(signature.blocks)
    )
    assert len(signature.blocks) == 5
    first, last = signature.blocks[2], signature.blocks[3]
    stretch = bytearray(body[first.start : last.stop])
    assert codec.broken_block(stretch, first.start, [first, last], digests[2:4]) is None
    stretch[-1] ^= 1
    assert codec.broken_block(stretch, first.start, [first, last], digests[2:4]) == last
    assert codec.broken_block(stretch, first.start, [first, last], digests[1:3]) == first


def _changes() -> list[tuple[str, Any]]:
    """Every way in which one field of a header can depart from SIMPLE's."""
    _, head, _ = _encoded(SIMPLE, client="a")
    document = json.loads(head[8:])
    changed: list[tuple[str, Any]] = []

    def change(label: str, *path: Any, value: Any = None, drop: bool = False) -> None:
        altered = copy.deepcopy(document)
        inner = altered
        for step in path[:-1]:
            inner = inner[step]
        if drop:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        assert altered != document, label
        changed.append((label, altered))

    for name in SIMPLE:
        change(f"{name} missing", name, drop=True)
        change(f"{name} is no object", name, value=[1])
        value: Any
        for field in ("dtype", "shape", "data_offsets"):
            change(f"{name} without {field}", name, field, drop=True)
            for value in (None, "X", 1, {}, [None], [-1], [1 << 80], ["1"]):
                change(f"{name} with {field} {value}", name, field, value=value)
        for dtype in ("F64", "I64", "U64", "F32", "I32", "F16", "BF16", "BOOL", "U8"):
            if dtype != document[name]["dtype"]:
                change(f"{name} as {dtype}", name, "dtype", value=dtype)
        shape = document[name]["shape"]
        for altered in ([*shape, 1], [1, *shape], [n + 1 for n in shape] or [2], [0]):
            change(f"{name} of shape {altered}", name, "shape", value=altered)
        start, stop = document[name]["data_offsets"]
        for offsets in ([start + 1, stop], [start, stop + 1], [stop, start], [start], [0, 0]):
            change(f"{name} at {offsets}", name, "data_offsets", value=offsets)
        change(f"{name} with one field more", name, "extra", value=1)
    change("one parameter more", "more", value=document["steps"])
    change("no metadata", "__metadata__", drop=True)
    for value in (None, [], "text", 1, {"hubless": 1}):
        change(f"metadata {value}", "__metadata__", value=value)
    change("no format", "__metadata__", "hubless", drop=True)
    change("another format", "__metadata__", "hubless", value="2")
    change("no digests", "__metadata__", "blocks", drop=True)
    change("a digest less", "__metadata__", "blocks", value=document["__metadata__"]["blocks"][16:])
    change("half a digest", "__metadata__", "blocks", value=document["__metadata__"]["blocks"][1:])
    change("metadata of no text", "__metadata__", "client", value=5)
    return changed


@pytest.mark.parametrize(("label", "document"), _changes(), ids=[label for label, _ in _changes()])
def test_a_header_changed_in_any_one_field_is_refused(label: str, document: object) -> None:
    with pytest.raises(ValueError, match=r"^(its|it) \w+"):
        codec.decode_header(_head(document), Signature.of(SIMPLE))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"1234567",
        b"\x00" * 8,
        b"\xff" * 64,
        _head([1, 2]),
        _head("text"),
        _head(None),
    ],
    ids=["empty", "one byte", "seven bytes", "zeros", "ones", "a list", "a text", "a null"],
)
def test_what_is_no_header_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="safetensors"):
        codec.decode_header(raw, Signature.of(SIMPLE))


def test_a_header_nested_without_end_is_refused() -> None:
    text = b"[" * 50_000 + b"]" * 50_000
    raw = len(text).to_bytes(8, "little") + text
    with pytest.raises(ValueError, match="not JSON"):
        codec.decode_header(raw, Signature.of(SIMPLE))


_, _HEAD, _ = _encoded(SIMPLE, client="a")
_AS_TEXT = _HEAD[8:].decode().rstrip()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[0, ", "[0.0, ", "the number 0.0, where only whole ones can be"),
        ("[0, ", "[-0.0, ", "the number -0.0, where"),
        ("[0, ", "[0e1, ", "the number 0e1, where"),
        ("[0, ", "[NaN, ", "the number NaN, where"),
        ("[0, ", "[Infinity, ", "the number Infinity, where"),
        ("[0, ", "[1e999, ", "the number 1e999, where"),
        ("[0, ", "[false, ", "has true or false where a number should be"),
        ("[0, ", "[" + "[" * 400 + "true" + "]" * 400 + ", ", "true or false"),
        ("[0, ", "[-1, ", "at other offsets"),
        ("[0, ", "[" + "9" * 400 + ", ", "at other offsets"),
        ("[0, ", "[" + "9" * 5000 + ", ", "not JSON"),
        ('"data_offsets"', '"data_offsets": [0, 4], "data_offsets"', "has 'data_offsets' twice"),
        ('"hubless"', '"client": "b", "hubless"', "has 'client' twice"),
        ('{"__metadata__"', '{"__metadata__": {}, "__metadata__"', "has '__metadata__' twice"),
        ('{"__metadata__"', '{"more": 1, "__metadata__"', "'more' in no known dtype"),
        ('{"__metadata__"', '{"steps": 1, "__metadata__"', "twice"),
    ],
)
def test_a_header_that_readers_may_take_for_different_things_is_refused(
    old: str, new: str, reason: str
) -> None:
    signature = Signature.of(SIMPLE)
    text = _AS_TEXT.replace(old, new, 1).encode()
    raw = len(text).to_bytes(8, "little") + text
    with pytest.raises(ValueError, match=f"^its header .*{reason}"):
        codec.decode_header(raw, signature)
    assert codec.describe(raw, len(raw) + signature.size, signature)


@fewer
@given(st.binary(max_size=200))
def test_no_bytes_whatever_make_the_reader_fail_otherwise_than_by_refusing(raw: bytes) -> None:
    signature = Signature.of(SIMPLE)
    with pytest.raises(ValueError, match=r"^(its|it) "):
        codec.decode_header(raw, signature)
    assert codec.describe(raw, len(raw), signature)


@fewer
@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_no_json_whatever_makes_the_reader_fail_otherwise_than_by_refusing(value: object) -> None:
    signature = Signature.of(SIMPLE)
    for document in (value, {"head": value}, {"head": {"dtype": "F32", "shape": value}}):
        with pytest.raises(ValueError, match=r"^(its|it) "):
            codec.decode_header(_head(document), signature)


def test_the_difference_of_params_is_told_in_the_words_of_the_signature() -> None:
    other = {**SIMPLE, "body.bias": np.ones(4, np.float64), "extra": np.ones(1, np.float32)}
    _, head, _ = _encoded(other)
    with pytest.raises(ValueError, match="not the federation's") as raised:
        codec.decode_header(head, Signature.of(SIMPLE))
    assert "body.bias: float64[4] here, float32[3] in the federation" in str(raised.value)
    assert "extra: only here (float32[1])" in str(raised.value)


def test_a_long_list_of_differences_is_cut_short_and_counted() -> None:
    _, head, _ = _encoded({f"p{i}": np.ones(1) for i in range(10)})
    with pytest.raises(ValueError, match=r"and 11 more$"):
        codec.decode_header(head, Signature.of(SIMPLE))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_called_one(protocol: int) -> None:
    raw = pickle.dumps({"w": [1.0, 2.0]}, protocol=protocol)
    assert "is a pickle" in codec.describe(raw, len(raw), Signature.of(SIMPLE))


def test_what_torch_and_numpy_save_is_called_a_zip_archive() -> None:
    for_torch, for_numpy = io.BytesIO(), io.BytesIO()
    torch.save({"w": torch.ones(3)}, for_torch)
    np.savez(for_numpy, w=np.ones(3))
    for raw in (for_torch.getvalue(), for_numpy.getvalue()):
        assert "zip archive" in codec.describe(raw, len(raw), Signature.of(SIMPLE))


def test_garbage_is_called_no_safetensors() -> None:
    signature = Signature.of(SIMPLE)
    for raw in (b"", b"short", b"\xff" * 100, b"hello world, this is a text", b"\x89PNG\r\n\x1a\n"):
        assert (
            codec.describe(raw, len(raw), signature) == f"its {len(raw)} bytes are not safetensors"
        )
    unreadable = struct.pack("<Q", 10) + b"{" + b"x" * 19
    assert "not JSON" in codec.describe(unreadable, 28, signature)


def test_an_object_cut_off_anywhere_in_its_body_is_called_truncated() -> None:
    signature, head, body = _encoded(SIMPLE)
    whole = head + body
    for size in range(len(head), len(whole)):
        assert codec.describe(whole[:size], size, signature) == (
            f"it is truncated: {size} bytes where its header announces {len(whole)}"
        )


def test_an_object_cut_off_in_its_header_is_called_truncated() -> None:
    signature, head, body = _encoded(SIMPLE)
    assert codec.describe(head[:20], 20, signature) == (
        f"it is truncated: 20 bytes where its header announces {len(head + body)}"
    )


def test_an_object_with_something_after_its_body_is_called_larger_than_declared() -> None:
    signature, head, body = _encoded(SIMPLE)
    size = len(head + body)
    assert codec.describe(head + body + b"more", size + 4, signature) == (
        f"it is larger than declared: {size + 4} bytes where its header announces {size}"
    )


def test_another_models_update_is_told_by_its_params_rather_than_its_size() -> None:
    _, head, body = _encoded({"w": np.ones(9, np.float32)})
    told = codec.describe(head + body, len(head + body), Signature.of(SIMPLE))
    assert "not the federation's" in told


@pytest.mark.parametrize("announced", [0x0280, 0x0380, 0x0480, 0x0580, 0x4B50])
def test_a_truncated_object_is_not_taken_for_a_pickle_or_a_zip_by_its_headers_length(
    announced: int,
) -> None:
    params = {"w": np.ones(3)}
    _, head, _ = _encoded(params, pad="")
    signature, head, body = _encoded(params, pad="x" * (announced - len(head) + 8))
    assert int.from_bytes(head[:8], "little") == announced
    size = len(head) + 1
    assert "truncated" in codec.describe(head + body[:1], size, signature)


def test_a_parameter_named_as_the_metadata_are_is_refused_before_it_is_written() -> None:
    with pytest.raises(ParamsError, match="__metadata__"):
        _encoded({"__metadata__": np.ones(2), "w": np.ones(2)})
