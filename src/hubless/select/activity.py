"""Selection by activity: who has more examples trains more often, or less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from hubless.checks import fitting, flag, one_of
from hubless.errors import SelectionError
from hubless.select.custom import described
from hubless.select.roster import Floats, Ints, Roster, refuse_shortage
from hubless.select.sampling import Exact, Part, Table


def _one(n: Ints) -> Floats:
    return np.asarray(n > 0, np.float64)


def _log(n: Ints) -> Floats:
    more = np.asarray(n + 1.0, np.float64)
    np.log(more, out=more)
    return more


def _sqrt(n: Ints) -> Floats:
    return np.sqrt(n)


def _itself(n: Ints) -> Floats:
    return n.astype(np.float64)


def _inverse_log(n: Ints) -> Floats:
    logs = _log(n)
    # where nobody is without examples, which is the rule, there is nothing to leave out
    some = logs > 0 if logs.min(initial=1.0) <= 0 else True
    return np.reciprocal(logs, out=logs, where=some)


FUNCTIONS: dict[str, Callable[[Ints], Floats]] = {
    "1": _one,
    "log": _log,
    "sqrt": _sqrt,
    "n": _itself,
    "1/log": _inverse_log,
}


@dataclass(frozen=True, repr=False)
class Activity:
    """Chances go by f(n) of a client's n examples; clients without examples are never picked.

        f(n) = 1                "1"        uniform
        f(n) = ln(n + 1)        "log"
        f(n) = √n               "sqrt"
        f(n) = n                "n"
        f(n) = 1 / ln(n + 1)    "1/log"    prefers clients with few examples

    The paper gives these five and only says that chances are in proportion to f. There are two ways
    to do that without picking a client twice: the `design`.

    Args:
        f: One of the texts above, or a function of the column of examples that gives one number of
            at least 0 per client. "sqrt" lies in the middle: "n" picks the same few busy clients
            again and again.
        design: "successive" draws one client after the other, each time in proportion to f among
            those left. "exact" makes the probability to be among the k itself proportional to f:
            min(1, c · f(n)), with the c at which these sum to k.
        unbiased: Weigh each update by the inverse of its probability, so that their expected sum is
            what training everybody would give. Needs design="exact" and a strategy that takes a
            mean.

    >>> roster = Roster([100, 0, 4, 1])
    >>> Activity("sqrt", design="exact").inclusion(roster, 2)
    array([1.        , 0.        , 0.66666667, 0.33333333])
    >>> sorted(Activity("n")(roster, 3, np.random.default_rng(0)).tolist())
    [0, 2, 3]

    Reference:
        Dupuy, Roosta, Long, Chung, Gupta and Avestimehr, "Learnings from Federated Learning in the
        Real World", 2022, section 3.
    """

    reads: ClassVar[tuple[str, ...]] = ("examples",)

    f: str | Callable[[Ints], ArrayLike] = "sqrt"
    design: Literal["successive", "exact"] = "successive"
    unbiased: bool = False

    def __post_init__(self) -> None:
        one_of("design", self.design, ("successive", "exact"), error=SelectionError)
        fits = callable(self.f) or (isinstance(self.f, str) and self.f in FUNCTIONS)
        takes = f"a function, or one of {list(FUNCTIONS)}"
        fitting("f", self.f, fits, takes, error=SelectionError)
        flag("unbiased", self.unbiased, error=SelectionError)
        if self.unbiased and self.design != "exact":
            raise SelectionError(
                "an unbiased aggregate needs inclusion probabilities: design='exact' has them"
            )

    def __repr__(self) -> str:
        f = described(self.f) if callable(self.f) else repr(self.f)
        return f"Activity({f}, {self.design!r}, unbiased={self.unbiased})"

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        refuse_shortage(roster, k)
        if self.design == "exact":
            picked = self._exact(roster).draw(k, rng)
        else:
            picked = by_activity(roster, self.f).draw(k, rng, roster.available)
        if len(picked) < k:
            refuse_shortage(roster, k, np.sort(picked))
        return picked

    def inclusion(self, roster: Roster, k: int, clients: Ints | None = None) -> Floats:
        """How likely clients are to be among `k`; only for design="exact".

        Args:
            roster: Who there is.
            k: How many are picked.
            clients: Whose probabilities to give; everybody's if not given.
        """
        if self.design != "exact":
            raise SelectionError(
                "successive draws have no inclusion probabilities that could be computed: use "
                "design='exact'"
            )
        refuse_shortage(roster, k)
        exact = self._exact(roster)
        if exact.table.positive < k:
            refuse_shortage(roster, k, exact.draw(k, np.random.default_rng()))
        return exact.inclusion(k, clients)

    def weights(self, roster: Roster) -> Floats:
        """What chances are in proportion to: f of everybody's examples, 0 for none."""
        return by_activity(roster, self.f).weigh(slice(0, len(roster)))

    def _exact(self, roster: Roster) -> Exact:
        if roster.available is not None:
            return Exact(by_activity(roster, self.f).among(roster.available))
        key = ("exact activity", self.f)
        return roster.derive(key, ("examples",), lambda: Exact(by_activity(roster, self.f)))


def by_activity(roster: Roster, f: str | Callable[[Ints], ArrayLike]) -> Table:
    """The table of f(n), made again only where examples changed.

    >>> by_activity(Roster([0, 3, 1]), "log").positive
    2
    """
    return roster.derive(("activity", f), ("examples",), lambda: _table(roster.examples, f))


def _table(examples: Ints, f: str | Callable[[Ints], ArrayLike]) -> Table:
    def whose(client: int) -> str:
        return f"client {client}, with {examples[client]} examples,"

    # what f makes of no examples does not count, and anything else that is wrong is refused
    with np.errstate(all="ignore"):
        if not callable(f):
            return Table.by(partial(_some, FUNCTIONS[f], examples), len(examples), whose)
        weights = np.asarray(f(examples), np.float64)
    if weights.shape not in ((), examples.shape):
        raise SelectionError(
            f"f must give one number per client, {len(examples)} of them: {described(f)} gave "
            f"an array of shape {weights.shape}"
        )
    weights = np.where(examples > 0, weights, 0.0)
    return Table.by(weights.__getitem__, len(weights), whose)


def _some(f: Callable[[Ints], Floats], examples: Ints, part: Part) -> Floats:
    with np.errstate(all="ignore"):
        return f(examples[part])
