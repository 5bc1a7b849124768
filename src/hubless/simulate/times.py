"""Virtual time: how long clients would take, without waiting for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hubless.checks import fitting, number, one_of, takes, whole
from hubless.errors import SelectionError
from hubless.rng import keys, stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


def constant(value: float) -> Draw:
    """The same for every client.

    Args:
        value: What each client has.

    >>> constant(3.0)(np.random.default_rng(0), 2)
    array([3., 3.])
    """
    value = number("value", value, error=SelectionError)
    return lambda rng, clients: np.full(clients, value)


def lognormal(median: float, spread: float = 1.0) -> Draw:
    """Heavy-tailed, as devices are: half of the clients are above the median, a few far above.

        median · e^(spread · z)        z normal, drawn for each client

    Args:
        median: What the client in the middle has, above 0.
        spread: The standard deviation of the logarithm, at least 0. With 0.5 two clients in three
            are within a factor of 1.65 of the median, with 1.0 within 2.7.

    >>> lognormal(10.0, 0.5)(np.random.default_rng(0), 3).round(1)
    array([10.6,  9.4, 13.8])
    """
    median = number("median", median, above=0, error=SelectionError)
    spread = number("spread", spread, least=0, error=SelectionError)
    return lambda rng, clients: median * np.exp(spread * rng.standard_normal(clients))


def uniform(low: float, high: float) -> Draw:
    """Anything between two bounds, all alike.

    Args:
        low: The least a client has.
        high: The most a client has.
    """
    low = number("low", low, error=SelectionError)
    high = number("high", high, least=low, error=SelectionError)
    return lambda rng, clients: rng.uniform(low, high, clients)


@dataclass(frozen=True)
class Devices:
    """How clients' devices differ; what each is capable of is drawn once, from the seed.

        seconds = bytes of the model / down + examples / speed + bytes of the model / up

    That is how long a client takes for a round; examples are counted as often as it trains on them.

    Args:
        speed: Examples trained per second; lognormal around 100 if not given.
        down: Bytes received per second; lognormal around 2 MB if not given.
        up: Bytes sent per second; lognormal around 500 kB if not given.
        availability: The share of rounds in which a client can be reached, 0 to 1, drawn anew in
            each round. If not given everybody always can.

    >>> from hubless.simulate import Devices, constant, uniform
    >>> devices = Devices(speed=constant(50.0), availability=uniform(0.1, 0.9))
    """

    speed: Draw = field(default_factory=lambda: lognormal(100.0, 0.5))
    down: Draw = field(default_factory=lambda: lognormal(2e6, 0.7))
    up: Draw = field(default_factory=lambda: lognormal(5e5, 0.7))
    availability: Draw | None = None

    def __post_init__(self) -> None:
        meant = "a function of (rng, clients), such as hubless.simulate.lognormal(100.0)"
        for name in ("speed", "down", "up"):
            draw = getattr(self, name)
            fitting(name, draw, takes(draw, 2), meant, error=SelectionError)
        draw = self.availability
        fits = draw is None or takes(draw, 2)
        fitting("availability", draw, fits, meant, error=SelectionError)


@dataclass(frozen=True)
class Pace:
    """Synchronous rounds: ask more clients than are needed, and keep the first that come back.

    A round lasts until the last client that counts is there. Where fewer than the cohort are back
    by the deadline, it lasts until then.

    Args:
        over: How many times the cohort is asked, at least 1. 1.3 asks 13 clients where 10 are
            needed, so that the three slowest keep nobody waiting. Their work is lost, and slow
            clients are heard less often.
        deadline: Virtual seconds after which a client is dropped, above 0. Without one a round
            waits for all that it needs.

    Reference:
        Bonawitz et al., "Towards Federated Learning at Scale: System Design", 2019.
    """

    over: float = 1.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        number("over", self.over, least=1, error=SelectionError)
        if self.deadline is not None:
            number("deadline", self.deadline, above=0, error=SelectionError)


@dataclass(frozen=True)
class Buffered:
    """Asynchronous: clients train all the time, and after so many answers there is a new version.

    Nobody waits for slow clients. They start from a version that is old when they answer, and the
    strategy sees by how many versions: `FedBuff`, `FedAsync` or `ByStaleness` let that count. A
    round is a version, and the simulation's `cohort` only helps to choose how to compute.

    Args:
        concurrency: How many clients train at any time, at least 1. More make progress faster and
            updates staler: by about concurrency / buffer versions on average.
        buffer: How many answers a version is made of, at least 1.
        adding: What an answer is. "deltas" adds what a client learned to the version it meets, as
            FedBuff does; "params" mixes in its params as they are, as FedAsync does with
            `buffer=1`.

    Reference:
        Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022. Xie,
        Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.
    """

    concurrency: int = 100
    buffer: int = 10
    adding: str = "deltas"

    def __post_init__(self) -> None:
        whole("concurrency", self.concurrency, least=1, error=SelectionError)
        whole("buffer", self.buffer, least=1, error=SelectionError)
        one_of("adding", self.adding, ("deltas", "params"), error=SelectionError)


class VirtualClock:
    """The time each client takes for its part, and who is there to ask."""

    def __init__(self, devices: Devices, clients: int, model_bytes: int, seed: int) -> None:
        self.seed, self.model_bytes = seed, model_bytes
        self.speed = _positive("speed", _drawn("speed", devices.speed, seed, clients))
        down = _positive("down", _drawn("down", devices.down, seed, clients))
        up = _positive("up", _drawn("up", devices.up, seed, clients))
        self.transfer = model_bytes / down + model_bytes / up
        self.availability = None
        if devices.availability is not None:
            share = _drawn("availability", devices.availability, seed, clients)
            if np.isnan(share).any():
                raise SelectionError("a device's availability is a share of rounds, and not NaN")
            self.availability = np.clip(share, 0.0, 1.0)

    def durations(self, clients: Ints, examples: Ints) -> Floats:
        """Seconds from asking a client, who trains on so many examples, to its answer."""
        return np.asarray(self.transfer[clients] + examples / self.speed[clients])

    def digest(self) -> str:
        """What two clocks share only if their devices are the same."""
        columns = (self.speed, self.transfer, self.availability)
        parts = (b"" if column is None else column.tobytes() for column in columns)
        return hashlib.blake2b(b"|".join(parts), digest_size=8).hexdigest()

    def available(self, round: int) -> NDArray[np.bool_] | None:
        """Who can be reached in a round."""
        if self.availability is None:
            return None
        drawn = keys(self.seed, "available", round, np.arange(len(self.availability)))
        return np.asarray((drawn >> np.uint64(11)) * 2.0**-53 < self.availability)


def keep_in_time(durations: Floats, wanted: int, pace: Pace) -> tuple[Ints, float]:
    """Positions of those whose answers count, in the order they were asked, and the seconds.

    Args:
        durations: How long each client that was asked takes, in seconds.
        wanted: How many answers are needed.
        pace: Its deadline is kept to.

    >>> keep_in_time(np.array([5.0, 1.0, 9.0, 2.0]), 2, Pace(over=2.0))
    (array([1, 3]), 2.0)
    """
    order = np.argsort(durations, kind="stable")[:wanted]
    if pace.deadline is not None:
        order = order[durations[order] <= pace.deadline]
    if not len(order):
        return order, float(pace.deadline or 0.0)
    complete = len(order) == min(wanted, len(durations))
    seconds = float(durations[order].max()) if complete else float(pace.deadline or 0.0)
    return np.sort(order), seconds


def _drawn(name: str, draw: Draw, seed: int, clients: int) -> Floats:
    values = np.asarray(draw(stream(seed, name), clients))
    if values.shape != (clients,) or values.dtype.kind not in "iuf":
        raise SelectionError(
            f"a device's {name} is a number for each of {clients} clients, and what draws it gave "
            f"{values.dtype} of shape {values.shape}"
        )
    return values


def _positive(name: str, values: Floats) -> Floats:
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise SelectionError(f"a device's {name} must be finite and above 0 for every client")
    return values
