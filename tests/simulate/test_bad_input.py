"""Bad input: an error that says what is wrong, before any training is wasted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hubless.data.population import Population
from hubless.errors import (
    ClientFailed,
    DataError,
    Diverged,
    HublessError,
    SelectionError,
    TaskError,
)
from hubless.events import Ended, Event
from hubless.simulate.callbacks import Checkpoint
from hubless.simulate.engine.machine import Local
from hubless.simulate.times import Buffered, Devices, Pace, VirtualClock, constant
from hubless.train.losses import cross_entropy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import Fragile, mlp, people, simulation

LANES = Local(lanes=3, compiled=False, processes=1)
both_engines = pytest.mark.parametrize("engine", [None, LANES], ids=["plain", "lanes"])


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), x


def _with(**columns: Any) -> Population:
    base = people()
    kept = {
        name: column for name, column in base.columns.items() if columns.get(name, 1) is not None
    }
    changed = {name: column for name, column in columns.items() if column is not None}
    return Population({**kept, **changed}, base.offsets, base.rows)


ROWS = people().examples
BAD: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "a scalar loss": (
        TaskError,
        r"'loss' returns one number for 2 examples.*reduction=\"none\"",
        {"task": Task(mlp(), nn.functional.cross_entropy)},
    ),
    "a loss of the wrong shape": (
        TaskError,
        r"'loss' returns shape \(2, 3\) for 2 examples",
        {"task": Task(mlp(), lambda out, y: out.square())},
    ),
    "a module that returns something else": (
        TaskError,
        r"'loss' cannot be computed from the module's output \(tuple\)",
        {"task": Task(Pair())},
    ),
    "a module for other data": (
        TaskError,
        r"module cannot be called on a batch of the data.*\(2, 4\)",
        {"task": Task(mlp(features=7))},
    ),
    "a scalar metric": (
        TaskError,
        "'worst' returns one number for 2 examples",
        {"task": Task(mlp(), metrics={"worst": lambda out, y: cross_entropy(out, y).max()})},
    ),
    "nothing to train": (
        TaskError,
        "no parameters that require a gradient",
        {"task": Task(mlp().requires_grad_(False))},
    ),
    "params in bfloat16": (
        TaskError,
        r"'0\.weight' is torch.bfloat16, and simulations keep params in float32",
        {"task": Task(mlp().bfloat16())},
    ),
    "a missing column": (
        DataError,
        r"needs a column 'x', and the population has \['y'\]",
        {"population": _with(x=None)},
    ),
    "a missing column of the test data": (
        DataError,
        r"needs a column 'y', and the population has \['x'\]",
        {"test": _with(y=None)},
    ),
    "a column of strings": (
        DataError,
        "column 'y' holds <U3, not numbers",
        {"population": _with(y=np.array(["cat"] * ROWS))},
    ),
    "a column of variable strings": (
        DataError,
        "column 'y' holds StringDType.*not numbers",
        {"population": _with(y=np.array(["cat"] * ROWS, np.dtypes.StringDType()))},
    ),
    "a column of objects": (
        DataError,
        "column 'y' holds object, not numbers",
        {"population": _with(y=np.array([None] * ROWS))},
    ),
    "nobody with data": (DataError, "has no examples", {"population": people((0, 0, 0, 0))}),
    "a cohort larger than the population": (
        SelectionError,
        "a cohort of 12 cannot be taken from 11 clients",
        {"cohort": 12},
    ),
    "a cohort of nobody": (SelectionError, "cohort is a whole number of clients", {"cohort": 0}),
    "a cohort of less than nobody": (SelectionError, "not -0.5", {"cohort": -0.5}),
    "a cohort of seven as a share": (SelectionError, "not 7.0", {"cohort": 7.0}),
    "a cohort that is a truth": (SelectionError, "not True", {"cohort": True}),
    "a cohort of two and a half": (SelectionError, "not 2.5", {"cohort": 2.5}),
    "a device that stands still": (
        SelectionError,
        "device's speed must be finite and above 0",
        {"devices": Devices(speed=constant(0.0))},
    ),
    "a device that is not a number": (
        SelectionError,
        "device's up must be finite and above 0",
        {"devices": Devices(up=lambda rng, clients: np.full(clients, np.nan))},
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_it_is_said_when_the_simulation_is_made(what: str) -> None:
    kind, message, changes = BAD[what]
    with pytest.raises(kind, match=f"(?s){message}"):
        simulation(**changes)


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("offsets end at 1 but the columns have 2 rows", lambda x: Population(x, np.array([0, 1]))),
        ("offsets end at 3 but the columns have 2 rows", lambda x: Population(x, np.array([0, 3]))),
        ("offsets fall from 2 to 1", lambda x: Population(x, np.array([0, 2, 1, 2]))),
    ],
)
def test_offsets_that_do_not_match_are_refused(
    message: str, make: Callable[[Any], Population]
) -> None:
    with pytest.raises(DataError, match=message):
        make({"x": np.zeros((2, 4), np.float32), "y": np.zeros(2, np.int64)})


SELECTORS: dict[str, tuple[Any, str]] = {
    "duplicates": (
        lambda roster, k, rng: np.array([3, 5, 3]),
        "returned client 3 more than once in round 1",
    ),
    "too many": (
        lambda roster, k, rng: np.arange(k + 2),
        "returned 6 clients in round 1, where 4 were asked for",
    ),
    "too high": (
        lambda roster, k, rng: np.array([1, 11]),
        "returned client 11 in round 1, and there are clients 0 to 10",
    ),
    "below zero": (lambda roster, k, rng: np.array([-1, 1]), "returned client -1 in round 1"),
    "floats": (
        lambda roster, k, rng: np.array([1.0, 2.0]),
        r"flat integer array, and returned float64 of shape \(2,\)",
    ),
    "a mask": (
        lambda roster, k, rng: np.arange(len(roster)) < k,
        "flat integer array, and returned bool",
    ),
    "a table": (lambda roster, k, rng: np.zeros((2, 2), int), r"of shape \(2, 2\)"),
    "one number": (lambda roster, k, rng: np.array(3), r"of shape \(\)"),
}


@pytest.mark.parametrize("pace", [Pace(), Buffered(concurrency=4, buffer=1)], ids=["sync", "async"])
@pytest.mark.parametrize("what", SELECTORS)
def test_a_selector_that_gives_what_was_not_asked_for_is_refused_before_training(
    what: str, pace: Pace | Buffered
) -> None:
    selector, message = SELECTORS[what]
    ran = simulation(selector=selector, pace=pace)
    before = ran.flat.clone()
    with pytest.raises(SelectionError, match=message):
        ran.run(rounds=3)
    assert torch.equal(ran.flat, before)
    assert ran.rows == []


def test_a_selector_that_fails_says_so_itself() -> None:
    def broken(roster: Any, k: int, rng: Any) -> Any:
        raise LookupError("nobody is in")

    with pytest.raises(LookupError, match="nobody is in"):
        simulation(selector=broken).run(rounds=1)


def _poisoned(client: int) -> Population:
    population = people((6,) * 6)
    population.columns["x"][population.rows_of(client)] = np.nan
    return population


@both_engines
def test_a_loss_that_is_no_number_names_the_round_the_client_and_what_to_try(
    engine: Local | None,
) -> None:
    ran = simulation(
        population=_poisoned(4),
        selector=lambda roster, k, rng: np.array([2, 4, 1]),
        engine=engine or Local(lanes=0, compiled=False, processes=1),
    )
    with pytest.raises(Diverged) as caught:
        ran.run(rounds=3)
    assert (caught.value.client, caught.value.round) == (4, 1)
    for part in ("client 4", "round 1", "learning rate below 0.1", "clip=1.0", "data"):
        assert part in str(caught.value)
    assert isinstance(caught.value, ClientFailed)


@both_engines
def test_a_learning_rate_that_is_too_high_is_noticed(engine: Local | None) -> None:
    said: list[Event] = []
    ran = simulation(
        recipe=Recipe(SGD(1e38), batch=4),
        engine=engine or Local(lanes=0, compiled=False, processes=1),
        events=[said.append],
    )
    with pytest.raises(Diverged, match=r"learning rate below 1e\+38"):
        ran.run(rounds=5)
    assert isinstance(said[-1], Ended)
    assert said[-1].reason == "failed"


def test_params_that_are_no_numbers_are_not_saved(tmp_path: Any) -> None:
    ran = simulation()
    ran.flat[3] = np.nan
    with pytest.raises(Diverged, match="params are not finite after round 0"):
        ran.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_error_while_saving_at_the_end_still_closes_the_engine(tmp_path: Any) -> None:
    """One huge step of a finite loss: only what is saved shows that it went wrong."""
    said: list[Event] = []
    ran = simulation(
        recipe=Recipe(SGD(3e38), batch=None),
        population=people((1, 1, 1, 1)),
        task=Task(mlp(), lambda out, y: 1e6 * cross_entropy(out, y)),
        callbacks=[Checkpoint(tmp_path, every=100)],
        events=[said.append],
    )
    with pytest.raises(Diverged):
        ran.run(rounds=1)
    assert isinstance(said[-1], Ended)
    with pytest.raises(HublessError, match="only during run"):
        ran.engine  # noqa: B018


def test_a_failing_client_raises_with_its_number_and_its_own_traceback() -> None:
    population = people((4, 4, 4, 4))
    population.columns["x"][population.rows_of(2)] += 1000
    said: list[Event] = []
    ran = simulation(task=Task(Fragile()), population=population, cohort=4, events=[said.append])
    with pytest.raises(ClientFailed, match="client 2 failed in round.*that is too much") as caught:
        ran.run(rounds=1)
    assert caught.value.client == 2
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert isinstance(said[-1], Ended)
    assert said[-1].reason == "failed"


def test_everything_counts_rounds_alike() -> None:
    population = people((4, 4, 4, 4))
    population.columns["x"][population.rows_of(2)] += 1000
    failing = simulation(task=Task(Fragile()), population=population, cohort=4)
    with pytest.raises(ClientFailed) as failed:
        failing.run(rounds=1)
    diverging = simulation(population=_poisoned(0), cohort=6)
    with pytest.raises(Diverged) as diverged:
        diverging.run(rounds=1)
    assert failed.value.round == diverged.value.round


BAD_PACES: list[tuple[str, Callable[[], object]]] = [
    ("over= is a number of at least 1, not 0.5", lambda: Pace(over=0.5)),
    ("deadline= is a number above 0, not 0", lambda: Pace(deadline=0)),
    ("concurrency= is a whole number of at least 1", lambda: Buffered(concurrency=0)),
    ("buffer= is a whole number of at least 1", lambda: Buffered(buffer=0)),
    ("adding= is 'deltas' or 'params', not", lambda: Buffered(adding="gradients")),
    (
        "speed must be finite and above 0 for every client",
        lambda: VirtualClock(Devices(speed=constant(-1)), 3, 4, 0),
    ),
]


@pytest.mark.parametrize(("message", "make"), BAD_PACES, ids=[m for m, _ in BAD_PACES])
def test_a_pace_that_makes_no_sense_is_refused(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(SelectionError, match=message):
        make()


@pytest.mark.parametrize(
    "given", [{"over": float("nan")}, {"over": float("inf")}, {"deadline": float("nan")}], ids=repr
)
def test_a_pace_that_is_no_number_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(SelectionError):
        Pace(**given)
