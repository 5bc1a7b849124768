"""The fleet: synthetic clients of a voice assistant over a year, made up without any data.

Who speaks how much is spread over four orders of magnitude; what they ask for differs from client
to client, drifts, follows the seasons, and now and then is something new. Every number is drawn
for its client and its utterance alone, so that a client says the same in any chunk and any company.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.data.index import Index, offsets_of, ranges
from hubless.data.population import Population
from hubless.data.sources import phrases
from hubless.data.sources.phrases import OWN, SLOTS
from hubless.data.timeline import MONTH, Moment, instant
from hubless.errors import DataError
from hubless.rng import keys
from hubless.rng import stream as generator

INTENTS = tuple(intent.name for intent in phrases.INTENTS)
"""What each value of the column `intent` stands for."""

Reals = NDArray[np.float64]
Keys = NDArray[np.uint64]

_DAY = 86_400
# clients are drawn this many at a time, whoever is asked for; utterances each on their own
_BLOCK = 4096
# enough at a time to pay for the calls, few enough to stay in the cache
_STRIP = 16_384
_SLOTS_EACH = 2
_SLOT = re.compile(r"\{(\w+)\}")
_FOR_OWN = 0.7
# how much is said from midnight on, by the hour, where the client lives
_HOURS = [2, 1, 1, 1, 2, 4, 9, 12, 10, 7, 6, 6, 8, 7, 6, 7, 9, 12, 14, 14, 13, 11, 8, 4]


@dataclass(frozen=True)
class Habits:
    """How the clients of a fleet behave.

    `utterances` is about how many a client says in all, on average, and `spread` how unequal they
    are: the sigma of the logarithm of a log-normal, cut to between 1 and `most`. At 2.2 the
    busiest of some ten thousand clients says more than 10^4 times as much as the quietest.

    `taste` is how alike clients are: the concentration of the Dirichlet distribution of what each
    asks for; small, and everybody wants a few things only. `drift` is by how much the shares of
    intents change over time, as a power of the usual change: at 0 nothing changes, and what would
    have been new is there from the start. `turnover` is the share of clients who join late, and
    the share who leave early.
    """

    utterances: float = 60.0
    spread: float = 2.2
    most: int = 100_000
    taste: float = 10.0
    drift: float = 1.0
    turnover: float = 0.25

    def __post_init__(self) -> None:
        for name in ("utterances", "taste"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise DataError(f"{name} is a number above 0, not {getattr(self, name)}")
        for name in ("spread", "drift"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise DataError(f"{name} is a number, 0 or above, not {getattr(self, name)}")
        if self.most < 1:
            raise DataError(f"a client says at most 1 utterance or more, not {self.most}")
        if not 0 <= self.turnover <= 1:
            raise DataError(f"turnover is a share from 0 to 1, not {self.turnover}")


def generate(
    clients: int = 1000,
    *,
    months: int = 12,
    start: Moment = "2023-01",
    seed: int = 0,
    habits: Habits | None = None,
) -> Population:
    """A fleet as a population: columns `text`, `time` (UTC) and `intent`, in the order of time.

    >>> fleet = generate(clients=100, seed=1)
    >>> fleet
    Population(100 clients, 2743 examples, text: StringDType()[], time: datetime64[us][],
    intent: uint8[])
    >>> messages = fleet.client(5)
    >>> for time, text in zip(messages["time"][:4], messages["text"][:4], strict=True):
    ...     print(time.astype("datetime64[m]"), text)
    2023-01-02T13:51 what time is my alarm on sunday
    2023-01-08T02:31 play film music in the hallway
    2023-01-10T02:27 what's the news
    2023-01-14T05:55 what are my reminders this weekend
    """
    chunks = list(stream(clients, months=months, start=start, seed=seed, habits=habits))
    owner = np.concatenate([chunk.pop("client") for chunk in chunks])
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return Population(columns, offsets_of(np.bincount(owner, minlength=clients)))


def stream(
    clients: int = 1000,
    *,
    months: int = 12,
    start: Moment = "2023-01",
    seed: int = 0,
    habits: Habits | None = None,
    chunk: int = 100_000,
) -> Iterator[dict[str, NDArray[Any]]]:
    """The same fleet in pieces: the columns of `generate`, and `client`, the number of the client.

    A chunk is of whole clients, with at most so many utterances, unless one client alone has more.
    Memory is that of a chunk, whatever the size of the fleet.

    >>> sum(len(part["text"]) for part in stream(clients=100, seed=1, chunk=1000))
    2743
    """
    habits = Habits() if habits is None else habits
    if clients < 1 or months < 1 or chunk < 1:
        raise DataError(
            f"a fleet of {clients} clients over {months} months in chunks of {chunk} is none: "
            "give numbers of 1 and above"
        )
    first = instant(start).astype("datetime64[M]")
    if first != instant(start):
        raise DataError(f"a fleet starts with a month, and {start} begins none")
    return _stream(clients, _calendar(first, months, habits.drift), seed, habits, chunk)


def _stream(
    clients: int, calendar: _Calendar, seed: int, habits: Habits, chunk: int
) -> Iterator[dict[str, NDArray[Any]]]:
    for block in range(-(-clients // _BLOCK)):
        everyone = _clients(block, min(clients - block * _BLOCK, _BLOCK), calendar, seed, habits)
        ends = offsets_of(everyone.sizes)
        low = 0
        while low < len(everyone.sizes):
            high = int(np.searchsorted(ends, ends[low] + chunk, "right")) - 1
            high = max(high, low + 1)
            yield _utterances(everyone.some(slice(low, high)), calendar, seed)
            low = high


@dataclass(frozen=True)
class _Calendar:
    """The days and months of a fleet's time, and the weight of every intent in each month."""

    first: np.datetime64
    days: int
    month_of_day: Index
    popularity: Reals


