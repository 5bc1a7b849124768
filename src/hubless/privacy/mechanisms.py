"""Mechanisms: noise on what clients report, so that one report says little about their data.

Every mechanism has `report(clients, values, ledger, rng)`: what the server then holds of each of
these clients, with the cost written into the ledger. That is NaN only for a client which never
reported because its budget did not suffice for once.

Who is protected from what. Noise is added before a number leaves the client, so nobody has to be
trusted. `Laplace` and `Gaussian` hide a client's value as a whole: any two values within
[0, clip] are neighbours, a report's sensitivity is `clip`, and epsilon is per report of one
client. `Count` hides one example of a client: two clients are neighbours if one of them has an
example more. That a client takes part, and when, is not hidden. Several reports of a client
compose; the ledger adds them up.

Random numbers in floating point are a hole of their own: which floats a value plus noise can hit
depends on the value (Mironov 2012). So values are first rounded to a grid, and the noise to the
same grid: what is reported is a whole number of steps, and every number of steps is possible for
every value. That equals rounding the exact sum, and rounding gives nothing away. What is left
are probabilities that are wrong in the sixteenth digit, and tails that end after some 40 scales.

The generator must be the client's own secret. One that is seeded from what others know, as in a
simulation, makes results repeatable, and lets others take the noise off again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hubless.checks import fitting, number
from hubless.errors import DataError, PrivacyError
from hubless.privacy.accounting import Cost, sigma_for
from hubless.privacy.ledger import Floats, Ints, Ledger, Mask

_GRID = 1024
"""Steps from 0 to `clip`: far finer than any noise that hides something."""


class Mechanism(Protocol):
    """How clients report a number each."""

    def report(
        self, clients: Ints, values: Floats, ledger: Ledger, rng: np.random.Generator
    ) -> Floats:
        """What the server holds of these different clients, after those who could reported.

        Args:
            clients: Their numbers.
            values: What each of them has to report.
            ledger: What they pay with, and where what the server holds is written down.
            rng: Of the clients: who knows its seed can take the noise off again.
        """
        ...


class Additive:
    """Noise added to a value on a grid: what Laplace, Gaussian and Count have in common."""

    @property
    def sensitivity(self) -> float:
        """How far values of neighbours can be apart."""
        raise NotImplementedError

    @property
    def step(self) -> float:
        """The grid's."""
        raise NotImplementedError

    @property
    def cost(self) -> Cost:
        """Of one report."""
        raise NotImplementedError

    @property
    def most(self) -> float:
        """Values are cut off at 0 and here."""
        raise NotImplementedError

    def noise(self, size: int, rng: np.random.Generator) -> Floats:
        """In sensitivities."""
        raise NotImplementedError

    def on_grid(self, clients: Ints, values: Floats) -> Floats:
        """Values clipped and rounded, as whole numbers of steps."""
        _refuse(clients, values)
        return np.rint(np.clip(values, 0.0, self.most) / self.step)

    def report(
        self, clients: Ints, values: Floats, ledger: Ledger, rng: np.random.Generator
    ) -> Floats:
        """Everybody's value with fresh noise, as long as the budget lasts."""
        steps = self.on_grid(clients, values)
        able = ledger.afford(clients, self.cost)
        self.release(clients[able], steps[able], ledger, rng)
        return ledger.last[clients]

    def release(
        self, clients: Ints, steps: Floats, ledger: Ledger, rng: np.random.Generator
    ) -> None:
        """Give these to the server, and write down that it happened."""
        noise = self.noise(len(steps), rng) * (self.sensitivity / self.step)
        ledger.pay(clients, self.cost)
        ledger.last[clients] = (steps + np.rint(noise)) * self.step
        ledger.reports[clients] += 1


class _Clipped(Additive):
    clip: float

    @property
    def sensitivity(self) -> float:
        return self.clip

    @property
    def step(self) -> float:
        return self.clip / _GRID

    @property
    def most(self) -> float:
        return self.clip


