"""Texts as codes: every character where it stands, padding only where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.data.text import CHARACTERS, CODES, PAD, UNKNOWN, characters
from hubless.errors import DataError


def _plainly(text: str, length: int) -> list[int]:
    known = {character: code for code, character in enumerate(CHARACTERS, 2)}
    codes = [known.get(" " if c in "\t\n\r" else c, UNKNOWN) for c in text[:length]]
    return codes + [PAD] * (length - len(codes))


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=5),
    st.integers(1, 7),
)
def test_codes_are_those_of_each_character_in_turn(texts: list[str], length: int) -> None:
    expected = np.array([_plainly(text, length) for text in texts]).reshape(len(texts), length)
    for given_as in (texts, np.array(texts, np.dtypes.StringDType())):
        codes = characters(given_as, length)
        assert codes.dtype == np.uint8
        assert np.array_equal(codes, expected)
        assert codes.max(initial=0) < CODES


def test_what_python_cannot_encode_is_unknown() -> None:
    assert characters(["\ud800\0\x7f"], 4).tolist() == [[UNKNOWN, UNKNOWN, UNKNOWN, PAD]]


def test_a_length_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="at least 1 character, not 0"):
        characters(["a"], 0)
