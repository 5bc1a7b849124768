"""Language tasks in lanes: what clients come to together is what they come to one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from hubless.data.population import Population
from hubless.simulate.engine.executor import LocalExecutor, Setup
from hubless.simulate.engine.machine import Local
from hubless.simulate.evaluate import Evaluation
from hubless.simulate.simulation import Simulation
from hubless.train.optimizers import SGD, Adam
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from hubless.train.text.language import Size, classification, masked_lm, next_word
from hubless.train.text.tokens import SPECIAL, Vocabulary
from tests.simulate.worlds import CPU, PLAIN, UNEQUAL, cohort_of, furthest, job_of, trained

WORDS = Vocabulary.of([*SPECIAL, *(f"w{i}" for i in range(27))])
SMALL = Size(width=8, layers=2, heads=2, longest=8)
EVERYBODY = list(range(len(UNEQUAL)))


def _people(sizes: tuple[int, ...] = UNEQUAL) -> Population:
    """Clients of these sizes, with texts of every length, some of them nothing but padding."""
    rng = np.random.default_rng(0)
    total = sum(sizes)
    texts = [
        " ".join(f"w{word}" for word in rng.integers(0, 30, rng.integers(0, 9)))
        for _ in range(total)
    ]
    columns = {**WORDS.columns(texts, 8), "y": rng.integers(0, 3, total)}
    columns["ids"][:: max(1, total // 5)] = WORDS.pad
    return Population(columns, np.append(0, np.cumsum(sizes)), rng.permutation(total))


TASKS: dict[str, Callable[[], Task]] = {
    "masked": lambda: masked_lm(WORDS, SMALL, share=0.3, dynamic=False),
    "next": lambda: next_word(WORDS, SMALL),
    "classes": lambda: classification(WORDS, 3, SMALL),
}
RECIPES: dict[str, Recipe] = {
    "sgd": Recipe(SGD(0.2), batch=4),
    "adam": Recipe(Adam(0.01), batch=4, epochs=2, clip=0.5),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", TASKS)
def test_texts_train_in_lanes_as_they_do_alone(task: str, recipe: str) -> None:
    job = job_of(TASKS[task](), _people(), RECIPES[recipe])
    alone = trained(job, EVERYBODY, 0)
    assert alone.total is not None and torch.isfinite(alone.total).all()
    assert furthest(alone.total, job.layout.flatten(job.task.module)) > 1e-2
    for lanes in (1, 3, 8):
        together = trained(job, EVERYBODY, lanes)
        assert furthest(alone.total, together.total) < 1e-5
        assert furthest(alone.losses, together.losses) < 1e-4


@pytest.mark.parametrize("task", TASKS)
def test_each_clients_own_model_is_the_same_too(task: str) -> None:
    job = job_of(TASKS[task](), _people(), RECIPES["sgd"])
    alone, together = (trained(job, EVERYBODY, lanes, each=True).each for lanes in (0, 4))
    assert furthest(alone, together) < 1e-5


@pytest.mark.parametrize("task", TASKS)
def test_in_bfloat16_lanes_stay_close(task: str) -> None:
    exact = trained(job_of(TASKS[task](), _people(), RECIPES["sgd"]), EVERYBODY, 0).total
    job = job_of(TASKS[task](), _people(), Recipe(SGD(0.2), batch=4, precision="bfloat16"))
    assert 0 < furthest(exact, trained(job, EVERYBODY, 3).total) < 5e-3


def test_clients_of_texts_of_nothing_change_nothing() -> None:
    population = _people((3, 5, 4))
    columns = {**population.columns, "ids": np.full_like(population.columns["ids"], WORDS.pad)}
    job = job_of(TASKS["masked"](), Population(columns, population.offsets), RECIPES["sgd"])
    for lanes in (0, 2):
        assert furthest(trained(job, [0, 1, 2], lanes).total, _start(job)) < 1e-6


def _start(job: Any) -> torch.Tensor:
    start: torch.Tensor = job.layout.flatten(job.task.module)
    return start


def test_words_hidden_afresh_are_the_same_twice_and_others_in_every_round() -> None:
    job = job_of(masked_lm(WORDS, SMALL, dropout=0.1), _people(), RECIPES["sgd"])
    start = _start(job)
    for lanes in (0, 3):
        executor = LocalExecutor(job, CPU)
        executor.adopt(Setup(lanes))
        first, again, later = (
            executor.run(start, cohort_of(EVERYBODY, job.population, round)).total
            for round in (0, 0, 1)
        )
        assert furthest(first, again) == 0
        assert furthest(first, later) > 1e-4


def test_a_test_asks_for_the_same_words_whatever_was_drawn_before_and_whoever_is_asked() -> None:
    people, task = _people(), masked_lm(WORDS, SMALL)
    params = _start(job_of(task, people, RECIPES["sgd"]))
    torch.manual_seed(0)
    once = Evaluation(task, people, CPU).values(params)
    torch.manual_seed(1)
    again = Evaluation(task, people, CPU).values(params)
    assert all(torch.equal(once[name], again[name]) for name in ("loss", "nll", "tokens"))
    # fewer of them, in another order
    rows = np.asarray(people.rows)[::-3].copy()
    some = Evaluation(task, Population(people.columns, np.array([0, len(rows)]), rows), CPU)
    assert torch.allclose(some.values(params)["nll"], once["nll"].flip(0)[::3], atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lanes_can_be_compiled_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as that can be seen without waiting for a compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    task = masked_lm(WORDS, Size(8, 1, 2, 8), share=0.3, dynamic=False)
    job = job_of(task, _people((4, 3, 4)), RECIPES["sgd"])
    alone = trained(job, [0, 1, 2], 0)
    assert furthest(alone.total, trained(job, [0, 1, 2], 3, compiled=True).total) < 1e-5


def _fleet(clients: int) -> Population:
    """Two sentences that differ in every word but the first: one word tells all others."""
    rng = np.random.default_rng(1)
    texts = ["w0 w1 w2 w3 w4", "w0 w5 w6 w7 w8"]
    drawn = [texts[kind] for kind in rng.integers(0, 2, clients * 8)]
    return Population(WORDS.columns(drawn, 8), np.arange(0, clients * 8 + 1, 8))


@pytest.mark.parametrize("engine", [PLAIN, Local(lanes=4, compiled=False, processes=1)])
@pytest.mark.parametrize("kind", ["masked", "next"])
def test_a_simulation_learns_a_small_language(kind: str, engine: Local) -> None:
    size = Size(width=16, layers=1, heads=2, longest=8)
    task = masked_lm(WORDS, size) if kind == "masked" else next_word(WORDS, size)
    fleet = _fleet(12)
    simulation = Simulation(
        task,
        fleet,
        recipe=Recipe(Adam(0.01), batch=4, epochs=2),
        cohort=6,
        seed=0,
        engine=engine,
        test=fleet,
        evaluate_every=8,
    )
    simulation.run(8)
    last = simulation.rows[-1]
    perplexity = np.exp(last["nll"] / last["tokens"])
    assert perplexity < 4.0, perplexity
