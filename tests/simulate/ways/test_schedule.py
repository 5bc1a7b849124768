"""Schedules: whatever the clients, the recipe and the lanes, everything is trained on as asked."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubless.data.population import Population
from hubless.simulate.ways import schedule
from hubless.simulate.ways.schedule import CHUNK, Costs, Schedule, deal, lay_out, programs, tiers
from hubless.train.recipe import Recipe

Ints = NDArray[np.int64]


def _population(sizes: list[int], shuffled: bool = True) -> Population:
    offsets = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))])
    total = int(offsets[-1])
    rows = np.random.default_rng(total).permutation(total) if shuffled else None
    return Population({"y": np.arange(total)}, offsets, rows)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Population, Ints, Recipe, int]:
    """Some clients of a population in some order, a recipe, and a number of lanes."""
    sizes = draw(st.lists(st.integers(0, 12) | st.just(150), min_size=1, max_size=12))
    clients = draw(st.permutations(range(len(sizes))))[: draw(st.integers(0, len(sizes)))]
    recipe = Recipe(
        epochs=draw(st.integers(1, 3)),
        batch=draw(st.none() | st.integers(1, 10)),
        steps=draw(st.none() | st.integers(1, 7)),
        shuffle=draw(st.booleans()),
    )
    population = _population(sizes, draw(st.booleans()))
    return population, np.array(clients, np.int64), recipe, draw(st.integers(1, 6))


def _laid(job: tuple[Population, Ints, Recipe, int], seed: int = 5) -> Schedule:
    population, clients, recipe, lanes = job
    return lay_out(population, clients, recipe, lanes, seed, round=3)


def _walk(laid: Schedule, position: int) -> list[tuple[list[int], list[float], float]]:
    """The ticks of one client: the rows that count, their shares, and the step's number."""
    ticks, lanes = np.nonzero(laid.client == position)
    assert len(set(lanes.tolist())) <= 1
    return [
        (
            laid.rows[t, lane][laid.shares[t, lane] > 0].tolist(),
            laid.shares[t, lane][laid.shares[t, lane] > 0].tolist(),
            float(laid.step[t, lane]),
        )
        for t, lane in zip(ticks, lanes, strict=True)
    ]


@given(jobs(), st.integers(1, 9))
def test_padding_adds_ticks_on_which_nobody_trains(
    job: tuple[Population, Ints, Recipe, int], multiple: int
) -> None:
    laid = _laid(job)
    padded = laid.padded(multiple)
    assert padded.ticks % multiple == 0
    assert padded.ticks - laid.ticks < multiple
    for name in ("rows", "shares", "step", "client", "begins", "ends"):
        assert np.array_equal(getattr(padded, name)[: laid.ticks], getattr(laid, name))
    assert (padded.client[laid.ticks :] == -1).all()
    assert not padded.ends[laid.ticks :].any()


@given(jobs())
def test_gathered_examples_are_the_same_ones(job: tuple[Population, Ints, Recipe, int]) -> None:
    population, clients, recipe, lanes = job
    laid, own = _laid(job), [population.rows_of(client) for client in clients.tolist()]
    gathered = lay_out(population, clients, recipe, lanes, seed=5, round=3, gathered=True)
    there = np.concatenate([*own, np.array([], np.int64)])
    counts = laid.shares > 0
    assert np.array_equal(gathered.shares, laid.shares)
    assert np.array_equal(there[gathered.rows[counts]], laid.rows[counts])


@given(jobs())
def test_every_example_is_trained_on_once_per_epoch(
    job: tuple[Population, Ints, Recipe, int],
) -> None:
    population, clients, recipe, _ = job
    laid = _laid(job)
    for i, client in enumerate(clients.tolist()):
        mine = population.rows_of(client).tolist()
        seen = Counter(row for rows, _, _ in _walk(laid, i) for row in rows)
        if recipe.steps is None:
            assert seen == Counter({row: recipe.epochs for row in mine})
        else:
            assert set(seen) <= set(mine)
            # nobody is seen again before everybody was
            assert not seen or max(seen.values()) - min(seen[row] for row in mine) <= 1


