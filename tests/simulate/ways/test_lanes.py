"""Lanes: however many clients train side by side, they come to what they come to one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import deterministic

from hubless.data.population import Population
from hubless.errors import TaskError
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.job import Job, to_tensors
from hubless.simulate.ways import lanes as lanes_module
from hubless.simulate.ways.lanes import Lanes
from hubless.simulate.ways.plain import Plain
from hubless.simulate.ways.schedule import tiers
from hubless.simulate.ways.step import repeatable
from hubless.simulate.ways.tiers import Tiers
from hubless.train.losses import cross_entropy
from hubless.train.optimizers import SGD, Adam, AdamW, per_lane
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import (
    CPU,
    UNEQUAL,
    cohort_of,
    executor,
    furthest,
    job_of,
    mlp,
    people,
    trained,
    twins,
)

EVERYBODY = list(range(len(UNEQUAL)))

RECIPES: dict[str, Recipe] = {
    "sgd": Recipe(SGD(0.1), batch=4),
    "momentum": Recipe(SGD(0.1, momentum=0.9), batch=4),
    "nesterov": Recipe(SGD(0.1, momentum=0.9, nesterov=True), batch=4),
    "weight decay": Recipe(SGD(0.1, weight_decay=0.1), batch=4),
    "adam": Recipe(Adam(0.02), batch=4, epochs=2),
    "adamw": Recipe(AdamW(0.02, weight_decay=0.1), batch=4, epochs=2),
    "clip": Recipe(SGD(0.5), batch=4, clip=0.1),
    "clip with momentum and decay": Recipe(
        SGD(0.2, momentum=0.5, weight_decay=0.1), batch=3, clip=0.5
    ),
    "proximal": Recipe(SGD(0.2), batch=4, epochs=2, proximal=0.5),
    "proximal, clipped adam": Recipe(Adam(0.02), batch=4, clip=0.3, proximal=0.5),
    "steps": Recipe(SGD(0.1, momentum=0.9), batch=4, steps=5),
    "fewer steps than an epoch": Recipe(SGD(0.1), batch=2, steps=2),
    "whole clients": Recipe(SGD(0.1), batch=None),
    "whole clients, several epochs": Recipe(Adam(0.02), batch=None, epochs=3, clip=0.5),
    "whole clients, several steps": Recipe(SGD(0.1, momentum=0.9), batch=None, steps=4),
    "batches larger than clients": Recipe(SGD(0.1, momentum=0.9), batch=50, epochs=2),
    "batches of one": Recipe(SGD(0.05), batch=1),
    "a lower rate in later rounds": Recipe(SGD(0.5), batch=4, decay=0.5),
    "not shuffled": Recipe(SGD(0.1), batch=4, shuffle=False),
}


def _job(recipe: Recipe, population: Population | None = None) -> Job:
    return job_of(Task(mlp()), population or people(), recipe)


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("recipe", RECIPES)
def test_lanes_come_to_what_one_client_after_another_comes_to(recipe: str, lanes: int) -> None:
    job = _job(RECIPES[recipe])
    alone, together = trained(job, EVERYBODY, 0), trained(job, EVERYBODY, lanes)
    assert furthest(alone.total, together.total) < 1e-5
    assert furthest(alone.losses, together.losses) < 1e-4
    assert furthest(alone.total, job.layout.flatten(job.task.module)) > 1e-3


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("recipe", ["momentum", "proximal, clipped adam", "whole clients"])
def test_each_clients_own_params_are_the_same_too(recipe: str, lanes: int) -> None:
    job = _job(RECIPES[recipe])
    alone = trained(job, EVERYBODY, 0, each=True)
    together = trained(job, EVERYBODY, lanes, each=True)
    assert furthest(alone.each, together.each) < 1e-5
    assert alone.total is together.total is None
    assert alone.each is not None
    weights = torch.tensor(cohort_of(EVERYBODY, job.population).weights, dtype=torch.float32)
    assert furthest(weights @ alone.each, trained(job, EVERYBODY, lanes).total) < 1e-5


def test_the_order_of_the_cohort_does_not_matter() -> None:
    job = _job(RECIPES["momentum"])
    assert furthest(trained(job, EVERYBODY, 3).total, trained(job, EVERYBODY[::-1], 3).total) < 1e-6


def test_lanes_can_be_used_for_one_cohort_after_another() -> None:
    """Whatever a lane was left with by one round must not reach into the next."""
    job = _job(RECIPES["whole clients, several epochs"])
    lanes = Lanes(job, to_tensors(job.population, job.task.columns, CPU), CPU, 3)
    start = job.layout.flatten(job.task.module)
    lanes.run(start * 5, cohort_of([3, 6, 0], job.population))
    again = lanes.run(start, cohort_of(EVERYBODY, job.population))
    assert furthest(again.total, trained(job, EVERYBODY, 0).total) < 1e-5
    assert again.total is not None
    kept = again.total.clone()
    lanes.run(start * 5, cohort_of([3, 6, 0], job.population))
    assert torch.equal(again.total, kept)


def test_whole_clients_of_more_examples_than_a_chunk_take_one_step() -> None:
    population = people((200, 3, 70))
    job = _job(Recipe(SGD(0.3), batch=None), population)
    alone = trained(job, [0, 1, 2], 0)
    assert furthest(alone.total, trained(job, [0, 1, 2], 2).total) < 1e-5


def test_a_cohort_of_nobody_with_data_is_nothing() -> None:
    job = _job(RECIPES["sgd"])
    for lanes in (0, 1, 3):
        learned = trained(job, [2, 7], lanes)
        assert furthest(learned.total, torch.zeros(job.layout.size)) == 0
        assert learned.losses.tolist() == [0, 0]


@pytest.mark.parametrize("lanes", [0, 3])
def test_in_bfloat16_results_stay_close_and_params_stay_float32(lanes: int) -> None:
    exact = trained(_job(Recipe(SGD(0.1), batch=4)), EVERYBODY, 0).total
    rough = trained(_job(Recipe(SGD(0.1), batch=4, precision="bfloat16")), EVERYBODY, lanes).total
    assert rough is not None
    assert rough.dtype == torch.float32
    assert 0 < furthest(exact, rough) < 0.02


def test_what_only_fills_up_a_batch_does_not_count_whatever_it_holds() -> None:
    """Short batches are filled up with some example: if that one is broken, nobody may notice."""
    population = people((2, 5, 7, 3))
    x = population.columns["x"].copy()
    owner = next(i for i in range(4) if 0 in population.rows_of(i))
    x[population.rows_of(owner)] = np.nan
    columns = {**population.columns, "x": x}
    healthy = [i for i in range(4) if i != owner]
    job = _job(RECIPES["sgd"], Population(columns, population.offsets, population.rows))
    alone, together = trained(job, healthy, 0), trained(job, healthy, 2)
    assert alone.total is not None
    assert torch.isfinite(alone.total).all()
    assert furthest(alone.total, together.total) < 1e-5


class Text(nn.Module):
    """Letters to the next letter, through an LSTM."""

    def __init__(self, **kind: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 5, batch_first=True, **kind)
        self.head = nn.Linear(10 if kind.get("bidirectional") else 5, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x)))


class Tied(nn.Module):
    """The same weights on both ends, and one layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.mix = nn.Linear(4, 4)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(self.mix(self.embedding(x)))))


