"""A federation as listings tell of it, in the words that its members use for themselves."""

from __future__ import annotations

import heapq
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from hubless.errors import NotFound, Refused, StoreError
from hubless.federate import keys
from hubless.federate.agreement import Agreement, read_agreement
from hubless.federate.fold import open_update
from hubless.federate.keys import Listing, Posted, Round
from hubless.federate.outside.onlooker import Onlooker
from hubless.federate.past import Past
from hubless.federate.rounds.plans import Plan, Plans
from hubless.federate.rounds.slices import cut
from hubless.store import open_store
from hubless.store.base import Entry
from hubless.store.reliable import Reliable
from hubless.store.wrapping import ReadOnly
from hubless.watch.feed import Awaited
from hubless.watch.values import Record, numbers, time_of

_PATIENCE = 10.0
_PARALLEL = 4
_HEADERS = 1000
"""So many headers are read at one look: of newer updates first, and of each client some."""
_HEADERS_EACH = 32
_MEMBERS = 20_000
_PASTS = 500
_PAST_BYTES = 256 << 10
_ROUNDS = 16
"""So many of the newest rounds are looked at."""
_DOCUMENT_BYTES = 8 << 20
"""A plan of fifty thousand members is smaller, and takes bounded memory however it is nested."""


class FederationFeed:
    """Events made out of what lies in a federation's folder or bucket.

    A listing tells who joined and who left, who shared what and when, and which rounds are closed;
    of updates the headers are read too, for their metrics. Times are the store's.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        endpoint: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.name = str(source)
        opened = open_store(source, endpoint, options, make=False)
        self.store = Reliable(_Small(opened), _PATIENCE)
        self._agreement: Agreement | None = None
        self._last_keys: set[str] = set()
        self._rounds: _Rounds | None = None
        if not self._agreed() and not self.store.list(keys.MEMBERS):
            raise Awaited(
                f"there is no federation at {self.name}: nobody has joined it or shared anything"
            )

    def poll(self) -> list[Record]:
        """What has come since the last call; one listing of members and one of their updates.

        All that cannot be read shares one patience.
        """
        with self.store.within(_PATIENCE):
            joined = self.store.list(keys.MEMBERS)
            records = list(self._lives(joined))
            agreement = self._agreed()
            listed: list[Entry] = []
            if agreement is not None:
                sync = agreement.mode == "sync"
                listed = self.store.list(keys.ROUNDS if sync else keys.UPDATES)
                records += self._pushed(agreement, keys.parse_updates(listed))
                if sync:
                    self._rounds = self._rounds or _Rounds(self.store, agreement)
                    records += self._rounds.news(listed)
            records += self._left(joined, records)
        self._last_keys = {entry.key for entry in (*joined, *listed)}
        # in one second of the store's clock, things stand in the order in which they must happen
        return sorted(records, key=time_of)

    def _agreed(self) -> Agreement | None:
        if self._agreement is None:
            try:
                self._agreement = read_agreement(self.store)
            except NotFound:
                return None
        return self._agreement

    def _lives(self, entries: Sequence[Entry]) -> Iterator[Record]:
        for entry in entries[:_MEMBERS]:
            client = entry.key.removeprefix(keys.MEMBERS).partition("=")[0]
            life = keys.lives([entry], client).get(entry.key)
            if life is None or entry.key in self._last_keys:
                continue
            if entry.key != keys.life_key(client, life):
                continue
            yield {
                "event": "joined",
                "client": client,
                "time": entry.modified,
                "url": self.store.url,
                "mode": self._agreement.mode if self._agreement else "",
                "incarnation": str(life),
                "resumed": life.count > 1,
            }

    def _left(self, entries: Sequence[Entry], records: Sequence[Record]) -> list[Record]:
        """Who left: whatever of theirs is written once more by others, they did so afterwards."""
        times = {entry.key: entry.modified for entry in entries}
        last: dict[str, float] = {}
        for record in records:
            last[record["client"]] = max(last.get(record["client"], 0.0), record["time"])
        sizes = {r["client"]: r["bytes"] for r in records if r["event"] == "pushed"}
        listed = {(r["client"], r["sequence"]) for r in records if r["event"] == "pushed"}
        news: list[Record] = []
        for client, life in keys.parse_listing(entries).left.items():
            key = keys.life_key(client, life, left=True)
            if key not in self._last_keys:
                when = max(times[key], last.get(client, 0.0))
                if len(news) < _PASTS:
                    past = self._past(key, client, sizes.get(client, 0), when)
                    news += [r for r in past if (client, r["sequence"]) not in listed]
                news.append({"event": "left", "client": client, "time": when})
        return news

    def _past(self, key: str, client: str, size: int, until: float) -> Iterator[Record]:
        """What a member that left says of its own updates, most of which no longer lie there."""
        try:
            past = Past.parse(self.store.get(key, _PAST_BYTES))
        except StoreError:
            return
        for update in past:
            folder = keys.UPDATES if update.round is None else keys.round_folder(update.round)
            yield {
                "event": "pushed",
                "client": client,
                "time": min(update.time, until),
                "key": folder,
                "sequence": update.sequence,
                "examples": update.examples,
                "bytes": size,
                "metrics": update.metrics,
            }

    def _pushed(self, agreement: Agreement, listed: Sequence[Posted]) -> Iterator[Record]:
        new = [posted for posted in listed if posted.key not in self._last_keys]

        def reading(posted: Posted) -> Callable[[], tuple[Mapping[str, float], str]]:
            return lambda: _header(self.store, agreement, posted)

        read = _worth_reading(new)
        few = min(_PARALLEL, self.store.parallel)
        headers = self.store.ahead((reading(p) for p in read), 2 * few)
        by_key = dict(zip((p.key for p in read), headers, strict=True))
        for posted in sorted(new, key=lambda p: (p.modified, p.rank)):
            metrics, trouble = by_key.get(posted.key, ({}, ""))
            record: Record = {
                "event": "pushed",
                "client": posted.client,
                "time": posted.modified,
                "key": posted.key,
                "sequence": posted.sequence,
                "examples": posted.examples,
                "bytes": posted.size,
                "metrics": metrics,
            }
            yield record if posted.valuation is None else {**record, "valuation": posted.valuation}
            if trouble:
                yield _refused(posted, trouble, posted.modified)


def _worth_reading(new: Sequence[Posted]) -> list[Posted]:
    """The newest updates of each client, and of those not more than one look can take."""
    by_client: dict[str, list[Posted]] = {}
    for posted in new:
        by_client.setdefault(posted.client, []).append(posted)
    several = [
        heapq.nlargest(_HEADERS_EACH, own, key=lambda p: p.rank) for own in by_client.values()
    ]
    turns = (own[turn] for turn in range(_HEADERS_EACH) for own in several if turn < len(own))
    return list(itertools.islice(turns, _HEADERS))


class _Rounds:
    """What is new about the rounds of a synchronous federation, by the plans that bind members."""

    def __init__(self, store: Reliable, agreement: Agreement) -> None:
        self._agreement = agreement
        self._troubles: list[Refused] = []
        self._onlooker = Onlooker(store, agreement, self._troubles.append)
        names = agreement.selecting.members if agreement.selecting else ()
        self._plans = Plans(
            self._onlooker,
            lambda client: not names or client in names,
            lambda plan, number, listing: None,
            self._is_given_up,
        )
        self._newest = -1
        self._waiting: set[str] = set()
        self._planned: dict[int, int] = {}
        self._closed: set[int] = set()
        self._included: set[str] = set()

    def news(self, listed: Sequence[Entry]) -> Iterator[Record]:
        """What this listing tells that the ones before did not."""
        listing = keys.parse_listing(listed)
        modified = {entry.key: entry.modified for entry in listed}
        newest = self._plans.newest(listing, self._newest)
        self._newest = max(self._newest, newest[0] if newest else -1)
        planned = [n for n in listing.planned if n <= self._newest][-_ROUNDS:]
        for number in planned:
            plan = self._plans.binding(number, listing)
            if plan is not None:
                yield from self._with_plan(number, plan, listing, modified)
        open_round = self._newest + 1
        yield from self._open(open_round, listing.rounds[open_round])
        for trouble in self._troubles:
            reason = f"{trouble.key} binds nobody: {trouble.reason}"
            yield _offline(reason, modified.get(trouble.key, 0.0))
        self._troubles.clear()
        self._forget(planned, listing)

    def _forget(self, planned: Collection[int], listing: Listing) -> None:
        """Remember nothing of rounds that are over."""
        self._plans.forget_before(min(planned, default=0))
        self._planned = {n: attempt for n, attempt in self._planned.items() if n in planned}
        self._closed &= set(planned)
        self._waiting &= listing.keys

    def _is_given_up(self, key: str, plan: Plan, number: int, listing: Listing) -> bool:
        """Whether members went on without an update: a later attempt has all its slices.

        Whoever looks on does not read whole models to see what was wrong with it.
        """
        enough = len(cut(len(self._agreement.signature.blocks), max(1, len(plan.included) - 1)))
        slices = listing.rounds[number].slices
        return any(at > plan.attempt and len(made) >= enough for at, made in slices.items())

    def _open(self, at: int, round_: Round) -> Iterator[Record]:
        present = keys.newest(round_.updates.values())
        for posted in sorted(present.values(), key=lambda p: p.modified):
            if posted.key not in self._waiting:
                self._waiting.add(posted.key)
                yield {
                    "event": "waiting",
                    "client": posted.client,
                    "time": posted.modified,
                    "round": at,
                    "present": len(present),
                    "missing": sorted(self._included - set(present)),
                    "seconds": max(0.0, time.time() - posted.modified),
                }

    def _with_plan(
        self, at: int, plan: Plan, listing: Listing, modified: Mapping[str, float]
    ) -> Iterator[Record]:
        round_ = listing.rounds[at]
        when = modified.get(keys.plan_key(at, plan.attempt), 0.0)
        included = [posted.client for posted in plan.updates]
        left_out = self._left_out(at, plan)
        if self._planned.get(at) != plan.attempt:
            if plan.pick is not None and at not in self._planned:
                yield _record("picked", when, round=at, cohort=list(plan.pick.members))
            for posted in left_out:
                reason = f"round {at} was closed again without it: its params cannot be used"
                yield _refused(posted, reason, when)
            self._planned[at] = plan.attempt
        slices = round_.slices.get(plan.attempt, {})
        complete = len(slices) >= len(cut(len(self._agreement.signature.blocks), len(included)))
        # a later round opens only after this one is complete
        if at in self._closed or not (complete or any(later > at for later in listing.rounds)):
            return
        self._closed.add(at)
        self._included = set(included) if self._agreement.selecting is None else set()
        times = [modified[m.key] for makers in slices.values() for m in makers]
        ended = max([when, *times])
        began = min((p.modified for p in round_.updates.values()), default=ended)
        sequences = {posted.client: posted.sequence for posted in plan.updates}
        details = {"seconds": ended - began, "sequences": sequences}
        yield _record("closed", ended, round=at, included=included, **details)
        bad = {posted.client for posted in left_out}
        for client in sorted(_expected(plan, round_) - set(included) - bad):
            yield {"event": "late", "client": client, "time": ended, "round": at}

    def _left_out(self, at: int, plan: Plan) -> list[Posted]:
        """Updates that the first plan had and this one leaves out."""
        first = self._plans.get(at, 0) if plan.attempt else None
        return [p for p in first.updates if p.key not in plan.included] if first else []


def _expected(plan: Plan, round_: Round) -> set[str]:
    """Who was to be in a round, or delivered to it."""
    picked = set(plan.pick.members) if plan.pick is not None else set()
    return picked | {posted.client for posted in round_.updates.values()}


class _Small(ReadOnly):
    """A store that is only looked at, and of which no large document is read."""

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return super().get(key, min(limit, _DOCUMENT_BYTES))


def _header(store: Reliable, agreement: Agreement, posted: Posted) -> tuple[dict[str, float], str]:
    """The metrics in an update's header, and what members would refuse it for."""
    if posted.signature != agreement.signature.digest:
        return {}, "its params have another signature than this federation's"
    try:
        stored = open_update(store, posted, agreement.signature, agreement.limit, keep=("metrics",))
    except Refused as refusal:
        return {}, refusal.reason
    except StoreError:
        # replaced meanwhile, or out of reach: that it was shared is known all the same
        return {}, ""
    return _metrics(stored.kept.get("metrics")), ""


def _metrics(text: str | None) -> dict[str, float]:
    """The numbers among what a peer wrote as its metrics."""
    try:
        values = numbers(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in values.items() if value is not None}


def _refused(posted: Posted, reason: str, when: float) -> Record:
    return {
        "event": "refused",
        "client": posted.client,
        "time": when,
        "peer": posted.client,
        "key": posted.key,
        "reason": reason,
    }


def _offline(reason: str, when: float) -> Record:
    return {"event": "offline", "client": "", "time": when, "reason": reason}


def _record(kind: str, when: float, **fields: object) -> Record:
    """An event that any member would tell of for all."""
    return {"event": kind, "client": "", "time": when, **fields}
