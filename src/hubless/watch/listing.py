"""A federation as listings tell of it, in the words that its members use for themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hubless.errors import FederationError, NotFound, Refused, StoreError, Unsupported
from hubless.federate import keys
from hubless.federate.agreement import Agreement, read_agreement
from hubless.federate.fold import open_update
from hubless.federate.keys import Posted, Round
from hubless.federate.rounds.plans import PLAN_BYTES, Plan
from hubless.federate.rounds.slices import cut
from hubless.store import open_store
from hubless.store.base import Bytes, Entry, Store
from hubless.store.reliable import Reliable
from hubless.watch.feed import Record, finite

_PATIENCE = 10.0
_PARALLEL = 4
_MOST_METRICS = 64


class FederationFeed:
    """Events made out of what lies in a federation's folder or bucket.

    A listing tells who joined, who shared what and when, and which rounds are closed; of each
    client's newest update the header is read too, for its metrics. Times are the store's.
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
        self.store = Reliable(_ReadOnly(opened), _PATIENCE)
        self._agreement: Agreement | None = None
        self._seen: set[str] = set()
        self._rounds = _Rounds(self.store)
        if not self._agreed() and not self.store.list(keys.MEMBERS):
            raise FederationError(
                f"there is no federation at {self.name}: nobody has joined it or shared anything"
            )

    def poll(self) -> list[Record]:
        """What has come since the last call; one listing of members and one of their updates."""
        joined = self.store.list(keys.MEMBERS)
        agreement = self._agreed()
        records = list(self._joined(joined))
        listed: list[Entry] = []
        if agreement is not None:
            sync = agreement.mode == "sync"
            listed = self.store.list(keys.ROUNDS if sync else keys.UPDATES)
            records += self._pushed(agreement, keys.parse_updates(listed))
            if sync:
                records += self._rounds.news(agreement, listed)
        self._seen = {entry.key for entry in (*joined, *listed)}
        # in one second of the store's clock, things stand in the order in which they must happen
        return sorted(records, key=lambda record: finite(record["time"]) or 0.0)

    def _agreed(self) -> Agreement | None:
        if self._agreement is None:
            try:
                self._agreement = read_agreement(self.store)
            except NotFound:
                return None
        return self._agreement

    def _joined(self, entries: Sequence[Entry]) -> Iterator[Record]:
        for entry in entries:
            client = entry.key.removeprefix(keys.MEMBERS).partition("=")[0]
            life = keys.lives([entry], client).get(entry.key)
            if life is not None and entry.key not in self._seen:
                yield {
                    "event": "joined",
                    "client": client,
                    "time": entry.modified,
                    "url": self.store.url,
                    "mode": self._agreement.mode if self._agreement else "",
                    "incarnation": str(life),
                    "resumed": life.count > 1,
                }

    def _pushed(self, agreement: Agreement, listed: Sequence[Posted]) -> Iterator[Record]:
        new = [posted for posted in listed if posted.key not in self._seen]
        wanted = {p.key for p in keys.newest(new).values()}

        def reading(posted: Posted) -> Callable[[], tuple[dict[str, float], str]]:
            return lambda: _header(self.store, agreement, posted)

        read = [p for p in new if p.key in wanted]
        few = min(_PARALLEL, self.store.parallel)
        headers = self.store.ahead((reading(p) for p in read), 2 * few)
        found = dict(zip((p.key for p in read), headers, strict=True))
        for posted in sorted(new, key=lambda p: (p.modified, p.rank)):
            metrics, trouble = found.get(posted.key, ({}, ""))
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