@given(jobs())
def test_a_step_is_a_batch_and_its_shares_sum_to_one(
    job: tuple[Population, Ints, Recipe, int],
) -> None:
    population, clients, recipe, _ = job
    laid = _laid(job)
    for i, client in enumerate(clients.tolist()):
        size = int(population.sizes[client])
        numbers, total, examples = [], 0.0, 0
        for rows, shares, number in _walk(laid, i):
            total += sum(shares)
            examples += len(rows)
            if number:
                assert total == pytest.approx(1.0, abs=1e-5)
                assert examples <= (recipe.batch or size)
                numbers.append(number)
                total, examples = 0.0, 0
        assert examples == 0
        assert numbers == list(range(1, int(recipe.steps_for(np.array([size]))[0]) + 1))


@given(jobs())
def test_clients_begin_and_end_where_their_ticks_do(
    job: tuple[Population, Ints, Recipe, int],
) -> None:
    population, clients, _, lanes = job
    laid = _laid(job)
    assert laid.begins.shape == laid.ends.shape == laid.client.shape == (laid.ticks, lanes)
    for i, client in enumerate(clients.tolist()):
        ticks, on = np.nonzero(laid.client == i)
        if population.sizes[client] == 0:
            assert not len(ticks)
            continue
        lane = on[0]
        assert ticks.tolist() == list(range(ticks[0], ticks[-1] + 1))
        assert laid.begins[ticks, lane].tolist() == [True] + [False] * (len(ticks) - 1)
        assert laid.ends[ticks, lane].tolist() == [False] * (len(ticks) - 1) + [True]
    idle = laid.client < 0
    assert not laid.begins[idle].any()
    assert not laid.ends[idle].any()
    assert not laid.step[idle].any()
    assert not laid.shares[idle].any()
    assert laid.begins.sum() == laid.ends.sum() == (population.sizes[clients] > 0).sum()


@given(jobs())
def test_within_a_stretch_nobody_comes_or_goes(job: tuple[Population, Ints, Recipe, int]) -> None:
    laid = _laid(job)
    stretches = list(laid.stretches())
    assert [t for start, stop in stretches for t in range(start, stop)] == list(range(laid.ticks))
    for start, stop in stretches:
        assert stop > start
        assert not laid.begins[start + 1 : stop].any()
        assert not laid.ends[start : stop - 1].any()


@given(jobs(), st.integers(1, 6))
def test_how_a_client_is_shuffled_depends_neither_on_lanes_nor_on_who_else_trains(
    job: tuple[Population, Ints, Recipe, int], lanes: int
) -> None:
    population, clients, recipe, _ = job
    order = np.random.default_rng(len(clients)).permutation(len(clients))
    one, other = _laid(job), _laid((population, clients[order], recipe, lanes))
    for position, before in enumerate(order.tolist()):
        ours = [(rows, number) for rows, _, number in _walk(one, before)]
        # a batch that is the whole client is cut into chunks no wider than the cohort's largest,
        # who is the same in both
        assert ours == [(rows, number) for rows, _, number in _walk(other, position)]
    for i, client in enumerate(clients.tolist()):
        alone = _laid((population, np.array([client]), recipe, 1))
        flat = [row for rows, _, _ in _walk(one, i) for row in rows]
        assert flat == [row for rows, _, _ in _walk(alone, 0) for row in rows]


def test_epochs_rounds_clients_and_seeds_are_shuffled_differently() -> None:
    population = _population([30, 30], shuffled=False)
    recipe = Recipe(epochs=2, batch=30)
    orders = {
        tuple((np.array(rows) % 30).tolist())
        for seed in (1, 2)
        for turn in (0, 1)
        for client in (0, 1)
        for rows, _, _ in _walk(
            lay_out(population, np.array([client]), recipe, 1, seed, turn), position=0
        )
    }
    assert len(orders) == 2 * 2 * 2 * 2


