"""What releases cost together: their epsilon at a delta, composed by the library dp-accounting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from hubless.checks import number, one_of, whole
from hubless.errors import HublessError, PrivacyError

_STEPS = 100
"""Privacy losses are rounded up to a hundredth of one release's: right to five digits, and fast."""
_HOPELESS = 50.0
"""Above this epsilon nothing is hidden, and the sum of what releases cost is as good an answer."""


@dataclass(frozen=True)
class Cost:
    """What one release gives away at most.

    Args:
        kind: "laplace" noise of scale sensitivity / size, "gaussian" noise of standard deviation
            sensitivity · size, or anything at all that is differentially private with epsilon =
            size ("pure").
        size: Epsilon for "laplace" and "pure", sigma for "gaussian"; above 0.
    """

    kind: Literal["laplace", "gaussian", "pure"]
    size: float

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("laplace", "gaussian", "pure"), error=PrivacyError)
        number("size", self.size, above=0, error=PrivacyError)


@lru_cache(maxsize=65536)
def composed(spent: tuple[tuple[Cost, int], ...], delta: float) -> float:
    """The epsilon of so many releases of each cost, one after the other, whatever is asked next.

    It is never more than the sum of their epsilons, and from a few dozen releases on far less.
    Gaussian releases alone have a closed form; the others are composed by their privacy loss
    distributions.

    Args:
        spent: Costs, and how often each was paid.
        delta: The probability that the epsilon may not hold with, in [0, 1). At 0 epsilons are
            summed, and Gaussian noise has none that is finite.

    >>> a = Cost("laplace", 0.1)
    >>> composed(((a, 3),), 0.0)
    0.30000000000000004
    >>> bool(composed(((a, 1000),), 1e-6) < 20)
    True
    """
    number("delta", delta, least=0, below=1, error=PrivacyError)
    for _, times in spent:
        whole("times", times, least=0, error=PrivacyError)
    spent = tuple((cost, times) for cost, times in spent if times)
    if not spent:
        return 0.0
    gaussian = [times / cost.size**2 for cost, times in spent if cost.kind == "gaussian"]
    if len(gaussian) == len(spent) and delta > 0.0:
        # together they are one, of less noise, and that has a closed form
        return float(_library().get_epsilon_gaussian(sum(gaussian) ** -0.5, delta))
    simple = math.inf if gaussian else sum(cost.size * times for cost, times in spent)
    if delta == 0.0 or any(_loss(cost) > _HOPELESS for cost, _ in spent):
        return simple
    interval = min(_loss(cost) for cost, _ in spent) / _STEPS
    together: Any = None
    for cost, times in spent:
        each = _distribution(cost, interval).self_compose(times)
        together = each if together is None else together.compose(each)
    # where it divides by a vanishing probability the library means infinity
    with np.errstate(over="ignore", divide="ignore"):
        return min(simple, float(together.get_epsilon_for_delta(delta)))


def _loss(cost: Cost) -> float:
    """About as much privacy as one release loses."""
    return 1.0 / cost.size if cost.kind == "gaussian" else cost.size


def _distribution(cost: Cost, interval: float) -> Any:
    pld = _library().pld
    if cost.kind == "laplace":
        return pld.privacy_loss_distribution.from_laplace_mechanism(
            1.0 / cost.size, value_discretization_interval=interval
        )
    if cost.kind == "gaussian":
        return pld.privacy_loss_distribution.from_gaussian_mechanism(
            cost.size, value_discretization_interval=interval
        )
    return pld.privacy_loss_distribution.from_privacy_parameters(
        pld.common.DifferentialPrivacyParameters(cost.size, 0.0), interval
    )


def _library() -> ModuleType:
    """dp-accounting, which takes a moment to import, or an error that says how to get it."""
    try:
        import dp_accounting
    except ImportError as error:
        raise HublessError(
            "composing privacy costs needs dp-accounting: pip install 'hubless[privacy]'"
        ) from error
    module: ModuleType = dp_accounting
    return module


def sigma_for(epsilon: float, delta: float) -> float:
    """The least Gaussian noise, in sensitivities, that makes one release (epsilon, delta)-private.

    Args:
        epsilon: Above 0.
        delta: Within (0, 1), such as 1e-6.

    >>> round(sigma_for(1.0, 1e-5), 3)
    3.731

    Reference:
        Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, Theorem
        8.
    """
    number("epsilon", epsilon, above=0, error=PrivacyError)
    number("delta", delta, above=0, below=1, error=PrivacyError)
    return float(_library().get_sigma_gaussian(epsilon, delta))
