from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hubless
from hubless.train.layers.precision import in_tf32, tf32

_settings: Any = torch.backends


@pytest.fixture(params=["highest", "high", "none", "ieee", "tf32", "bf16"])
def said(request: pytest.FixtureRequest) -> Iterator[str]:
    """How exact products are to be, by torch's older name for it and by its newer ones."""
    gpu, cpu = _settings.cuda.matmul, _settings.mkldnn.matmul
    if request.param in ("highest", "high"):
        torch.set_float32_matmul_precision(request.param)
    elif request.param == "bf16":
        cpu.fp32_precision = request.param
    else:
        gpu.fp32_precision = request.param
    yield request.param
    gpu.fp32_precision = cpu.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


def test_products_are_in_tf32_within_a_block_and_as_before_after_it(said: str) -> None:
    before = in_tf32()
    assert before == (said in ("high", "tf32"))
    with tf32(False):
        assert in_tf32() == before
    with tf32(True):
        assert in_tf32()
        with tf32(True):
            assert in_tf32()
        assert in_tf32()
    assert in_tf32() == before


@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_simulation_runs_whatever_was_said(said: str, precision: str, lanes: int) -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.standard_normal((20, 3), dtype=np.float32), "y": rng.integers(0, 2, 20)}
    people = hubless.Population(columns, np.arange(0, 21, 5))
    simulation = hubless.Simulation(
        hubless.Task(nn.Linear(3, 2)),
        people,
        recipe=hubless.Recipe(hubless.SGD(0.1), batch=2, precision=precision),
        cohort=4,
        engine=hubless.Local(lanes=lanes, compiled=False, processes=1, device="cpu"),
        test=people,
        evaluate_every=1,
    )
    simulation.run(1)
    assert np.isfinite(simulation.rows[-1]["train_loss"])