@dataclass(frozen=True)
class Laplace(_Clipped):
    """Laplace noise on values between 0 and `clip`.

        report = min(max(value, 0), clip) + noise        noise ~ Laplace(scale = clip / epsilon)

    A client's value is hidden as a whole. Value and noise are rounded to a grid of clip / 1024.
    Reports may be below 0 or above `clip`: cutting them off would make their mean wrong.

    Args:
        epsilon: What one report of a client costs, above 0. At 1 the noise has the size of `clip`.
        clip: The largest value that is told apart, above 0. The smaller, the less noise is needed,
            and the more values look the same. Take one that most clients stay below; choose it from
            other data, as looking at these gives something away.

    >>> ledger = Ledger(2)
    >>> laplace = Laplace(epsilon=20.0, clip=4.0)
    >>> laplace.report(np.arange(2), np.array([1.0, 9.0]), ledger, np.random.default_rng(1))
    array([1.00390625, 4.4609375 ])
    >>> round(ledger.spent(), 3)
    20.0

    Reference:
        Dwork, McSherry, Nissim and Smith, "Calibrating Noise to Sensitivity in Private Data
        Analysis", 2006.
    """

    epsilon: float
    clip: float

    def __post_init__(self) -> None:
        _check(self, "epsilon", "clip")

    @property
    def cost(self) -> Cost:
        return Cost("laplace", self.epsilon)

    def noise(self, size: int, rng: np.random.Generator) -> Floats:
        return rng.laplace(0.0, 1.0 / self.epsilon, size)


@dataclass(frozen=True)
class Gaussian(_Clipped):
    """Gaussian noise on values between 0 and `clip`.

        report = min(max(value, 0), clip) + noise        noise ~ Normal(deviation = sigma · clip)

    A client's value is hidden as a whole. Value and noise are rounded to a grid of clip / 1024. One
    report has no finite epsilon at delta = 0; many of them compose better than Laplace's.

    Args:
        sigma: The standard deviation of the noise in multiples of `clip`, above 0. `promising`
            finds it for an epsilon.
        clip: The largest value that is told apart, above 0. The smaller, the less noise is needed,
            and the more values look the same.

    >>> round(Gaussian.promising(epsilon=1.0, delta=1e-6, clip=4.0).sigma, 3)
    4.225

    Reference:
        Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018.
    """

    sigma: float
    clip: float

    def __post_init__(self) -> None:
        _check(self, "sigma", "clip")

    @classmethod
    def promising(cls, epsilon: float, delta: float, clip: float) -> Gaussian:
        """With the least noise that makes a single report (epsilon, delta)-private.

        Args:
            epsilon: Above 0.
            delta: Within (0, 1), such as 1e-6.
            clip: The largest value that is told apart, above 0.
        """
        return cls(sigma_for(epsilon, delta), clip)

    @property
    def cost(self) -> Cost:
        return Cost("gaussian", self.sigma)

    def noise(self, size: int, rng: np.random.Generator) -> Floats:
        return rng.normal(0.0, self.sigma, size)


@dataclass(frozen=True)
class Count(Additive):
    """Laplace noise on a count of examples, such as those of high loss.

        report = count + noise        noise ~ Laplace(scale = 1 / epsilon), rounded

    One example more or less changes a count by at most 1, however many a client has. So nothing
    needs clipping, and the noise does not grow with what values may be. It hides an example and not
    the client: a client with n of them is hidden with n times the epsilon.

    Args:
        epsilon: What one report costs for one example, above 0. At 1 the noise is mostly below 3.

    >>> count = Count(epsilon=2.0)
    >>> count.report(np.arange(3), np.array([0.0, 7.0, 500.0]), Ledger(3), np.random.default_rng(1))
    array([  0.,   8., 499.])

    Reference:
        Goetz et al., "Active Federated Learning", 2019, section 4.2, proposes such counts.
    """

    epsilon: float

    def __post_init__(self) -> None:
        _check(self, "epsilon")

    @property
    def sensitivity(self) -> float:
        return 1.0

    @property
    def step(self) -> float:
        return 1.0

    @property
    def cost(self) -> Cost:
        return Cost("laplace", self.epsilon)

    @property
    def most(self) -> float:
        return math.inf

    def on_grid(self, clients: Ints, values: Floats) -> Floats:
        wrong = np.flatnonzero((values < 0) | np.isinf(values) | (values != np.rint(values)))
        if len(wrong):
            client, value = int(clients[wrong[0]]), values[wrong[0]]
            raise DataError(f"client {client} counts {value}: a count is whole and not below 0")
        return super().on_grid(clients, values)

    def noise(self, size: int, rng: np.random.Generator) -> Floats:
        return rng.laplace(0.0, 1.0 / self.epsilon, size)


