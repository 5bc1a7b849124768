"""What clients say training them is worth, from the engine to the roster and the next pick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hubless.errors import SelectionError
from hubless.privacy.ledger import Ledger
from hubless.privacy.mechanisms import Laplace
from hubless.select.active import Active
from hubless.select.activity import Activity
from hubless.select.optimal import OptimalSampling
from hubless.select.roster import Roster
from hubless.select.uniform import Uniform
from hubless.simulate.callbacks import Checkpoint
from hubless.simulate.engine.machine import Local
from hubless.simulate.job import Job
from hubless.simulate.times import Buffered, Devices, constant
from hubless.strategy.fedmedian import FedMedian
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from hubless.train.values import (
    GradientNorm,
    HighLosses,
    LabelCount,
    LossOverRoot,
    MeanLoss,
    UpdateNorm,
    Value,
)
from tests.simulate.worlds import PLAIN, UNEQUAL, cohort_of, executor, mlp, people, simulation

EVERYBODY = list(range(len(UNEQUAL)))
RECIPE = Recipe(SGD(0.1), batch=4)


def by_hand(value: Value) -> list[float]:
    """The same from each client's own losses, one client after another."""
    torch.manual_seed(0)
    population, task = people(), Task(mlp())
    found = []
    for client in EVERYBODY:
        own = population.client(client)
        batch = {name: torch.from_numpy(column) for name, column in own.items()}
        losses = task.losses(task.module, batch)
        n = len(losses)
        if value == GradientNorm():
            if not n:
                found.append(0.0)
                continue
            gradients = torch.autograd.grad(losses.mean(), list(task.module.parameters()))
            found.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        elif isinstance(value, HighLosses):
            found.append(float((losses > value.above).sum()))
        elif isinstance(value, LabelCount):
            found.append(float((own["y"] == value.label).sum()))
        else:
            power = 0.5 if value == LossOverRoot() else 1.0
            found.append(float(losses.detach().sum()) / max(n, 1) ** power)
    return found


def valued(value: Value, engine: Local = PLAIN) -> NDArray[np.float64]:
    """What everybody is worth after one round with all of them."""
    torch.manual_seed(0)
    ran = simulation(
        task=Task(mlp()), recipe=RECIPE, cohort=len(UNEQUAL), value=value, engine=engine
    )
    ran.run(rounds=1)
    return ran.roster.valuation


@pytest.mark.parametrize(
    "value",
    [LossOverRoot(), MeanLoss(), HighLosses(1.1), LabelCount(2), GradientNorm()],
    ids=lambda value: type(value).__name__,
)
def test_values_are_those_of_the_round_s_starting_params(value: Value) -> None:
    expected = np.array(by_hand(value))
    sizes = people().sizes
    found = valued(value)
    # nobody trains without data, so nobody asks them
    assert np.isnan(found[sizes == 0]).all()
    assert found[sizes > 0] == pytest.approx(expected[sizes > 0], rel=1e-4, abs=1e-5)


def test_an_update_s_norm_is_how_far_training_moved() -> None:
    torch.manual_seed(0)
    task, population = Task(mlp()), people()
    job = Job(task, RECIPE, population, 3, UpdateNorm())
    plain = Job(task, RECIPE, population, 3)
    start = job.layout.flatten(task.module)
    cohort = cohort_of(EVERYBODY, population)
    runs = {}
    for each in (False, True):
        runs[each] = executor(job).run(start, cohort, each=each)
    alone = executor(plain).run(start, cohort, each=True).each
    assert alone is not None
    norms = (alone - start).norm(dim=1)
    for learned in runs.values():
        assert learned.values is not None
        assert torch.allclose(learned.values, norms, atol=1e-6)
    total = executor(plain).run(start, cohort).total
    assert runs[False].total is not None
    assert total is not None
    assert torch.allclose(runs[False].total, total, atol=1e-6)


@pytest.mark.parametrize("value", [LossOverRoot(), UpdateNorm()], ids=["losses", "updates"])
def test_processes_and_lanes_say_the_same(value: Value) -> None:
    alone = valued(value)
    for engine in (
        Local(lanes=0, compiled=False, processes=2),
        Local(lanes=3, compiled=False, processes=1),
    ):
        assert valued(value, engine) == pytest.approx(alone, rel=1e-4, nan_ok=True)