def test_a_shuffle_puts_every_example_everywhere() -> None:
    population = _population([5], shuffled=False)
    recipe = Recipe(batch=5)
    times = np.zeros((5, 5))
    for turn in range(2000):
        rows = lay_out(population, np.array([0]), recipe, 1, 1, turn).rows[0, 0]
        times[np.arange(5), rows] += 1
    assert np.abs(times - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


def test_without_shuffling_examples_stand_in_their_order() -> None:
    population = _population([7], shuffled=False)
    laid = lay_out(population, np.array([0]), Recipe(batch=3, shuffle=False), 1, 1, 0)
    assert [rows for rows, _, _ in _walk(laid, 0)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_whole_client_is_summed_in_chunks() -> None:
    size = 2 * schedule.CHUNK + 5
    laid = lay_out(_population([size, 3]), np.array([0, 1]), Recipe(batch=None), 1, 1, 0)
    assert laid.rows.shape[2] == schedule.CHUNK
    assert [number for _, _, number in _walk(laid, 0)] == [0, 0, 1]
    assert [number for _, _, number in _walk(laid, 1)] == [1]


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 8))
def test_clients_follow_one_another_on_a_lane_without_gaps(lengths: list[int], lanes: int) -> None:
    length = np.array(lengths)
    lane, begin = deal(length, lanes)
    assert ((lane >= 0) & (lane < lanes)).all()
    for i in range(lanes):
        at = 0
        for start, long in sorted(zip(begin[lane == i], length[lane == i], strict=True)):
            assert start == at
            at += long
    # no lane stands idle while a client waits
    assert (begin + length).max() <= length.sum() / lanes + length.max()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 4))
def test_packing_is_within_a_third_of_the_best_there_is(lengths: list[int], lanes: int) -> None:
    """Longest first never takes more than 4/3 of the fewest ticks there can be (Graham 1969)."""
    loads = {(0,) * lanes}
    for long in lengths:
        loads = {
            tuple(sorted((*load[:i], load[i] + long, *load[i + 1 :])))
            for load in loads
            for i in range(lanes)
        }
    best = min(max(load) for load in loads)
    _, begin = deal(np.array(lengths), lanes)
    assert (begin + np.array(lengths)).max() <= 4 / 3 * best


