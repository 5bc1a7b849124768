"""Selection from the most active clients only, or from the least active."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hubless.checks import number
from hubless.errors import SelectionError
from hubless.select.roster import Ints, Roster, refuse_shortage


@dataclass(frozen=True)
class Heavy:
    """Uniformly among the `share` of clients with the most examples.

    The share is of those who have examples, rounded up, whether they are available or not. Of equal
    clients the later ones in the roster count as heavier, so nobody is both heavy and light unless
    the shares overlap.

    Args:
        share: Of the clients with examples, in (0, 1]. 0.2 is the paper's.

    >>> sorted(Heavy(0.4)(Roster([5, 9, 0, 1, 9, 3]), 2, np.random.default_rng(0)).tolist())
    [1, 4]

    Reference:
        Dupuy et al., "Learnings from Federated Learning in the Real World", 2022, section 3.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        _refuse(self.share)

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        group = roster.derive(self, ("examples",), lambda: heaviest(roster.examples, self.share))
        return _among(group, roster, k, rng)


@dataclass(frozen=True)
class Light:
    """Uniformly among the `share` of clients with the fewest examples, but some.

    The share is counted as in `Heavy`.

    Args:
        share: Of the clients with examples, in (0, 1]. 0.2 is the paper's.

    >>> sorted(Light(0.4)(Roster([5, 9, 0, 1, 9, 3]), 2, np.random.default_rng(0)).tolist())
    [3, 5]

    Reference:
        Dupuy et al., "Learnings from Federated Learning in the Real World", 2022, section 3.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        _refuse(self.share)

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        group = roster.derive(self, ("examples",), lambda: lightest(roster.examples, self.share))
        return _among(group, roster, k, rng)


def heaviest(examples: Ints, share: float) -> Ints:
    """The places of those with the most examples.

    >>> heaviest(np.array([2, 2, 2, 1]), 0.5)
    array([1, 2])
    """
    count = _count(examples, share)
    if not count:
        return np.empty(0, np.int64)
    edge = _ranked(examples, len(examples) - count)
    group, ties = examples > edge, np.flatnonzero(examples == edge)
    group[ties[len(ties) + np.count_nonzero(group) - count :]] = True
    return np.flatnonzero(group)


def lightest(examples: Ints, share: float) -> Ints:
    """The places of those with the fewest examples, of those who have any.

    >>> lightest(np.array([2, 0, 2, 2]), 0.5)
    array([0, 2])
    """
    count = _count(examples, share)
    if not count:
        return np.empty(0, np.int64)
    last = len(examples) - int(np.count_nonzero(examples > 0)) + count - 1
    edge = _ranked(examples, last)
    group, ties = examples < edge, np.flatnonzero(examples == edge)
    group &= examples > 0
    group[ties[: count - np.count_nonzero(group)]] = True
    return np.flatnonzero(group)


def _count(examples: Ints, share: float) -> int:
    # a tenth of 30 is 3, although 0.1 is a little more than a tenth
    return math.ceil(share * int(np.count_nonzero(examples > 0)) * (1 - 1e-12))


def _ranked(examples: Ints, place: int) -> int:
    """What would be at this place, were they sorted."""
    # half as wide is twice as fast, and few clients have two billion examples
    narrow = examples.astype(np.int32 if examples.max() < 2**31 else np.int64)
    narrow.partition(place)
    return int(narrow[place])


def _among(group: Ints, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
    refuse_shortage(roster, k)
    if roster.available is not None:
        group = group[roster.available[group]]
    refuse_shortage(roster, k, group)
    return group[rng.choice(len(group), k, replace=False, shuffle=False)]


def _refuse(share: float) -> None:
    number("share", share, above=0, most=1, error=SelectionError)