class Summed(nn.Module):
    """Two arrays that are only ever added: their gradients are one and the same."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 9)
        self.a = nn.Parameter(torch.randn(9))
        self.b = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x) + (self.a + self.b)


class Collapsed(nn.Module):
    """An array of which only the sum is used: its gradient is one number, seen many times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 9)
        self.a = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x) * self.a.sum()


def _texts() -> Population:
    rng = np.random.default_rng(4)
    sizes = np.array([5, 1, 0, 9, 2])
    x = rng.integers(0, 9, (17, 6))
    return Population({"x": x, "y": np.roll(x, -1, 1)}, np.append(0, np.cumsum(sizes)))


def _images() -> Population:
    rng = np.random.default_rng(4)
    sizes = np.array([5, 1, 0, 9, 2])
    x = rng.standard_normal((17, 1, 8, 8), dtype=np.float32)
    return Population({"x": x, "y": rng.integers(0, 3, 17)}, np.append(0, np.cumsum(sizes)))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Population]]] = {
    "CNN": (_cnn, _images),
    "LSTM": (Text, _texts),
    "LSTM of two layers both ways": (lambda: Text(num_layers=2, bidirectional=True), _texts),
    "transformer layer": (Attention, _texts),
    "tied, unused and frozen weights": (Tied, _texts),
    "a sum of params": (Summed, _texts),
    "a sum over params": (Collapsed, _texts),
}


