"""Server optimizers: the step from the current version towards the reduced one.

In all formulas x are the current params, and d = reduced - x plays the part of the gradient. Adam,
Yogi and Adagrad follow Reddi et al., "Adaptive Federated Optimization", 2021, Algorithm 2, except
that v starts at 0 and not at tau² or above.
"""

from __future__ import annotations

from dataclasses import dataclass

from hubless.checks import number
from hubless.errors import StrategyError
from hubless.params import Array, sign
from hubless.strategy.base import ServerOptimizer, Slots


@dataclass(frozen=True)
class Replace:
    """The reduced params are the next version: x ← x + d."""

    slots = ()
    needs_current = False

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        return reduced, slots


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum: what rounds agree on adds up.

        v ← momentum · v - d
        x ← x - lr · v

    Args:
        lr: The learning rate, at least 0; with 1 and no momentum it is `Replace`.
        momentum: How much of the last v is kept, in [0, 1).

    Reference:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification", 2019.
    """

    lr: float = 1.0
    momentum: float = 0.9
    slots = ("velocity",)
    needs_current = True

    def __post_init__(self) -> None:
        _check(self, "momentum")

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        velocity = self.momentum * slots[0] + (current - reduced)
        return current - self.lr * velocity, (velocity,)


@dataclass(frozen=True)
class ServerAdam:
    """Adam: steps are divided by how large changes of an element usually are.

        m ← beta1 · m + (1 - beta1) · d
        v ← beta2 · v + (1 - beta2) · d²
        x ← x + lr · c · m / (√v + tau)        c = √(1 - beta2^(t+2)) / (1 - beta1^(t+2))

    t counts the steps from 0, and m and v start at 0. The paper has no correction c. It is
    Flower's, as the defaults are, and there the powers start at two.

    Args:
        lr: The learning rate, above 0: about how far an element moves in a step.
        beta1: How much of the last m is kept, in [0, 1).
        beta2: How much of the last v is kept, in [0, 1).
        tau: Added to √v, above 0, so that tiny changes are not blown up.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    slots = ("first", "second")
    needs_current = True

    def __post_init__(self) -> None:
        _check(self, "beta1", "beta2")

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        gradient = reduced - current
        first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        second = self.beta2 * slots[1] + (1 - self.beta2) * gradient * gradient
        correction = (1 - self.beta2 ** (step + 2)) ** 0.5 / (1 - self.beta1 ** (step + 2))
        following = current + self.lr * correction * first / (second**0.5 + self.tau)
        return following, (first, second)


@dataclass(frozen=True)
class ServerYogi:
    """As Adam, but v moves by a share of d² and not of v, so that it shrinks slowly.

        m ← beta1 · m + (1 - beta1) · d
        v ← v - (1 - beta2) · d² · sign(v - d²)
        x ← x + lr · m / (√v + tau)

    Args:
        lr: The learning rate, above 0.
        beta1: How much of the last m is kept, in [0, 1).
        beta2: How slowly v moves, in [0, 1).
        tau: Added to √v, above 0, so that tiny changes are not blown up.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    slots = ("first", "second")
    needs_current = True

    def __post_init__(self) -> None:
        _check(self, "beta1", "beta2")

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        gradient = reduced - current
        squared = gradient * gradient
        first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        second = slots[1] - (1 - self.beta2) * squared * sign(slots[1] - squared)
        return current + self.lr * first / (second**0.5 + self.tau), (first, second)


@dataclass(frozen=True)
class ServerAdagrad:
    """Adagrad: v only ever grows, so steps only ever get shorter.

        m ← beta1 · m + (1 - beta1) · d
        v ← v + d²
        x ← x + lr · m / (√v + tau)

    Args:
        lr: The learning rate, above 0.
        beta1: How much of the last m is kept, in [0, 1); 0 is no momentum.
        tau: Added to √v, above 0, so that tiny changes are not blown up.
    """

    lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3
    slots = ("first", "second")
    needs_current = True

    def __post_init__(self) -> None:
        _check(self, "beta1")

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        gradient = reduced - current
        first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        second = slots[1] + gradient * gradient
        return current + self.lr * first / (second**0.5 + self.tau), (first, second)


def _check(optimizer: ServerOptimizer, *kept: str) -> None:
    """Refuse a rate or a tau of nothing, and shares of the past that would never fade."""
    for name in ("lr", "tau"):
        if hasattr(optimizer, name):
            number(name, getattr(optimizer, name), above=0, error=StrategyError)
    for name in kept:
        number(name, getattr(optimizer, name), least=0, below=1, error=StrategyError)
