"""Where things lie in a federation's folder, and what their keys alone tell.

    federation.json                                    what everybody agreed on
    initial.safetensors                                the params that everybody started from
    members/CLIENT=INCARNATION.json                    who joined last under a name
    members/CLIENT=INCARNATION.left.json               that it has left, and how it went
    updates/CLIENT=NAME.safetensors                    asynchronous: each member's newest updates
    rounds/R/updates/CLIENT=NAME.safetensors           synchronous: the updates of round R
    rounds/R/plan-A.json                               who is included, at attempt A, and picked
    rounds/R/looks-A/I=CLIENT=INCARNATION-D.safetensors    what the I-th stretch of updates is like
    rounds/R/slices-A/I=CLIENT=INCARNATION-D.safetensors   the I-th stretch of the result
    probe/CLIENT=NONCE                                 gone again: what the store makes of create

Keys are flat, because servers that keep objects in folders list many small folders slowly. NAME
is sequence, incarnation, examples, version, signature and, if one was given, a valuation, so that
one listing tells everything that is needed before anything is downloaded. D is a digest of the
object: two slices that differ have two keys, and a listing shows that somebody got it wrong. Where
the strategy looks at whole updates, D goes on with a digest of the looks that the slice follows.
"""

from __future__ import annotations

import math
import re
import secrets
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hubless.errors import BadName, FederationError
from hubless.store.base import Entry

FEDERATION = "federation.json"
INITIAL = "initial.safetensors"
MEMBERS = "members/"
UPDATES = "updates/"
ROUNDS = "rounds/"
PROBE = "probe/"
SHARED = (FEDERATION, INITIAL, f"{ROUNDS}????????/plan-????.json")
"""Patterns of keys that the first client to come creates; `?` stands for any one character."""

_CLIENT = r"(?P<client>[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?)"
_INCARNATION = r"(?P<incarnation>[0-9]{4}[0-9a-f]{8})"
_NAME = re.compile(_CLIENT)
_LIFE = re.compile(rf"members/{_CLIENT}={_INCARNATION}(?P<left>\.left)?\.json")
_UPDATE = re.compile(
    rf"(?P<folder>(?:rounds/[0-9]{{8}}/)?updates/){_CLIENT}="
    rf"(?P<sequence>[0-9]{{8}})-{_INCARNATION}"
    r"-(?P<examples>[0-9]{1,15})-(?P<version>[0-9]{1,12})-(?P<signature>[0-9a-f]{12})"
    r"(?:-(?P<valuation>[0-9a-f]{16}))?\.safetensors"
)
_PLAN = re.compile(r"rounds/(?P<round>[0-9]{8})/plan-(?P<attempt>[0-9]{4})\.json")
_SLICE = re.compile(
    r"rounds/(?P<round>[0-9]{8})/(?P<kind>slices|looks)-(?P<attempt>[0-9]{4})/"
    rf"(?P<index>[0-9]{{5}})={_CLIENT}={_INCARNATION}-(?P<digest>[0-9a-f]{{32}})"
    r"(?:-(?P<look>[0-9a-f]{32}))?\.safetensors"
)
SEQUENCES = 10**8
LIVES = 10**4
VERSIONS = 10**12
_AHEAD = 1000
"""Versions may be so much further than what still lies there explains: some of it is collected."""


def check_name(client: str) -> str:
    """The client name, if it can be part of a key on every store.

    >>> check_name("site-a")
    'site-a'
    """
    if not isinstance(client, str) or not _NAME.fullmatch(client) or ".." in client:
        raise BadName(
            f"client name {client!r} cannot be used: take 1 to 64 of the letters a-z, A-Z, 0-9, "
            "'_', '-', '.', not starting or ending with '-' or '.', and without '..' or '/'"
        )
    return client


def owned(client: str) -> tuple[str, ...]:
    """Patterns of all keys that are a client's own, and match no key of any other client's.

    `?` stands for any one character and `*` for any number of them.

    >>> owned("site-a")[1]
    'updates/site-a=*'
    """
    check_name(client)
    return (
        f"{MEMBERS}{client}=*",
        f"{UPDATES}{client}=*",
        f"{ROUNDS}????????/updates/{client}=*",
        f"{ROUNDS}????????/looks-????/?????={client}=*",
        f"{ROUNDS}????????/slices-????/?????={client}=*",
        f"{PROBE}{client}=*",
    )