HARD: dict[str, Recipe] = {
    "momentum": Recipe(SGD(0.1, momentum=0.9), batch=2, epochs=2),
    # what an optimizer does to one gradient must not be seen in another
    "everything at once": Recipe(
        SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1), batch=2, clip=0.2, proximal=0.3
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("recipe", HARD)
@pytest.mark.parametrize("model", MODELS)
def test_models_of_many_kinds_train_in_lanes_as_they_do_alone(model: str, recipe: str) -> None:
    module, population = MODELS[model]
    torch.manual_seed(0)
    job = job_of(Task(module()), population(), HARD[recipe])
    alone = trained(job, range(5), 0)
    assert furthest(alone.total, job.layout.flatten(job.task.module)) > 1e-3
    for lanes in (1, 3):
        assert furthest(alone.total, trained(job, range(5), lanes).total) < 1e-5


def test_a_model_of_hugging_face_trains_in_lanes_as_it_does_alone() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    texts = _texts()
    columns = {"ids": texts.columns["x"], "y": texts.columns["x"][:, 0] % 3}
    task = Task(
        transformers.BertForSequenceClassification(config),
        cross_entropy,
        inputs={"input_ids": "ids"},
    )
    job = job_of(task, Population(columns, texts.offsets), Recipe(SGD(0.1), batch=2))
    alone = trained(job, range(5), 0)
    assert furthest(alone.total, job.layout.flatten(job.task.module)) > 1e-3
    assert furthest(alone.total, trained(job, range(5), 3).total) < 1e-5


def test_statistics_over_a_batch_do_not_share_lanes() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False))
    job = job_of(Task(module), people((6, 10, 3, 6)), Recipe(SGD(0.1), batch=4))
    with pytest.raises(TaskError, match="BatchNorm mixes the examples of a batch"):
        LocalExecutor(job, torch.device("cpu")).build(Setup(2))


