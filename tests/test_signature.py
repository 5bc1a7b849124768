"""Signatures: one order in memory for everybody, differences in words, packing without loss."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hubless.errors import ParamsError
from hubless.signature import BLOCK_BYTES, Signature, is_tag, numpy_dtype

Arrays = dict[str, NDArray[Any]]

TAGS = {
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
    "F32": np.float32,
    "I32": np.int32,
    "U32": np.uint32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "I16": np.int16,
    "U16": np.uint16,
    "BOOL": np.bool_,
    "I8": np.int8,
    "U8": np.uint8,
}
# the machine may be busy with other tests, so no example is judged by its time
fewer = settings(max_examples=60)


@st.composite
def arrays(draw: st.DrawFn) -> Arrays:
    named: Arrays = {}
    for name in draw(st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=6)):
        dtype = np.dtype(TAGS[draw(st.sampled_from(sorted(TAGS)))])
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        if dtype == ml_dtypes.bfloat16:
            named[name] = draw(hnp.arrays(np.uint16, shape)).view(dtype)
        else:
            named[name] = draw(hnp.arrays(dtype, shape))
    assume("__metadata__" not in named)
    assume(any(array.size for array in named.values()))
    return named


def _example() -> Arrays:
    return {
        "w": np.zeros((2, 3), np.float32),
        "b": np.zeros(3, np.float32),
        "steps": np.array(7),
        "half": np.zeros(5, np.float16),
        "mask": np.zeros((), bool),
    }


@fewer
@given(arrays())
def test_packing_and_unpacking_loses_no_bit(params: Arrays) -> None:
    signature = Signature.of(params)
    flat = signature.pack(params)
    assert flat.dtype == np.uint8 and flat.shape == (signature.size,)
    unpacked = signature.unpack(flat)
    assert unpacked.keys() == params.keys()
    for name, array in params.items():
        assert unpacked[name].dtype == array.dtype
        assert unpacked[name].shape == array.shape
        assert unpacked[name].tobytes() == array.tobytes()


@fewer
@given(arrays(), st.randoms())
def test_neither_order_nor_values_matter_to_a_signature(params: Arrays, random: Any) -> None:
    signature = Signature.of(params)
    names = list(params)
    random.shuffle(names)
    again = Signature.of({name: np.zeros_like(params[name]) for name in names})
    assert again == signature
    assert again.digest == signature.digest
    assert signature.differences(again) == []


@fewer
@given(arrays())
def test_a_signature_survives_being_written_as_text(params: Arrays) -> None:
    signature = Signature.of(params)
    again = Signature.from_json(signature.to_json())
    assert again == signature
    assert again.to_json() == signature.to_json()
    assert json.loads(signature.to_json()).keys() == params.keys()


@fewer
@given(arrays())
def test_arrays_lie_side_by_side_each_aligned_to_its_own_size(params: Arrays) -> None:
    signature = Signature.of(params)
    at = 0
    for spec in signature.specs:
        assert spec.start == at
        assert spec.stop - spec.start == params[spec.name].nbytes
        assert spec.start % params[spec.name].itemsize == 0
        at = spec.stop
    assert at == signature.size == sum(array.nbytes for array in params.values())


@fewer
@given(arrays())
def test_blocks_cover_everything_once_and_none_mixes_dtypes(params: Arrays) -> None:
    signature = Signature.of(params)
    at = 0
    for block in signature.blocks:
        assert block.start == at < block.stop
        for name in signature.names_within(block.start, block.stop):
            assert params[name].dtype == block.dtype
        at = block.stop
    assert at == signature.size


def test_blocks_are_of_the_agreed_size_but_for_the_last_of_each_dtype() -> None:
    elements = BLOCK_BYTES // 4
    signature = Signature.of(
        {
            "a": np.zeros(elements + 1, np.float32),
            "b": np.zeros(elements, np.float32),
            "n": np.zeros(3, np.int64),
        }
    )
    sizes = [(block.dtype.name, block.stop - block.start) for block in signature.blocks]
    assert sizes == [
        ("int64", 24),
        ("float32", BLOCK_BYTES),
        ("float32", BLOCK_BYTES),
        ("float32", 4),
    ]
    second = signature.blocks[2]
    assert signature.names_within(second.start, second.stop) == ["a", "b"]


def test_unpacked_arrays_are_views_and_packed_bytes_are_not() -> None:
    params = _example()
    signature = Signature.of(params)
    flat = signature.pack(params)
    signature.unpack(flat)["w"][:] = 3
    assert signature.unpack(flat)["w"].tolist() == [[3, 3, 3], [3, 3, 3]]
    assert not params["w"].any()


def test_any_layout_and_byte_order_packs_to_the_same_bytes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    signature = Signature.of({"w": array})
    expected = signature.pack({"w": array}).tobytes()
    for same in (np.asfortranarray(array), array.astype(">f4"), np.repeat(array, 2, 1)[:, ::2]):
        assert Signature.of({"w": same}) == signature
        assert signature.pack({"w": same}).tobytes() == expected


def test_tensors_and_arrays_have_the_same_signature_and_bytes() -> None:
    params: Arrays = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "double": np.arange(2.0),
        "half": np.arange(5, dtype=np.float16),
        "brain": np.arange(3).astype(ml_dtypes.bfloat16),
        "steps": np.array(7),
        "mask": np.array([True, False]),
    }
    tensors = {
        name: torch.tensor(array.astype(np.float64)).to(getattr(torch, array.dtype.name))
        for name, array in params.items()
    }
    signature = Signature.of(params)
    assert Signature.of(tensors) == signature
    assert signature.pack(tensors).tobytes() == signature.pack(params).tobytes()


@pytest.mark.parametrize(
    "other",
    [
        {"w": np.zeros((3, 2), np.float32)},
        {"w": np.zeros(6, np.float32)},
        {"w": np.zeros((2, 3), np.int32)},
        {"v": np.zeros((2, 3), np.float32)},
        {"w": np.zeros((2, 3), np.float32), "v": np.zeros(0, np.float32)},
    ],
    ids=["turned", "flat", "another dtype", "another name", "one more, although empty"],
)
def test_signatures_that_differ_have_other_digests(other: Arrays) -> None:
    signature = Signature.of({"w": np.zeros((2, 3), np.float32)})
    assert Signature.of(other) != signature
    assert Signature.of(other).digest != signature.digest
    assert len(Signature.of(other).differences(signature)) >= 1


def test_a_digest_is_the_same_on_every_machine() -> None:
    signature = Signature.of({"w": np.zeros((2, 3), np.float32), "steps": np.array(7)})
    assert signature.digest == "d09f31a84c8b"


def test_differences_say_what_is_here_and_what_the_federation_has() -> None:
    federation = Signature.of(_example())
    mine = _example()
    mine["w"] = np.zeros((2, 4), np.float32)
    mine["half"] = np.zeros(5, ml_dtypes.bfloat16)
    mine["mask"] = np.zeros((), np.float64)
    mine["mine"] = np.zeros((1, 1))
    del mine["steps"]
    assert federation.differences(Signature.of(mine)) == [
        "half: bfloat16[5] here, float16[5] in the federation",
        "mask: float64[] here, bool[] in the federation",
        "mine: only here (float64[1, 1]), the federation has none",
        "steps: missing here, the federation has int64[]",
        "w: float32[2, 4] here, float32[2, 3] in the federation",
    ]


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_stands_for_one_numpy_dtype(tag: str) -> None:
    assert is_tag(tag)
    assert numpy_dtype(tag) == np.dtype(TAGS[tag])
    spec = Signature.of({"w": np.zeros(3, TAGS[tag])}).specs[0]
    assert (spec.dtype, spec.stop) == (tag, 3 * np.dtype(TAGS[tag]).itemsize)


@pytest.mark.parametrize("tag", ["F8_E4M3", "C64", "f32", "", None, 4, ["F32"]])
def test_other_tags_stand_for_nothing(tag: object) -> None:
    assert not is_tag(tag)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.complex64),
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, ml_dtypes.float8_e4m3fn),
        np.zeros(2, np.longdouble),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, [("a", "f4")]),
        torch.zeros(2, dtype=torch.complex64),
    ],
    ids=lambda array: str(array.dtype),
)
def test_a_dtype_that_cannot_be_shared_is_refused_by_name_with_a_way_out(array: Any) -> None:
    with pytest.raises(ParamsError, match=r"'body\.w' has dtype .*cannot be shared") as raised:
        Signature.of({"ok": np.zeros(1), "body.w": array})
    assert "float32" in str(raised.value)
    assert "share=" in str(raised.value)


def test_nothing_to_share_is_refused() -> None:
    with pytest.raises(ParamsError, match="no parameters"):
        Signature.of({})
    with pytest.raises(ParamsError, match="all parameters are empty"):
        Signature.of({"w": np.zeros((0, 3)), "b": np.zeros(0)})
