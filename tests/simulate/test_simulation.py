"""Simulations: rounds over a population, the same for the same seed, and all that they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from torch import nn

from hubless.data.population import Population
from hubless.errors import DataError, HublessError
from hubless.events import Ended, Event, Started, Trained
from hubless.select.uniform import Uniform
from hubless.simulate import rounds as paced
from hubless.simulate.engine.machine import Local
from hubless.simulate.history import FinishedRound
from hubless.simulate.job import to_tensors
from hubless.simulate.simulation import Simulation
from hubless.simulate.times import Buffered
from hubless.simulate.ways.plain import Plain
from hubless.strategy.base import Strategy
from hubless.strategy.fedadam import FedAdam
from hubless.strategy.fedavg import FedAvg
from hubless.strategy.fedavgm import FedAvgM
from hubless.strategy.fedbuff import FedBuff
from hubless.strategy.fedmedian import FedMedian
from hubless.strategy.fedtrimmedmean import FedTrimmedMean
from hubless.strategy.normbound import NormBound
from hubless.testing import Update, aggregate
from hubless.train.losses import accuracy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import (
    CPU,
    UNEQUAL,
    after,
    cohort_of,
    furthest,
    job_of,
    mlp,
    people,
    simulation,
)

KINDS: dict[str, dict[str, Any]] = {
    "FedAvg": {"strategy": FedAvg()},
    "FedAdam": {"strategy": FedAdam(lr=0.05)},
    "FedMedian": {"strategy": FedMedian()},
    "lanes": {"engine": Local(lanes=3, compiled=False, processes=1)},
    "asynchronous": {"strategy": FedBuff(), "pace": Buffered(concurrency=4, buffer=2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits(kind: str) -> None:
    runs = [simulation(seed=seed, **KINDS[kind]) for seed in (1, 1, 2)]
    for run in runs:
        run.run(rounds=4)
    assert torch.equal(runs[0].flat, runs[1].flat)
    assert not torch.equal(runs[0].flat, runs[2].flat)
    told = [run.history.drop("seconds") for run in runs]
    assert told[0].equals(told[1])
    assert not told[0].equals(told[2])


def test_what_was_drawn_elsewhere_does_not_matter() -> None:
    one, other = simulation(seed=1), simulation(seed=1)
    one.run(rounds=3)
    torch.manual_seed(77)
    np.random.seed(77)
    other.run(rounds=3)
    assert torch.equal(one.flat, other.flat)


def test_running_in_parts_is_running_at_once() -> None:
    whole, parts = simulation(strategy=FedAdam()), simulation(strategy=FedAdam())
    whole.run(rounds=5)
    for rounds in (1, 1, 3, 5):
        parts.run(rounds=rounds)
    assert torch.equal(whole.flat, parts.flat)
    assert parts.history["round"].to_list() == [1, 2, 3, 4, 5]


def test_the_module_one_gave_stays_as_it_was() -> None:
    module = mlp()
    before = [p.detach().clone() for p in module.parameters()]
    ran = simulation(task=Task(module))
    ran.run(rounds=2)
    for then, now in zip(before, module.parameters(), strict=True):
        assert torch.equal(then, now)
    assert furthest(ran.params["0.weight"], before[0]) > 1e-4


def test_a_round_of_fedavg_is_the_weighted_mean_of_what_clients_come_to() -> None:
    ran = simulation(cohort=11)
    job = job_of(ran.task, ran.population, ran.recipe, seed=ran.seed)
    ran.run(rounds=1)
    each = ran.rows[0]
    assert each["clients"] == sum(size > 0 for size in UNEQUAL)
    assert each["skipped"] == sum(size == 0 for size in UNEQUAL)
    assert each["examples"] == sum(UNEQUAL)
    alone = Plain(job, to_tensors(job.population, job.task.columns, CPU), CPU)
    start = job.layout.flatten(job.task.module)
    expected = alone.run(start, cohort_of(range(11), job.population, round=0)).total
    assert furthest(ran.flat, expected) < 1e-6


@pytest.mark.parametrize(
    "strategy",
    [FedAvg(), FedAvgM(), FedAdam(lr=0.1), FedMedian(), FedTrimmedMean(cut=0.2)],
    ids=lambda s: type(s).__name__,
)
def test_a_strategy_does_here_what_it_does_to_updates(strategy: Strategy) -> None:
    """Two rounds of everybody, against aggregating whole updates by the strategy itself."""
    sizes = (7, 2, 5, 9, 3)
    ran = simulation(population=people(sizes), strategy=strategy, cohort=5)
    job = job_of(ran.task, ran.population, ran.recipe, seed=ran.seed)
    alone = Plain(job, to_tensors(job.population, job.task.columns, CPU), CPU)
    flat, state = job.layout.flatten(job.task.module), None
    for turn in range(2):
        each = alone.run(flat, cohort_of(range(5), job.population, round=turn), each=True).each
        assert each is not None
        updates = [Update(str(i), {"w": each[i]}, examples=sizes[i]) for i in range(5)]
        params, state = aggregate(strategy, updates, {"w": flat}, state)
        flat = torch.as_tensor(params["w"])
    ran.run(rounds=2)
    assert furthest(ran.flat, flat) < 1e-5


@pytest.mark.parametrize("bound", [None, 0.05])
def test_a_bound_on_norms_gives_the_same_where_not_all_updates_are_held(
    bound: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran() -> Simulation:
        simulated = simulation(strategy=NormBound(bound), cohort=11)
        simulated.run(rounds=3)
        return simulated

    held = ran()
    # four at a time
    monkeypatch.setattr(paced, "HELD_BYTES", 16 * held.flat.numel())
    assert furthest(ran().flat, held.flat) < 1e-6


def test_training_works() -> None:
    ran = simulation(
        population=people([20] * 10),
        test=people([200], seed=9),
        recipe=Recipe(SGD(0.5), epochs=3),
        evaluate_every=5,
    )
    history = after(ran, 20)
    assert history["accuracy"].drop_nulls().to_list()[-1] > 0.8
    assert history["train_loss"][-1] < history["train_loss"][0]


def test_the_loss_while_training_is_the_mean_over_examples_seen() -> None:
    population = people((6, 3))
    ran = simulation(population=population, cohort=2, recipe=Recipe(SGD(1e-12), batch=2, epochs=3))
    history = after(ran, 1)
    assert history["train_loss"][0] == pytest.approx(ran.evaluate(population)["loss"], rel=1e-5)


def test_the_loss_while_training_for_steps_is_the_mean_over_examples_seen() -> None:
    population = people((6, 3))
    recipe = Recipe(SGD(1e-12), batch=2, steps=6)
    ran = simulation(population=population, cohort=2, recipe=recipe)
    history = after(ran, 1)
    losses = ran.evaluate_by_client(population)["loss"]
    # three batches are the whole of the first client, two of them that of the second
    expected = (2 * 6 * losses[0] + 3 * 3 * losses[1]) / 21
    assert history["train_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_the_history_has_a_row_per_round_and_metrics_where_they_were_taken() -> None:
    ran = simulation(test=people([9], seed=5), evaluate_every=3)
    history = after(ran, 7)
    assert isinstance(history, polars.DataFrame)
    assert history["round"].to_list() == [1, 2, 3, 4, 5, 6, 7]
    taken = history.filter(polars.col("loss").is_not_null())
    # the last round is evaluated whatever its number
    assert taken["round"].to_list() == [3, 6, 7]
    assert taken["accuracy"].null_count() == 0
    assert history["train_loss"].is_not_null().all()
    assert (history["seconds"] > 0).all()
    assert history.equals(ran.history)


def test_without_a_number_of_rounds_only_the_last_is_evaluated() -> None:
    history = after(simulation(test=people([9], seed=5), evaluate_every=0), 3)
    assert history["loss"].is_null().to_list() == [True, True, False]


def test_without_test_data_there_is_nothing_to_evaluate_on() -> None:
    ran = simulation()
    history = after(ran, 1)
    assert "loss" not in history.columns
    with pytest.raises(DataError, match="no test population"):
        ran.evaluate()
    assert ran.evaluate(people([9]))["loss"] > 0


def test_evaluation_is_over_all_examples_and_by_client_over_each_ones_own() -> None:
    test = people(UNEQUAL, seed=8)
    ran = simulation(test=test)
    ran.run(rounds=1)
    module = mlp()
    module.load_state_dict(ran.params)
    x, y = (torch.from_numpy(test.columns[name]) for name in ("x", "y"))
    with torch.no_grad():
        losses = nn.functional.cross_entropy(module(x), y, reduction="none")
        hits = accuracy(module(x), y)
    pooled = ran.evaluate()
    assert pooled["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert pooled["accuracy"] == pytest.approx(hits.mean().item())
    table = ran.evaluate_by_client()
    assert table["client"].to_list() == list(range(len(UNEQUAL)))
    assert table["examples"].to_list() == list(UNEQUAL)
    for client, size in enumerate(UNEQUAL):
        mine = torch.from_numpy(test.rows_of(client))
        if size == 0:
            assert np.isnan(table["loss"][client])
            continue
        assert table["loss"][client] == pytest.approx(losses[mine].mean().item(), rel=1e-5)
        assert table["accuracy"][client] == pytest.approx(hits[mine].mean().item())


def test_evaluation_uses_the_model_as_it_is_used_and_not_as_it_is_trained() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.9), nn.Linear(16, 3))
    ran = simulation(task=Task(module), test=people([30]))
    assert ran.evaluate() == ran.evaluate()


def test_a_test_population_may_be_larger_than_one_batch_of_it() -> None:
    test = people([2500, 1, 700], seed=8)
    ran = simulation(test=test)
    by_client = ran.evaluate_by_client()
    pooled = float(np.average(by_client["loss"], weights=by_client["examples"]))
    assert ran.evaluate()["loss"] == pytest.approx(pooled, rel=1e-5)


def test_a_cohort_may_be_a_share_of_everybody() -> None:
    assert simulation(cohort=0.5).cohort == 6
    assert simulation(cohort=0.001).cohort == 1
    assert (simulation(cohort=1.0).cohort, simulation(cohort=1).cohort) == (len(UNEQUAL), 1)


def test_events_say_what_happened_in_order() -> None:
    said: list[Event] = []
    ran = simulation(events=[said.append], test=people([9]), evaluate_every=2)
    ran.run(rounds=3)
    assert [event.kind for event in said] == ["started", *["trained"] * 3, "ended"]
    started, *rounds, ended = said
    assert isinstance(started, Started)
    assert started.settings["seed"] == 0
    assert started.settings["params"] == ran.flat.numel()
    assert started.settings["engine"]["lanes"] == 0
    assert isinstance(ended, Ended)
    assert (ended.round, ended.reason) == (3, "complete")
    for row, event in zip(ran.rows, rounds, strict=True):
        assert isinstance(event, Trained)
        assert event.round == row["round"]
        assert len(event.cohort) == row["clients"]
        assert event.metrics["train_loss"] == row["train_loss"]
        assert ("accuracy" in event.metrics) == (event.round >= 2)
        assert event.bytes_down == (len(event.cohort) + event.skipped) * 4 * ran.flat.numel()
        assert event.bytes_up == len(event.cohort) * 4 * ran.flat.numel()


def test_events_tell_what_a_report_needs() -> None:
    said: list[Event] = []
    sizes = [1, 5, 0, *range(2, 22)]
    test = people([*range(1, 21)])
    given = {"population": people(sizes), "test": test, "name": "mine"}
    ran = simulation(events=[said.append], evaluate_every=2, **given)
    ran.run(rounds=2)
    assert {event.client for event in said} == {"mine"}
    started, first, second, _ = said
    assert isinstance(started, Started) and isinstance(second, Trained)
    settings = started.settings
    assert settings["rounds"] == 2 and "torch" in settings["versions"]
    assert settings["command"]
    assert (settings["activity"][0], settings["activity"][-1]) == (1, 21)
    labels = settings["labels"]
    assert np.array(labels["by_decile"]).sum() == sum(sizes)
    assert np.array(labels["by_client"]).sum(1).tolist() == sizes
    assert isinstance(first, Trained) and first.deciles is None
    assert first.examples == [sizes[client] for client in first.cohort]
    assert first.phases is not None
    assert sum(first.phases.values()) == pytest.approx(first.seconds)
    assert second.deciles is not None
    by_client = ran.evaluate_by_client()
    # two clients to a tenth, in the order of their sizes
    for tenth, mean in enumerate(second.deciles["loss"]):
        pair = by_client[2 * tenth : 2 * tenth + 2]
        expected = float(np.average(pair["loss"], weights=pair["examples"]))
        assert mean == pytest.approx(expected, rel=1e-5)


def test_events_in_a_file_are_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    ran = simulation(events=path, seed=3)
    ran.run(rounds=2)
    ran.run(rounds=3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds == ["started", "trained", "trained", "ended", "started", "trained", "ended"]
    assert [line["round"] for line in lines] == [0, 1, 2, 2, 2, 3, 3]
    assert lines[0]["settings"]["strategy"] == repr(FedAvg())
    assert lines[0]["settings"]["selector"] == repr(Uniform())
    assert lines[1]["metrics"]["train_loss"] == pytest.approx(ran.rows[0]["train_loss"])
    assert all(0 <= client < len(UNEQUAL) for client in lines[1]["cohort"])


def test_a_round_in_which_only_empty_clients_were_picked_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    ran = simulation(
        selector=lambda roster, k, rng: np.array([2, 7]), events=path, strategy=FedAdam()
    )
    before = ran.flat.clone()
    history = after(ran, 2)
    assert torch.equal(ran.flat, before)
    assert history["skipped"].to_list() == [2, 2]
    assert history["clients"].to_list() == [0, 0]
    assert history["bytes_up"].to_list() == [0, 0]
    assert np.isnan(history["train_loss"].to_numpy()).all()
    assert json.loads(path.read_text().splitlines()[1])["metrics"]["train_loss"] is None


def test_a_run_that_fails_says_so() -> None:
    said: list[Event] = []

    def break_down(simulation: Simulation, row: object) -> None:
        raise RuntimeError("no more")

    ran = simulation(events=[said.append], callbacks=[break_down])
    with pytest.raises(RuntimeError, match="no more"):
        ran.run(rounds=3)
    assert isinstance(said[-1], Ended)
    assert said[-1].reason == "failed"
    with pytest.raises(HublessError, match="runs only during run"):
        ran.engine  # noqa: B018


def test_a_selector_is_asked_for_the_cohort_and_told_the_sizes() -> None:
    seen: list[tuple[list[int], int]] = []

    def first(roster: Any, k: int, rng: np.random.Generator) -> Any:
        seen.append((roster.examples.tolist(), k))
        return np.arange(k - 1)

    history = after(simulation(selector=first, cohort=4), 2)
    assert seen == [(list(UNEQUAL), 4)] * 2
    # 0, 1 and 2, of whom the last has no data
    assert history["clients"].to_list() == [2, 2]


def test_integer_columns_of_any_kind_and_doubles_can_be_trained_on() -> None:
    base = people([6, 5])
    reference = simulation(population=base, cohort=2)
    reference.run(rounds=1)
    for kind in (np.uint8, np.int32, np.uint16, np.uint32):
        columns = {"x": base.columns["x"].astype(np.float64), "y": base.columns["y"].astype(kind)}
        ran = simulation(population=Population(columns, base.offsets, base.rows), cohort=2)
        ran.run(rounds=1)
        assert torch.equal(ran.flat, reference.flat)


def test_what_lanes_and_plain_training_come_to_over_rounds_stays_together() -> None:
    plain = simulation(strategy=FedAvgM())
    lanes = simulation(strategy=FedAvgM(), engine=Local(lanes=3, compiled=False, processes=1))
    for ran in (plain, lanes):
        ran.run(rounds=5)
    assert furthest(plain.flat, lanes.flat) < 1e-4


def test_within_a_block_one_engine_serves_every_run() -> None:
    whole, parts = simulation(), simulation()
    whole.run(rounds=4)
    with parts:
        parts.run(rounds=2)
        engine = parts.engine
        parts.run(rounds=4)
        assert parts.engine is engine
    with pytest.raises(HublessError, match="only during run"):
        parts.engine  # noqa: B018
    assert torch.equal(whole.flat, parts.flat)


def _normalised(momentum: float | None = 0.1) -> Task:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, momentum=momentum)
    return Task(nn.Sequential(nn.Linear(4, 16), norm, nn.ReLU(), nn.Linear(16, 3)))


@pytest.mark.parametrize("strategy", [FedAvgM(), FedAdam()])
def test_buffers_are_averaged_whatever_the_server_optimizer(strategy: Strategy) -> None:
    """A variance with momentum overshoots to below zero."""
    ran = simulation(
        task=_normalised(), strategy=strategy, population=people([30] * 10), test=people([90])
    )
    history = after(ran, 20)
    assert ran.params["1.running_var"].min() > 0
    assert np.isfinite(history["loss"].drop_nulls().to_numpy()).all()


def test_what_clients_do_not_share_each_finds_as_it_was(tmp_path: Path) -> None:
    """Without a momentum BatchNorm goes by how many batches it has seen."""

    def run(rounds: int, processes: int = 1, *, resumed: bool = False) -> torch.Tensor:
        engine = Local(lanes=0, compiled=False, processes=processes)
        ran = simulation(task=_normalised(None), population=people([20, 40] * 5), engine=engine)
        assert ran.resume(tmp_path) == resumed
        ran.run(rounds)
        if rounds == 2:
            ran.save(tmp_path)
        return ran.flat

    whole, apart = run(4), run(4, processes=2)
    run(2)
    assert torch.equal(run(4, resumed=True), whole)
    assert furthest(whole, apart) < 1e-6


def test_an_interrupt_while_a_round_is_reported_loses_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, row = 0, FinishedRound.row

    def interrupted(self: FinishedRound, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return row(self, *args)

    monkeypatch.setattr(FinishedRound, "row", interrupted)
    ran = simulation()
    with pytest.raises(KeyboardInterrupt):
        ran.run(9)
    assert [row["round"] for row in ran.rows] == [1, 2, 3] and ran.round == 3
    ran.run(9)
    whole = simulation()
    whole.run(9)
    assert torch.equal(ran.flat, whole.flat)
    assert ran.roster.selected.tolist() == whole.roster.selected.tolist()


def test_what_the_caller_draws_does_not_depend_on_runs() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    ran = simulation()
    torch.manual_seed(5)
    ran.run(2)
    assert torch.equal(torch.rand(3), expected)


def test_going_on_with_an_optimizer_is_going_on() -> None:
    everybody = {"cohort": 9, "population": people([6] * 9), "strategy": FedAdam()}
    recipe = Recipe(SGD(0.1), batch=None)
    whole, first, second = (simulation(**everybody, recipe=recipe) for _ in range(3))
    whole.run(4)
    first.run(3)
    second.go_on_from(first, optimizer=True)
    second.run(1)
    assert furthest(second.flat, whole.flat) < 1e-6
    other = simulation(strategy=FedAvgM())
    with pytest.raises(DataError, match="what .* remembers is nothing that .* can use"):
        simulation(strategy=FedAdam()).go_on_from(other, optimizer=True)


def test_a_test_population_without_examples_is_refused_at_once() -> None:
    with pytest.raises(DataError, match="the test population has no examples"):
        simulation(test=people([0, 0]))