@dataclass(frozen=True)
class SparseVector:
    """A fresh report only where the value moved by about `threshold` since the last one.

        moved if |value - last report| + noise_q ≥ threshold + noise_t
        noise_t ~ Laplace(sensitivity / e)
        noise_q ~ Laplace(2 · sensitivity / (epsilon - e))        e = epsilon / (1 + 2^(2/3))

    Any number of noes costs `epsilon` once. A yes ends the series and costs a report by `fresh`;
    the next question draws a new noise_t. The first report of a client is made without a question.

    The noise on a question is some 3 sensitivities / epsilon, so this pays where `threshold` is
    well above that: for counts, or for a generous epsilon. Algorithm 1 of the book splits epsilon
    in half; the split here is the one that Lyu et al. show to be best.

    Args:
        fresh: How a fresh number is reported: `Laplace`, `Gaussian` or `Count`.
        epsilon: What a series of questions costs, above 0.
        threshold: How far a value moves before it is reported again, above 0, in its own unit.

    >>> ledger, rng = Ledger(1), np.random.default_rng(1)
    >>> sparse = SparseVector(Count(epsilon=1.0), epsilon=1.0, threshold=40.0)
    >>> for count in [50.0, 51.0, 55.0, 48.0, 190.0, 189.0]:
    ...     reports = sparse.report(np.array([0]), np.array([count]), ledger, rng)
    >>> reports, int(ledger.queries[0]), int(ledger.reports[0])
    (array([191.]), 5, 2)

    Reference:
        Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Algorithm 1.
        Lyu, Su and Li, "Understanding the Sparse Vector Technique for Differential Privacy", 2017.
    """

    fresh: Additive
    epsilon: float
    threshold: float

    def __post_init__(self) -> None:
        fits = isinstance(self.fresh, Additive)
        takes = "how a fresh number is reported, such as Laplace(epsilon=1.0, clip=4.0)"
        fitting("fresh", self.fresh, fits, takes, error=PrivacyError)
        _check(self, "epsilon", "threshold")

    @property
    def cost(self) -> Cost:
        """Of one series of questions, up to and with a yes."""
        return Cost("pure", self.epsilon)

    def report(
        self, clients: Ints, values: Floats, ledger: Ledger, rng: np.random.Generator
    ) -> Floats:
        """A fresh number for those who never reported or changed; the last one for the others."""
        steps = self.fresh.on_grid(clients, values)
        new = np.isnan(ledger.last[clients])
        begun = ~np.isnan(ledger.threshold[clients])
        # a series that could not end in a report would be spent for nothing
        begins = clients[~new & ~begun]
        begins = begins[ledger.afford(begins, self.cost, self.fresh.cost)]
        ledger.pay(begins, self.cost)
        on_threshold, _ = self._scales()
        ledger.threshold[begins] = self._limit() + self._noise(on_threshold, len(begins), rng)

        asked = np.flatnonzero(~new & ~np.isnan(ledger.threshold[clients]))
        changed = asked[self._exceeds(clients[asked], steps[asked], ledger, rng)]
        ledger.threshold[clients[changed]] = np.nan
        reporting = np.concatenate([np.flatnonzero(new), changed])
        reporting = reporting[ledger.afford(clients[reporting], self.fresh.cost)]
        self.fresh.release(clients[reporting], steps[reporting], ledger, rng)
        return ledger.last[clients]

    def _exceeds(
        self, clients: Ints, steps: Floats, ledger: Ledger, rng: np.random.Generator
    ) -> Mask:
        """Whether values moved by more than the noisy threshold, with noise of its own."""
        _, on_question = self._scales()
        # noise may have carried the last report to where no value is
        last = np.clip(ledger.last[clients], 0.0, self.fresh.most)
        moved = np.abs(steps - np.rint(last / self.fresh.step))
        ledger.queries[clients] += 1
        noisy = moved + self._noise(on_question, len(clients), rng)
        return np.asarray(noisy >= ledger.threshold[clients])

    def _scales(self) -> tuple[float, float]:
        """Of the noise on the threshold and on a question, in sensitivities."""
        first = self.epsilon / (1.0 + 2.0 ** (2.0 / 3.0))
        return 1.0 / first, 2.0 / (self.epsilon - first)

    def _limit(self) -> float:
        return float(np.rint(self.threshold / self.fresh.step))

    def _noise(self, scale: float, size: int, rng: np.random.Generator) -> Floats:
        unit = self.fresh.sensitivity / self.fresh.step
        return np.rint(rng.laplace(0.0, scale * unit, size))


def _check(mechanism: Mechanism, *names: str) -> None:
    for name in names:
        number(name, getattr(mechanism, name), above=0, error=PrivacyError)


def _refuse(clients: Ints, values: Floats) -> None:
    """One client twice would pay once, and what is no number cannot be hidden."""
    if len(clients) != len(values):
        raise PrivacyError(f"{len(clients)} clients cannot report {len(values)} values")
    if len(np.unique(clients)) != len(clients):
        raise PrivacyError("a client reports once at a time, and one is there twice")
    unknown = np.flatnonzero(np.isnan(values))
    if len(unknown):
        raise DataError(f"client {int(clients[unknown[0]])} has no value to report: it is NaN")
