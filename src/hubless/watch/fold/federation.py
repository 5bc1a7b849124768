"""A federation's members, as their own events or a look at their store tell of them."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hubless.watch.feed import Record, finite
from hubless.watch.fold import strip
from hubless.watch.fold.run import MOST_METRICS, RunFold, items, numbers, short, text, whole
from hubless.watch.fold.series import CurvePoint
from hubless.watch.fold.strip import Strip

_MEMBERS = 5000
_LINES = 8
_QUIET_SECONDS = 60.0
_ROUND = re.compile(r"rounds/([0-9]{1,9})/")
ALL = "all members"


@dataclass
class MemberFold:
    """One client of a federation, as far as it is known."""

    status: str = "idle"
    heard: float = 0.0
    pushed: float = 0.0
    every: float = 0.0
    sequence: int = -1
    examples: int = 0
    weight: int = 1
    version: int = 0
    staleness: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    drawn: bool = False


class FederationFold(RunFold):
    """A federation: rounds and members, or members alone where nobody waits."""

    kind = "federation"

    def __init__(self, name: str, number: int = 0) -> None:
        super().__init__(name, number)
        self.members: OrderedDict[str, MemberFold] = OrderedDict()
        self._facts: dict[str, str] = {}
        self._strip = Strip("time")
        self._seen_refusals: OrderedDict[str, None] = OrderedDict()
        self._updates = self._mean_at = 0
        self._open = 0
        # the sum of all members' newest by metric, weighted by examples, and the weights' sum;
        # exact, as what one member adds has to be gone without a trace once it is taken out
        self._sums: dict[str, tuple[Fraction, int]] = {}

    @property
    def is_over(self) -> bool:
        return bool(self.members) and all(m.status == "left" for m in self.members.values())

    def apply(
        self, kind: str, client: str, when: float, record: Record
    ) -> Iterator[tuple[str, str]]:
        """Fold in one record; what went wrong, and with whom."""
        if "round" in record:
            self._open = max(self._open, whole(record["round"]))
        told = getattr(self, f"_{kind}")(client, when, record)
        if told is not None:
            yield told

    def counts(self, now: float) -> dict[str, int]:
        """Members by state; who has not been heard of for long is idle."""
        return dict(Counter(self._state(member, now) for member in self.members.values()))

    def strip(self) -> dict[str, Any]:
        """Who did what and when, and how each stands."""
        drawn = self._strip.to_json(len(self.members))
        for row in drawn["rows"]:
            if member := self.members.get(row["name"]):
                row["about"] = _about(member)
        return drawn

    def facts(self) -> dict[str, str]:
        """Where it meets and how, and how many have joined."""
        return {**self._facts, "members": str(len(self.members)), "updates": f"{self._updates:,}"}

    def summary(self, now: float) -> dict[str, Any]:
        """As of any run; in a federation without rounds, updates are counted instead."""
        said = super().summary(now)
        return {**said, "updates": self._updates, "in_rounds": self._strip.axis == "round"}

    def _state(self, member: MemberFold, now: float) -> str:
        quiet = max(_QUIET_SECONDS, 5 * member.every)
        if member.status in ("training", "waiting") and now - member.heard > quiet:
            return "idle"
        return member.status

    def _member(self, client: str, when: float, status: str = "", own: bool = True) -> MemberFold:
        member = self.members.setdefault(client, MemberFold())
        # what is told late, or by others, does not bring back who has left
        if status and when >= member.heard and (own or member.status != "left"):
            member.status = status
        member.heard = max(member.heard, when)
        self.members.move_to_end(client)
        if len(self.members) > _MEMBERS:
            _, gone = self.members.popitem(last=False)
            self._weigh(gone, -1)
        return member

    def _mark(
        self, client: str, when: float, did: int, round_: int | None = None, again: bool = False
    ) -> None:
        if self._strip.axis == "time":
            at = int(when - (self.began or when))
        else:
            at = self._open if round_ is None else round_
        self._strip.mark(client, at, did, again=again)

    def _in_rounds(self) -> None:
        if self._strip.axis == "time":
            self._strip = Strip("round")

    def _joined(self, client: str, when: float, record: Record) -> None:
        if record.get("mode") == "sync":
            self._in_rounds()
        self._member(client, when, "idle")
        for name in ("url", "mode"):
            if said := text(record.get(name), 200):
                self._facts[name] = said

    def _pushed(self, client: str, when: float, record: Record) -> None:
        member = self._member(client, when)
        sequence, round_ = whole(record.get("sequence")), _round_of(record)
        if round_ is not None:
            self._in_rounds()
            self._open = max(self._open, round_)
        found = {n: v for n, v in numbers(record.get("metrics")).items() if v is not None}
        if sequence <= member.sequence:
            # told by the member and by its store; either may know more
            if sequence == member.sequence and not member.drawn:
                self._took(client, member, when, found)
            return
        if member.pushed and when > member.pushed:
            gap = when - member.pushed
            member.every = gap if not member.every else 0.7 * member.every + 0.3 * gap
        member.status = "training" if round_ is None else "waiting"
        # those that came before anybody looked are counted too
        self._updates += sequence - member.sequence
        member.pushed, member.sequence, member.drawn = when, sequence, False
        member.examples = whole(record.get("examples"))
        self.bytes_up += whole(record.get("bytes"))
        self._mark(client, when, strip.TRAINED, round_)
        self._took(client, member, when, found)

    def _took(self, client: str, member: MemberFold, when: float, found: dict[str, float]) -> None:
        """Draw a member's metrics, and what all members' newest come to."""
        if not found:
            return
        self._weigh(member, -1)
        member.metrics, member.drawn, member.weight = found, True, max(1, member.examples)
        self._weigh(member, 1)
        in_rounds = self._strip.axis == "round"
        at = self._open if in_rounds else member.sequence + 1
        # where everybody has a pace of its own, all are as far as they are on average
        self._mean_at = max(1, self._mean_at, self._updates // len(self.members))
        spent = self.bytes_down + self.bytes_up
        seconds = short(max(0.0, when - (self.began or when)))
        for metric, value in found.items():
            if metric not in self._sums:
                continue
            total, weights = self._sums[metric]
            self.metrics[metric] = short(float(total / weights))
            all_at = at if in_rounds else self._mean_at
            self._draw(metric, ALL, CurvePoint(all_at, seconds, spent, self.metrics[metric]))
            lines = {line for known, line in self._lines if known == metric}
            if client in lines or len(lines) <= _LINES:
                self._draw(metric, client, CurvePoint(at, seconds, spent, short(value)))

    def _weigh(self, member: MemberFold, sign: int) -> None:
        """Count a member's metrics in, or out."""
        for metric, value in member.metrics.items():
            total, weights = self._sums.get(metric, (Fraction(0), 0))
            weights += sign * member.weight
            if weights > 0 and (metric in self._sums or len(self._sums) < MOST_METRICS):
                self._sums[metric] = total + sign * member.weight * Fraction(value), weights
            else:
                self._sums.pop(metric, None)
                self.metrics.pop(metric, None)

    def _pulled(self, client: str, when: float, record: Record) -> None:
        member = self._member(client, when, "training")
        member.version = whole(record.get("version"))
        self.bytes_down += whole(record.get("bytes"))
        behind = record.get("staleness")
        if isinstance(behind, Mapping):
            for peer, versions in behind.items():
                if peer in self.members:
                    self.members[peer].staleness = whole(versions)

    def _nothing(self, client: str, when: float, record: Record) -> None:
        self._member(client, when, "training").version = whole(record.get("version"))

    def _picked(self, client: str, when: float, record: Record) -> None:
        cohort = list(map(text, items(record.get("cohort"))))
        # where there are no rounds, whom a member draws besides itself hear nothing of it
        mine = [client] if client in cohort else []
        for name in cohort if self._strip.axis == "round" else mine:
            self._member(name, when, "training", own=False)

    def _skipped(self, client: str, when: float, record: Record) -> None:
        self._member(client, when, "idle")
        round_ = record.get("round")
        self._mark(client, when, strip.SKIPPED, None if round_ is None else whole(round_))

    def _waiting(self, client: str, when: float, record: Record) -> None:
        self._in_rounds()
        self._member(client, when, "waiting")
        self._mark(client, when, strip.WAITED, whole(record.get("round")))
        for name in items(record.get("missing")):
            # "2 not seen yet" stands for members without a name
            if text(name) in self.members:
                self._facts["waiting for"] = ", ".join(map(text, items(record["missing"])[:20]))

    def _late(self, client: str, when: float, record: Record) -> tuple[str, str]:
        round_ = whole(record.get("round"))
        self._in_rounds()
        self._member(client, when, "late", own=False)
        self._mark(client, when, strip.LATE, round_)
        return client, f"round {round_} was closed without it"

    def _closed(self, client: str, when: float, record: Record) -> None:
        self._in_rounds()
        round_ = whole(record.get("round"))
        self._facts.pop("waiting for", None)
        for name in map(text, items(record.get("included"))):
            self._member(name, when, "training", own=False)
            self._mark(name, when, strip.TRAINED, round_, again=True)
        if round_ + 1 > self.round:
            self.round = round_ + 1
            self._paces.append((when, self.round))

    def _refused(self, client: str, when: float, record: Record) -> tuple[str, str] | None:
        peer, key = text(record.get("peer")) or client, text(record.get("key"), 300)
        first = key not in self._seen_refusals
        self._seen_refusals[key] = None
        if len(self._seen_refusals) > _MEMBERS:
            self._seen_refusals.popitem(last=False)
        if not first:
            # every member refuses it, each for itself
            return None
        self._member(peer, when, "refused", own=False)
        self._mark(peer, when, strip.REFUSED, _round_of(record))
        return peer, text(record.get("reason"), 400)

    def _offline(self, client: str, when: float, record: Record) -> tuple[str, str]:
        if client:
            self._member(client, when, "offline")
            self._mark(client, when, strip.OFFLINE)
        return client, text(record.get("reason"), 400)

    def _left(self, client: str, when: float, record: Record) -> None:
        self._member(client, when, "left")


def _round_of(record: Record) -> int | None:
    """The round that an update's key is of, where there are rounds."""
    match = _ROUND.match(text(record.get("key"), 300))
    return int(match[1]) if match else None


def _about(member: MemberFold) -> dict[str, Any]:
    """What a row says of its member."""
    return {
        "status": member.status,
        "heard": member.heard,
        "sequence": member.sequence,
        "examples": member.examples,
        "staleness": member.staleness,
        "metrics": {name: short(finite(v) or 0.0) for name, v in member.metrics.items()},
    }
