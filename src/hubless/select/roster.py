"""The roster: what is known of every client, as columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.checks import fitting, takes
from hubless.errors import SelectionError, Shortage
from hubless.events import Event, Trained

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
T = TypeVar("T")

_COLUMNS: dict[str, tuple[type, Any]] = {
    "examples": (np.int64, 0),
    "valuation": (np.float64, np.nan),
    "valued": (np.int32, -1),
    "selected": (np.int32, 0),
    "last_selected": (np.int32, -1),
    "last_seen": (np.int32, -1),
    "availability": (np.float64, 1.0),
    "speed": (np.float64, 1.0),
}


class Roster:
    """What is known of every client: one column per fact, one place per client.

        examples         how many examples a client has
        valuation        what training it is worth; NaN for one that never said
        valued           the round the valuation is from; -1 for never
        selected         how often it was picked
        last_selected    the round it was last picked in; -1 for never
        last_seen        the round it last answered in; -1 for never
        availability     the share of time it can be reached, 0 to 1; usually 1
        speed            how many examples it trains in a second; usually 1

    Columns that nobody asked for take no memory. They are read like attributes and changed by
    `put`, so that what selectors derive from them is known to be old.

    Args:
        examples: How many examples each client has.
        available: For each client whether it may be picked right now; None is everybody.
        availability: For each client the share of time it can be reached, as far as it is known.
        speed: For each client how many examples it trains in a second, as far as it is known.
        round: The round that clients are being picked for, from 0.

    >>> roster = Roster([5, 0, 7])
    >>> roster.record_selected(np.array([2]))
    >>> roster.selected, roster.last_selected
    (array([0, 0, 1], dtype=int32), array([-1, -1,  0], dtype=int32))
    """

    examples: Ints
    valuation: Floats
    valued: NDArray[np.int32]
    selected: NDArray[np.int32]
    last_selected: NDArray[np.int32]
    last_seen: NDArray[np.int32]
    availability: Floats
    speed: Floats

    def __init__(
        self,
        examples: ArrayLike,
        available: Mask | None = None,
        *,
        availability: ArrayLike | None = None,
        speed: ArrayLike | None = None,
        round: int = 0,
    ) -> None:
        self.available, self.round = available, round
        self._columns: dict[str, NDArray[Any]] = {}
        self._changes = dict.fromkeys(_COLUMNS, 0)
        self._derived: dict[Hashable, tuple[tuple[int, ...], Any]] = {}
        self._columns["examples"] = np.asarray(examples, np.int64)
        given = {"availability": availability, "speed": speed}
        for name, values in given.items():
            if values is not None:
                self.put(name, slice(None), values)

    def __len__(self) -> int:
        return len(self._columns["examples"])

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in _COLUMNS:
            raise AttributeError(f"a roster has no column {name!r}: it has {sorted(_COLUMNS)}")
        if name not in self._columns:
            dtype, usual = _COLUMNS[name]
            self._columns[name] = np.full(len(self), usual, dtype)
        return self._columns[name]

    def knows(self, name: str) -> bool:
        """Whether a column was ever written or read: any other holds its usual value throughout."""
        return name in self._columns

    def put(self, name: str, clients: Ints | slice, values: ArrayLike) -> None:
        """Change some clients' values of a column.

        Args:
            name: The column.
            clients: Places in the roster.
            values: One per client, or one for all of them.
        """
        getattr(self, name)[clients] = values
        self._changes[name] += 1

    def record_selected(self, clients: Ints) -> None:
        """Clients were picked for the current round."""
        # one that is fast may be picked twice before a round ends that does not wait
        np.add.at(self.selected, clients, 1)
        self._changes["selected"] += 1
        self.put("last_selected", clients, self.round)

    def record_seen(self, clients: Ints, valuations: ArrayLike | None = None) -> None:
        """Clients answered in the current round, and may have said what training them is worth.

        Args:
            clients: Places in the roster.
            valuations: One for each of these clients, if they gave any.
        """
        self.put("last_seen", clients, self.round)
        if valuations is not None:
            self.put("valuation", clients, valuations)
            self.put("valued", clients, self.round)

    def hear(self, event: Event) -> None:
        """Keep up with a run, live or from its log: a roster may listen to events."""
        if isinstance(event, Trained):
            self.round = event.round - 1
            clients = np.asarray(event.cohort, np.int64)
            self.record_selected(clients)
            self.record_seen(clients, event.valuations)
            self.round = event.round

    def derive(self, key: Hashable, columns: tuple[str, ...], build: Callable[[], T]) -> T:
        """What `build` makes of these columns, made again only where one of them changed.

        Selectors stay pure functions; what they need to be fast is kept here, one value per key.

        Args:
            key: Names what is derived. It tells apart selectors with other settings.
            columns: The columns it is made of.
            build: Makes it.
        """
        changes = tuple(self._changes[name] for name in columns)
        entry = self._derived.get(key)
        if entry is None or entry[0] != changes:
            # the old goes first: there need not be room for both
            entry = None
            self._derived.pop(key, None)
            entry = (changes, build())
            self._derived[key] = entry
        return cast(T, entry[1])

    def state(self) -> dict[str, NDArray[Any]]:
        """All columns that were ever used but `examples`, for a checkpoint."""
        return {name: column for name, column in self._columns.items() if name != "examples"}

    def restore(self, columns: dict[str, NDArray[Any]]) -> None:
        """Put back what `state` gave."""
        for name, values in columns.items():
            self.put(name, slice(None), values)


class Selector(Protocol):
    """A pure function: the same roster, number and generator state give the same clients.

    A selector that goes by valuations may say of what in an attribute `looks_at`: "losses" or
    "update norms". A simulation then values clients by that.
    """

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        """`k` different clients, by their place in the roster.

        Args:
            roster: What is known of every client.
            k: How many to pick. Where fewer can be picked, raise `Shortage`.
            rng: The only source of chance.
        """
        ...


class Unbiased(Selector, Protocol):
    """A selector that knows its inclusion probabilities.

    With `unbiased` set, a simulation weighs each update by the inverse of its client's probability.
    """

    unbiased: bool

    def inclusion(self, roster: Roster, k: int, clients: Ints | None = None) -> Floats:
        """How likely each client of the roster is among the `k`; or these clients only."""
        ...


def there(roster: Roster) -> Ints:
    """Those who are available, by their place."""
    if roster.available is None:
        return np.arange(len(roster))
    return np.flatnonzero(roster.available)


def check_selector(selector: Any) -> None:
    """Refuse what cannot be asked for clients, such as a selector's class or its name."""
    meant = "a selector, such as hubless.select.Uniform(), or a function of (roster, k, rng)"
    fitting("selector", selector, takes(selector, 3), meant, error=SelectionError)


def refuse_unbiased(selector: Selector, why: str) -> None:
    """Raise where a selector wants its inclusion probabilities made up for, and nobody can."""
    if getattr(selector, "unbiased", False):
        raise SelectionError(
            f"{selector!r} is to be unbiased, and within another its inclusion probabilities are "
            f"not known: {why}"
        )


def refuse_shortage(roster: Roster, k: int, eligible: Ints | None = None) -> None:
    """Raise where fewer than `k` can be picked: of those available, or of `eligible` ones."""
    if k < 0:
        raise SelectionError(f"{k} clients were asked for: at least 0 can be")
    if eligible is None:
        if k <= (len(roster) if roster.available is None else np.count_nonzero(roster.available)):
            return
        eligible = there(roster)
    if k <= len(eligible):
        return
    if roster.available is None and len(eligible) == len(roster):
        supply = f"there are {len(roster)}"
    elif roster.available is not None and len(eligible) == roster.available.sum():
        supply = f"{len(eligible)} of {len(roster)} are available"
    else:
        supply = f"{len(eligible)} of {len(roster)} can be picked"
    raise Shortage(f"{k} clients were asked for, and {supply}", eligible.tolist())