def _calendar(first: np.datetime64, months: int, drift: float) -> _Calendar:
    days = (first + np.arange(months + 1) * MONTH).astype("datetime64[D]").astype(np.int64)
    of_year = (first.astype(np.int64) + np.arange(months)) % 12
    passed = np.arange(months) / max(months - 1, 1) - 0.5
    popularity = np.empty((months, len(INTENTS)))
    for number, intent in enumerate(phrases.INTENTS):
        season = np.cos((of_year - (intent.peak - 1)) * (np.pi / 6))
        curve = np.exp(intent.growth * passed + intent.swing * season)
        if new := intent.first_month(months):
            # word gets round: a third of the share in the first month, all of it in the third
            curve *= np.clip((np.arange(months) - new + 1) / 3, 0, 1)
        popularity[:, number] = curve**drift
    month_of_day = np.repeat(np.arange(months), np.diff(days))
    return _Calendar(first.astype("datetime64[s]"), len(month_of_day), month_of_day, popularity)


@dataclass(frozen=True)
class _Clients:
    """What is drawn for each of some clients: one row each."""

    number: Index
    sizes: Index
    joins: Index
    """The first day, counted from 0."""
    stays: Index
    """For how many days."""
    zone: Index
    """Hours by which the client's clock is behind UTC."""
    taste: Reals

    def some(self, which: slice) -> _Clients:
        return _Clients(**{name: values[which] for name, values in vars(self).items()})


def _clients(block: int, count: int, calendar: _Calendar, seed: int, habits: Habits) -> _Clients:
    rng = generator(seed, "fleet", "clients", block)
    middle = np.log(habits.utterances) - habits.spread**2 / 2
    wanted = np.exp(middle + habits.spread * rng.standard_normal(_BLOCK))
    late, early = (rng.random((2, _BLOCK)) < habits.turnover).astype(np.float64)
    when = rng.random((2, _BLOCK))
    joins = np.floor(late * when[0] * calendar.days).astype(np.int64)
    left = calendar.days - joins
    stays = np.maximum(left - np.floor(early * when[1] * left).astype(np.int64), 1)
    # e to the logarithm of 20 may be a little less, and means 20
    whole = np.floor(wanted * stays / calendar.days + 1e-9)
    sizes = np.clip(whole, 1, habits.most).astype(np.int64)
    zone = rng.integers(24, size=_BLOCK)
    share = np.array([intent.share for intent in phrases.INTENTS])
    share /= share.sum()
    # a little of everything, so that no month is without anything to want
    taste = rng.standard_gamma(habits.taste * share, (_BLOCK, len(share))) + 1e-6 * share
    drawn = _Clients(block * _BLOCK + np.arange(_BLOCK), sizes, joins, stays, zone, taste)
    return drawn.some(slice(count))


