"""Clients who take a single step: in one, they come to what they come to one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hubless.errors import TaskError
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.job import Cohort, Job, Learned, to_tensors
from hubless.simulate.ways import tiers
from hubless.simulate.ways.single import Single, take_single_step
from hubless.simulate.ways.tiers import Tiers
from hubless.train.optimizers import SGD, Adam, Slots
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import CPU, cohort_of, furthest, job_of, mlp, people, trained, twins

SIZES = (3, 40, 1, 0, 12, 5, 400, 9, 2, 2, 7, 1, 30, 16)
"""400 examples of a client are more than are looked at at a time."""
EVERYBODY = list(range(len(SIZES)))
ADD_UP = {
    "sgd": Recipe(SGD(0.1), batch=16),
    "whole clients": Recipe(SGD(0.3), batch=None),
    "momentum": Recipe(SGD(0.1, momentum=0.9), batch=16),
    "nesterov and decay": Recipe(SGD(0.1, 0.9, weight_decay=0.1, nesterov=True), batch=16),
    "proximal": Recipe(SGD(0.1), batch=16, proximal=0.5),
    "another rate in every round": Recipe(SGD(0.1), batch=16, decay=0.5),
    "one step": Recipe(SGD(0.1), batch=16, steps=1),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is worth it."""
    monkeypatch.setattr(tiers, "_WORTH", np.inf)


def job(recipe: Recipe) -> Job:
    return job_of(Task(mlp()), people(SIZES), recipe)


def tiered(this: Job, *, each: bool = False) -> Learned:
    data = to_tensors(this.population, this.task.columns, CPU)
    start = this.layout.flatten(this.task.module)
    return Tiers(this, data, CPU, 3).run(start, cohort_of(EVERYBODY, this.population), each=each)


@pytest.mark.parametrize("recipe", ADD_UP.values(), ids=ADD_UP)
def test_in_one_they_come_to_what_they_come_to_one_by_one(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = Single.run

    def counted(self: Single, params: Tensor, cohort: Cohort, *, each: bool) -> Learned:
        runs.append(len(cohort.clients))
        return run(self, params, cohort, each=each)

    monkeypatch.setattr(Single, "run", counted)
    this = job(recipe)
    alone, together = trained(this, EVERYBODY, 0), tiered(this)
    assert furthest(alone.total, together.total) < 1e-5
    assert furthest(alone.losses, together.losses) < 1e-3
    assert runs == [13 if recipe.batch is None else 10]


class Signs(SGD):
    """Goes by the direction of gradients alone."""

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        values.sub_(gradient.sign() * lr)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(Adam(0.01), batch=16),
        Recipe(SGD(0.1), batch=16, clip=0.1),
        Recipe(Signs(0.01), batch=16),
    ],
    ids=["adam", "clipped", "signs"],
)
def test_what_is_not_linear_in_the_gradient_does_not_add_up(recipe: Recipe) -> None:
    assert not take_single_step(np.array(SIZES), recipe).any()
    this = job(recipe)
    assert furthest(trained(this, EVERYBODY, 0).total, tiered(this).total) < 1e-5


def test_each_clients_own_params_are_told_apart_in_lanes() -> None:
    this = job(ADD_UP["sgd"])
    alone = trained(this, EVERYBODY, 0, each=True)
    assert furthest(alone.each, tiered(this, each=True).each) < 1e-5
    single = Single(this, to_tensors(this.population, this.task.columns, CPU), CPU, 64)
    with pytest.raises(TaskError, match="not told apart"):
        single.run(
            this.layout.flatten(this.task.module), cohort_of([0], this.population), each=True
        )


def test_two_steps_are_not_one() -> None:
    sizes = np.array([1, 10, 11])
    assert not take_single_step(sizes, Recipe(batch=10, epochs=2)).any()
    assert take_single_step(sizes, Recipe(batch=None)).all()
    # one step, but on a part of what there is
    assert take_single_step(sizes, Recipe(batch=10, steps=1)).tolist() == [True, True, False]


def test_a_second_cohort_starts_from_its_own_params() -> None:
    this = job(ADD_UP["momentum"])
    runner = LocalExecutor(this, CPU)
    runner.adopt(Setup(3))
    start = this.layout.flatten(this.task.module)
    cohort = cohort_of(EVERYBODY, this.population)
    first = runner.run(start, cohort).total
    assert first is not None
    assert furthest(first, runner.run(first, cohort).total) > 1e-3
    assert torch.equal(first, runner.run(start, cohort).total)  # type: ignore[arg-type]


def test_dropout_is_drawn_anew_in_every_round_and_the_same_twice() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    this = job_of(Task(module), people(SIZES), ADD_UP["sgd"])
    single = Single(this, to_tensors(this.population, this.task.columns, CPU), CPU, 64)
    start = this.layout.flatten(module)
    first, again, later = (
        single.run(start, cohort_of([0, 1, 2], this.population, round)).total for round in (0, 0, 1)
    )
    assert furthest(first, again) == 0
    assert furthest(first, later) > 1e-4


def test_parts_of_a_cohort_draw_apart() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    this = job_of(Task(module), twins(), ADD_UP["sgd"])
    single = Single(this, to_tensors(this.population, this.task.columns, CPU), CPU, 64)
    start = this.layout.flatten(module)
    one, other = (
        single.run(start, cohort_of([client], this.population)).total for client in (0, 1)
    )
    assert furthest(one, other) > 1e-3


@pytest.mark.parametrize(("examples", "most"), [(1, 64), (100, 64), (300, 256), (10**6, 256)])
def test_no_more_examples_are_looked_at_at_a_time_than_lanes_would(
    examples: int, most: int
) -> None:
    looked: list[int] = []

    class Counting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            looked.append(len(input))
            return super().forward(input)

    this = job_of(Task(Counting(4, 3)), people((400, 150)), Recipe(SGD(0.1), batch=None))
    data = to_tensors(this.population, this.task.columns, CPU)
    single = Single(this, data, CPU, examples)
    looked.clear()
    single.run(this.layout.flatten(this.task.module), cohort_of([0, 1], this.population))
    assert max(looked) == most
    assert sum(looked) == 550


def test_a_loss_that_is_not_finite_is_that_of_its_client() -> None:
    population = people(SIZES)
    population.columns["x"][population.rows_of(4)] = np.nan
    losses = tiered(job_of(Task(mlp()), population, ADD_UP["sgd"])).losses
    assert [i for i in EVERYBODY if not torch.isfinite(losses[i])] == [4]


def test_in_bfloat16_results_stay_close() -> None:
    exact = tiered(job(Recipe(SGD(0.1), batch=16))).total
    rough = tiered(job(Recipe(SGD(0.1), batch=16, precision="bfloat16"))).total
    assert 0 < furthest(exact, rough) < 1e-2
    assert rough is not None
    assert rough.dtype == torch.float32


def test_who_takes_a_single_step_is_run_apart_where_that_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    cases = {(5,) * 40: 1, (60,) * 40: 0, (5,) * 40 + (60,): 1, (60,) * 40 + (5,): 0}
    for sizes, apart in cases.items():
        this = job_of(Task(mlp()), people(sizes), ADD_UP["sgd"])
        data = to_tensors(this.population, this.task.columns, CPU)
        groups = Tiers(this, data, CPU, 4)._groups(np.array(sizes), each=False)
        assert sum(isinstance(running, Single) for running, _ in groups) == apart
        assert sorted(np.concatenate([part for _, part in groups])) == list(range(len(sizes)))