def test_dropout_differs_from_lane_to_lane_and_is_the_same_twice() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    job = job_of(Task(module), twins(), Recipe(SGD(0.1), batch=None, shuffle=False))
    for lanes in (0, 2):
        once, again = (trained(job, [0, 1], lanes, each=True).each for _ in range(2))
        assert furthest(once, again) == 0
        assert once is not None
        assert furthest(once[0], once[1]) > 1e-3


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing compiles without a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("recipe", ["sgd", "whole clients, several epochs"])
def test_compiled_lanes_come_to_the_same(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the compiler takes its time for every tick
    monkeypatch.setattr(lanes_module, "_FLOW", 2)
    job = _job(RECIPES[recipe])
    alone = trained(job, EVERYBODY, 0)
    assert furthest(alone.total, trained(job, EVERYBODY, 3, compiled=True).total) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("recipe", ["momentum", "proximal", "whole clients, several steps"])
def test_clients_may_begin_and_end_within_a_compiled_call(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    job = _job(RECIPES[recipe], people((70, 1, 0, 23, 3, 140, 12, 66)))
    everybody = list(range(8))
    running = Lanes(job, executor(job).data, CPU, 3, compiled=True)
    assert running._flows
    start, cohort = job.layout.flatten(job.task.module), cohort_of(everybody, job.population)
    alone, together = trained(job, everybody, 0), running.run(start, cohort)
    assert furthest(alone.total, together.total) < 1e-5
    assert furthest(alone.losses, together.losses) < 1e-4
    # whatever lanes were left with, and whoever asks for more than the sum in between
    running.run(start * 5, cohort_of([3, 6, 0], job.population))
    each = running.run(start, cohort, each=True).each
    assert furthest(trained(job, everybody, 0, each=True).each, each) < 1e-5
    assert furthest(running.run(start, cohort).total, together.total) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_not_finite_stays_with_its_client_within_a_compiled_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    population = people()
    x = population.columns["x"].copy()
    x[population.rows_of(3)[5]] = np.inf
    columns = {"x": x, "y": population.columns["y"]}
    job = _job(RECIPES["sgd"], Population(columns, population.offsets, population.rows))
    data, start = executor(job).data, job.layout.flatten(job.task.module)
    running = Lanes(job, data, CPU, 3, compiled=True)
    losses = running.run(start, cohort_of(EVERYBODY, population)).losses
    assert torch.isfinite(losses).tolist() == [client != 3 for client in EVERYBODY]
    # who does not count does not spoil what the others come to
    without, cohort = [c for c in EVERYBODY if c != 3], cohort_of(EVERYBODY, population)
    weights = np.where(np.array(EVERYBODY) == 3, 0.0, cohort.weights)
    rest = running.run(start, dataclasses.replace(cohort, weights=weights)).total
    scale = cohort.weights[without].sum()
    assert furthest(trained(job, without, 0).total * scale, rest) < 1e-5


def test_how_calls_are_made_up_hangs_on_the_population_alone() -> None:
    """A resumed run begins with other clients, and must add up as the whole run did."""
    equal, unequal = people((8,) * 20), people((8,) * 10 + (4,) * 10)
    for population, flows in ((equal, False), (unequal, True)):
        job = _job(RECIPES["sgd"], population)
        running = Lanes(job, executor(job).data, CPU, 2, compiled=True)
        assert running._flows == flows
        assert running._unrolls == ([4, 1] if flows else [2, 1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_many_engines_can_be_compiled_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler may give up on code that it has seen too often, and all engines are the same."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    for features in range(2, 12):
        module = nn.Linear(features, 3)
        job = job_of(Task(module), people((4, 3), features), Recipe(SGD(0.1), batch=4))
        alone = trained(job, [0, 1], 0)
        assert furthest(alone.total, trained(job, [0, 1], 1, compiled=True).total) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_task_is_compiled_once_whatever_its_rate_order_and_population(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, programs = [], []
    make = torch.compile

    def seen(graph: Any, examples: Any) -> Any:
        programs.append(graph)
        return graph.forward

    def counted(function: Any, **options: Any) -> Any:
        compiled.append(function)
        return make(function, backend=seen, **options)

    monkeypatch.setattr(torch, "compile", counted)
    task = Task(mlp())
    for rate in (0.1, 0.3):
        for seed, size in ((0, 4), (1, 5)):
            recipe = Recipe(SGD(rate), batch=5, decay=rate, shuffle=bool(seed))
            job = job_of(task, people((4, 3, size), seed=seed), recipe)
            alone = trained(job, [0, 1, 2], 0)
            assert furthest(alone.total, trained(job, [0, 1, 2], 2, compiled=True).total) < 1e-5
    assert len(compiled) == len(programs) == 1
    fast, rolling = Recipe(SGD(0.1), batch=5), Recipe(SGD(0.1, 0.9), batch=5)
    for other, recipe in ((task, rolling), (Task(task.module), fast)):
        trained(job_of(other, people((4, 3)), recipe), [0, 1], 2, compiled=True)
    assert len(compiled) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_is_kept_of_a_task_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    job = job_of(Task(mlp()), people(), Recipe(SGD(0.1), batch=4))
    trained(job, EVERYBODY, 2, compiled=True)
    task, module = weakref.ref(job.task), weakref.ref(job.task.module)
    del job
    gc.collect()
    assert task() is None
    assert module() is None


@dataclass
class Slowing:
    """Gradient descent that slows down with every step; at a step 0 it would know no end.

    One cannot be told from another: it has no hash.
    """

    lr: float
    slots = 0
    takes_half = False

    def apply(self, values: Tensor, gradient: Tensor, slots: Any, step: Tensor, lr: Tensor) -> None:
        values.sub_(gradient * lr / per_lane(step, values).sqrt())


MEMORIES = [
    Recipe(SGD(0.1), batch=2),
    Recipe(SGD(0.1, 0.9), batch=2),
    Recipe(Adam(0.01), batch=2),
    Recipe(Slowing(0.1), batch=2),
]


@pytest.mark.parametrize("recipe", MEMORIES, ids=lambda recipe: type(recipe.optimizer).__name__)
def test_lanes_that_idle_have_no_part_in_the_sum(recipe: Recipe) -> None:
    """Whatever they come to: what fills them up is not finite here, and at a step 0 nothing is."""
    population = people((9, 1, 0, 3))
    x = population.columns["x"].copy()
    x[population.rows_of(3)] = np.nan
    spoilt = Population({**population.columns, "x": x}, population.offsets, population.rows)
    job = job_of(Task(mlp()), spoilt, recipe)
    alone, together = trained(job, [0, 1, 2], 0), trained(job, [0, 1, 2], 3)
    assert torch.isfinite(alone.losses).all()
    assert furthest(alone.total, together.total) < 1e-5


class Louder(nn.Module):
    """Does not say what it multiplies by."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 1.0
        self.register_buffer("more", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.times * self.more


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_shared_by_engines_follows_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    module = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.1), nn.Linear(6, 3), Louder())
    module[0].requires_grad_(False)
    task, recipe = Task(module), Recipe(SGD(0.3), batch=4)
    assert isinstance(module[1], nn.LeakyReLU) and isinstance(module[3], Louder)
    changes = ("nothing", "frozen weights", "an attribute", "what is frozen", "in silence", "grown")
    for change in changes:
        if change == "frozen weights":
            with torch.no_grad():
                module[0].weight.mul_(2)
        elif change == "an attribute":
            module[1].negative_slope = 0.5
        elif change == "what is frozen":
            module[0].requires_grad_()
        elif change == "in silence":
            module[3].times = 3.0
        elif change == "grown":
            module[3].more = torch.full((3,), 0.5)
        job = job_of(task, people(), recipe)
        alone = trained(job, EVERYBODY, 0)
        together = trained(job, EVERYBODY, 2, compiled=True)
        assert furthest(alone.total, together.total) < 1e-5, change


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_optimizer_of_ones_own_is_compiled_with_its_own_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stubborn(SGD):
        def apply(self, values: Tensor, gradient: Tensor, *others: Any) -> None:
            values.sub_(gradient * self.lr)

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    task = Task(mlp())
    for optimizer in (Stubborn(0.1), Stubborn(0.5), Slowing(0.1), Slowing(0.5)):
        job = job_of(task, people(), Recipe(optimizer, batch=4))
        alone = trained(job, EVERYBODY, 0)
        together = trained(job, EVERYBODY, 2, compiled=True)
        assert furthest(alone.total, together.total) < 1e-5, optimizer


@pytest.mark.parametrize(("enabled", "tolerant"), [(False, False), (True, False), (True, True)])
def test_a_fixed_order_is_asked_for_within_a_block_alone(enabled: bool, tolerant: bool) -> None:
    torch.use_deterministic_algorithms(enabled, warn_only=tolerant)
    try:
        with contextlib.suppress(KeyError), repeatable():
            assert torch.are_deterministic_algorithms_enabled()
            assert not deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
            raise KeyError
        assert torch.are_deterministic_algorithms_enabled() == enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() == tolerant
        assert deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    finally:
        torch.use_deterministic_algorithms(False)


def test_parts_of_a_cohort_draw_apart() -> None:
    """As workers train them: clients with the same data must not all drop the same."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    job = job_of(Task(module), twins(), Recipe(SGD(0.1), batch=None, shuffle=False))
    one, other = (trained(job, [client], 2).total for client in (0, 1))
    assert furthest(one, other) > 1e-3


def test_a_compiled_engine_without_anybody_to_train_compiles_nothing() -> None:
    """A worker may have nobody to train in a round."""
    learned = trained(_job(RECIPES["sgd"]), [], 1, compiled=True)
    assert learned.losses.shape == (0,)


@pytest.mark.parametrize("each", [False, True])
def test_long_clients_on_few_lanes_come_to_the_same(each: bool) -> None:
    population = people((200, 3, 2, 150, 4, 1, 0, 2, 3))
    job = job_of(Task(mlp()), population, Recipe(SGD(0.1, momentum=0.9), batch=4))
    everybody = list(range(9))
    runner = executor(job)
    runner.adopt(Setup(8))
    start = job.layout.flatten(job.task.module)
    learned = runner.run(start, cohort_of(everybody, population), each=each)
    alone = trained(job, everybody, 0, each=each)
    assert furthest(learned.losses, alone.losses) < 1e-3
    if each:
        assert furthest(learned.each, alone.each) < 1e-5
    else:
        assert furthest(learned.total, alone.total) < 1e-5
    assert sorted(runner._running._of) == [2, 8]  # type: ignore[union-attr]


class Scaled(nn.Module):
    """Has a number of its own beside its matrix, and one that is not trained."""

    def __init__(self, mean: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.7))
        self.register_buffer("mean", torch.full((4,), mean))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - self.mean) * self.scale


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("recipe", ["sgd", "adam", "clip"])
def test_a_parameter_may_be_a_single_number(lanes: int, recipe: str) -> None:
    job = job_of(Task(Scaled()), people(), RECIPES[recipe])
    alone = trained(job, EVERYBODY, 0)
    assert furthest(alone.total, trained(job, EVERYBODY, lanes).total) < 1e-5
    each = trained(job, EVERYBODY, lanes, each=True).each
    assert furthest(trained(job, EVERYBODY, 0, each=True).each, each) < 1e-5


@pytest.mark.parametrize("lanes", [1, 3])
def test_buffers_are_those_of_the_params_and_not_of_the_module(lanes: int) -> None:
    """A run that goes on from another one's model has that one's buffers."""
    job = job_of(Task(Scaled()), people(), RECIPES["sgd"])
    start = job.layout.flatten(Scaled(mean=3.0))
    data = to_tensors(job.population, job.task.columns, CPU)
    cohort = cohort_of(EVERYBODY, job.population)
    alone = Plain(job, data, CPU).run(start, cohort)
    assert furthest(alone.total, Lanes(job, data, CPU, lanes).run(start, cohort).total) < 1e-5


@pytest.mark.parametrize(
    ("name", "each"), [*((name, False) for name in RECIPES), ("sgd", True), ("adam", True)]
)
def test_tiers_come_to_what_one_lane_comes_to(name: str, each: bool) -> None:
    sizes = (2, 700, 1, 3, 0, 300, *[2, 1, 3] * 30, 200)
    job = job_of(Task(mlp()), people(sizes), RECIPES[name])
    clients = [i for i, size in enumerate(sizes) if size]
    groups, _ = tiers(np.array(sizes)[clients], job.recipe, 16)
    # everybody takes the same steps of batches that are as wide
    alike = name in ("steps", "fewer steps than an epoch")
    assert len(groups) == (1 if alike else 2)
    running = Tiers(job, to_tensors(job.population, job.task.columns, CPU), CPU, 16)
    start = job.layout.flatten(job.task.module)
    learned = running.run(start, cohort_of(clients, job.population), each=each)
    alone = trained(job, clients, 0, each=each)
    found, expected = (x.each if each else x.total for x in (learned, alone))
    assert furthest(found, expected) < 1e-5
    assert torch.allclose(learned.losses, alone.losses, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whole_clients_of_any_size_take_a_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def counted(function: Any, **options: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", counted)
    job = job_of(Task(mlp()), people(range(1, 30)), Recipe(Adam(0.01), batch=None))
    for client in range(29):
        alone = trained(job, [client], 0)
        assert furthest(alone.total, trained(job, [client], 2, compiled=True).total) < 1e-5
    assert len(compiled) <= 3
