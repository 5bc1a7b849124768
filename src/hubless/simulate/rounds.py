"""From one version to the next: synchronous rounds, and the asynchronous kind.

Both train on the engine and aggregate by the strategy; they differ in who starts from what, and in
whose answer is there when. Their state is plain arrays, so that a checkpoint can hold all of it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.errors import SelectionError
from hubless.rng import stream
from hubless.select.roster import Selector, Unbiased
from hubless.simulate.job import Cohort, Ints
from hubless.simulate.times import Buffered, Pace, VirtualClock, keep_in_time
from hubless.strategy.base import Strategy
from hubless.strategy.look import Column, Looking, Seen

if TYPE_CHECKING:
    from hubless.simulate.simulation import Simulation

Floats = NDArray[np.float64]
HELD_BYTES = 1 << 30
"""So many bytes of updates are held at a time where their norms are enough."""


@dataclass(frozen=True)
class Version:
    """What led to a new version; losses are per client, still on the device."""

    clients: Ints
    examples: Ints
    losses: Tensor | None
    picked: Ints
    skipped: int
    dropped: int
    virtual: float
    selecting: float
    """Seconds that went into picking clients."""
    values: Tensor | None = None
    staleness: tuple[int, ...] | None = None
    """For each client how many versions were made while it trained, where rounds do not wait."""


def pick(
    simulation: Simulation, count: int, turn: int, free: NDArray[np.bool_] | None = None
) -> Ints:
    """Ask the selector for clients, and make sure that it gave what was asked for."""
    clock = simulation.clock
    available = clock.available(turn) if clock is not None else None
    if free is not None:
        available = free if available is None else available & free
    roster = simulation.roster
    # draws are counted by turns, which are not rounds where rounds do not wait
    roster.available, roster.round = available, simulation.round
    if available is not None:
        count = min(count, int(available.sum()))
    picked = np.asarray(simulation.selector(roster, count, stream(simulation.seed, "select", turn)))
    name = type(simulation.selector).__name__
    if picked.ndim != 1 or picked.dtype.kind not in "iu":
        raise SelectionError(
            f"selector {name} must return client numbers as a flat integer array, and returned "
            f"{picked.dtype} of shape {picked.shape}"
        )
    if len(picked) > count:
        raise SelectionError(
            f"selector {name} returned {len(picked)} clients in round {turn + 1}, where {count} "
            "were asked for"
        )
    if len(picked) and (picked.min() < 0 or picked.max() >= len(roster)):
        raise SelectionError(
            f"selector {name} returned client {picked[(picked < 0) | (picked >= len(roster))][0]} "
            f"in round {turn + 1}, and there are clients 0 to {len(roster) - 1}"
        )
    if len(np.unique(picked)) < len(picked):
        values, times = np.unique(picked, return_counts=True)
        raise SelectionError(
            f"selector {name} returned client {values[times > 1][0]} more than once in round "
            f"{turn + 1}"
        )
    return picked.astype(np.int64)


def is_unbiased(selector: Selector) -> bool:
    """Whether clients are to be weighed by the inverse of their inclusion probabilities."""
    return bool(getattr(selector, "unbiased", False))


def weigh(simulation: Simulation, clients: Ints, picked: int) -> Floats:
    """What each client of a cohort counts for.

    As the strategy has it, summing to one; or, for a selector that is to be unbiased, each with
    its share of the whole population over its inclusion probability (Horvitz and Thompson, 1952),
    so that the expected sum is what training everybody would give.
    """
    strategy, sizes = simulation.strategy, simulation.sizes
    if not is_unbiased(simulation.selector):
        return strategy.weights(sizes[clients].tolist(), [0] * len(clients))
    selector = cast(Unbiased, simulation.selector)

    def shares() -> Floats:
        raw = strategy.weighting(Seen(sizes.astype(float), np.zeros(len(sizes))))
        raw = np.where(sizes > 0, raw, 0.0)
        return np.asarray(raw / raw.sum())

    share = simulation.roster.derive(("share", repr(strategy.weighting)), ("examples",), shares)
    return share[clients] / selector.inclusion(simulation.roster, picked, clients)


def is_summed(strategy: Strategy) -> bool:
    """Whether a sum of updates, each with a weight that is known before, is all that is needed."""
    return strategy.reducer.linear and not strategy.look


def needs_norms(strategy: Strategy) -> bool:
    """Whether a sum of updates, weighed by how long each change is, is all that is needed."""
    return strategy.reducer.linear and strategy.look == "norms"


def fold(simulation: Simulation, each: Tensor, examples: Ints, staleness: list[int]) -> Tensor:
    """What a strategy makes of updates that it has to have one by one."""
    strategy = simulation.strategy
    seen = look(simulation, each) if strategy.look else None
    weights = strategy.weights(examples.tolist(), staleness, products=seen)
    return cast(Tensor, strategy.fold(each, weights.tolist(), simulation.flat))


def look(simulation: Simulation, each: Tensor) -> Column:
    """What a strategy has to see of updates before it weighs them."""
    # a running mean's variance is no direction that training went into
    trained = slice(0, simulation.trained)
    looking = Looking(simulation.strategy.look, len(each))
    looking.add_all(list(each[:, trained]), simulation.flat[trained])
    return looking.products


def by_norms(simulation: Simulation, clients: Ints) -> Floats:
    """What each client counts for by how far it goes, without holding more than some updates."""
    strategy, engine, sizes = simulation.strategy, simulation.engine, simulation.sizes
    some = max(1, HELD_BYTES // (4 * len(simulation.flat)))
    norms: list[Column] = []
    for start in range(0, len(clients), some):
        chosen = clients[start : start + some]
        cohort = Cohort(simulation.round, chosen, np.full(len(chosen), 1 / len(chosen)))
        each = cast(Tensor, engine.run(simulation.flat, cohort, each=True).each)
        norms.append(look(simulation, each))
    examples, staleness = sizes[clients].tolist(), [0] * len(clients)
    return strategy.weights(examples, staleness, products=np.concatenate(norms))


class Cohorts:
    """Everybody starts from the newest version, and it waits for those that count."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def advance(self, simulation: Simulation) -> Version:
        """One round."""
        turn, clock = simulation.round, simulation.clock
        wanted = simulation.cohort
        asked = min(int(np.ceil(wanted * self.pace.over)), len(simulation.population))
        started = time.perf_counter()
        picked = pick(simulation, asked, turn)
        selecting = time.perf_counter() - started
        clients = picked[simulation.sizes[picked] > 0]
        skipped, dropped = len(picked) - len(clients), 0
        virtual = simulation.virtual
        if clock is not None:
            trained = simulation.recipe.examples_for(simulation.sizes[clients])
            kept, seconds = keep_in_time(clock.durations(clients, trained), wanted, self.pace)
            dropped, clients = len(clients) - len(kept), clients[kept]
            virtual += seconds
        examples = simulation.sizes[clients]
        losses = values = None
        if len(clients):
            losses, values = self._train(simulation, clients, len(picked))
        left_out = (skipped, dropped)
        return Version(clients, examples, losses, picked, *left_out, virtual, selecting, values)

    def _train(
        self, simulation: Simulation, clients: Ints, picked: int
    ) -> tuple[Tensor, Tensor | None]:
        engine, turn, size = simulation.engine, simulation.round, len(simulation.flat)
        if is_summed(simulation.strategy):
            weights = weigh(simulation, clients, picked)
            learned = engine.run(simulation.flat, Cohort(turn, clients, weights))
            reduced = cast(Tensor, learned.total)
        elif needs_norms(simulation.strategy) and 4 * size * len(clients) > HELD_BYTES:
            # rather trained twice than held
            weights = by_norms(simulation, clients)
            learned = engine.run(simulation.flat, Cohort(turn, clients, weights))
            rest = 1.0 - float(weights.sum())
            reduced = cast(Tensor, learned.total) + rest * simulation.flat
        else:
            weights = np.full(len(clients), 1 / len(clients))
            learned = engine.run(simulation.flat, Cohort(turn, clients, weights), each=True)
            examples, staleness = simulation.sizes[clients], [0] * len(clients)
            reduced = fold(simulation, cast(Tensor, learned.each), examples, staleness)
        if (rest := 1.0 - float(weights.sum())) and is_unbiased(simulation.selector):
            # weights are an estimate of shares, and what they leave over stays where it is
            reduced = reduced + rest * simulation.flat
        simulation.arrive(reduced)
        return learned.losses, learned.values

    def mark(self) -> tuple[Any, ...]:
        """Nothing to come back to."""
        return ()

    def return_to(self, mark: tuple[Any, ...]) -> None:
        """Nothing to undo."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Nothing is under way between rounds."""
        return {}, {}

    def restore(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Nothing to put back."""


@dataclass(frozen=True)
class Flight:
    """A client that is training: who, from which version on, and when it will be done."""

    client: int
    version: int
    arrival: float


_TRIES = 1000
"""How often clients are asked when nobody is there: they come and go."""
_LEARNED = ("learned", "learned losses", "learned values")


class Flights:
    """A fixed number of clients are always training, each from the version it found.

    Those that start from the same version are trained together, at the latest before it is
    replaced; until a client's time has come, what it learned is kept.
    """

    def __init__(self, pace: Buffered) -> None:
        self.pace = pace
        self._flights: dict[int, Flight] = {}
        self._queue: list[tuple[float, int]] = []
        self._fresh: list[int] = []
        self._learned: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._asked = 0

    def advance(self, simulation: Simulation) -> Version:
        """Go on until enough updates have arrived to make a version of."""
        arrived: list[int] = []
        flights: list[Flight] = []
        virtual, asked, selecting = simulation.virtual, [np.zeros(0, np.int64)], 0.0
        while len(arrived) < self.pace.buffer:
            started = time.perf_counter()
            for _ in range(_TRIES):
                asked.append(self._ask(simulation, virtual))
                if self._queue:
                    break
            selecting += time.perf_counter() - started
            if not self._queue:
                raise SelectionError("no client with data can be reached, and none is training")
            if self._queue[0][1] in self._fresh:
                self._train(simulation)
            virtual, place = heapq.heappop(self._queue)
            arrived.append(place)
            flights.append(self._flights.pop(place))
        self._train(simulation)
        learned, losses, values = zip(*(self._learned.pop(place) for place in arrived), strict=True)
        clients = np.array([flight.client for flight in flights])
        examples = simulation.sizes[clients]
        staleness = [simulation.round - flight.version for flight in flights]
        simulation.arrive(self._reduce(simulation, learned, examples, staleness))
        lost, worth = (torch.stack([each.cpu() for each in those]) for those in (losses, values))
        valuations = None if simulation.value is None else worth
        picked = np.concatenate(asked)
        late = tuple(staleness)
        return Version(clients, examples, lost, picked, 0, 0, virtual, selecting, valuations, late)

    def _ask(self, simulation: Simulation, now: float) -> Ints:
        """Have as many clients training as there should be, of those that can be reached."""
        clock = cast(VirtualClock, simulation.clock)
        free = simulation.sizes > 0
        free[[flight.client for flight in self._flights.values()]] = False
        clients = pick(simulation, self.pace.concurrency - len(self._flights), self._asked, free)
        examples = simulation.recipe.examples_for(simulation.sizes[clients])
        durations = clock.durations(clients, examples)
        for client, seconds in zip(clients.tolist(), durations.tolist(), strict=True):
            flight = Flight(client, simulation.round, now + seconds)
            self._flights[self._asked] = flight
            heapq.heappush(self._queue, (flight.arrival, self._asked))
            self._fresh.append(self._asked)
            self._asked += 1
        # where nobody could be reached, the next try is another draw
        self._asked += not len(clients)
        return clients

    def _train(self, simulation: Simulation) -> None:
        """Train all that started from the current version, in one go."""
        if not self._fresh:
            return
        clients = np.array([self._flights[place].client for place in self._fresh])
        even = np.full(len(clients), 1 / len(clients))
        # a client may be asked twice for one version: not to do the very same again
        cohort = Cohort(simulation.round, clients, even, draw=self._asked)
        learned = simulation.engine.run(simulation.flat, cohort, each=True)
        each = cast(Tensor, learned.each)
        if self.pace.adding == "deltas":
            each = each - simulation.flat
        values = torch.zeros(len(each)) if learned.values is None else learned.values
        for place, *result in zip(self._fresh, each, learned.losses, values, strict=True):
            self._learned[place] = cast("tuple[Tensor, Tensor, Tensor]", tuple(result))
        self._fresh = []

    def _reduce(
        self,
        simulation: Simulation,
        learned: tuple[Tensor, ...],
        examples: Ints,
        staleness: list[int],
    ) -> Tensor:
        strategy, current = simulation.strategy, simulation.flat
        each = torch.stack([values.to(current.device) for values in learned])
        if self.pace.adding == "deltas":
            each += current
        if not is_summed(strategy):
            return fold(simulation, each, examples, staleness)
        # the current version takes part like a member's own params, on no examples of its own
        weights = strategy.weights([0, *examples.tolist()], [0, *staleness], own=0).tolist()
        return cast(Tensor, strategy.fold((current, *each), weights, current))

    def mark(self) -> tuple[Any, ...]:
        """What to come back to if the next version is not completed."""
        kept = (self._flights, self._queue, self._fresh, self._learned)
        return (*(part.copy() for part in kept), self._asked)

    def return_to(self, mark: tuple[Any, ...]) -> None:
        """Undo what was done since."""
        self._flights, self._queue, self._fresh, self._learned, self._asked = mark

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that is under way."""
        places = list(self._flights)
        facts = {
            "flights": [[p, f.client, f.version, f.arrival] for p, f in self._flights.items()],
            "asked": self._asked,
        }
        if not places:
            return {}, facts
        learned = [self._learned[place] for place in places]
        arrays = {
            name: torch.stack([result[i].cpu() for result in learned]).numpy()
            for i, name in enumerate(_LEARNED)
        }
        return arrays, facts

    def restore(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Put back what was under way."""
        self._asked = facts["asked"]
        self._flights = {p: Flight(c, v, arrival) for p, c, v, arrival in facts["flights"]}
        self._queue = sorted((flight.arrival, place) for place, flight in self._flights.items())
        self._fresh = []
        for i, place in enumerate(self._flights):
            learned, loss, value = (torch.tensor(arrays[name][i]) for name in _LEARNED)
            self._learned[place] = (learned, loss, value)