def test_the_roster_knows_who_was_picked_and_who_answered() -> None:
    picks: list[list[int]] = []

    def noted(roster: Roster, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
        picked = Uniform()(roster, k, rng)
        picks.append(picked.tolist())
        return picked

    ran = simulation(selector=noted, cohort=4, value=MeanLoss())
    ran.run(rounds=6)
    times = np.bincount(np.concatenate(picks), minlength=len(UNEQUAL))
    assert ran.roster.selected.tolist() == times.tolist()
    last = [max((r for r, p in enumerate(picks) if c in p), default=-1) for c in EVERYBODY]
    assert ran.roster.last_selected.tolist() == last
    sizes = people().sizes
    seen = [at if sizes[c] else -1 for c, at in enumerate(last)]
    assert ran.roster.last_seen.tolist() == seen == ran.roster.valued.tolist()


def test_a_log_of_events_tells_a_roster_the_same(tmp_path: Path) -> None:
    kept: list[Any] = []
    ran = simulation(selector=Active(), events=[kept.append], population=people((5,) * 9))
    ran.run(rounds=5)
    roster = Roster(ran.sizes)
    for event in kept:
        roster.hear(event)
    for name in ("selected", "last_selected", "last_seen", "valued", "valuation"):
        mine, theirs = getattr(ran.roster, name), getattr(roster, name)
        assert np.array_equal(mine, theirs, equal_nan=True), name


def test_active_selection_asks_for_losses_without_being_told() -> None:
    ran = simulation(selector=Active(alpha3=0.0, alpha2=1e3, alpha1=0.0), cohort=3)
    assert ran.value == LossOverRoot()
    ran.run(rounds=8)
    known = ~np.isnan(ran.roster.valuation)
    assert known.sum() == (ran.sizes > 0).sum()
    assert np.isfinite(ran.history["train_loss"].to_numpy()).all()


@pytest.mark.parametrize("pace", [None, Buffered(concurrency=3, buffer=2)], ids=["sync", "async"])
def test_what_is_known_of_clients_survives_a_resume(pace: Buffered | None, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "selector": Active(alpha2=5.0),
        "private": Laplace(epsilon=1.0, clip=5.0),
        "pace": pace,
        "cohort": 3,
        "seed": 2,
    }
    whole = simulation(**changes)
    whole.run(rounds=9)
    first = simulation(**changes, callbacks=[Checkpoint(tmp_path, every=1)])
    first.run(rounds=4)
    again = simulation(**changes)
    assert again.resume(tmp_path)
    again.run(rounds=9)
    assert torch.equal(again.flat, whole.flat)
    for name in ("selected", "last_selected", "last_seen", "valued", "valuation"):
        mine, theirs = getattr(again.roster, name), getattr(whole.roster, name)
        assert np.array_equal(mine, theirs, equal_nan=True), name
    assert again.ledger is not None
    assert whole.ledger is not None
    assert again.ledger.spent() == whole.ledger.spent() > 0


def test_what_privacy_costs_is_in_the_history_and_a_budget_ends_it(tmp_path: Path) -> None:
    ledger = Ledger(11, budget=2.0)
    log = tmp_path / "events.jsonl"
    ran = simulation(
        value=MeanLoss(),
        private=Laplace(epsilon=0.5, clip=5.0),
        ledger=ledger,
        cohort=len(UNEQUAL),
        events=log,
    )
    ran.run(rounds=8)
    spent = ran.history["epsilon"].to_list()
    assert spent == sorted(spent)
    assert 0.4 < spent[0] <= 0.5 + 1e-6
    assert spent[-1] <= 2.0
    told = [json.loads(line) for line in log.read_text().splitlines()]
    last = [event["valuations"] for event in told if event["event"] == "trained"][-1]
    # whoever has spent it says no more, and the server keeps what it knew
    assert ran.roster.valuation[ran.sizes > 0] == pytest.approx(last)
    assert ran.roster.valuation[ran.sizes > 0] == pytest.approx(ledger.last[ran.sizes > 0])


def test_private_without_a_value_is_refused() -> None:
    with pytest.raises(SelectionError, match="there are none: give a value"):
        simulation(private=Laplace(epsilon=1.0, clip=1.0))


def test_an_unbiased_choice_expects_what_training_everybody_gives() -> None:
    population, whole = people((1, 2, 3, 5, 8, 20, 40)), Recipe(SGD(0.5), batch=None)
    for client in range(len(population)):
        # heavy clients know one class, light ones the others
        population.columns["y"][population.rows_of(client)] = max(0, 6 - client) % 3
    torch.manual_seed(0)
    task = Task(mlp())

    def moved(**changes: Any) -> torch.Tensor:
        ran = simulation(task=task, population=population, recipe=whole, **changes)
        start = ran.flat.clone()
        ran.run(rounds=1)
        return ran.flat - start

    wanted = moved(cohort=7)
    off = {}
    for unbiased in (True, False):
        selector = Activity("n", design="exact", unbiased=unbiased)
        mean = sum(moved(cohort=2, selector=selector, seed=seed) for seed in range(600)) / 600
        off[unbiased] = float((mean - wanted).norm() / wanted.norm())
    assert off[True] < 0.1, off
    assert off[False] > 0.3


def test_an_unbiased_choice_needs_a_mean() -> None:
    with pytest.raises(SelectionError, match="does not take one"):
        simulation(selector=Activity("n", design="exact", unbiased=True), strategy=FedMedian())


def test_selectors_see_how_fast_and_how_often_there_clients_are() -> None:
    seen: list[tuple[float, float]] = []

    def looking(roster: Roster, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
        seen.append((float(roster.speed.mean()), float(roster.availability.mean())))
        return Uniform()(roster, k, rng)

    devices = Devices(speed=constant(7.0), availability=constant(1.0))
    simulation(selector=looking, devices=devices).run(rounds=1)
    assert seen == [(7.0, 1.0)]


def test_optimal_sampling_looks_at_how_far_clients_moved() -> None:
    ran = simulation(selector=OptimalSampling(least=0.1), cohort=4, population=people((5,) * 9))
    assert ran.value == UpdateNorm()
    ran.run(rounds=3)
    assert (ran.roster.valuation[ran.roster.selected > 0] > 0).all()
