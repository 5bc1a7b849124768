"""Server optimizers: the step from the current version towards the reduced one.

Adam, Yogi and Adagrad follow Reddi et al., "Adaptive Federated Optimization" (2021), algorithm 2,
with the reduced params minus the current ones as the pseudo-gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from hubless.params import Array, sign
from hubless.strategy.base import Slots


@dataclass(frozen=True)
class Replace:
    """The reduced params are the next version."""

    slots = ()
    needs_current = False

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        return reduced, slots


@dataclass(frozen=True)
class Momentum:
    """Heavy-ball momentum: v <- momentum v + (current - reduced); next = current - lr v."""

    lr: float = 1.0
    momentum: float = 0.9
    slots = ("velocity",)
    needs_current = True

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        velocity = self.momentum * slots[0] + (current - reduced)
        return current - self.lr * velocity, (velocity,)


@dataclass(frozen=True)
class ServerAdam:
    """m and v as exponential averages of the pseudo-gradient and its square, bias corrected.

    The paper has no correction; Flower's, whose numbers these are, takes powers from two on.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    slots = ("first", "second")
    needs_current = True

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        gradient = reduced - current
        first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        second = self.beta2 * slots[1] + (1 - self.beta2) * gradient * gradient
        correction = (1 - self.beta2 ** (step + 2)) ** 0.5 / (1 - self.beta1 ** (step + 2))
        following = current + self.lr * correction * first / (second**0.5 + self.tau)
        return following, (first, second)


@dataclass(frozen=True)
class ServerYogi:
    """As Adam, but the second moment moves by the sign of the difference: it shrinks slowly."""

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    slots = ("first", "second")
    needs_current = True

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        gradient = reduced - current
        squared = gradient * gradient
        first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        second = slots[1] - (1 - self.beta2) * squared * sign(slots[1] - squared)
        return current + self.lr * first / (second**0.5 + self.tau), (first, second)


@dataclass(frozen=True)
class ServerAdagrad:
    """The second moment only ever grows: v <- v + gradient^2."""

    lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3
    slots = ("first", "second")
    needs_current = True

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        gradient = reduced - current
        first = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        second = slots[1] + gradient * gradient
        return current + self.lr * first / (second**0.5 + self.tau), (first, second)
