"""A simulation: rounds of select, train, aggregate, evaluate, over a population of any size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.checks import fitting, folder_of, whole
from hubless.data.index import in_turn
from hubless.data.population import Population
from hubless.errors import DataError, Diverged, HublessError, SelectionError
from hubless.events import Ended, Events, Listeners, Started, listeners_of
from hubless.rng import stream
from hubless.select.custom import without_addresses
from hubless.select.roster import Roster, Selector, check_selector
from hubless.select.uniform import Uniform
from hubless.simulate import checkpoint
from hubless.simulate.callbacks import Callback, Checkpoint, Remembering
from hubless.simulate.checking import (
    callbacks_of,
    check_cohort,
    check_ledger,
    check_parts,
    check_people,
    check_selection,
)
from hubless.simulate.circumstances import circumstances
from hubless.simulate.engine.machine import Local
from hubless.simulate.evaluate import Evaluation
from hubless.simulate.history import FinishedRound
from hubless.simulate.interrupt import unbroken
from hubless.simulate.job import Engine, Job
from hubless.simulate.rounds import Cohorts, Flights, Version
from hubless.simulate.times import Buffered, Devices, Pace, VirtualClock
from hubless.simulate.ways.step import threads
from hubless.strategy.base import Strategy
from hubless.strategy.fedavg import FedAvg
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from hubless.train.values import LossOverRoot, UpdateNorm, Value

if TYPE_CHECKING:
    import polars

    from hubless.privacy.ledger import Ledger
    from hubless.privacy.mechanisms import Mechanism

_HELD_BACK = 10
"""On a GPU, reading a loss waits for it: so many rounds are reported at once."""

_USUAL_VALUES: dict[str, Value] = {"losses": LossOverRoot(), "update norms": UpdateNorm()}
"""What selectors mean that say what they look at."""


class EngineChoice(Protocol):
    """What starts an engine: `Local`, or `Ray`."""

    def start(self, job: Job, cohort: int, rounds: int) -> Engine:
        """An engine for this job, cohorts of this size and about so many rounds."""
        ...


class Simulation:
    """Trains a task over a population, a cohort per round.

    In a round the selector picks a cohort, each of its clients trains by the recipe, and the
    strategy makes the next version of what they learned. The same seed gives the same result. What
    is known of every client is in `roster`, what happened in each round in `history`, and the
    current version in `params`.

    Args:
        task: The model, its loss and metrics. Training starts from the params that its module has.
        population: Who has which examples.
        recipe: What a client does with its data; `Recipe()` if not given: one epoch of SGD, in
            batches of 10.
        strategy: How updates become the next version; `FedAvg()` if not given.
        selector: Who trains next; `Uniform()` if not given. An unbiased one (`OptimalSampling`,
            `Activity` with `unbiased`) needs a strategy that takes a mean, and a `Pace`.
        value: What training a client is worth, for selectors that look at that. `Active`, `Oort`
            and `PowerOfChoice` get `LossOverRoot()` if not given, and `OptimalSampling` gets
            `UpdateNorm()`; others get nothing.
        private: The noise that clients add to these values before anybody sees them, such as
            `Laplace`; none if not given. It needs a `value`, given or usual.
        ledger: Counts what `private` gives away; one without a budget if not given. With a budget,
            clients stop reporting when it is spent.
        cohort: How many clients train in a round, unless `pace` is `Buffered`: a whole number, or a
            share of all in (0, 1]. 1 is one client and 1.0 is everybody.
        seed: Whatever is drawn during the run follows from it. The params that training starts from
            do not: they are in the module already.
        engine: What computes: `Local()` if not given, or `Ray(...)`.
        test: What is evaluated. Without it there is no evaluation during the run.
        evaluate_every: Rounds between two evaluations of `test`; the last round of a run always has
            one. 0 evaluates the last one only.
        devices: What clients' devices are capable of, which gives a virtual clock. If not given
            there is no clock, unless `pace` needs one: then `Devices()`. `Oort` and `Reachable` go
            by what they are.
        pace: `Pace` for rounds that wait for clients, or `Buffered` for versions that wait for
            nobody, best with `FedBuff` or `FedAsync`. `Pace()` if not given: everybody asked is
            waited for.
        callbacks: Called after each round; a true answer ends the run. `Checkpoint`, `EarlyStop`
            and `BestModel` are some.
        events: A function that is called with each event, a file to which each is appended as a
            line of JSON, or a list of these.
        name: What the run is called in its events.

    >>> from torch import nn
    >>> from hubless.train import SGD
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((200, 4), dtype=np.float32)
    >>> people = Population.by({"x": x, "y": (x[:, 0] > 0).astype(int)}, np.arange(200) % 20)
    >>> simulation = Simulation(Task(nn.Linear(4, 2)), people, recipe=Recipe(SGD(0.5)), cohort=5,
    ...                         engine=Local(lanes=0, compiled=False, processes=1), test=people)
    >>> simulation.run(rounds=10)
    >>> simulation.history["loss"][-1] < 0.5
    True
    """

    def __init__(
        self,
        task: Task,
        population: Population,
        *,
        recipe: Recipe | None = None,
        strategy: Strategy | None = None,
        selector: Selector | None = None,
        value: Value | None = None,
        private: Mechanism | None = None,
        ledger: Ledger | None = None,
        cohort: float = 10,
        seed: int = 0,
        engine: EngineChoice | None = None,
        test: Population | None = None,
        evaluate_every: int = 10,
        devices: Devices | None = None,
        pace: Pace | Buffered | None = None,
        callbacks: Iterable[Callback] = (),
        events: Listeners = (),
        name: str = "simulation",
    ) -> None:
        check_parts({"task": task, "population": population, "test": test, "name": name})
        check_parts({"recipe": recipe, "strategy": strategy})
        check_parts({"value": value, "private": private, "ledger": ledger})
        check_parts({"engine": engine, "devices": devices, "pace": pace})
        if selector is not None:
            check_selector(selector)
        check_ledger(ledger, private=private is not None, clients=len(population))
        self.name, self.task, self.population = name, task, population
        self.recipe, self.strategy = recipe or Recipe(), strategy or FedAvg()
        self.selector: Selector = selector or Uniform()
        if value is None:
            value = _USUAL_VALUES.get(getattr(self.selector, "looks_at", ""))
        self.value, self.private = value, private
        self.cohort = check_cohort(cohort, len(population))
        self.seed = seed = whole("seed", seed, least=0, error=HublessError)
        self.evaluate_every = whole("evaluate_every", evaluate_every, least=0, error=HublessError)
        tested, is_private = test is not None, private is not None
        self.callbacks = callbacks_of(callbacks, task, tested=tested, private=is_private)
        self.events = Events(listeners_of(events))
        self.sizes = population.sizes
        self._choice = engine or Local()
        self._job = Job(task, self.recipe, population, seed, value)
        self._test = test
        pace = pace or Pace()
        if isinstance(pace, Buffered) or pace.over > 1 or pace.deadline is not None:
            devices = devices or Devices()
        size = 4 * self._job.layout.size
        self.clock = None if devices is None else VirtualClock(devices, len(population), size, seed)
        self.roster = self._roster()
        self.ledger = ledger or (None if private is None else _ledger(len(population)))
        self._pace = Flights(pace) if isinstance(pace, Buffered) else Cohorts(pace)
        self._engine: Engine | None = None
        self._kept, self._threads = False, torch.get_num_threads()
        self._evaluation: Evaluation | None = None
        self._unreported: list[FinishedRound] = []
        self.flat = self._job.layout.flatten(task.module)
        self._slots: tuple[Tensor, ...] = ()
        self._steps_before = 0
        self.round = 0
        self.virtual = 0.0
        self.rows: list[dict[str, float]] = []
        check_people(task, population, test)
        waits = isinstance(pace, Pace)
        check_selection(self.selector, self.strategy, waits=waits)
        if private is not None and value is None:
            raise SelectionError("private is about valuations, and there are none: give a value")

    @property
    def params(self) -> dict[str, Tensor]:
        """The current version, by name."""
        return self._job.layout.named(self.flat)

    @property
    def engine(self) -> Engine:
        """What trains cohorts; it is started with the first round."""
        if self._engine is None:
            raise HublessError("the engine runs only during run()")
        return self._engine

    @property
    def history(self) -> polars.DataFrame:
        """One row per round.

        `clients` and `examples` are those whose updates counted, `skipped` had no examples, and
        `dropped` came back too late. `train_loss` is the mean over all examples trained on.
        `bytes_down` and `bytes_up` are what would have travelled, `seconds` is real time and
        `virtual` that of the clients' clock since the start. Where a round was evaluated there is
        the `loss` and every metric of the task; `epsilon` is what the client that gave away most
        has given away.
        """
        import polars

        return polars.DataFrame(self.rows, infer_schema_length=None)

    def run(self, rounds: int) -> None:
        """Go on until `rounds` rounds are done in all; `history` then has a row for each.

        Interrupting (Ctrl-C) leaves the state of the last complete round, which a `Checkpoint`
        among the callbacks also saves.

        Args:
            rounds: In all, those of earlier calls and of a resumed run included.
        """
        rounds = whole("rounds", rounds, least=1, error=HublessError)
        if self.round >= rounds:
            return
        drawn = torch.get_rng_state()
        if self._engine is None:
            self._threads = torch.get_num_threads()
            self._engine = self._choice.start(self._job, self.cohort, rounds)
        self.flat = self.flat.to(self._engine.device)
        self._slots = tuple(slot.to(self._engine.device) for slot in self._slots)
        if self._test is not None and self._evaluation is None:
            self._evaluation = Evaluation(self.task, self._test, self._engine.device, self.recipe)
        settings = {**self._settings(), "rounds": rounds}
        self.events.emit(Started(client=self.name, round=self.round, settings=settings))
        reason = "failed"
        try:
            stop = False
            while self.round < rounds and not stop:
                stop = self._step(last=self.round + 1 == rounds)
            reason = "stopped" if stop else "complete"
        except KeyboardInterrupt:
            reason = "interrupted"
            self._report()
            raise
        finally:
            try:
                if reason != "failed":
                    self._save_last()
            finally:
                # workers that were interrupted may be in the middle of anything
                if not self._kept or reason in ("failed", "interrupted"):
                    self._stop()
                # what the caller draws next is none of this run's business
                torch.set_rng_state(drawn)
                self.events.emit(Ended(client=self.name, round=self.round, reason=reason))

    def __enter__(self) -> Simulation:
        """Keep the engine between calls of `run`, until the block ends."""
        self._kept = True
        return self

    def __exit__(self, *_: object) -> None:
        self._kept = False
        self._stop()

    def _stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            torch.set_num_threads(self._threads)

    def evaluate(self, test: Population | None = None) -> dict[str, float]:
        """Loss and metrics of the current version, each the mean over all examples.

        Args:
            test: What to evaluate on; that of the simulation if not given.
        """
        return {name: float(mean) for name, mean in self._on(test).means(self.flat).items()}

    def evaluate_by_client(self, test: Population | None = None) -> polars.DataFrame:
        """Loss and metrics of the current version, one row for each client of a test population.

        Args:
            test: What to evaluate on; that of the simulation if not given.
        """
        import polars

        evaluation = self._on(test)
        columns = evaluation.by_client(self.flat)
        named = range(len(evaluation.test))
        return polars.DataFrame({"client": named, "examples": evaluation.test.sizes, **columns})

    def evaluate_by_example(self, test: Population | None = None) -> dict[str, NDArray[np.float32]]:
        """Loss and metrics of the current version, for every example in client order.

        Args:
            test: What to evaluate on; that of the simulation if not given.
        """
        values = self._on(test).values(self.flat)
        return {name: each.cpu().numpy() for name, each in values.items()}

    def go_on_from(self, earlier: Simulation, *, optimizer: bool = False) -> None:
        """Start from the params that another simulation ended with, such as last month's.

        Args:
            earlier: A simulation of the same model.
            optimizer: Take over what its server optimizer remembers, too; both need strategies with
                the same slots.
        """
        meant = "the simulation to go on from"
        fitting("earlier", earlier, isinstance(earlier, Simulation), meant, error=DataError)
        if self.round:
            raise DataError(f"{self.round} rounds are done: it is too late to start from elsewhere")
        if len(earlier.flat) != len(self.flat):
            raise DataError("the earlier simulation trained another model")
        if optimizer and earlier.strategy.optimizer.slots != self.strategy.optimizer.slots:
            raise DataError(
                f"what {earlier.strategy!r} remembers is nothing that {self.strategy!r} can use"
            )
        self.flat = earlier.flat.clone()
        if optimizer:
            self._slots = tuple(slot.clone() for slot in earlier._slots)
            self._steps_before = earlier.round + earlier._steps_before

    @property
    def trained(self) -> int:
        """So many of the params, the first ones, are trained; buffers follow them."""
        return self._job.layout.trained[-1].stop

    def arrive(self, reduced: Tensor) -> None:
        """Take the strategy's step towards what updates were reduced to."""
        current = self.flat
        # buffers are averaged and no more: momentum could make a variance negative
        trained = slice(0, self.trained)
        step = self.round + self._steps_before
        here, there = current[trained], reduced[trained]
        following, slots = self.strategy.advance(here, there, here, self._slots, step)
        self.flat = cast(Tensor, following)
        if self._job.layout.has_buffers:
            self.flat = torch.cat([self.flat, reduced[trained.stop :].to(current)])
        self._slots = cast("tuple[Tensor, ...]", slots)

    def save(self, folder: str | Path) -> Path:
        """Write everything that is needed to go on into a folder, whole or not at all.

        Args:
            folder: Is made if it is not there.
        """
        folder = folder_of("folder", folder, error=DataError)
        self._report()
        arrays: dict[str, NDArray[Any]] = {"params": self.flat.cpu().numpy()}
        if not np.isfinite(arrays["params"]).all():
            raise Diverged(f"params are not finite after round {self.round}", -1, self.round)
        for name, slot in zip(self.strategy.optimizer.slots, self._slots, strict=False):
            arrays[f"slot {name}"] = slot.cpu().numpy()
        arrays.update({f"roster {name}": column for name, column in self.roster.state().items()})
        if self.ledger is not None:
            spent = self.ledger.state()
            arrays.update({f"ledger {name}": column for name, column in spent.items()})
        more, facts = self._pace.state()
        for i, callback in enumerate(self.callbacks):
            if isinstance(callback, Remembering):
                kept = callback.state()
                arrays.update({f"callback {i} {name}": array for name, array in kept.items()})
        state = {"round": self.round, "virtual": self.virtual, "rows": self.rows, "pace": facts}
        state["steps before"] = self._steps_before
        about = {"fingerprint": self._fingerprint(), **state}
        return checkpoint.write(folder, {**arrays, **more}, about)

    def resume(self, folder: str | Path) -> bool:
        """Take the state from a folder's checkpoint; False where there is none yet.

        Refused where the checkpoint is of another simulation: other clients, settings or seed.

        Args:
            folder: Where a `Checkpoint` or `save` wrote.
        """
        folder = folder_of("folder", folder, error=DataError)
        if not (folder / checkpoint.NAME).exists():
            return False
        arrays, facts = checkpoint.read(folder)
        mine = self._fingerprint()
        if different := [
            name for name, value in mine.items() if facts["fingerprint"][name] != value
        ]:
            raise DataError(
                f"the checkpoint in {folder} is of another simulation: its {different[0]} is "
                f"{facts['fingerprint'][different[0]]}, here it is {mine[different[0]]}"
            )
        self.flat = torch.tensor(arrays["params"])
        names = self.strategy.optimizer.slots
        self._slots = tuple(
            torch.tensor(arrays[f"slot {name}"]) for name in names if f"slot {name}" in arrays
        )
        self.round, self.virtual, self.rows = facts["round"], facts["virtual"], facts["rows"]
        self._steps_before = facts.get("steps before", 0)
        self._pace.restore(arrays, facts["pace"])
        for i, callback in enumerate(self.callbacks):
            if isinstance(callback, Remembering):
                callback.restore(_below(f"callback {i} ", arrays))
        self.roster = self._roster()
        self.roster.restore(_below("roster ", arrays))
        if self.ledger is not None:
            self.ledger.restore(_below("ledger ", arrays))
        return True

    def _step(self, last: bool) -> bool:
        """One round; True where a callback has had enough."""
        started = time.perf_counter()
        before = (self.flat, self._slots, self.round, self.virtual), self._pace.mark()
        complete = False
        try:
            version = self._pace.advance(self)
            number = self.round + 1
            due = last or (self.evaluate_every > 0 and number % self.evaluate_every == 0)
            evaluation = self._evaluation if due else None
            trained = time.perf_counter()
            measured: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] = {}, {}
            if evaluation is not None:
                # those who trained have nothing to do meanwhile
                with threads(min(self._threads, self.engine.describe().get("processes", 1))):
                    measured = evaluation.measured(self.flat)
            # here, where it may wait for a GPU, and not where the round is written down
            values = None if version.values is None else version.values.double().cpu().numpy()
            with unbroken():
                self.round, self.virtual = number, version.virtual
                valuations, epsilon = self._note(version, values)
                took = time.perf_counter() - started
                training = trained - started - version.selecting
                phases = {
                    "select": version.selecting,
                    "train": training,
                    "evaluate": took - training - version.selecting,
                }
                figures = (*measured, phases, took, valuations, epsilon)
                self._unreported.append(FinishedRound(self.name, number, version, *figures))
                complete = True
        except BaseException:
            # a round is complete or has not been
            if not complete:
                (self.flat, self._slots, self.round, self.virtual), mark = before
                self._pace.return_to(mark)
            raise
        at_hand = self.engine.device.type == "cpu" or evaluation is not None
        if at_hand or last or len(self._unreported) >= _HELD_BACK:
            return self._report()
        return False

    def _note(
        self, version: Version, values: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.float64] | None, float | None]:
        """Write into the roster who was picked, who answered, and what they said they are worth."""
        roster, clients = self.roster, version.clients
        roster.round = self.round - 1
        roster.record_selected(version.picked)
        if values is None:
            roster.record_seen(clients)
            return None, None
        epsilon = None
        if self.private is not None and self.ledger is not None:
            rng = stream(self.seed, "private", self.round)
            for those in in_turn(clients):
                values[those] = self.private.report(clients[those], values[those], self.ledger, rng)
            epsilon = self.ledger.spent()
        roster.record_seen(clients, values)
        return values, epsilon

    def _report(self) -> bool:
        """Read what rounds since the last time came to, and tell everyone."""
        stop = False
        while self._unreported:
            done = self._unreported[0]
            # this is where a GPU is waited for: whoever is interrupted here comes back to it
            row = done.row(self.recipe, 4 * self._job.layout.size)
            with unbroken():
                self.rows.append(row)
                del self._unreported[0]
                self.events.emit(done.event(row))
            # what others remember of a round is part of its checkpoint
            for callback in sorted(self.callbacks, key=lambda c: isinstance(c, Checkpoint)):
                stop = bool(callback(self, row)) or stop
        return stop

    def _save_last(self) -> None:
        for callback in self.callbacks:
            if isinstance(callback, Checkpoint):
                self.save(callback.folder)

    def _on(self, test: Population | None) -> Evaluation:
        if test is not None:
            check_parts({"test": test})
            return Evaluation(self.task, test, self.flat.device, self.recipe)
        if self._test is None:
            raise DataError("there is no test population: pass one")
        return self._evaluation or Evaluation(self.task, self._test, self.flat.device, self.recipe)

    def _roster(self) -> Roster:
        """What is known of clients before any of them trained."""
        if self.clock is None:
            return Roster(self.sizes)
        return Roster(self.sizes, availability=self.clock.availability, speed=self.clock.speed)

    def _settings(self) -> dict[str, Any]:
        return {
            **self._fingerprint(),
            **self._circumstances,
            "params": self._job.layout.size,
            "engine": dict(self.engine.describe()),
        }

    @cached_property
    def _circumstances(self) -> dict[str, Any]:
        return circumstances(self.population, self.task)

    def _fingerprint(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other stopped."""
        return {
            "seed": self.seed,
            "cohort": self.cohort,
            "clients": len(self.population),
            "examples": self.population.examples,
            "model": [[p.name, list(p.shape)] for p in self._job.layout.places],
            "recipe": without_addresses(self.recipe),
            "strategy": without_addresses(self.strategy),
            "selector": without_addresses(self.selector),
            "value": without_addresses(self.value),
            "private": without_addresses(self.private),
            "pace": without_addresses(self._pace.pace),
            "devices": None if self.clock is None else self.clock.digest(),
        }


def _ledger(clients: int) -> Ledger:
    from hubless.privacy.ledger import Ledger

    return Ledger(clients)


def _below(name: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(name): a for key, a in arrays.items() if key.startswith(name)}