def probe_key(client: str) -> str:
    """Where a client finds out what the store does."""
    return f"{PROBE}{client}={secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """One process's life under a client name: later joins rank higher."""

    count: int
    nonce: str

    @classmethod
    def after(cls, lives: Mapping[str, Incarnation]) -> Incarnation:
        """A new life, ranking above all that left a trace under these keys."""
        last = max(lives, key=lambda key: lives[key], default="")
        count = lives[last].count + 1 if lives else 1
        if count >= LIVES:
            raise FederationError(
                f"this client name is used up: {last} claims to be the last life of it that there "
                "can be. Remove that if no member wrote it, or join under another name"
            )
        return cls(count, secrets.token_hex(4))

    @classmethod
    def parse(cls, text: str) -> Incarnation:
        """Read what `str` wrote."""
        return cls(int(text[:4]), text[4:])

    def __str__(self) -> str:
        return f"{self.count:04d}{self.nonce}"


@dataclass(frozen=True, slots=True)
class Posted:
    """An update as a listing shows it: everything but the params and metrics."""

    folder: str
    client: str
    sequence: int
    incarnation: Incarnation
    examples: int
    version: int
    signature: str
    size: int = 0
    modified: float = 0.0
    valuation: float | None = None
    key: str = ""
    """Where the update lies, which follows from the rest."""

    def __post_init__(self) -> None:
        if self.key:
            return
        if self.sequence >= SEQUENCES:
            raise FederationError(f"client name {self.client!r} is used up: join under another")
        valued = "" if self.valuation is None else f"-{exactly(self.valuation)}"
        key = (
            f"{self.folder}{self.client}={self.sequence:08d}-{self.incarnation}"
            f"-{self.examples}-{self.version}-{self.signature}{valued}.safetensors"
        )
        object.__setattr__(self, "key", key)

    @property
    def rank(self) -> tuple[Incarnation, int]:
        """Of two updates of one client, the one that ranks higher is newer."""
        return self.incarnation, self.sequence

    @classmethod
    def parse(cls, entry: Entry) -> Posted | None:
        """What the key of a listed object says, or None where it is no update."""
        match = _UPDATE.fullmatch(entry.key)
        if match is None:
            return None
        valuation = None
        if match["valuation"]:
            (valuation,) = struct.unpack(">d", bytes.fromhex(match["valuation"]))
            if not math.isfinite(valuation):
                return None
        return cls(
            match["folder"],
            match["client"],
            int(match["sequence"]),
            Incarnation.parse(match["incarnation"]),
            int(match["examples"]),
            int(match["version"]),
            match["signature"],
            entry.size,
            entry.modified,
            valuation,
            entry.key,
        )


def exactly(value: float) -> str:
    """A number as 16 hexadecimal digits of its IEEE 754 double: nothing is rounded.

    >>> exactly(0.5)
    '3fe0000000000000'
    """
    return struct.pack(">d", value).hex()


def parse_updates(entries: Iterable[Entry]) -> list[Posted]:
    """The updates in a listing; whatever else lies there is not ours to judge."""
    return [posted for entry in entries if (posted := Posted.parse(entry))]


def life_key(client: str, incarnation: Incarnation, *, left: bool = False) -> str:
    """Where a process says that it joined, or that it has left."""
    return f"{MEMBERS}{client}={incarnation}{'.left' if left else ''}.json"


def lives(entries: Iterable[Entry], client: str) -> dict[str, Incarnation]:
    """All traces of processes that went by this name, by key."""
    traces = {}
    for entry in entries:
        if (match := _LIFE.fullmatch(entry.key) or _UPDATE.fullmatch(entry.key)) and (
            match["client"] == client
        ):
            traces[entry.key] = Incarnation.parse(match["incarnation"])
    return traces


def newest(updates: Iterable[Posted]) -> dict[str, Posted]:
    """Each client's newest update, by client name in order."""
    newest_of: dict[str, Posted] = {}
    for posted in updates:
        if posted.client not in newest_of or posted.rank > newest_of[posted.client].rank:
            newest_of[posted.client] = posted
    return dict(sorted(newest_of.items()))


def newest_first(updates: Iterable[Posted]) -> dict[str, list[Posted]]:
    """Each client's updates, the newest first, by client name in order."""
    by_client: dict[str, list[Posted]] = {}
    for posted in updates:
        by_client.setdefault(posted.client, []).append(posted)
    return {
        client: sorted(by_client[client], key=lambda posted: posted.rank, reverse=True)
        for client in sorted(by_client)
    }


def furthest_version(updates: Iterable[Posted]) -> int:
    """The version that an asynchronous member can have reached, or a little more.

    A version counts what its member took in, one update by one: so many there can have been.
    """
    return sum(posted.sequence + 1 for posted in newest(updates).values()) + _AHEAD


@dataclass(frozen=True, slots=True)
class Made:
    """A slice as a listing shows it: which stretch it is of, and who says that it is this."""

    index: int
    client: str
    incarnation: Incarnation
    digest: str
    key: str
    size: int
    look: str = ""
    """What looks a slice of the result follows, where the strategy has any."""


