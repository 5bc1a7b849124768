"""A federation's records put together: updates, rounds, staleness and troubles by member."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hubless.watch.feed import Record, finite, time_of
from hubless.watch.report.sources import mapping, said, sequence, whole

_MOST_MEMBERS = 2000


@dataclass
class MemberRow:
    """What one client did; `received` is None where it does not say so, as in rounds."""

    first: float
    last: float
    updates: int = 0
    rounds: int = 0
    examples: int | None = None
    sent: float = 0.0
    received: float | None = None
    skipped: int = 0
    left: bool = False
    joined: set[str] = field(default_factory=set)
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Meeting:
    """One federation, folded together from its records."""

    COLUMNS: ClassVar[Sequence[str]] = [
        "updates",
        "rounds",
        "examples",
        "sent",
        "received",
        "skipped",
        "late",
        "refused",
        "offline",
        "lives",
        "left",
    ]

    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: dict[str, MemberRow] = {}
        self.updates: dict[tuple[str, int], dict[str, Any]] = {}
        self._stale: Counter[int] = Counter()
        self._included: dict[int, set[str]] = defaultdict(set)
        self._reported: set[tuple[str, int]] = set()
        self._wrong: Counter[tuple[str, str, str]] = Counter()
        self._told: set[tuple[str, str, str]] = set()
        self.start: float | None = None

    @classmethod
    def of(cls, name: str, records: Sequence[Record]) -> Meeting:
        """Everything that the records say; what is said twice counts once."""
        meeting = cls(name)
        for record in records:
            meeting._take(record)
        return meeting

    def _take(self, record: Record) -> None:
        kind, client = record["event"], said(record.get("client"), 80)
        now = time_of(record)
        if kind == "offline" and not client:
            self._trouble(kind, "", said(record.get("reason")))
            return
        member = self._member(client, now)
        if member is not None and kind in _TAKEN:
            _TAKEN[kind](self, record, client, member)

    def _member(self, client: str, now: float) -> MemberRow | None:
        if client not in self.clients:
            if not client or len(self.clients) >= _MOST_MEMBERS:
                return None
            self.clients[client] = MemberRow(now, now)
        member = self.clients[client]
        member.first, member.last = min(member.first, now), max(member.last, now)
        self.start = now if self.start is None else min(self.start, now)
        return member

    def _joined(self, record: Record, client: str, member: MemberRow) -> None:
        member.joined.add(said(record.get("incarnation"), 80))
        member.left = False

    def _pushed(self, record: Record, client: str, member: MemberRow) -> None:
        number = whole(record.get("sequence"))
        if number is None:
            return
        metrics = mapping(record.get("metrics"))
        if (client, number) in self.updates:
            # a member's own word and what its folder shows are one
            self.updates[client, number]["metrics"] |= metrics
            return
        size, now = finite(record.get("bytes")) or 0.0, time_of(record)
        # of those before the first that is known of, a folder may keep none
        member.updates = max(member.updates, number + 1)
        member.sent += size
        member.examples = whole(record.get("examples"))
        self.updates[client, number] = {
            "run": self.name,
            "client": client,
            # a member's first update is number 0
            "round": number + 1,
            "time": now,
            "elapsed": now - (self.start or 0.0),
            "bytes": member.sent + (member.received or 0.0),
            "metrics": dict(metrics),
        }

    def _pulled(self, record: Record, client: str, member: MemberRow) -> None:
        member.received = (member.received or 0.0) + (finite(record.get("bytes")) or 0.0)
        member.phases["taking in updates"] += finite(record.get("seconds")) or 0.0
        for value in mapping(record.get("staleness")).values():
            if (behind := whole(value)) is not None:
                self._stale[behind] += 1

    def _closed(self, record: Record, client: str, member: MemberRow) -> None:
        number = whole(record.get("round"))
        if number is None:
            return
        included = {said(name, 80) for name in sequence(record.get("included"))}
        self._included[number] |= included
        if (client, number) not in self._reported:
            self._reported.add((client, number))
            member.phases["rounds, with waiting"] += finite(record.get("seconds")) or 0.0

    def _skipped(self, record: Record, client: str, member: MemberRow) -> None:
        member.skipped += 1

    def _left(self, record: Record, client: str, member: MemberRow) -> None:
        member.left = True

    def _late(self, record: Record, client: str, member: MemberRow) -> None:
        once = ("late", client, str(whole(record.get("round"))))
        if once not in self._told:
            self._told.add(once)
            self._trouble("late", client, "a round was closed without it")

    def _refused(self, record: Record, client: str, member: MemberRow) -> None:
        peer, key = said(record.get("peer"), 80), said(record.get("key"), 400)
        if (client, peer, key) not in self._told:
            self._told.add((client, peer, key))
            self._trouble("refused", peer, said(record.get("reason")))

    def _offline(self, record: Record, client: str, member: MemberRow) -> None:
        self._trouble("offline", client, said(record.get("reason")))

    def _trouble(self, kind: str, client: str, what: str) -> None:
        self._wrong[kind, client, what] += 1

    @property
    def rounds(self) -> int:
        """How many synchronous rounds are closed."""
        return len(self._included)

    def participation(self) -> list[dict[str, Any]]:
        """How often each member shared an update."""
        return [
            {"run": self.name, "client": client, "times": m.updates, "examples": m.examples}
            for client, m in self.clients.items()
        ]

    def staleness(self) -> list[dict[str, Any]]:
        """How many versions behind the updates were that members took in."""
        found = sorted(self._stale.items())
        return [{"run": self.name, "staleness": behind, "times": times} for behind, times in found]

    def phases(self) -> Iterator[dict[str, Any]]:
        """Where the members' time went, all of them together."""
        totals: defaultdict[str, float] = defaultdict(float)
        for member in self.clients.values():
            for name, seconds in member.phases.items():
                totals[name] += seconds
        if totals:
            present = sum(m.last - m.first for m in self.clients.values())
            rest = max(0.0, present - sum(totals.values()))
            totals["training and everything else"] = rest
            for name, seconds in totals.items():
                yield {"run": self.name, "phase": name, "seconds": seconds}

    def troubles(self) -> list[dict[str, Any]]:
        """What went wrong: the kind, whose it was, and how often."""
        return [
            {"run": self.name, "client": client, "kind": kind, "what": what, "times": times}
            for (kind, client, what), times in self._wrong.most_common()
        ]

    def members(self) -> Iterator[dict[str, Any]]:
        """A row for each member, by name."""
        wrong: Counter[tuple[str, str]] = Counter()
        for (kind, client, _), times in self._wrong.items():
            wrong[kind, client] += times
        for client in sorted(self.clients):
            member = self.clients[client]
            yield {
                "run": self.name,
                "client": client,
                "updates": member.updates,
                "rounds": sum(client in names for names in self._included.values()),
                "examples": member.examples,
                "sent": member.sent,
                "received": member.received,
                "skipped": member.skipped,
                **{kind: wrong[kind, client] for kind in ("late", "refused", "offline")},
                "lives": len(member.joined),
                "left": int(member.left),
            }


_TAKEN: dict[str, Callable[[Meeting, Record, str, MemberRow], None]] = {
    "joined": Meeting._joined,
    "pushed": Meeting._pushed,
    "pulled": Meeting._pulled,
    "closed": Meeting._closed,
    "skipped": Meeting._skipped,
    "left": Meeting._left,
    "late": Meeting._late,
    "refused": Meeting._refused,
    "offline": Meeting._offline,
}
