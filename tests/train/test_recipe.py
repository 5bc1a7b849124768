"""Recipes: how many steps and examples they come to, and settings that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.errors import TaskError
from hubless.train.optimizers import SGD, Adam
from hubless.train.recipe import Recipe

SIZES = st.integers(0, 40)
BATCHES = st.none() | st.integers(1, 12)


def _batches(size: int, batch: int | None) -> list[int]:
    """How many examples are in each batch of one epoch."""
    width = batch or max(size, 1)
    return [min(width, size - start) for start in range(0, size, width)]


@given(size=SIZES, epochs=st.integers(1, 4), batch=BATCHES)
def test_epochs_are_as_many_steps_and_examples_as_walking_through_them(
    size: int, epochs: int, batch: int | None
) -> None:
    recipe = Recipe(epochs=epochs, batch=batch)
    walk = _batches(size, batch) * epochs
    assert recipe.steps_for(np.array([size])).tolist() == [len(walk)]
    assert recipe.examples_for(np.array([size])).tolist() == [sum(walk)]


@given(size=SIZES, steps=st.integers(1, 15), batch=BATCHES)
def test_steps_take_every_client_with_data_the_same_number_of_batches(
    size: int, steps: int, batch: int | None
) -> None:
    recipe = Recipe(steps=steps, batch=batch)
    assert recipe.steps_for(np.array([size])).tolist() == [steps if size else 0]


@given(size=SIZES, steps=st.integers(1, 15), batch=BATCHES)
def test_steps_are_as_many_examples_as_walking_through_the_batches_again_and_again(
    size: int, steps: int, batch: int | None
) -> None:
    recipe = Recipe(steps=steps, batch=batch)
    walk = (_batches(size, batch) * steps)[:steps]
    assert recipe.examples_for(np.array([size])).tolist() == [sum(walk)]


def test_the_learning_rate_falls_from_round_to_round() -> None:
    recipe = Recipe(SGD(0.5), decay=0.9)
    assert [recipe.lr(i) for i in range(3)] == pytest.approx([0.5, 0.45, 0.405])


BAD: list[tuple[str, Callable[[], object]]] = [
    ("epochs= is a whole number of at least 1, not 0", lambda: Recipe(epochs=0)),
    ("batch= is a whole number of at least 1, not -3", lambda: Recipe(batch=-3)),
    ("steps= is a whole number of at least 1, not 0", lambda: Recipe(steps=0)),
    ("clip= is a number above 0, not 0.0", lambda: Recipe(clip=0.0)),
    ("clip= is a number above 0, not nan", lambda: Recipe(clip=float("nan"))),
    ("proximal= is a number of at least 0, not -1.0", lambda: Recipe(proximal=-1.0)),
    ("lr= is a number above 0, not 0.0", lambda: SGD(0.0)),
    ("lr= is a number above 0, not -0.1", lambda: Adam(-0.1)),
    ("lr= is a number above 0, not inf", lambda: SGD(float("inf"))),
    (
        "precision= is 'float32', 'tf32' or 'bfloat16'",
        lambda: Recipe(precision=cast(Any, "half")),
    ),
]


@pytest.mark.parametrize(("message", "make"), BAD, ids=[message for message, _ in BAD])
def test_a_recipe_that_makes_no_sense_is_refused_in_words(
    message: str, make: Callable[[], object]
) -> None:
    with pytest.raises(TaskError) as caught:
        make()
    assert message in str(caught.value)
