"""Rounds as one listing tells of them, and their plans: which updates each includes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hubless.errors import FederationError, NotFound
from hubless.federate.fold.source import Flat, Own
from hubless.federate.keys import ROUNDS, Posted, parse_updates, plan_key, round_folder
from hubless.federate.picking.standing import Pick, Standing
from hubless.signature import Signature
from hubless.store.base import Entry, Store

_PLAN = re.compile(r"rounds/([0-9]{8})/plan-([0-9]{4})\.json")
_SLICE = re.compile(r"rounds/([0-9]{8})/slices-([0-9]{4})/([0-9]{5})\.safetensors")


@dataclass(frozen=True)
class Plan:
    """Which updates a round includes: written once, binding for all."""

    included: tuple[str, ...]
    attempt: int = 0
    before: tuple[int, int] | None = None
    """Round and attempt of the version a server optimizer steps from; -1 means the initial one."""
    pick: Pick | None = None
    """Who was to train, and what was known when they were drawn; None where everybody trains."""

    def to_bytes(self) -> bytes:
        before = list(self.before) if self.before else None
        picked = self.pick.to_json() if self.pick else {}
        return json.dumps({"included": list(self.included), "before": before, **picked}).encode()

    @classmethod
    def parse(cls, raw: bytes, number: int, attempt: int) -> Plan:
        """Read a round's plan; a damaged one binds nobody, and the error says which it is."""
        try:
            document = json.loads(raw)
            included, before = document["included"], document["before"]
            step = (before[0], before[1]) if before else None
            plan = cls(tuple(included), attempt, step, Pick.parse(document, number))
            folders = {posted.folder for posted in plan.posted()}
            earlier = plan.before is None or -1 <= int(plan.before[0]) < number
            if len(plan.posted()) != len(included) or len(set(included)) != len(included):
                raise ValueError("it includes what is no update")
            if folders != {f"{round_folder(number)}updates/"} or not earlier:
                raise ValueError("it refers to other rounds")
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise damaged(number, attempt, error) from None
        return plan

    def posted(self) -> list[Posted]:
        """The included updates, as their keys describe them."""
        return parse_updates(Entry(key, 0, 0.0) for key in self.included)

    def known_after(self, number: int) -> dict[str, Standing]:
        """What everybody knows of the members once the round is over."""
        delivered = {p.client: (p.examples, p.valuation) for p in self.posted()}
        return self.pick.after(number, delivered) if self.pick else {}


def damaged(number: int, attempt: int, why: Exception) -> FederationError:
    """What to say of a plan that cannot be one."""
    return FederationError(
        f"the plan of round {number} is damaged ({why}): remove {plan_key(number, attempt)} "
        "and go on"
    )


def cut(blocks: int, parts: int) -> Sequence[range]:
    """Divide so many blocks evenly into at most so many stretches.

    >>> cut(5, 2)
    [range(0, 3), range(3, 5)]
    """
    parts = max(1, min(blocks, parts))
    bounds = [-(-blocks * i // parts) for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


@dataclass
class Round:
    """The objects of one round."""

    updates: dict[str, Posted] = field(default_factory=dict)
    plans: set[int] = field(default_factory=set)
    slices: dict[int, dict[int, Entry]] = field(default_factory=dict)

    @property
    def attempt(self) -> int | None:
        """The newest attempt at closing the round, if there was one."""
        return max(self.plans, default=None)

    def __len__(self) -> int:
        return len(self.updates) + len(self.plans) + sum(map(len, self.slices.values()))


def parse_rounds(entries: Iterable[Entry]) -> dict[int, Round]:
    """Sort a listing by round."""
    rounds: dict[int, Round] = {}
    for entry in entries:
        if match := _PLAN.fullmatch(entry.key):
            round_ = rounds.setdefault(int(match[1]), Round())
            round_.plans.add(int(match[2]))
        elif match := _SLICE.fullmatch(entry.key):
            round_ = rounds.setdefault(int(match[1]), Round())
            round_.slices.setdefault(int(match[2]), {})[int(match[3])] = entry
        elif (posted := Posted.parse(entry)) and posted.folder.startswith(ROUNDS):
            number = int(posted.folder.split("/")[1])
            rounds.setdefault(number, Round()).updates[posted.key] = posted
    return dict(sorted(rounds.items()))


class Superseded(Exception):
    """A round went out of use while this member was still at it; a later one has its place."""


class Plans:
    """Plans, each fetched once: a plan that is written does not change.

    What `check` raises for a plan, given the round it is of, goes to whoever asked for it.
    """

    def __init__(self, store: Store, check: Callable[[Plan, int], None] | None = None) -> None:
        self._store, self._check = store, check
        self._known: dict[tuple[int, int], Plan] = {}

    def get(self, number: int, attempt: int) -> Plan:
        """The plan of a round's attempt, which must have been seen in a listing."""
        at = number, attempt
        if at not in self._known:
            try:
                raw = self._store.get(plan_key(number, attempt), 64 << 20)
            except NotFound as collected:
                raise Superseded(number) from collected
            plan = Plan.parse(raw, number, attempt)
            if self._check is not None:
                self._check(plan, number)
            self._known[at] = plan
        return self._known[at]

    def forget(self, rounds: Collection[int]) -> None:
        """Keep only the plans of these rounds."""
        self._known = {at: plan for at, plan in self._known.items() if at[0] in rounds}

    def newest(self, number: int, rounds: Mapping[int, Round]) -> Plan | None:
        """The plan that binds a round, or None while it is open."""
        attempt = rounds.get(number, Round()).attempt
        return None if attempt is None else self.get(number, attempt)


@dataclass(frozen=True)
class Result:
    """What a round came to, and the plan that held in the end."""

    flat: Flat
    plan: Plan


class Work:
    """One attempt at a round's result: which slices are in place so far."""

    def __init__(
        self,
        signature: Signature,
        number: int,
        plan: Plan,
        posted: Posted | None = None,
        own: Own | None = None,
    ) -> None:
        self.signature, self.number, self.plan = signature, number, plan
        self.posted, self.own = posted, own
        self.cuts = cut(len(signature.blocks), len(plan.included))
        self.out: Flat = np.empty(signature.size, np.uint8)
        self.have: set[int] = set()
        index = plan.included.index(posted.key) if posted and posted.key in plan.included else -1
        self.mine = index if 0 <= index < len(self.cuts) else None

    @property
    def complete(self) -> bool:
        return len(self.have) == len(self.cuts)

    @property
    def tag(self) -> tuple[int, int]:
        """The version this becomes."""
        return self.number, self.plan.attempt

    def in_turn(self) -> list[int]:
        """All slices, from one's own on: so that those who help out start at different ones."""
        first = self.mine or 0
        return [(first + i) % len(self.cuts) for i in range(len(self.cuts))]

    def says(self, index: int) -> dict[str, str]:
        """What a slice's metadata says of it."""
        return {
            "round": str(self.number),
            "attempt": str(self.plan.attempt),
            "slice": str(index),
        }
