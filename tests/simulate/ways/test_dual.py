"""Dual coordinates: a layer that sees the data learns what it learns without them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hubless.data.population import Population
from hubless.errors import TaskError
from hubless.simulate.callbacks import Checkpoint
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.engine.machine import Local
from hubless.simulate.engine.tuning import Tuning
from hubless.simulate.job import Job, Learned
from hubless.simulate.times import Buffered, Devices
from hubless.simulate.ways import dual
from hubless.train.layers.products import product
from hubless.train.optimizers import SGD, Adam
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task
from tests.simulate.worlds import (
    CPU,
    UNEQUAL,
    cohort_of,
    executor,
    furthest,
    job_of,
    mlp,
    people,
    simulation,
    trained,
)

EVERYBODY = list(range(len(UNEQUAL)))
FEATURES = 24
"""One more than the largest client has examples."""
RECIPES = {
    "sgd": Recipe(SGD(0.1), batch=4),
    "epochs": Recipe(SGD(0.1), batch=5, epochs=3),
    "momentum": Recipe(SGD(0.1, momentum=0.9), batch=4, epochs=2),
    "nesterov": Recipe(SGD(0.1, momentum=0.9, nesterov=True), batch=4),
    "proximal": Recipe(SGD(0.2), batch=4, epochs=2, proximal=0.5),
    "whole clients": Recipe(SGD(0.1, momentum=0.9), batch=None, epochs=3),
    "batches of one": Recipe(SGD(0.05), batch=1),
    "a lower rate in later rounds": Recipe(SGD(0.5), batch=4, decay=0.5),
    "not shuffled": Recipe(SGD(0.1), batch=4, shuffle=False),
}
SGD_RECIPE = RECIPES["sgd"]


class Frozen(nn.Module):
    """A layer that is not trained comes before the one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(FEATURES, 40).requires_grad_(False), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).relu())


class Gated(nn.Module):
    """What a trained layer says decides what the next one sees, and no gradient tells of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(FEATURES, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x.detach() * 1.0)
        return self.head((gate > 0).float()) + gate[:, :3]


class Between(nn.Module):
    """Something happens to the data before a layer sees them."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.how(x))


def normalised(x: Tensor) -> Tensor:
    return nn.functional.batch_norm(x, None, None, training=True)


