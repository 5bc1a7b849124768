"""Updates: immutable, and of a plausible number of examples."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hubless.errors import ParamsError
from hubless.params import whole_examples
from hubless.testing import Update


def test_an_update_cannot_be_changed() -> None:
    update = Update("site-a", {}, examples=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        update.examples = 4  # type: ignore[misc]


@pytest.mark.parametrize("examples", [0, 1, 3.0, 10**15 - 1, np.int64(5)])
def test_any_plausible_number_of_examples_is_taken(examples: int) -> None:
    whole_examples(examples)
    assert str(Update("a", {}, examples).examples) == str(int(examples))


@pytest.mark.parametrize(
    "examples",
    [-1, 0.5, True, False, 10**15, float("nan"), float("inf"), None, "3", "many", [3]],
    ids=repr,
)
def test_what_is_no_number_of_examples_is_refused_by_its_value(examples: Any) -> None:
    with pytest.raises(ParamsError, match="examples") as raised:
        whole_examples(examples)
    assert str(examples) in str(raised.value)
    with pytest.raises(ParamsError):
        Update("a", {}, examples)
