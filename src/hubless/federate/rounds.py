"""What one listing tells about the rounds of a synchronous federation."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hubless.errors import NotFound
from hubless.federate.layout import ROUNDS, Plan, Posted, cut, plan_key
from hubless.federate.reduction import Flat, Local
from hubless.signature import Signature
from hubless.store.base import Entry, Store

_PLAN = re.compile(r"rounds/([0-9]{8})/plan-([0-9]{4})\.json")
_SLICE = re.compile(r"rounds/([0-9]{8})/slices-([0-9]{4})/([0-9]{5})\.safetensors")


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
        own: Local | None = None,
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
