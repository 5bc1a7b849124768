"""One client after another: what one would write by hand with torch.optim."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hubless.errors import ClientFailed
from hubless.simulate.evaluate import Evaluation
from hubless.simulate.job import Job, to_tensors
from hubless.simulate.ways.plain import Plain
from hubless.simulate.ways.schedule import lay_out
from hubless.train.losses import cross_entropy
from hubless.train.optimizers import SGD, Adam, AdamW
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import CPU, Fragile, cohort_of, furthest, job_of, mlp, people, trained

Theirs = Callable[..., torch.optim.Optimizer]

BY_HAND: dict[str, tuple[Recipe, Theirs]] = {
    "sgd with momentum": (
        Recipe(SGD(0.1, momentum=0.9, weight_decay=0.01), batch=4, epochs=2),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (Recipe(Adam(0.01), batch=4, epochs=2), lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": (
        Recipe(AdamW(0.01, weight_decay=0.1), batch=4, epochs=2),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    ),
    "clipped": (Recipe(SGD(0.5), batch=4, clip=0.2), lambda p: torch.optim.SGD(p, 0.5)),
    "fedprox": (
        Recipe(SGD(0.2), batch=4, epochs=3, proximal=0.7),
        lambda p: torch.optim.SGD(p, 0.2),
    ),
}


def _by_hand(job: Job, clients: list[int], theirs: Theirs) -> tuple[Tensor, list[float]]:
    """McMahan's algorithm 1 as a loop over clients, on the same batches."""
    cohort = cohort_of(clients, job.population)
    total = torch.zeros(job.layout.size)
    losses = []
    x, y = (torch.from_numpy(job.population.columns[name]) for name in ("x", "y"))
    for client, weight in zip(clients, cohort.weights, strict=True):
        laid = lay_out(job.population, np.array([client]), job.recipe, 1, job.seed, cohort.round)
        module = copy.deepcopy(job.task.module)
        start = [p.detach().clone() for p in module.parameters()]
        optimizer = theirs(module.parameters())
        lost = 0.0
        for rows, shares in zip(laid.rows[:, 0], laid.shares[:, 0], strict=True):
            batch = torch.from_numpy(rows[shares > 0])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x[batch]), y[batch])
            lost += loss.item() * len(batch)
            for now, then in zip(module.parameters(), start, strict=True):
                loss = loss + job.recipe.proximal / 2 * (now - then).square().sum()
            loss.backward()
            if job.recipe.clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), job.recipe.clip)
            optimizer.step()
        losses.append(lost)
        total += weight * job.layout.flatten(module)
    return total, losses


@pytest.mark.parametrize("name", BY_HAND)
def test_it_is_the_loop_one_would_write_by_hand(name: str) -> None:
    recipe, theirs = BY_HAND[name]
    job = job_of(Task(mlp()), people(), recipe)
    clients = [0, 1, 3, 6, 9]
    total, losses = _by_hand(job, clients, theirs)
    learned = trained(job, clients, 0)
    assert furthest(learned.total, total) < 1e-5
    assert learned.losses.tolist() == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("lanes", [0, 3])
def test_fedsgd_is_one_step_on_everybodys_data_together(lanes: int) -> None:
    population = people((7, 1, 0, 80, 3))
    job = job_of(Task(mlp()), population, Recipe(SGD(0.5), epochs=1, batch=None))
    module = copy.deepcopy(job.task.module)
    x, y = (torch.from_numpy(population.columns[name]) for name in ("x", "y"))
    nn.functional.cross_entropy(module(x), y).backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    pooled = job.layout.flatten(module)
    assert furthest(trained(job, range(5), lanes).total, pooled) < 1e-5


def test_fedprox_stays_closer_to_where_it_began_the_larger_mu_is() -> None:
    moved = []
    for mu in (0.0, 0.5, 2.0):
        job = job_of(Task(mlp()), people(), Recipe(SGD(0.2), batch=2, epochs=5, proximal=mu))
        start = job.layout.flatten(job.task.module)
        learned = trained(job, [3, 6], 0)
        assert learned.total is not None
        moved.append(float((learned.total - start).norm()))
    assert moved[0] > moved[1] > moved[2] > 0


