"""Random streams: the same everywhere, and none disturbs another."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hubless.rng import stream


def test_a_stream_draws_the_same_on_every_machine() -> None:
    drawn = stream(7, "participation", "site-a").integers(1_000_000, size=4)
    assert drawn.tolist() == [245510, 611336, 324363, 712359]


def test_a_stream_draws_the_same_in_another_process_with_another_hash_seed() -> None:
    code = "from hubless.rng import stream; print(stream(7, 'a', 3).integers(1 << 40))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1234"},
    )
    assert int(ran.stdout) == stream(7, "a", 3).integers(1 << 40)


def test_a_stream_does_not_notice_how_often_another_was_drawn_from() -> None:
    alone = stream(7, "b").random(3)
    stream(7, "a").random(1000)
    np.random.default_rng().random(10)
    assert np.array_equal(stream(7, "b").random(3), alone)


def test_streams_of_other_seeds_or_purposes_are_others() -> None:
    purposes: list[tuple[int, tuple[str | int, ...]]] = [
        (7, ()),
        (7, ("a",)),
        (8, ("a",)),
        (7, ("b",)),
        (7, ("a", "b")),
        (7, ("ab",)),
        (7, ("b", "a")),
        (7, ("1",)),
        (7, (1,)),
        (7, ("a", 1)),
        (7, ("a", "1")),
        (7, ("a', 'b",)),
    ]
    drawn = {tuple(stream(seed, *purpose).integers(1 << 60, size=2)) for seed, purpose in purposes}
    assert len(drawn) == len(purposes)


def test_streams_are_not_correlated() -> None:
    a, b = stream(7, "client", 1).random(10_000), stream(7, "client", 2).random(10_000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


@pytest.mark.parametrize("number", [np.int64(3), np.int32(3), np.uint8(3)])
def test_a_number_counts_for_its_value_whatever_its_kind(number: int) -> None:
    assert stream(7, number).integers(1 << 60) == stream(7, 3).integers(1 << 60)
