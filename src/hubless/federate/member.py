"""A member: a process that joined, what it writes under its name, and what it notices there."""

from __future__ import annotations

import atexit
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakSet

import numpy as np

from hubless import __version__, events
from hubless.errors import (
    AlreadyExists,
    FederationError,
    NameTaken,
    ParamsError,
    Refused,
    StoreError,
    Unsupported,
)
from hubless.federate import keys
from hubless.federate.agreement import Agreement, read_agreement
from hubless.federate.fold import ABSURD, Flat, Own, Stored
from hubless.federate.keys import Incarnation, Listing, Posted
from hubless.federate.past import Past
from hubless.federate.picking.report import Reporter, ledger_path
from hubless.federate.terms import Terms
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.base import Bytes, Entry
from hubless.store.reliable import Reliable

_REMEMBERED = 10_000
"""So many of one's own keys are known again: a write that failed may still land much later."""


_HERE: WeakSet[Member] = WeakSet()
"""Who has joined from this process, or from one that it is a fork of, and has not left."""


@dataclass(frozen=True)
class Report:
    """What a member says of the params that it shares; the valuation as it knows it itself."""

    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    valuation: float | None = None


class Member:
    """A process that joined: what it writes under its name, and what it notices there."""

    def __init__(self, store: Reliable, terms: Terms) -> None:
        self.store, self.terms = store, terms
        self.client, self.strategy, self.clock = terms.client, terms.strategy, terms.clock
        self.events = events.Events(list(terms.listeners))
        self.limit = ABSURD if terms.limit is None else terms.limit
        self.outweigh = terms.outweigh
        self.signature: Signature | None = None
        self.incarnation = Incarnation(0, "0" * 8)
        self.sequence = self.version = self.calls = 0
        self.resumed = False
        self.until = math.inf
        """When the call under way has to end, by this member's clock."""
        self._mode = ""
        self.process = 0
        self._past = Past()
        self._left_before: set[tuple[str, Incarnation]] = set()
        self._reporter: Reporter | None = None
        self._written: dict[str, None] = {}
        self._refused: set[str] = set()
        self._alarmed: set[str] = set()
        # links, pipes and what cannot be listed hide nothing else, and do not go unnamed
        store.on_skip = lambda key, reason: self.refuse(Refused("?", key, reason))

    @property
    def agreed(self) -> Signature:
        """The signature that all members have agreed on."""
        if self.signature is None:
            raise FederationError("this member has not seen a model yet")
        return self.signature

    def begin(self, entries: Sequence[Entry], mode: str) -> None:
        """Rank above all former lives under this name, and say so before anything else.

        A former life's last write may still be on its way. It announced itself before it wrote
        anything, so what it wrote ranks below us wherever it lands.
        """
        self._mode, self.process = mode, os.getpid()
        _HERE.add(self)
        updates = keys.parse_updates(entries)
        mine = [p for p in updates if p.client == self.client]
        lives = keys.lives(entries, self.client)
        left = keys.parse_listing(entries).left
        # a process that was killed goes on with a run; others begin one, and wait for all
        was_killed = bool(lives) and self.client not in left
        self._left_before = set() if was_killed else set(left.items())
        self._announce(lives)
        # a sequence that no honest member reaches is not gone on with
        counted = [p.sequence for p in mine if p.sequence < keys.SEQUENCES // 2]
        self.sequence = max(counted, default=-1) + 1
        self.resumed = bool(mine)
        furthest = keys.furthest_version(updates)
        versions = [p.version for p in mine if p.version <= furthest]
        self.version = max(versions, default=-1) + 1
        if self.terms.private is not None:
            former = self.incarnation.count - 1
            file = self.terms.ledger or ledger_path(self.client, self.store.url)
            self._reporter = Reporter(self.terms.private, self.sequence, former, file)
        self.emit(
            events.Joined(
                client=self.client,
                url=self.store.url,
                mode=mode,
                incarnation=str(self.incarnation),
                resumed=self.resumed,
            )
        )

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        """Let all that happens inside end in time: it has one deadline, and one patience."""
        self.until = self.clock.now() + seconds
        with self.store.within(math.inf):
            yield

    @property
    def is_past(self) -> bool:
        """Whether the deadline of the call under way is over."""
        return self.clock.now() >= self.until

    def leave(self) -> None:
        """Say that this process is gone, so that nobody waits for it; at best, as it is leaving."""
        _HERE.discard(self)
        try:
            key = keys.life_key(self.client, self.incarnation, left=True)
            self.store.store.put(key, [self._past.to_bytes(self.calls)])
        except StoreError as error:
            events.logger.warning("could not say in the store that this member left: %s", error)
        self.emit(events.Left(client=self.client, steps=self.calls))

    def agree(self, mine: Signature, agreement: Callable[[Signature], Agreement]) -> Signature:
        """Hold this model against the federation's, which its first member fixed."""
        if self.signature != mine:
            wanted = agreement(mine)
            if self.signature is None:
                self.put_once(keys.FEDERATION, [wanted.to_bytes()])
            agreed = read_agreement(self.store)
            agreed.hold(wanted, self.store.url)
            self.signature = agreed.signature
            self.limit = min(self.limit, agreed.limit)
            self.outweigh = min(self.outweigh, agreed.outweigh)
        return self.signature

    def hidden(self, report: Report) -> Report:
        """The same as it may be published: once for each step, because it costs each time."""
        if self._reporter is None:
            return report
        return replace(report, valuation=self._reporter.report(report.valuation))

    def post(self, folder: str, own: Own, report: Report) -> Posted:
        """Put an update into the store; returns once that is acknowledged."""
        posted = Posted(
            folder,
            self.client,
            self.sequence,
            self.incarnation,
            report.examples,
            self.version,
            own.signature.digest,
            valuation=report.valuation,
        )
        # a number is used up even if the put fails: the object may be there all the same
        self.sequence += 1
        header = {
            "client": self.client,
            "sequence": str(posted.sequence),
            "examples": str(report.examples),
            "version": str(self.version),
            "metrics": json.dumps(dict(report.metrics)),
        }
        if report.valuation is not None:
            header["valuation"] = keys.exactly(report.valuation)
        parts = codec.encode(own.signature, own.flat, header)
        if len(parts[0]) > codec.header_limit(own.signature):
            raise ParamsError(
                f"metrics take {len(parts[0])} bytes, which is more than peers accept: share fewer"
            )
        self.publish(posted.key, parts)
        self._past.add(posted, report.metrics)
        self.emit(
            events.Pushed(
                client=self.client,
                key=posted.key,
                sequence=posted.sequence,
                examples=report.examples,
                bytes=sum(memoryview(part).nbytes for part in parts),
                metrics=report.metrics,
                valuation=report.valuation,
                epsilon=None if self._reporter is None else self._reporter.epsilon,
            )
        )
        return posted

    def publish(self, key: str, parts: Sequence[Bytes]) -> None:
        """Write an object under this member's own name, and know it again."""
        self._written[key] = None
        if len(self._written) > _REMEMBERED:
            del self._written[next(iter(self._written))]
        self.store.put(key, parts)

    def wrote(self, key: str) -> bool:
        """Whether this process wrote the object under this key, or tried to."""
        return key in self._written

    def superseded(self, listed: Iterable[Posted], keep: int) -> list[str]:
        """Updates under this member's name that newer ones of it have replaced, but for so many.

        Only what this process wrote replaces anything: others may write under its name, too.
        """
        mine = sorted((p for p in listed if p.client == self.client), key=lambda p: p.rank)
        newest = max((i for i, posted in enumerate(mine) if self.wrote(posted.key)), default=-1)
        return [posted.key for posted in mine[: max(0, newest + 1 - keep)]]

    def put_once(self, key: str, parts: Sequence[Bytes]) -> None:
        """Write an object that the first member to come decides."""
        try:
            self.store.put(key, parts, create=True)
        except AlreadyExists:
            return
        except Unsupported:
            # two first members may then both write; the signature in each key keeps them apart
            if not any(entry.key == key for entry in self.store.list("")):
                self.store.put(key, parts)

    def initial(self, signature: Signature) -> Flat | None:
        """The params that everybody starts from, if any member gave some that are usable."""
        entry = next((e for e in self.store.list("") if e.key == keys.INITIAL), None)
        if entry is None:
            return None
        out = np.empty(signature.size, np.uint8)
        try:
            stored = Stored(
                self.store, entry.key, entry.size, "first member", signature, limit=self.limit
            )
            stored.verify(into=out)
        except Refused as refusal:
            # whether it is usable does not depend on who looks: nobody starts from it
            self.refuse(refusal)
            return None
        return out

    def notice(self, claimed: Mapping[str, Incarnation]) -> None:
        """Say, once, that somebody else wrote under this member's name, and rank above that.

        A later process under this name makes this one stop. Only what announced itself is one: an
        object that merely claims a later life is an impostor's, and an alarm.
        """
        claimed = {key: life for key, life in claimed.items() if key not in self._written}
        if new := {key: life for key, life in claimed.items() if key not in self._alarmed}:
            self._outrank(new)

    def look(self) -> Listing:
        """What one listing tells; what somebody else put under this member's name is an alarm."""
        listing = keys.parse_listing(self.store.list(""))
        claimed = listing.claimed(self.client, self.incarnation)
        # a member that has left looks no more
        left = listing.left.get(self.client)
        if left is not None and left >= self.incarnation:
            claimed[keys.life_key(self.client, left, left=True)] = left
        self.notice(claimed)
        return listing

    def rejects(self, key: str) -> bool:
        """Whether this was refused before, or somebody else wrote it under this member's name."""
        return key in self._refused or key in self._alarmed

    def gone(self, listing: Listing) -> set[str]:
        """Who has left this run for good, as far as it shows: nobody waits for them."""
        left = {c for c, life in listing.left.items() if (c, life) not in self._left_before}
        return left - {self.client}

    def is_deserted(self, picked: Iterable[str], number: int, listing: Listing) -> bool:
        """Whether all of these have left, and delivered nothing for a round."""
        delivered = {posted.client for posted in listing.rounds[number].updates.values()}
        return set(picked) <= self.gone(listing) - delivered

    def refuse(self, refusal: Refused) -> None:
        """Name what is not let in, once."""
        if refusal.key not in self._refused:
            self._refused.add(refusal.key)
            self.miss(refusal)

    def refused(self, key: str) -> bool:
        """Whether this key was refused before."""
        return key in self._refused

    def miss(self, refusal: Refused) -> None:
        """Tell of what could not be had this time, which is not to be called bad."""
        self.emit(
            events.RefusedUpdate(
                client=self.client, peer=refusal.client, key=refusal.key, reason=refusal.reason
            )
        )

    def forget_all_but(self, listed: AbstractSet[str]) -> None:
        """Remember nothing of keys that are no longer there."""
        self._refused &= listed
        self._alarmed &= listed

    def discard(self, keys: Sequence[str]) -> None:
        """Delete what is ours and superseded; what cannot be deleted now is tried again later."""
        if not keys:
            return
        try:
            self.store.store.delete(keys)
        except StoreError as error:
            events.logger.debug("could not collect %s yet: %s", keys, error)

    def emit(self, event: events.Event) -> None:
        """Tell everyone who listens."""
        self.events.emit(event)

    def _announce(self, lives: dict[str, Incarnation]) -> None:
        self.incarnation = Incarnation.after(lives)
        note = json.dumps({"hubless": __version__, "mode": self._mode}).encode()
        self.publish(keys.life_key(self.client, self.incarnation), [note])
        self.discard([key for key in lives if key.startswith(keys.MEMBERS)])

    def _check_sole(self) -> None:
        """Raise where a later process goes by this member's name."""
        lives = keys.lives(self.store.list(keys.MEMBERS), self.client)
        later = [key for key, life in lives.items() if life > self.incarnation]
        if later:
            raise NameTaken(
                f"another process joined as {self.client!r} after this one (it wrote {later[-1]}): "
                "give every process a client name of its own. This one stops sharing; its model "
                "is untouched"
            )

    def _outrank(self, claimed: dict[str, Incarnation]) -> None:
        """Begin another life, so that what an impostor wrote does not hide what comes from now."""
        if max(claimed.values()) > self.incarnation:
            self._check_sole()
        self._alarmed.update(claimed)
        reason = "it lies under this member's name, and this member did not write it"
        for key in claimed:
            self.emit(events.Impostor(client=self.client, key=key, reason=reason))
        try:
            lives = keys.lives(self.store.list(keys.MEMBERS), self.client)
            self._announce({**lives, **claimed})
        except FederationError as error:
            events.logger.warning("%s: peers may take an impostor for this member", error)


@atexit.register
def _leave() -> None:
    """Leave with the process, where nobody closed the federation; a fork is not the member."""
    for member in list(_HERE):
        if member.process == os.getpid():
            member.leave()