Slices = dict[int, list[Made]]
"""Who made which stretch, by its number."""


def claimed(
    items: Iterable[Posted | Made], client: str, life: Incarnation
) -> dict[str, Incarnation]:
    """What a client is said to have written in this life or a later one, and in which, by key."""
    return {
        item.key: item.incarnation
        for item in items
        if item.client == client and item.incarnation >= life
    }


@dataclass
class Round:
    """The objects of one round."""

    updates: dict[str, Posted] = field(default_factory=dict)
    plans: set[int] = field(default_factory=set)
    looks: dict[int, Slices] = field(default_factory=dict)
    """By attempt."""
    slices: dict[int, Slices] = field(default_factory=dict)
    """By attempt."""

    @property
    def made(self) -> list[Made]:
        """Everything that members made together, or are said to have."""
        slices = [*self.looks.values(), *self.slices.values()]
        return [made for by_index in slices for several in by_index.values() for made in several]


class RoundsByNumber(dict[int, Round]):
    """Rounds by number; one of which nothing is there is empty."""

    def __missing__(self, number: int) -> Round:
        return Round()


@dataclass(frozen=True)
class Listing:
    """What one listing of a federation tells: its rounds, in order, and whose last life is over."""

    rounds: RoundsByNumber
    lives: Mapping[str, Incarnation]
    """Everybody's last life."""
    left: Mapping[str, Incarnation]
    """The same of those for whom it is over."""
    has_initial: bool = False
    keys: frozenset[str] = frozenset()

    @cached_property
    def planned(self) -> list[int]:
        """The rounds that somebody closed, or claims to have closed, in order."""
        return [number for number, round_ in self.rounds.items() if round_.plans]

    def claimed(self, client: str, life: Incarnation) -> dict[str, Incarnation]:
        """What a client is said to have put into rounds in this life or a later one, by key."""
        items: list[Posted | Made] = []
        for round_ in self.rounds.values():
            items += [*round_.updates.values(), *round_.made]
        return claimed(items, client, life)

    def is_over(self, client: str, life: Incarnation) -> bool:
        """Whether a client has left in this life, or began another since."""
        return self.left.get(client) == life or self.lives.get(client, life) > life


def parse_listing(entries: Iterable[Entry]) -> Listing:
    """Sort what lies in a synchronous federation's folder."""
    rounds: dict[int, Round] = {}
    newest: dict[str, tuple[Incarnation, bool]] = {}
    has_initial, listed = False, set[str]()
    for entry in entries:
        key = entry.key
        listed.add(key)
        if key == INITIAL:
            has_initial = True
        elif match := _PLAN.fullmatch(key):
            rounds.setdefault(int(match["round"]), Round()).plans.add(int(match["attempt"]))
        elif match := _SLICE.fullmatch(key):
            round_ = rounds.setdefault(int(match["round"]), Round())
            slices = round_.looks if match["kind"] == "looks" else round_.slices
            made = Made(
                int(match["index"]),
                match["client"],
                Incarnation.parse(match["incarnation"]),
                match["digest"],
                key,
                entry.size,
                match["look"] or "",
            )
            slices.setdefault(int(match["attempt"]), {}).setdefault(made.index, []).append(made)
        elif match := _LIFE.fullmatch(key):
            life = Incarnation.parse(match["incarnation"]), bool(match["left"])
            newest[match["client"]] = max(life, newest.get(match["client"], life))
        elif (posted := Posted.parse(entry)) and posted.folder != UPDATES:
            number = int(posted.folder.split("/")[1])
            rounds.setdefault(number, Round()).updates[key] = posted
    lives = {client: life for client, (life, _) in newest.items()}
    left = {client: life for client, (life, is_left) in newest.items() if is_left}
    by_number = RoundsByNumber(sorted(rounds.items()))
    return Listing(by_number, lives, left, has_initial, frozenset(listed))


def round_folder(number: int) -> str:
    """Where a round keeps everything."""
    return f"{ROUNDS}{number:08d}/"


def plan_key(number: int, attempt: int) -> str:
    """Where the record of who is included stands."""
    return f"{round_folder(number)}plan-{attempt:04d}.json"


def slice_key(
    kind: str,
    number: int,
    attempt: int,
    index: int,
    client: str,
    incarnation: Incarnation,
    digest: str,
) -> str:
    """Where a client's stretch of what members make together stands: `looks` or `slices`."""
    folder = f"{round_folder(number)}{kind}-{attempt:04d}/"
    return f"{folder}{index:05d}={client}={incarnation}-{digest}.safetensors"