class _Rounds:
    """What is new about the rounds of a synchronous federation."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._plans: dict[tuple[int, int], Plan] = {}
        self._waiting: set[str] = set()
        self._planned: dict[int, int] = {}
        self._closed: set[int] = set()
        self._known: set[str] = set()

    def news(self, agreement: Agreement, listed: Sequence[Entry]) -> Iterator[Record]:
        """What this listing tells that the ones before did not."""
        rounds = keys.parse_listing(listed).rounds
        modified = {entry.key: entry.modified for entry in listed}
        for number, round_ in rounds.items():
            if not round_.plans:
                yield from self._open(number, round_)
                continue
            attempt = max(round_.plans)
            try:
                yield from self._with_plan(agreement, number, rounds, modified)
            except NotFound:
                continue
            except (ValueError, StoreError) as damaged:
                if self._planned.get(number) != attempt:
                    self._planned[number] = attempt
                    at = keys.plan_key(number, attempt)
                    yield _offline(f"the plan {at} binds nobody: {damaged}", modified.get(at, 0.0))
        self._plans = {at: plan for at, plan in self._plans.items() if at[0] in rounds}
        self._planned = {n: attempt for n, attempt in self._planned.items() if n in rounds}
        self._closed &= set(rounds)
        self._waiting &= {key for round_ in rounds.values() for key in round_.updates}

    def _plan(self, number: int, attempt: int) -> Plan:
        if (number, attempt) not in self._plans:
            raw = self._store.get(keys.plan_key(number, attempt), PLAN_BYTES)
            self._plans[number, attempt] = Plan.parse(raw, number, attempt)
        return self._plans[number, attempt]

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
                    "missing": sorted(self._known - set(present)),
                    "seconds": max(0.0, time.time() - posted.modified),
                }

    def _with_plan(
        self,
        agreement: Agreement,
        at: int,
        rounds: Mapping[int, Round],
        modified: Mapping[str, float],
    ) -> Iterator[Record]:
        round_ = rounds[at]
        attempt = max(round_.plans)
        when = modified[keys.plan_key(at, attempt)]
        plan = self._plan(at, attempt)
        included = [posted.client for posted in plan.updates]
        if self._planned.get(at) != attempt:
            if plan.pick is not None and at not in self._planned:
                yield _said("picked", included, when, round=at, cohort=list(plan.pick.members))
            for posted in self._proved_bad(at, plan, round_):
                reason = f"round {at} was closed again without it: its params cannot be used"
                yield _refused(posted, reason, when)
            self._planned[at] = attempt
        slices = round_.slices.get(attempt, {})
        complete = len(slices) >= len(cut(len(agreement.signature.blocks), len(included)))
        # a later round opens only after this one is complete
        if at in self._closed or not (complete or any(later > at for later in rounds)):
            return
        self._closed.add(at)
        self._known = set(included) if agreement.selecting is None else set()
        ended = max([when, *(modified[m.key] for makers in slices.values() for m in makers)])
        began = min((p.modified for p in round_.updates.values()), default=ended)
        yield _said("closed", included, ended, round=at, included=included, seconds=ended - began)
        for client in sorted(self._missed(at, plan, round_)):
            yield {"event": "late", "client": client, "time": ended, "round": at}

    def _proved_bad(self, at: int, plan: Plan, round_: Round) -> list[Posted]:
        """Updates that the first plan had and this one leaves out."""
        if plan.attempt == 0 or 0 not in round_.plans:
            return []
        return [p for p in self._plan(at, 0).updates if p.key not in plan.included]

    def _missed(self, at: int, plan: Plan, round_: Round) -> set[str]:
        """Who was to be in a round, or delivered to it, and is not included."""
        expected = set(plan.pick.members) if plan.pick is not None else set()
        delivered = {posted.client for posted in round_.updates.values()}
        bad = {posted.client for posted in self._proved_bad(at, plan, round_)}
        return (expected | delivered) - {posted.client for posted in plan.updates} - bad


class _ReadOnly(Store):
    """A store that is only looked at."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = store.url
        self.request_bytes, self.parallel = store.request_bytes, store.parallel

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        raise Unsupported(f"{self.url} is only looked at: {key} was not written", key)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return self.store.get(key, limit)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        return self.store.read(key, start, stop, into)

    def list(self, prefix: str) -> list[Entry]:
        return self.store.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        raise Unsupported(f"{self.url} is only looked at: nothing was deleted")

    def close(self) -> None:
        self.store.close()


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
    return _metrics(stored.kept["metrics"]), ""


def _metrics(text: str) -> dict[str, float]:
    """The numbers among what a peer wrote as its metrics."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    found = {name: finite(value) for name, value in list(document.items())[:_MOST_METRICS]}
    return {name: value for name, value in found.items() if value is not None}


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


def _said(kind: str, clients: Sequence[str], when: float, **fields: object) -> Record:
    """What any of these members would say for all."""
    return {"event": kind, "client": clients[0] if clients else "", "time": when, **fields}
