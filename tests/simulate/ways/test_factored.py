"""Factored layers: no weight per lane, and what clients come to is what they come to one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hubless.data.population import Population
from hubless.simulate.job import Job, to_tensors
from hubless.simulate.ways.lanes import Lanes
from hubless.train.optimizers import SGD, Adam
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import CPU, UNEQUAL, cohort_of, furthest, job_of, people, trained

EVERYBODY = list(range(len(UNEQUAL)))
FEATURES = 300


class Tied(nn.Module):
    """Goes through the same weights twice: once by the layer, once without it."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(FEATURES, 200), nn.Linear(200, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.wide(x).tanh()
        return self.head(hidden + torch.nn.functional.linear(x, self.wide.weight))


class Twice(Tied):
    """Calls the same layer twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(x).tanh() + self.wide(0.5 * x))


class Penalised(Tied):
    """Adds a little of what its weights are to what it says."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(x).tanh()) + 1e-5 * self.wide.weight.square().sum()


class ByName(Tied):
    """Calls its layer with a name for what goes in."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(input=x).tanh())


def wide() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(FEATURES, 200), nn.ReLU(), nn.Linear(200, 100, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, 3))


def job(module: nn.Module, recipe: Recipe) -> Job:
    return job_of(Task(module), people(features=FEATURES), recipe)


def in_factors(of: Job, lanes: int = 3) -> list[str]:
    data = to_tensors(of.population, of.task.columns, CPU)
    return [factor.name for factor in Lanes(of, data, CPU, lanes)._factors]


@pytest.mark.parametrize("lanes", [2, 3, 8])
@pytest.mark.parametrize(
    "recipe",
    [Recipe(SGD(0.1), batch=4), Recipe(SGD(0.1), batch=3, steps=4), Recipe(SGD(0.2), batch=1)],
    ids=["an epoch", "steps", "batches of one"],
)
def test_factored_layers_come_to_the_same(lanes: int, recipe: Recipe) -> None:
    this = job(wide(), recipe)
    assert in_factors(this) == ["0", "2"]
    alone = trained(this, EVERYBODY, 0)
    together = trained(this, EVERYBODY, lanes)
    assert furthest(alone.total, together.total) < 1e-5
    assert furthest(alone.losses, together.losses) < 1e-3
    each = trained(this, EVERYBODY, lanes, each=True).each
    assert furthest(trained(this, EVERYBODY, 0, each=True).each, each) < 1e-5


def test_a_second_cohort_starts_from_its_own_params() -> None:
    """What lanes learned in the round before is gone."""
    this = job(wide(), Recipe(SGD(0.3), batch=4))
    data = to_tensors(this.population, this.task.columns, CPU)
    lanes = Lanes(this, data, CPU, 3)
    start = this.layout.flatten(this.task.module)
    cohort = cohort_of(EVERYBODY, this.population)
    first = lanes.run(start, cohort).total
    assert first is not None
    lanes.run(first, cohort)
    assert torch.equal(lanes.run(start, cohort).total, first)  # type: ignore[arg-type]


def test_a_layer_may_be_called_by_name() -> None:
    torch.manual_seed(1)
    this = job(ByName(), Recipe(SGD(0.1), batch=4))
    assert in_factors(this) == ["wide"]
    assert furthest(trained(this, EVERYBODY, 0).total, trained(this, EVERYBODY, 3).total) < 1e-5


@pytest.mark.parametrize("module", [Tied, Twice, Penalised])
def test_weights_that_are_used_in_other_ways_too_are_kept_per_lane(module: type[nn.Module]) -> None:
    torch.manual_seed(1)
    this = job(module(), Recipe(SGD(0.1), batch=4))
    assert in_factors(this) == []
    assert furthest(trained(this, EVERYBODY, 0).total, trained(this, EVERYBODY, 3).total) < 1e-5


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(SGD(0.1, momentum=0.5), batch=4),
        Recipe(SGD(0.1, weight_decay=0.5), batch=4),
        Recipe(Adam(0.1), batch=4),
        Recipe(SGD(0.1), batch=4, clip=1.0),
        Recipe(SGD(0.1), batch=4, proximal=1.0),
        Recipe(SGD(0.1), batch=None),
        Recipe(SGD(0.1), batch=4, epochs=50),
    ],
    ids=["momentum", "decay", "adam", "clip", "proximal", "whole clients", "many steps"],
)
def test_only_few_plain_steps_are_kept_as_factors(recipe: Recipe) -> None:
    assert in_factors(job(wide(), recipe)) == []


def test_frozen_weights_are_not_trained_after_all() -> None:
    module = wide()
    module[0].weight.requires_grad_(False)  # type: ignore[index,union-attr]
    assert in_factors(job(module, Recipe(SGD(0.1), batch=4))) == ["2"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lanes", [2, 3])
def test_a_model_of_one_layer_comes_to_the_same(lanes: int, bias: bool) -> None:
    """With nothing beside the factors, or with no name for what would be in them."""
    for module in (nn.Linear(FEATURES, 300, bias), nn.Sequential(nn.Linear(FEATURES, 300, bias))):
        this = job(module, Recipe(SGD(0.1), batch=4))
        alone, together = trained(this, EVERYBODY, 0), trained(this, EVERYBODY, lanes)
        assert furthest(alone.total, together.total) < 1e-5


def test_what_is_not_finite_stays_with_its_client() -> None:
    """Neither the next on its lane has it, nor a shorter one in a later cohort."""
    population = people((3, 3, 40, 5), FEATURES)
    x = population.columns["x"].copy()
    x[population.rows_of(3)] = np.nan
    spoilt = Population({**population.columns, "x": x}, population.offsets, population.rows)
    this = job_of(Task(wide()), spoilt, Recipe(SGD(0.1), batch=4))
    lanes = Lanes(this, to_tensors(spoilt, this.task.columns, CPU), CPU, 2)
    start = this.layout.flatten(this.task.module)
    for clients in ([0, 1, 2, 3], [3], [0, 1]):
        each = lanes.run(start, cohort_of(clients, spoilt), each=True).each
        assert each is not None
        assert torch.isfinite(each).all(1).tolist() == [client != 3 for client in clients]
