"""Callbacks: called after every round, able to end a run, to keep the best and to save."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from hubless.events import Ended, Event
from hubless.simulate import checkpoint
from hubless.simulate.callbacks import BestModel, Checkpoint, EarlyStop
from hubless.simulate.simulation import Simulation
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from tests.simulate.worlds import after, people, simulation


def _tested(**changes: Any) -> Simulation:
    return simulation(test=people([40], seed=7), evaluate_every=1, **changes)


def _said(stop: EarlyStop, rows: list[dict[str, float]]) -> list[bool]:
    """What it answers after each of these rounds."""
    seen = [SimpleNamespace(rows=rows[: i + 1]) for i in range(len(rows))]
    runs = cast("list[Simulation]", seen)
    return [bool(stop(run, row)) for run, row in zip(runs, rows, strict=True)]


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
    rows = [{"round": i, "loss": value} for i, value in enumerate(values)]
    said = _said(EarlyStop(patience=2, best=best), rows)
    assert (said.index(True) + 1 if True in said else None) == stops


def test_rounds_without_an_evaluation_do_not_try_ones_patience() -> None:
    rows: list[dict[str, float]] = [{"round": round} for round in (1, 2, 3, 4)]
    rows[0]["loss"] = rows[3]["loss"] = 2.0
    assert _said(EarlyStop(patience=1), rows) == [False, False, False, True]


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


@pytest.mark.parametrize("cut", [2, 3, 4])
def test_callbacks_go_on_where_a_resumed_run_goes_on(cut: int, tmp_path: Path) -> None:
    def parts() -> tuple[BestModel, list[Any]]:
        best = BestModel("accuracy", "high")
        stop = EarlyStop("accuracy", patience=3, best="high")
        return best, [Checkpoint(tmp_path, every=1), best, stop]

    def run(callbacks: list[Any], rounds: int, resumed: bool) -> Simulation:
        ran = _tested(callbacks=callbacks, recipe=Recipe(SGD(1.5), batch=4))
        assert ran.resume(tmp_path) == resumed
        ran.run(rounds)
        return ran

    whole, callbacks = parts()
    ended = run(callbacks[1:], 40, resumed=False).round
    assert 4 < ended < 40
    run(parts()[1], cut, resumed=False)
    again, callbacks = parts()
    assert run(callbacks, 40, resumed=True).round == ended
    assert (again.value, again.round) == (whole.value, whole.round)
    assert again.params.keys() == whole.params.keys()
    assert all(torch.equal(again.params[name], param) for name, param in whole.params.items())


class Longest:
    """A callback of one's own that remembers something."""

    def __init__(self) -> None:
        self.furthest = 0.0

    def __call__(self, simulation: Simulation, row: Any) -> None:
        self.furthest = max(self.furthest, float(simulation.flat.norm()))

    def state(self) -> dict[str, Any]:
        return {"furthest": np.array(self.furthest)}

    def restore(self, arrays: Any) -> None:
        self.furthest = float(arrays.get("furthest", 0.0))


def test_a_callback_of_ones_own_is_in_a_checkpoint_if_it_remembers(tmp_path: Path) -> None:
    longest = Longest()
    simulation(callbacks=[longest, Checkpoint(tmp_path)]).run(rounds=3)
    again = Longest()
    assert simulation(callbacks=[again, Checkpoint(tmp_path)]).resume(tmp_path)
    assert again.furthest == longest.furthest > 0


def test_a_checkpoint_that_is_due_between_two_reports_is_written_with_the_next(
    tmp_path: Path,
) -> None:
    """On a GPU rounds are reported ten at a time."""
    saved: list[int] = []

    class Remote(SimpleNamespace):
        def save(self, folder: Path) -> None:
            saved.append(self.round)

    save = Checkpoint(tmp_path, every=25)
    for newest in range(10, 101, 10):
        for round in range(newest - 9, newest + 1):
            save(cast(Simulation, Remote(round=newest)), {"round": round})
    assert saved == [30, 50, 80, 100]


def test_a_checkpoint_is_written_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    rounds: list[int | None] = []

    def look(simulation: Simulation, row: Any) -> None:
        there = (tmp_path / checkpoint.NAME).exists()
        rounds.append(checkpoint.read(tmp_path)[1]["round"] if there else None)

    ran = simulation(callbacks=[Checkpoint(tmp_path, every=2), look])
    ran.run(rounds=5)
    # it comes after the others, so that what they remember of a round is in it
    assert rounds == [None, None, 2, 2, 4]
    assert checkpoint.read(tmp_path)[1]["round"] == 5
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]