def test_unequal_clients_are_not_padded_to_the_largest() -> None:
    rng = np.random.default_rng(1)
    sizes = np.maximum(1, rng.lognormal(3.5, 1.0, 100)).astype(int).tolist()
    laid = lay_out(_population(sizes), np.arange(100), Recipe(batch=10), 10, 1, 0)
    steps = Recipe(batch=10).steps_for(np.array(sizes))
    assert laid.ticks == max(int(steps.max()), -(-int(steps.sum()) // 10))
    assert laid.busy > 0.9


def test_nobody_to_train_is_an_empty_schedule() -> None:
    for clients in ([], [0], [0, 1]):
        laid = lay_out(_population([0, 0]), np.array(clients, np.int64), Recipe(), 3, 1, 0)
        assert laid.ticks == 0
        assert list(laid.stretches()) == []


def cost(sizes: NDArray[np.int64], recipe: Recipe, lanes: int) -> float:
    """All ticks until everybody is done, each with what it costs."""
    clients = np.arange(len(sizes))
    laid = lay_out(_population(sizes.tolist()), clients, recipe, lanes, 1, 0)
    most = recipe.batch or CHUNK
    return float((8 + lanes * (16 + laid.widths()) / (16 + most)).sum())


@given(
    sizes=st.lists(st.integers(0, 400), max_size=60),
    batch=st.sampled_from([1, 10, 64, None]),
    lanes=st.integers(1, 40),
)
def test_everybody_is_in_one_tier(sizes: list[int], batch: int | None, lanes: int) -> None:
    groups, _ = tiers(np.array(sizes, np.int64), Recipe(batch=batch), lanes)
    members = np.concatenate([members for _, members in groups])
    assert sorted(members.tolist()) == list(range(len(sizes)))
    assert all(min(2, lanes) <= count <= lanes for count, _ in groups)


def _gain(sizes: NDArray[np.int64], recipe: Recipe, lanes: int) -> float:
    """How much less tiers cost than everybody together."""
    groups, _ = tiers(sizes, recipe, lanes)
    assert len(groups) == 2
    return cost(sizes, recipe, lanes) / sum(
        cost(sizes[members], recipe, count) for count, members in groups
    )


def test_a_few_long_clients_run_apart_from_many_short_ones() -> None:
    sizes = np.concatenate([[481, 300, 120], np.full(797, 2)])
    assert _gain(sizes, Recipe(batch=1), 128) > 5
    assert len(tiers(np.full(800, 2), Recipe(batch=1), 128)[0]) == 1


def test_clients_who_fill_batches_run_apart_from_those_who_do_not() -> None:
    sizes = np.concatenate([[500, 400, 300, 200, 130, 130], np.full(400, 3)])
    assert _gain(sizes, Recipe(batch=64), 64) > 1.5
    # where all batches are as full there is nothing to gain
    assert len(tiers(np.full(400, 50), Recipe(batch=64), 64)[0]) == 1
    # two that are as wide as everything else: not worth a program of their own
    assert len(tiers(np.array([128, 128, *[60] * 400]), Recipe(batch=64), 64)[0]) == 1


@pytest.mark.parametrize("full", [False, True])
def test_what_running_clients_costs_is_what_their_ticks_cost(full: bool) -> None:
    sizes = np.concatenate([[500, 300, 130], np.full(40, 20), np.full(100, 3)])
    recipe, lanes = Recipe(batch=64), 8
    laid = lay_out(_population(sizes.tolist()), np.arange(len(sizes)), recipe, lanes, 1, 0)
    widths = np.full(laid.ticks, 64) if full else laid.widths()
    ticks = float((8 + lanes * (16 + widths) / (16 + 64)).sum())
    assert Costs(sizes, recipe, full=full).of(lanes) == pytest.approx(ticks, rel=0.1)


def test_a_tick_is_as_wide_as_its_fullest_batch() -> None:
    people = _population([64, 30, 9, 9, 3, 3, 3, 3])
    laid = lay_out(people, np.arange(8), Recipe(batch=64), 2, 1, 0)
    assert laid.widths().tolist() == [64, 64, 8, 8]
    alike = lay_out(people, np.arange(2, 8), Recipe(batch=64), 1, 1, 0)
    assert sorted(alike.widths().tolist()) == [8, 8, 8, 8, 16, 16]
    assert laid.rows.shape[2] == 64
    nobody = lay_out(_population([0]), np.arange(1), Recipe(), 2, 1, 0)
    assert nobody.widths().tolist() == []
    assert laid.widths(coarse=True).tolist() == [64, 64, 8, 8]
    assert sorted(alike.widths(coarse=True).tolist()) == [8, 8, 8, 8, 32, 32]


@given(
    st.lists(st.integers(0, 40) | st.integers(0, 2000), max_size=150),
    st.integers(1, 70),
    st.integers(1, 70),
)
def test_programs_are_all_that_coarse_tiers_take(sizes: list[int], batch: int, lanes: int) -> None:
    population, recipe = _population(sizes, shuffled=False), Recipe(batch=batch)
    known = programs(batch, lanes)
    for count, clients in tiers(population.sizes, recipe, lanes, coarse=True)[0]:
        laid = lay_out(population, clients, recipe, count, 0, 0)
        assert {(count, width) for width in laid.widths(coarse=True).tolist()} <= set(known)