class Twice(nn.Module):
    """Calls its layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.linear(2 * x)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "logistic regression": lambda: nn.Linear(FEATURES, 3),
    "without a bias": lambda: nn.Linear(FEATURES, 3, bias=False),
    "an MLP": lambda: mlp(features=FEATURES),
    "flattened, with dropout behind": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 12)),
        nn.Flatten(),
        nn.Linear(FEATURES, 9),
        nn.Dropout(0.0),
        nn.Linear(9, 3),
    ),
}


def job(module: nn.Module, recipe: Recipe = SGD_RECIPE, **changes: Any) -> Job:
    population = changes.pop("population", None) or people(features=FEATURES)
    return job_of(Task(module, **changes), population, recipe)


def in_dual(this: Job, lanes: int = 3, *, each: bool = False) -> Learned:
    runner = executor(this)
    runner.adopt(Setup(lanes, dual=True))
    start = this.layout.flatten(this.task.module)
    return runner.run(start, cohort_of(EVERYBODY, this.population), each=each)


def layer_of(this: Job) -> str | None:
    found = executor(this).dual
    return None if found is None else found.module.dual.name


@pytest.mark.parametrize("lanes", [2, 3, 8])
@pytest.mark.parametrize("recipe", RECIPES)
def test_clients_come_to_what_they_come_to_one_by_one(recipe: str, lanes: int) -> None:
    this = job(mlp(features=FEATURES), RECIPES[recipe])
    alone, together = trained(this, EVERYBODY, 0), in_dual(this, lanes)
    assert furthest(alone.total, together.total) < 1e-5
    assert furthest(alone.losses, together.losses) < 1e-4
    assert furthest(alone.total, this.layout.flatten(this.task.module)) > 1e-3


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing compiles without a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_it_can_be_compiled() -> None:
    this = job(mlp(features=FEATURES), population=people((8, 7, 8, 8), FEATURES))
    runner = executor(this)
    runner.adopt(Setup(2, compiled=True, dual=True))
    start, everybody = this.layout.flatten(this.task.module), [0, 1, 2, 3]
    together = runner.run(start, cohort_of(everybody, this.population))
    assert furthest(trained(this, everybody, 0).total, together.total) < 1e-5


@pytest.mark.parametrize("module", MODULES)
def test_whichever_layer_it_is_that_sees_the_data(module: str) -> None:
    this = job(seeded(MODULES[module]))
    assert layer_of(this) is not None
    assert furthest(trained(this, EVERYBODY, 0).total, in_dual(this).total) < 1e-5
    alone = trained(this, EVERYBODY, 0, each=True)
    assert furthest(alone.each, in_dual(this, each=True).each) < 1e-5


def test_data_may_be_prepared_and_given_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, 3)

        def forward(self, *, pixels: Tensor) -> Tensor:
            return self.linear(pixels.flatten(1))

    def scaled(batch: Batch) -> Batch:
        return {"x": batch["x"].float() / 255, "y": batch["y"]}

    plain = people(features=FEATURES)
    pixels = np.random.default_rng(0).integers(256, size=(sum(UNEQUAL), 4, 6)).astype(np.uint8)
    columns = {"x": pixels, "y": plain.columns["y"]}
    population = Population(columns, plain.offsets, plain.rows)
    this = job(seeded(Named), population=population, inputs={"pixels": "x"}, prepare=scaled)
    assert layer_of(this) == "linear"
    assert furthest(trained(this, EVERYBODY, 0).total, in_dual(this).total) < 1e-5


@pytest.mark.parametrize(
    ("module", "recipe"),
    [
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, 3)), SGD_RECIPE),
        (lambda: Between(lambda x: x + torch.randn_like(x)), SGD_RECIPE),
        (lambda: Between(lambda x: x - x.mean(0)), SGD_RECIPE),
        (lambda: Between(lambda x: x.clamp(-99, 99)), SGD_RECIPE),
        (lambda: Between(lambda x: x.mul_(1.0)), SGD_RECIPE),
        (lambda: Between(normalised), SGD_RECIPE),
        (Frozen, SGD_RECIPE),
        (Gated, SGD_RECIPE),
        (Twice, SGD_RECIPE),
        (lambda: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 3)), SGD_RECIPE),
        (lambda: nn.Linear(FEATURES, 3), Recipe(Adam(0.1), batch=4)),
        (lambda: nn.Linear(FEATURES, 3), Recipe(SGD(0.1, weight_decay=0.1), batch=4)),
        (lambda: nn.Linear(FEATURES, 3), Recipe(SGD(0.1), batch=4, clip=1.0)),
        (lambda: nn.Linear(FEATURES, 3), Recipe(SGD(0.1), batch=4, precision="bfloat16")),
        (lambda: nn.Linear(FEATURES, 3), Recipe(SGD(0.1), batch=4, steps=2)),
    ],
    ids=[
        "dropout before",
        "noise before",
        "examples mixed before",
        "clamped before",
        "changed in place before",
        "fails on one example",
        "frozen features",
        "gates",
        "called twice",
        "trained before",
        "Adam",
        "weight decay",
        "clipping",
        "bfloat16",
        "a number of steps",
    ],
)
def test_what_cannot_be_in_dual_coordinates_is_not(
    module: Callable[[], nn.Module], recipe: Recipe
) -> None:
    this = job(seeded(module), recipe)
    assert layer_of(this) is None
    with pytest.raises(TaskError, match="dual coordinates"):
        executor(this).build(Setup(2, dual=True))


def test_clients_with_more_examples_than_there_are_inputs_are_too_large() -> None:
    assert layer_of(job(nn.Linear(FEATURES, 3), population=people((24, 2), FEATURES))) == ""
    assert layer_of(job(nn.Linear(FEATURES, 3), population=people((25, 2), FEATURES))) is None


def test_nothing_with_buffers_is_as_they_may_be_what_data_are_scaled_by() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, 3)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x * self.scale)

    assert layer_of(job(Scaled())) is None


def test_nothing_hangs_on_how_many_are_looked_at_or_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    this = job(mlp(features=FEATURES))
    runner = executor(this)
    runner.adopt(Setup(3, dual=True))
    start, cohort = this.layout.flatten(this.task.module), cohort_of(EVERYBODY, this.population)
    once, again = (runner.run(start, cohort).total for _ in range(2))
    assert furthest(once, again) == 0
    monkeypatch.setattr(dual, "_REMEMBERED", 0)
    assert furthest(in_dual(this).total, once) == 0
    monkeypatch.setattr(dual, "_AT_ONCE", 1)
    few = in_dual(this)
    assert furthest(few.total, once) < 1e-6
    assert furthest(few.losses, trained(this, EVERYBODY, 0).losses) < 1e-4
    assert (
        furthest(in_dual(this, each=True).each, trained(this, EVERYBODY, 0, each=True).each) < 1e-5
    )


def test_what_is_not_finite_stays_with_its_client() -> None:
    population = people(features=FEATURES)
    x = population.columns["x"].copy()
    x[population.rows_of(3)[5]] = np.inf
    columns = {"x": x, "y": population.columns["y"]}
    this = job(
        mlp(features=FEATURES), population=Population(columns, population.offsets, population.rows)
    )
    finite = torch.isfinite(in_dual(this).losses)
    assert finite.tolist() == [client != 3 for client in EVERYBODY]


@pytest.mark.parametrize("each", [False, True])
def test_a_cohort_may_have_nobody_or_nobody_with_examples(each: bool) -> None:
    this = job(nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 3)))
    runner = executor(this)
    runner.adopt(Setup(2, dual=True))
    start = this.layout.flatten(this.task.module)
    for clients in ([], [2, 7]):
        learned = runner.run(start, cohort_of(clients, this.population), each=each)
        found = learned.each if each else learned.total
        assert found is not None
        assert found.shape == ((len(clients), this.layout.size) if each else (this.layout.size,))
        assert not found.any()
        assert learned.losses.tolist() == [0.0] * len(clients)


@pytest.mark.parametrize("how", ["few in a round", "one at a time"])
def test_more_processes_than_clients(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Local, "choose", lambda *_: Setup(2, processes=2, dual=True))
    task, population = Task(mlp(features=FEATURES)), people(features=FEATURES)
    options: dict[str, Any] = {"task": task, "population": population, "engine": Local()}
    if how == "few in a round":
        ran = simulation(**options, cohort=1)
    else:
        ran = simulation(**options, pace=Buffered(concurrency=4, buffer=1), devices=Devices())
    ran.run(rounds=5)
    assert ran.round == 5


def test_data_that_are_prepared_by_chance_or_together_are_not_known_beforehand() -> None:
    def noisy(batch: Batch) -> Batch:
        return {**batch, "x": batch["x"] + torch.randn_like(batch["x"])}

    def flipped(batch: Batch) -> Batch:
        return {**batch, "x": batch["x"] * (1 if np.random.rand() < 0.5 else -1)}

    def centred(batch: Batch) -> Batch:
        return {**batch, "x": batch["x"] - batch["x"].mean(0)}

    def halved(batch: Batch) -> Batch:
        return {**batch, "x": batch["x"] / 2}

    np.random.seed(0)
    found = [layer_of(job(nn.Linear(FEATURES, 3), prepare=p)) for p in (noisy, flipped, centred)]
    assert found == [None] * 3
    assert layer_of(job(nn.Linear(FEATURES, 3), prepare=halved)) == ""


def test_what_was_remembered_of_another_task_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all that decides whether a layer can be in dual coordinates can be told by its name."""
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path))
    monkeypatch.setattr(Tuning, "best", lambda self: Setup(2, dual=self.executor.dual is not None))

    class Own(Task):
        """Somebody's own kind of task."""

    module, population = mlp(features=FEATURES), people(features=FEATURES)
    for task, possible in ((Task(module), True), (Own(module), False)):
        runner = executor(job_of(task, population, SGD_RECIPE))
        assert Local(processes=1).choose(runner, 4, 10).dual == possible