def _utterances(clients: _Clients, calendar: _Calendar, seed: int) -> dict[str, NDArray[Any]]:
    """All utterances of some clients, one after the other, each client's in the order of time."""
    sizes = clients.sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)
    client = clients.number[owner]
    rank = ranges(np.zeros(len(sizes), np.int64), sizes)
    drawn = keys(seed, "fleet utterance", client, rank)
    day = _uniform(keys(seed, "fleet day", drawn)) * clients.stays[owner]
    hours = np.interp(_uniform(keys(seed, "fleet hour", drawn)), *_hours_of_day())
    second = np.floor((hours + clients.zone[owner]) % 24 * 3600).astype(np.int64)
    second += (clients.joins[owner] + np.floor(day).astype(np.int64)) * _DAY
    # only the times are put in order: the rest is drawn for the first, the second... utterance
    second = second[np.lexsort((second, owner))]
    month = calendar.month_of_day[second // _DAY]
    intent = _intents(clients.taste, owner, calendar.popularity, month, drawn, seed)
    return {
        "text": _texts(intent, client, drawn, seed),
        "time": (calendar.first + second.astype("timedelta64[s]")).astype("datetime64[us]"),
        "intent": intent,
        "client": client,
    }


def _intents(
    taste: Reals, owner: Index, popularity: Reals, month: Index, drawn: Keys, seed: int
) -> NDArray[np.uint8]:
    chance = _uniform(keys(seed, "fleet intent", drawn))
    intent = np.empty(len(owner), np.uint8)
    for low in range(0, len(owner), _STRIP):
        strip = slice(low, low + _STRIP)
        likely = taste[owner[strip]] * popularity[month[strip]]
        np.cumsum(likely, axis=1, out=likely)
        reached = likely <= (chance[strip] * likely[:, -1])[:, None]
        intent[strip] = reached.sum(axis=1)
    return intent


def _texts(intent: NDArray[np.uint8], client: Index, drawn: Keys, seed: int) -> NDArray[Any]:
    book = _book()
    at = book.starts[intent] + _below(keys(seed, "fleet words", drawn), book.counts[intent])
    place = book.first[at]
    for number in range(_SLOTS_EACH):
        slot, values = book.slots[at, number], book.values[at, number]
        slot_keys = keys(seed, f"fleet slot {number}", drawn)
        # one of the client's own values, which are drawn for the client and not the utterance
        own = book.own[slot]
        favourite = keys(seed, "fleet own", client, slot, _below(slot_keys, np.maximum(own, 1)))
        habit = _uniform(keys(seed, "fleet habit", slot_keys)) < np.where(own > 0, _FOR_OWN, 0)
        picked = _uniform(np.where(habit, favourite, keys(seed, "fleet value", slot_keys)))
        # the cube makes the first values of a slot common and the last ones rare
        place += np.floor(picked**3 * values).astype(np.int64) * book.strides[at, number]
    texts: NDArray[Any] = book.texts[place]
    return texts


@dataclass(frozen=True)
class _Book:
    """Every utterance there can be, and where those of an intent and a template stand."""

    texts: NDArray[Any]
    starts: Index
    """The first template of every intent."""
    counts: Index
    """How many templates an intent has."""
    first: Index
    """The place of every template's first text."""
    slots: Index
    """The slots of every template, [templates, 2]; those it lacks have a single value."""
    values: Index
    strides: Index
    own: Index
    """How many values of each slot are a client's own."""


@cache
def _book() -> _Book:
    names = list(SLOTS)
    texts: list[str] = []
    first, slots, values, strides = [], [], [], []
    for template in (template for intent in phrases.INTENTS for template in intent.templates):
        used = _SLOT.findall(template)
        plain = _SLOT.sub("{}", template)
        first.append(len(texts))
        texts += [plain.format(*words) for words in product(*(SLOTS[name] for name in used))]
        sizes = [len(SLOTS[name]) for name in used] + [1] * (_SLOTS_EACH - len(used))
        slots.append([names.index(name) for name in used] + [0] * (_SLOTS_EACH - len(used)))
        values.append(sizes)
        strides.append([sizes[1], 1])
    counts = np.array([len(intent.templates) for intent in phrases.INTENTS], np.int64)
    return _Book(
        np.array(texts, np.dtypes.StringDType()),
        offsets_of(counts)[:-1],
        counts,
        np.array(first, np.int64),
        np.array(slots, np.int64),
        np.array(values, np.int64),
        np.array(strides, np.int64),
        np.array([OWN.get(name, 0) for name in names], np.int64),
    )


@cache
def _hours_of_day() -> tuple[Reals, Reals]:
    """The share of a day's utterances that is said by each hour, and the hours."""
    shares = np.concatenate([[0], np.cumsum(_HOURS)])
    return shares / shares[-1], np.arange(25.0)


def _uniform(drawn: Keys) -> Reals:
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _below(drawn: Keys, limit: Index) -> Index:
    return np.floor(_uniform(drawn) * limit).astype(np.int64)
