"""A federation, as its members' own events or a look at its store tell of it."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from fractions import Fraction
from typing import Any

from hubless.watch.fold.member import MemberFold
from hubless.watch.fold.run import HeardEvent, RunFold, shown
from hubless.watch.fold.series import CurvePoint
from hubless.watch.fold.strip import Strip
from hubless.watch.values import MOST_METRICS, short, text

_MEMBERS = 5000
_LINES = 8
_MUTE = 3
"""Who shared so often without metrics has none to say."""
_SILENT_BY_NAME = 5
_REMEMBERED = 5000
_ROUND = re.compile(r"rounds/([0-9]{1,9})/")
_SAYS_NOTHING = ("left", "silent")
ALL = "all members"


class FederationFold(RunFold):
    """A federation: rounds and members, or members alone where nobody waits."""

    kind = "federation"
    rest = "training and everything else"

    def __init__(self, name: str, number: int = 0) -> None:
        super().__init__(name, number)
        self.members: OrderedDict[str, MemberFold] = OrderedDict()
        self.updates = 0
        self.notes: dict[str, str] = {}
        """What there is to say of it, by name."""
        self._strip = Strip("time")
        self._remembered: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self._open = self._mean_at = 0
        self._unmeasured: dict[str, None] = {}
        # the sum of all members' newest by metric, weighted by examples, and the weights' sum;
        # exact, as what one member adds has to be gone without a trace once it is taken out
        self._sums: dict[str, tuple[Fraction, int]] = {}

    @property
    def in_rounds(self) -> bool:
        """Whether its members meet in rounds, and not each at its own pace."""
        return self._strip.axis == "round"

    def is_over(self, now: float) -> bool:
        """Whether all have left, but for those that are not heard of any more."""
        standing = {member.standing(now) for member in self.members.values()}
        return "left" in standing and standing <= {*_SAYS_NOTHING}

    def status(self, now: float) -> str:
        """As of any run; it is silent where every member is."""
        if self.is_over(now):
            return "ended"
        standing = {member.standing(now) for member in self.members.values()}
        return "silent" if standing == {"silent"} else "live"

    def check(self, now: float) -> None:
        """Note who has fallen silent."""
        new = [
            (client, member)
            for client, member in self.members.items()
            if not member.is_noted_silent and member.standing(now) == "silent"
        ]
        for _, member in new:
            member.is_noted_silent = True
            member.troubles["silent"] += 1
        for client, member in new[:_SILENT_BY_NAME]:
            used = f"; it used to share every {max(member.gaps):.1f} s" if member.gaps else ""
            quiet = f"nothing was heard of it for {now - member.heard:.0f} s{used}"
            self.note(client, "silent", quiet, now)
        if more := new[_SILENT_BY_NAME:]:
            self.note("", "silent", f"nothing is heard of {len(more):,} more members", now)

    def counts(self, now: float) -> dict[str, int]:
        """Members by what they are doing."""
        return dict(Counter(member.standing(now) for member in self.members.values()))

    def strip(self, now: float) -> dict[str, Any]:
        """Who did what and when, and how each stands."""
        drawn = self._strip.to_json(len(self.members))
        for row in drawn["rows"]:
            if member := self.members.get(row["name"]):
                row["about"] = member.about(now)
        return drawn

    def facts(self) -> dict[str, str]:
        """Where it meets and how, and how many have joined."""
        return {**self.notes, "members": str(len(self.members)), "updates": f"{self.updates:,}"}

    def summary(self, now: float) -> dict[str, Any]:
        """As of any run; in a federation without rounds, updates are counted instead."""
        return {**super().summary(now), "updates": self.updates, "in_rounds": self.in_rounds}

    def lines(self) -> dict[str, dict[str, list[CurvePoint]]]:
        """What a page draws: all members together, and as many of them as can be told apart."""
        drawn = {}
        for metric, lines in self.curves.lines().items():
            members = [name for name in lines if name != ALL][:_LINES]
            names = [name for name in (ALL, *members) if name in lines]
            drawn[metric] = {name: shown(lines[name].drawn()) for name in names}
        return drawn

    def own(self, event: HeardEvent, status: str = "") -> MemberFold | None:
        """The member that tells something of itself; None where nobody is named."""
        member = self._member(event, event.client)
        if member is None:
            return None
        # what is told late does not bring back who has left
        if status and event.time >= member.last:
            member.turn(status, event.arrival or event.time)
        member.heard = max(member.heard, event.arrival or event.time)
        member.last = max(member.last, event.time)
        return member

    def other(self, event: HeardEvent, client: str, status: str = "") -> MemberFold | None:
        """A member of whom another one tells; None where that is not to be believed."""
        if not client or (event.alone and client != event.client):
            return None
        member = self._member(event, client)
        if member is not None and status and member.status != "left":
            member.turn(status, event.arrival or event.time)
        return member

    def mark(
        self,
        client: str,
        event: HeardEvent,
        did: int,
        round_: int | None = None,
        again: bool = False,
    ) -> None:
        """Draw that a client did something; `again` where that was told before."""
        if self.in_rounds:
            self._strip.mark(client, self._open if round_ is None else round_, did, again=again)
        else:
            self._strip.mark(client, int(event.time - (self.began or event.time)), did, again=again)

    def turn_to_rounds(self) -> None:
        """Its members meet in rounds."""
        if not self.in_rounds:
            self._strip = Strip("round")

    def reach(self, round_: int | None) -> None:
        """A round is heard of."""
        if round_ is not None:
            self._open = max(self._open, round_)

    def wrong(self, client: str, event: HeardEvent, what: str, kind: str = "") -> None:
        """Something went wrong with a client, or with nobody in particular."""
        kind = kind or event.kind
        if member := self.members.get(client):
            member.troubles[kind] += 1
        self.note(client, kind, what, event.time)

    def is_news(self, *what: str) -> bool:
        """Whether this is told for the first time: members may each tell it for themselves."""
        if what in self._remembered:
            return False
        self._remembered[what] = None
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return True

    def draw(
        self, event: HeardEvent, metrics: dict[str, float], sequence: int, at: int | None
    ) -> None:
        """Draw what a member said with an update, and what all members' newest come to.

        Curves go over rounds, where there are any (`at`), and over a member's updates elsewhere.
        """
        member = self.members[event.client]
        place = sequence + 1 if at is None else at + 1
        moved = self.bytes_down + self.bytes_up
        seconds = max(0.0, event.time - (self.began or event.time))
        for metric, value in metrics.items():
            point = CurvePoint(place, seconds, moved, value)
            self.curves.put(metric, event.client, point)
        if sequence < member.sequence or not metrics:
            return
        self._weigh(member, -1)
        member.metrics, member.weight = metrics, max(1, member.examples or 1)
        self._weigh(member, 1)
        # where everybody has a pace of its own, all are as far as they are on average
        self._mean_at = max(1, self._mean_at, self.updates // len(self.members))
        self._unmeasured.pop(event.client, None)
        is_of_all = self._is_measured(event.time)
        for metric in metrics:
            if metric in self._sums:
                total, weights = self._sums[metric]
                mean = float(total / weights)
                self.metrics[metric] = short(mean)
                if not is_of_all:
                    continue
                all_at = self._mean_at if at is None else place
                point = CurvePoint(all_at, seconds, moved, mean)
                self.curves.put(metric, ALL, point)

    def go_on_after(self, round_: int) -> None:
        """Nobody waits for a round that is closed, whoever was in it."""
        for member in self.members.values():
            if member.status == "waiting" and member.pushed_round <= round_:
                member.status = "training"

    @property
    def clients(self) -> int:
        """How many members were ever there."""
        return len(self.members)

    def progress(self) -> int:
        """Rounds that are closed, or updates of whoever shared most."""
        if self.in_rounds:
            return self.round
        return max((member.updates for member in self.members.values()), default=0)

    def seconds(self) -> float:
        """From the first that was heard to the last."""
        last = max((member.last for member in self.members.values()), default=0.0)
        return max(0.0, last - (self.began or last))

    def ended(self, now: float) -> str:
        """Whether all have left, and how many fell silent instead."""
        counts, status = self.counts(now), self.status(now)
        silent = f", {counts['silent']} silent" if counts.get("silent") else ""
        return f"ended{silent}" if status == "ended" else f"not ended{silent}"

    def seconds_in_all(self) -> float:
        """The members' time, all of them together."""
        return sum(member.last - member.began for member in self.members.values())

    def _member(self, event: HeardEvent, client: str) -> MemberFold | None:
        if not client:
            return None
        member = self.members.get(client)
        if member is None and len(self.members) >= _MEMBERS:
            # who was there first stays: a stranger may make up names without end
            self.notes["more members"] = "there are more names than can be shown"
            return None
        if member is None:
            member = self.members[client] = MemberFold(event.time, last=event.time)
            member.heard = event.arrival or event.time
            self._unmeasured[client] = None
        member.began = min(member.began, event.time)
        self.members.move_to_end(client)
        return member

    def _is_measured(self, time: float) -> bool:
        """Whether all who are there have said metrics, so that a mean is one of all members."""
        for client in list(self._unmeasured):
            member = self.members.get(client)
            if member and member.updates < _MUTE and member.standing(time) not in _SAYS_NOTHING:
                return False
            del self._unmeasured[client]
        return True

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


def round_of(event: HeardEvent) -> int | None:
    """The round that an update's key is of, where there are rounds."""
    match = _ROUND.match(text(event.record.get("key"), 300))
    return int(match[1]) if match else None