def test_the_faster_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    this = job(mlp(features=FEATURES), population=people((20,) * 8, FEATURES))
    tried: list[Setup] = []
    for faster in (True, False):
        tried.clear()

        def measure(self: Tuning, setup: Setup, most: int = 0, faster: bool = faster) -> float:
            tried.append(setup)
            return 1.0 if setup.dual == faster else 2.0

        monkeypatch.setattr(Tuning, "_measure", measure)
        found = Tuning(LocalExecutor(this, CPU), Local(compiled=False), 8, 10, 1).best()
        assert any(setup.dual for setup in tried)
        assert found.dual == faster
    tried.clear()
    for lanes in (0, 1):
        Tuning(LocalExecutor(this, CPU), Local(lanes=lanes), 8, 10, 1).best()
    assert not any(setup.dual for setup in tried)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_simulation_goes_on_to_the_same_bits(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(2, processes=processes, dual=True)
    monkeypatch.setattr(Local, "choose", lambda *_: setup)

    def made(**more: Any) -> Any:
        settings: dict[str, Any] = {
            "task": Task(mlp(features=FEATURES)),
            "population": people(features=FEATURES),
            "recipe": RECIPES["momentum"],
            "engine": Local(),
        }
        return simulation(**{**settings, **more})

    whole, first, second = made(), made(callbacks=[Checkpoint(tmp_path)]), made()
    whole.run(rounds=6)
    first.run(rounds=3)
    second.resume(tmp_path)
    second.run(rounds=6)
    assert all(torch.equal(whole.params[name], second.params[name]) for name in whole.params)
    monkeypatch.undo()
    plainly = made(engine=Local(lanes=0, processes=1))
    plainly.run(rounds=6)
    assert max(furthest(plainly.params[n], whole.params[n]) for n in whole.params) < 1e-5


def test_products_are_products() -> None:
    a, b = torch.randn(7, 5), torch.randn(5, 3)
    assert torch.allclose(product(a, b.t()), a @ b, atol=1e-6)
    assert torch.allclose(product(b.t(), a), b.t() @ a.t(), atol=1e-6)
    assert product(torch.zeros(0, 5), b.t()).shape == (0, 3)
    assert product(a[:, :0], b[:0].t()).abs().sum() == 0