def test_what_a_client_draws_does_not_depend_on_who_trains_before_it() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    job = job_of(Task(module), people(), Recipe(SGD(0.1), batch=4))
    together = trained(job, [0, 3, 6], 0, each=True).each
    alone = trained(job, [6], 0, each=True).each
    assert together is not None
    assert alone is not None
    assert torch.equal(together[2], alone[0])


def test_running_statistics_are_averaged_like_params() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    job = job_of(Task(module), people((8, 4, 12)), Recipe(SGD(0.1), batch=4))
    learned = trained(job, [0, 1, 2], 0)
    each = trained(job, [0, 1, 2], 0, each=True).each
    assert learned.total is not None
    assert each is not None
    named = job.layout.named(learned.total)
    assert named["1.running_mean"].abs().max() > 1e-3
    weights = torch.tensor([8, 4, 12]) / 24
    assert furthest(weights @ each, learned.total) < 1e-6


def test_a_failing_client_is_named_and_its_error_kept_with_its_traceback() -> None:
    population = people((4, 4, 4))
    population.columns["x"][population.rows_of(1)] += 1000
    job = job_of(Task(Fragile(), cross_entropy), population, Recipe(SGD(0.1), batch=4))
    with pytest.raises(
        ClientFailed, match=r"client 1 failed in round 3.*that is too much"
    ) as caught:
        trained(job, [0, 1, 2], 0)
    assert (caught.value.client, caught.value.round) == (1, 3)
    cause = caught.value.__cause__
    assert isinstance(cause, ArithmeticError)
    names = []
    frame = cause.__traceback__
    while frame is not None:
        names.append(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    assert names[-1] == "forward"


def test_it_trains_also_where_gradients_are_switched_off() -> None:
    job = job_of(Task(mlp()), people(), Recipe(SGD(0.1), batch=4))
    with torch.no_grad():
        learned = trained(job, [0, 3], 0)
    assert torch.equal(learned.total, trained(job, [0, 3], 0).total)


class Reshaping(nn.Module):
    """A convolution of two channels over four features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.seen, self.told = nn.Conv2d(2, 4, 2, padding=1), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.seen(x.reshape(-1, 2, 2, 1)).relu()
        return cast(Tensor, self.told(self.flat(seen)))

    def flat(self, seen: Tensor) -> Tensor:
        return seen.reshape(-1, 24)


class Viewing(Reshaping):
    """As many flatten it, which not every layout allows."""

    def flat(self, seen: Tensor) -> Tensor:
        return seen.view(-1, 24)


@pytest.mark.parametrize("kind", [Reshaping, Viewing])
def test_convolutions_train_and_are_tested_as_they_would_be_by_hand(
    kind: type[Reshaping],
) -> None:
    job = job_of(Task(kind()), people(), Recipe(SGD(0.1, momentum=0.9), batch=4, epochs=2))
    total, _ = _by_hand(job, [0, 3, 6], lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    assert furthest(trained(job, [0, 3, 6], 0).total, total) < 1e-5
    module = copy.deepcopy(job.task.module)
    job.layout.load(module, total)
    rows = job.population.rows
    x, y = (torch.from_numpy(job.population.columns[name][rows]) for name in ("x", "y"))
    losses = nn.functional.cross_entropy(module(x), y, reduction="none")
    values = Evaluation(job.task, job.population, CPU).values(total)
    assert torch.allclose(values["loss"], losses, atol=1e-5)


def test_only_a_module_that_can_take_it_is_laid_out_for_speed() -> None:
    found = []
    for kind in (Reshaping, Viewing):
        job = job_of(Task(kind()), people(), Recipe(SGD(0.1), batch=4))
        plain = Plain(job, to_tensors(job.population, job.task.columns, CPU), CPU)
        found.append(plain.module.get_parameter("seen.weight").is_contiguous())
    assert found == [False, True]
