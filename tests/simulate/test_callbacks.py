"""Callbacks: called after every round, able to end a run, to keep the best and to save."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hubless.events import Ended, Event
from hubless.simulate import checkpoint
from hubless.simulate.callbacks import BestModel, Checkpoint, EarlyStop
from hubless.simulate.simulation import Simulation
from tests.simulate.worlds import after, people, simulation

NOBODY = cast(Simulation, None)


def _tested(**changes: Any) -> Simulation:
    return simulation(test=people([40], seed=7), evaluate_every=1, **changes)


def test_every_callback_sees_every_round_once() -> None:
    seen: list[tuple[str, int]] = []

    def look(name: str) -> Any:
        return lambda simulation, row: seen.append((name, row["round"]))

    simulation(callbacks=[look("a"), look("b")]).run(rounds=2)
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_a_callback_that_returns_true_ends_the_run_after_everybody_was_called() -> None:
    said: list[Event] = []
    seen: list[int] = []
    ran = simulation(
        events=[said.append],
        callbacks=[
            lambda simulation, row: row["round"] == 2,
            lambda simulation, row: seen.append(row["round"]),
        ],
    )
    history = after(ran, 9)
    assert history["round"].to_list() == seen == [1, 2]
    assert isinstance(said[-1], Ended)
    assert said[-1].reason == "stopped"


def test_a_run_stops_at_its_target() -> None:
    first = _tested()
    history = after(first, 6)
    target = history["accuracy"].max()
    reached = int((history["accuracy"] == target).arg_max()) + 1  # type: ignore[arg-type]
    stop = EarlyStop("accuracy", target=cast(float, target), best="high")
    assert after(_tested(callbacks=[stop]), 6).height == reached


@pytest.mark.parametrize(
    ("best", "values", "stops"),
    [
        ("low", [3.0, 2.0, 2.5, 2.1, 1.9, 2.0, 2.0], 4),
        ("low", [3.0, 2.0, 2.0, 2.0], 4),
        ("high", [1.0, 2.0, 1.0, 3.0, 2.0, 2.0], 6),
        ("low", [5.0, 4.0, 3.0, 2.0], None),
    ],
)
def test_a_run_stops_when_two_evaluations_brought_nothing(
    best: Any, values: list[float], stops: int | None
) -> None:
    stop = EarlyStop(patience=2, best=best)
    said = [bool(stop(NOBODY, {"round": i, "loss": value})) for i, value in enumerate(values)]
    assert (said.index(True) + 1 if True in said else None) == stops


def test_rounds_without_an_evaluation_do_not_try_ones_patience() -> None:
    stop = EarlyStop(patience=1)
    assert not stop(NOBODY, {"round": 1, "loss": 2.0})
    assert not stop(NOBODY, {"round": 2})
    assert not stop(NOBODY, {"round": 3})
    assert stop(NOBODY, {"round": 4, "loss": 2.0})


@pytest.mark.parametrize(("metric", "best"), [("loss", "low"), ("accuracy", "high")])
def test_the_best_model_is_the_one_of_the_best_round(metric: str, best: Any) -> None:
    keep = BestModel(metric, best)
    kept: dict[int, torch.Tensor] = {}

    def copy(simulation: Simulation, row: Any) -> None:
        kept[row["round"]] = simulation.flat.clone()

    ran = _tested(callbacks=[keep, copy])
    history = after(ran, 5)
    values = history[metric].to_list()
    wanted = min(values) if best == "low" else max(values)
    assert keep.value == wanted
    assert keep.round == values.index(wanted) + 1
    flat = torch.cat([p.flatten() for p in keep.params.values()])
    assert torch.equal(flat, kept[keep.round])


def test_a_checkpoint_is_written_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    rounds: list[int | None] = []

    def look(simulation: Simulation, row: Any) -> None:
        there = (tmp_path / checkpoint.NAME).exists()
        rounds.append(checkpoint.read(tmp_path)[1]["round"] if there else None)

    ran = simulation(callbacks=[Checkpoint(tmp_path, every=2), look])
    ran.run(rounds=5)
    assert rounds == [None, 2, 2, 4, 4]
    assert checkpoint.read(tmp_path)[1]["round"] == 5
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]
