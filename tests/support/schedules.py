"""Federations simulated in one thread: seeded schedules of members, faults, kills and late writes.

Every member runs the real `hubless.join` in a greenlet of its own. Each store operation and each
sleep goes back to the scheduler, so that a seed decides who goes next, what fails, who dies, and
when a write that nobody waits for any more lands all the same.

    python -m tests.support.schedules --mode async --seeds 0:5000
    python -m tests.support.schedules --mode sync --seed 17 --trace
    python -m tests.support.schedules --mode select --seeds 0:1000
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import pickle
import random
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median_low
from typing import Any, TypeVar
from unittest import mock

import greenlet
import numpy as np
from numpy.typing import NDArray

import hubless
from hubless import events, signature
from hubless.errors import AlreadyExists, NotFound, QuorumMissed, StoreError, TooLate
from hubless.federate import keys
from hubless.federate.asynchronous import KEPT_UPDATES
from hubless.federate.federation import Federation
from hubless.federate.fold import OUTWEIGH, capped
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.rounds.completing import KEPT_ROUNDS
from hubless.federate.rounds.plans import Plan
from hubless.params import is_floating
from hubless.rng import stream
from hubless.select import Active, Activity, AtMost, Heavy, Refreshed, RoundRobin, Uniform
from hubless.select.roster import Roster, Selector
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.base import Bytes, Entry, Store
from hubless.store.memory import MemoryStore
from hubless.strategy.base import Slots, State, Strategy
from hubless.update import Update

T = TypeVar("T")
Params = dict[str, NDArray[Any]]
Rank = tuple[Incarnation, int]
Version = tuple[int, int]

MALLORY = "mallory"
_RENEWALS = 3
_MOST_STEPS = 60_000
_MOST_SECONDS = 3_000.0
_MOST_PATIENT = 400.0
_SLACK = 45.0
_BLOCK_BYTES = 32


class Killed(BaseException):
    """A process is gone; nothing that it would still have done happens."""


class ScheduleFailure(AssertionError):
    """A schedule broke a promise; `seed` brings it back."""

    def __init__(self, mode: str, seed: int, what: str, trace: Sequence[str]) -> None:
        shown = "\n  ".join(trace)
        super().__init__(
            f"{mode} schedule {seed}: {what}\nthe last operations:\n  {shown}\n"
            f"replay: python -m tests.support.schedules --mode {mode} --seed {seed} --trace"
        )
        self.seed, self.what, self.trace = seed, what, list(trace)


@dataclass
class Report:
    """What happened in a schedule that kept all promises."""

    seed: int
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Content:
    """Params that tell by themselves whose they are and when they were made."""

    client: str
    serial: int
    params: Params

    @classmethod
    def make(cls, client: str, number: int, serial: int) -> Content:
        base = 100.0 * (number + 1) + serial
        grid = base + np.arange(20, dtype=np.float32).reshape(4, 5) / 64
        params: Params = {
            "steps": np.array(1000 * (number + 1) + serial),
            "w": grid.astype(np.float32),
            "b": (-base - np.arange(10) / 32).astype(np.float32),
        }
        return cls(client, serial, params)

    @property
    def flat(self) -> Params:
        # strategies are compared on flat arrays, as the protocol has them
        return {name: array.reshape(-1) for name, array in self.params.items()}


def parsed(key: str) -> Posted | None:
    return Posted.parse(Entry(key, 0, 0.0))


def packed(params: Mapping[str, Any]) -> bytes:
    return b"".join(np.asarray(params[name]).tobytes() for name in ("steps", "w", "b"))


class Backing(MemoryStore):
    """The one store behind all views; listings, which are most of the work, are kept ready."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._listings: dict[str, list[Entry]] = {}

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        super().put(key, parts, create=create)
        self._listings.clear()

    def delete(self, keys: Sequence[str]) -> None:
        super().delete(keys)
        self._listings.clear()

    def list(self, prefix: str) -> list[Entry]:
        if prefix not in self._listings:
            self._listings[prefix] = super().list(prefix)
        return list(self._listings[prefix])


class World:
    """One schedule: the store, the time, the members, and everything that was promised."""

    mode = ""

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        self.seed, self.sabotage = seed, sabotage
        self.rng = random.Random(f"{type(self).__name__} {seed}")
        self.backing = Backing("memory://schedule")
        self.now = 0.0
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.failure = ""
        self.over = False
        self.hub = greenlet.getcurrent()
        self.queue: list[tuple[float, float, int, Callable[[], None]]] = []
        self.trace: deque[tuple[float, str, str, str, str]] = deque(maxlen=keep)
        self.contents: dict[str, Content] = {}
        self.bad: set[str] = set()
        self.acknowledged: dict[str, Rank] = {}
        self.late_writes: Counter[str] = Counter()
        self.undeleted: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.signature = Signature.of(Content.make("", 0, 0).params)
        draw = self.rng
        self.error = self.lost = 0.05 if draw.random() < 0.85 else 0.0
        self.kill = draw.choice((0.0, 0.004, 0.012, 0.03))
        self.kills_left = draw.randint(1, 4) if self.kill else 0
        self.stall = draw.choice((0.0, 0.0, 0.01, 0.04))
        self.stalls_left = draw.randint(1, 4) if self.stall else 0
        self.longest_stall = draw.choice((2.0, 6.0, 14.0))
        self.back_again = draw.choice((1.0, 0.85, 0.85, 0.5))
        self.adversary = draw.random() < 0.25

    def run(self) -> Report:
        while self.queue and not self.failure:
            self.now, _, _, act = heapq.heappop(self.queue)
            act()
            self.steps += 1
            if self.steps > _MOST_STEPS or self.now > _MOST_SECONDS:
                alive = [life.name for life in self.lives if life.alive]
                self.failure = f"still running after {self.steps} steps, {self.now:.0f} s: {alive}"
        self.over = True
        for life in self.lives:
            life.end()
        if not self.failure:
            self.failure = self.finally_wrong()
        if self.failure:
            raise ScheduleFailure(self.mode, self.seed, self.failure, self.told())
        return Report(self.seed, self.steps, self.now, self.counts)

    def at(self, when: float, act: Callable[[], None]) -> None:
        # the random second key shuffles whatever is due at one time
        heapq.heappush(self.queue, (when, self.rng.random(), len(self.queue) + self.steps, act))

    def fail(self, what: str) -> Killed:
        """Note what went wrong; raising the result ends the greenlet that found out."""
        self.failure = self.failure or what
        return Killed()

    def note(self, who: str, operation: str, key: str, outcome: str) -> None:
        self.trace.append((self.now, who, operation, key, outcome))

    def told(self) -> list[str]:
        return [f"{t:9.3f} {w:>10} {op:<7} {key} {how}" for t, w, op, key, how in self.trace]

    def put(self, who: str, key: str, body: bytes, create: bool, content: Content | None) -> None:
        held = self.backing._objects.get(key)
        if self.sabotage == "create" and key.startswith(keys.ROUNDS):
            create = False
        elif held and held[0] != body and (not create or "/slices-" in key) and key not in self.bad:
            raise self.fail(f"{who} writes {key} again, with other bytes")
        self.backing.put(key, [body], create=create)
        if content is not None:
            self.contents.setdefault(key, content)
        self.landed(key, body)

    def landed(self, key: str, body: bytes) -> None:
        """An object is there, possibly not for the first time."""

    def hear(self, life: Life, event: events.Event) -> None:
        """A member says something."""

    def delete(self, who: str, keys: Sequence[str]) -> None:
        self.backing.delete(keys)
        for posted in filter(None, map(parsed, keys)):
            if posted.client != who:
                raise self.fail(f"{who} deletes what is {posted.client}'s: {posted.key}")
            self.check_visible(who)

    def check_visible(self, client: str) -> None:
        """What was acknowledged is there, or something newer of the same client."""
        promised = self.acknowledged.get(client)
        if promised is not None:
            ranks = [p.rank for p in self.listed() if p.client == client]
            if not ranks or max(ranks) < promised:
                raise self.fail(f"{client}'s acknowledged update {promised} is lost")

    def listed(self) -> list[Posted]:
        return list(filter(None, map(parsed, self.backing._objects)))

    def later(self, who: str, key: str, deed: Callable[[], object], ghost: bool) -> None:
        """Let a write land when nobody waits for it any more."""
        rng = self.rng
        delay = rng.choice((0.0, 0.1, 1.0, 5.0, 20.0)) * rng.expovariate(1.0)

        def land() -> None:
            try:
                deed()
                self.note(who, "landed", key, "late" + ", its writer is gone" * ghost)
            except AlreadyExists:
                self.note(who, "landed", key, "late, in vain")
            except Killed:
                pass

        self.counts["late writes"] += 1
        self.late_writes[who] += 1
        self.at(self.now + delay, land)

    def spawn(self, member: Member, when: float) -> None:
        life = Life(self, member)
        self.lives.append(life)
        self.at(when, life.resume)

    def put_bad(self, posted: Posted) -> None:
        """One more object of the adversary."""
        kind, body = bad_object(self.rng, self.signature, posted)
        self.backing.put(posted.key, [body])
        self.bad.add(posted.key)
        self.counts["bad objects"] += 1
        self.note(MALLORY, "put", posted.key, kind)

    def finally_wrong(self) -> str:
        raise NotImplementedError

    def crowded(self, life: Life, leftover: int) -> str:
        allowed = self.late_writes[life.name] + self.undeleted[life.name]
        if leftover > allowed:
            return f"{life.name} left {leftover} superseded objects, {allowed} can be explained"
        return ""


class Member:
    """A name, and what whoever goes by it does next."""

    def __init__(self, world: World, number: int, strategy: Strategy) -> None:
        self.world, self.number, self.strategy = world, number, strategy
        self.name = f"site-{number}"
        self.serial = 0
        self.slowness = world.rng.choice((1.0, 1.0, 1.0, 20.0))
        self.naps_left, self.longest_nap = 0, 0.0
        self.gone = False

    def live(self, life: Life) -> None:
        raise NotImplementedError

    def trained(self) -> Content:
        self.serial += 1
        return Content.make(self.name, self.number, self.serial)


class Life:
    """One process of a member, from its start to its end or its death."""

    def __init__(self, world: World, member: Member) -> None:
        self.world, self.member, self.name = world, member, member.name
        self.greenlet = greenlet.greenlet(self._run)
        self.alive = True
        self.finished = False
        self.stalled = 0.0
        self.clock = Drifting(self)
        self.view = View(self)
        self.content: Content | None = None
        self.reads: dict[str, str] = {}
        self.listing: list[Entry] | None = None
        self.missed: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.heard: list[events.Event] = []

    def resume(self) -> None:
        if self.alive:
            self.greenlet.switch()

    def end(self) -> None:
        if self.greenlet:
            self.greenlet.throw(Killed)

    def pause(self, seconds: float) -> None:
        """Let the others go on; come back when so much time has passed."""
        world = self.world
        if world.over or not self.alive:
            raise Killed
        world.at(world.now + seconds, self.resume)
        world.hub.switch()
        if world.over or not self.alive:
            raise Killed

    def latency(self, risk: int) -> float:
        """How long a request takes: mostly nothing, sometimes as long as a suspended laptop."""
        world, rng = self.world, self.world.rng
        if world.stalls_left and rng.random() < risk * world.stall:
            world.stalls_left -= 1
            return self.stall(rng.uniform(0.5, 1.0) * world.longest_stall)
        if self.member.naps_left and rng.random() < 0.1:
            self.member.naps_left -= 1
            return self.stall(rng.uniform(0.2, 1.0) * self.member.longest_nap)
        if rng.random() < 0.5:
            return 0.0
        return rng.expovariate(100.0) * self.member.slowness

    def stall(self, seconds: float) -> float:
        self.world.counts["stalls"] += 1
        self.stalled += seconds
        self.world.note(self.name, "stall", f"{seconds:.1f} s", "")
        return seconds

    def die(self) -> Killed:
        world = self.world
        self.alive = False
        world.kills_left -= 1
        world.counts["kills"] += 1
        if world.rng.random() < world.back_again:
            world.spawn(self.member, world.now + world.rng.choice((0.0, 0.5, 3.0, 9.0)))
        else:
            self.member.gone = True
        return Killed()

    def hear(self, event: events.Event) -> None:
        world = self.world
        self.heard.append(event)
        world.counts[event.kind] += 1
        world.hear(self, event)
        if isinstance(event, events.Pushed):
            posted = parsed(event.key)
            assert posted is not None
            world.acknowledged[self.name] = posted.rank
            world.check_visible(self.name)
        elif isinstance(event, events.RefusedUpdate):
            self.refused.add(event.key)
            named = event.peer == MALLORY or "/slices-" in event.key
            if event.key not in world.bad or not named:
                raise world.fail(f"{self.name} refuses {event.peer}'s {event.key}: {event.reason}")
        elif isinstance(event, events.Impostor | events.Forged):
            if event.key not in world.bad:
                raise world.fail(f"{self.name} takes {event.key} for a forgery: {event.reason}")
        elif isinstance(event, events.Offline):
            raise world.fail(f"{self.name} is offline: {event.reason}")

    def _run(self) -> None:
        try:
            self.member.live(self)
            self.finished = True
            self.world.note(self.name, "done", "", "")
        except Killed:
            pass
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-6:])
            self.world.fail(f"{self.name} failed with {type(error).__name__}: {error}\n{where}")
        self.alive = False


class Drifting:
    """A clock of one machine: it shows another time than all others, and goes at its own pace."""

    def __init__(self, life: Life) -> None:
        self.life = life
        rng = life.world.rng
        self.offset, self.pace = rng.uniform(-1e4, 1e4), rng.uniform(0.95, 1.05)

    def now(self) -> float:
        return self.offset + self.life.world.now * self.pace

    def sleep(self, seconds: float) -> None:
        # time must go on even where the seconds left are too few to show in a float
        self.life.pause(max(seconds, 1e-6) / self.pace)


class View(Store):
    """The store as one process reaches it."""

    parallel = 1

    def __init__(self, life: Life) -> None:
        self.life, self.world = life, life.world
        self.url = "memory://schedule"
        # small ones cut every update into several reads, between which it may be replaced
        self.request_bytes = self.world.rng.choice((32, 64, 8 << 20))

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        body = b"".join(parts)
        name, content = self.life.name, self.life.content
        if not (key.endswith(".safetensors") and "/slices-" not in key):
            content = None
        self._serve("put", key, lambda: self.world.put(name, key, body, create, content))

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        return self._serve("get", key, lambda: self.world.backing.get(key, limit))

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        if posted := parsed(key):
            self.life.reads[posted.client] = key
        return self._serve("read", key, lambda: self.world.backing.read(key, start, stop))

    def list(self, prefix: str) -> list[Entry]:
        entries = self._serve("list", prefix, lambda: self.world.backing.list(prefix))
        if self.life.listing is None and prefix == keys.UPDATES:
            self.life.listing = entries
        return entries

    def delete(self, keys: Sequence[str]) -> None:
        name = self.life.name
        self.world.undeleted[name] += len(keys)
        self._serve("delete", ",".join(keys), lambda: self.world.delete(name, keys))
        self.world.undeleted[name] -= len(keys)

    def _serve(self, operation: str, key: str, deed: Callable[[], T]) -> T:
        life, world, rng = self.life, self.world, self.world.rng
        write = operation in ("put", "delete")
        # most operations are listings, but it is updates that must not be late, lost or come back
        risk = 6 if write and keys.UPDATES in key else 1
        life.pause(life.latency(risk))
        world.counts["operations"] += 1
        draw = rng.random()
        if world.kills_left and rng.random() < risk * world.kill:
            world.note(life.name, operation, key, "KILLED")
            when = rng.choice(("never", "now", "later"))
            if write and when == "later":
                world.later(life.name, key, deed, ghost=True)
            elif write and when == "now":
                world.note(life.name, operation, key, "but it was served")
                with suppress(StoreError):
                    deed()
            raise life.die()
        if draw < world.error:
            late = write and rng.random() < 0.5
            world.note(life.name, operation, key, "fails" + " for now" * late)
            if late:
                world.later(life.name, key, deed, ghost=False)
            raise StoreError(f"injected: {operation} {key} was not served", key)
        try:
            result = deed()
        except NotFound:
            world.note(life.name, operation, key, "not found")
            if posted := parsed(key):
                life.missed[posted.client] += 1
            raise
        except AlreadyExists:
            world.note(life.name, operation, key, "exists already")
            if draw < world.error + world.lost:
                raise StoreError(
                    f"injected: the reply to {operation} {key} was lost", key
                ) from None
            raise
        if draw < world.error + world.lost:
            world.note(life.name, operation, key, "reply lost")
            raise StoreError(f"injected: the reply to {operation} {key} was lost", key)
        world.note(life.name, operation, key, "")
        return result


def bad_object(rng: random.Random, shape: Signature, posted: Posted) -> tuple[str, bytes]:
    """Something that is not an update, or not one to let in."""
    params = Content.make(MALLORY, 9, posted.sequence).params
    says = {
        "client": posted.client,
        "sequence": str(posted.sequence),
        "examples": str(posted.examples),
    }
    flat = shape.pack(params)
    kinds = "garbage empty truncated longer nan absurd shape pickle another's flipped header"
    kind = rng.choice(kinds.split())
    if kind in ("nan", "absurd"):
        values = flat[8:].view(np.float32)
        values[rng.randrange(len(values))] = np.nan if kind == "nan" else 1e30
    if kind == "another's":
        says["client"] = "site-0"
    whole = b"".join(codec.encode(shape, flat, says))
    if kind == "garbage":
        whole = rng.randbytes(rng.choice((5, 100, len(whole))))
    elif kind == "empty":
        whole = b""
    elif kind == "truncated":
        whole = whole[: rng.randrange(1, len(whole))]
    elif kind == "longer":
        whole += b"more"
    elif kind == "pickle":
        whole = pickle.dumps(params)
    elif kind == "flipped":
        at = len(whole) - 1 - rng.randrange(len(flat))
        whole = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    elif kind == "header":
        whole = whole[:40] + b"\xff\x00{" + whole[43:]
    elif kind == "shape":
        other = {**params, "w": np.zeros((5, 4), np.float32)}
        another = Signature.of(other)
        whole = b"".join(codec.encode(another, another.pack(other), says))
    return kind, whole


# ---------------------------------------------------------------- asynchronous


class AsyncWorld(World):
    """Members that never wait."""

    mode = "async"

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        rng = self.rng
        makers = (hubless.FedAvg, hubless.FedAvg, hubless.FedAvgM, hubless.FedAdam)
        makers += (hubless.FedMedian, hubless.FedAsync)
        self.names = []
        for number in range(rng.choice((3, 3, 4, 4, 5, 6))):
            member = AsyncMember(self, number, rng.choice(makers)())
            self.names.append(member.name)
            self.spawn(member, rng.choice((0.0, 0.0, 1.0)))
        if self.adversary:
            self.at(rng.random(), lambda: self.attack(0))

    def attack(self, sequence: int) -> None:
        known = self.rng.random() < 0.9
        digest = self.signature.digest if known else "0123456789ab"
        nonce = Incarnation(1, "badbadba")
        examples = 3 if self.rng.random() < 0.95 else 10**400
        self.put_bad(Posted(keys.UPDATES, MALLORY, sequence, nonce, examples, 0, digest))
        if sequence < 4:
            self.at(self.now + self.rng.uniform(0.1, 2.0), lambda: self.attack(sequence + 1))

    def finally_wrong(self) -> str:
        left = Counter(p.client for p in self.listed())
        for life in self.lives:
            if life.finished and (wrong := self.crowded(life, left[life.name] - KEPT_UPDATES)):
                return wrong
        return ""


class AsyncMember(Member):
    """Steps a few times, and holds every result against what it must be."""

    def __init__(self, world: World, number: int, strategy: Strategy) -> None:
        super().__init__(world, number, strategy)
        self.steps = world.rng.randint(2, 3)
        self.peers = world.rng.choice(("new", "new", "new", "all"))
        self.starts = world.rng.random() < 0.2

    def live(self, life: Life) -> None:
        world = self.world
        life.content = self.trained()
        federation = hubless.join(
            life.view,
            self.name,
            strategy=self.strategy,
            model=life.content.params if self.starts else None,
            peers=self.peers,
            clock=life.clock,
            on_event=life.hear,
        )
        if self.name not in world.acknowledged and federation.resumed:
            world.counts["resumed on a late write"] += 1
        oracle = Oracle(world, life, self.strategy, federation)
        while self.steps:
            life.clock.sleep(world.rng.choice((0.0, 0.1, 1.0)) * world.rng.random())
            life.content = self.trained()
            examples = world.rng.choice((0, 1, 2, 3, 5, 8))
            oracle.begin()
            result = federation.step(life.content.params, examples=examples)
            oracle.check(result, examples, self.peers)
            self.steps -= 1
        federation.close()


class Oracle:
    """Knows what a member must end up with, given which updates it says that it took in."""

    def __init__(
        self, world: World, life: Life, strategy: Strategy, federation: Federation
    ) -> None:
        self.world, self.life, self.strategy, self.federation = world, life, strategy, federation
        # what it started from is taken in, if it started from what the others have arrived at
        mode = federation._mode
        self.seen: dict[str, Rank] = dict(mode._seen)  # type: ignore[attr-defined]
        self.version = 0
        self.step = 0
        self.slots: dict[str, Slots] = {}
        started = mode.state.current  # type: ignore[attr-defined]
        self.current: Params | None = None
        if started is not None:
            whole = world.signature.unpack(started.copy())
            self.current = {name: array.reshape(-1) for name, array in whole.items()}

    def begin(self) -> None:
        self.life.heard.clear()
        self.life.reads.clear()
        self.life.missed.clear()
        self.life.listing = None
        self.version = self.federation.version

    def check(self, result: Mapping[str, Any], examples: int, peers: str) -> None:
        life, content = self.life, self.life.content
        assert content is not None
        pulled = [e for e in life.heard if isinstance(e, events.Pulled)]
        nothing = [e for e in life.heard if isinstance(e, events.Nothing)]
        if len(pulled) + len(nothing) != 1:
            raise self.world.fail(f"{life.name}'s step told neither Pulled nor Nothing")
        included = self.included(pulled[0], peers) if pulled else []
        self.check_all_there([p.client for p in included])
        if not included:
            expected: Params = content.flat
        else:
            expected = self.average(content, examples, included)
        if packed(result) != packed(expected):
            raise self.world.fail(
                f"{life.name}'s result is not the average of {[p.key for p in included]}"
            )

    def included(self, event: events.Pulled, peers: str) -> list[Posted]:
        included = []
        for client, sequence in event.peers.items():
            posted = parsed(self.life.reads[client])
            if posted is None or posted.sequence != sequence or posted.key in self.world.bad:
                raise self.world.fail(f"{self.life.name} took in {client}'s {sequence}: {posted}")
            seen = self.seen.get(client)
            if seen is not None and (posted.rank < seen or (peers, posted.rank) == ("new", seen)):
                raise self.world.fail(f"{self.life.name} went from {seen} back to {posted.key}")
            self.seen[client] = posted.rank
            included.append(posted)
        return included

    def check_all_there(self, included: Sequence[str]) -> None:
        """Whoever has shown something new long enough to be read was taken in."""
        listed = keys.parse_updates(self.life.listing or [])
        for client, posted in keys.newest(listed).items():
            if client in (self.life.name, *included):
                continue
            if client == MALLORY:
                if posted.key not in self.life.refused:
                    raise self.world.fail(f"{self.life.name} did not refuse {posted.key}")
                continue
            unseen = client not in self.seen or posted.rank > self.seen[client]
            if unseen and self.life.missed[client] <= _RENEWALS:
                raise self.world.fail(f"{self.life.name} passed {posted.key} over")

    def average(self, own: Content, examples: int, included: Sequence[Posted]) -> Params:
        strategy = self.strategy
        weights = strategy.weights(
            capped([examples, *(p.examples for p in included)], OUTWEIGH),
            [0, *(max(0, self.version - p.version) for p in included)],
            0,
        )
        sources = [own.flat, *(self.world.contents[p.key].flat for p in included)]
        expected: Params = {}
        for name, like in own.flat.items():
            total: object | None = None
            reducer = strategy.reducer_for(is_floating(like))
            for source, weight in zip(sources, weights.tolist(), strict=True):
                total = reducer.add(total, source[name], weight)
            current = None if self.current is None else self.current[name]
            expected[name], self.slots[name] = strategy.advance(
                current, reducer.finish(total), like, self.slots.get(name, ()), self.step
            )
        self.step += 1
        if strategy.optimizer.needs_current:
            self.current = expected
        return expected


# ----------------------------------------------------------------- synchronous


class SyncWorld(World):
    """Members that wait for each other, some of them under a quorum."""

    mode = "sync"

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        rng = self.rng
        makers = (hubless.FedAvg, hubless.FedAvgM, hubless.FedAdam, hubless.FedMedian)
        self.strategy: Strategy = rng.choice(makers)()
        honest = rng.choice((2, 3, 3, 4, 5))
        self.rounds = rng.choice((2, 3, 3, 4, 5))
        self.members = [self.make(number) for number in range(honest)]
        self.names = [m.name for m in self.members] + [MALLORY] * self.adversary
        self.quorum = len(self.names)
        if rng.random() < 0.6:
            self.quorum = rng.randint(1, len(self.names))
            if rng.random() < 0.4:
                rng.choice(self.members).slowness = 150.0
        self.named = rng.random() < 0.7
        self.deadline = rng.uniform(2.0, 6.0)
        if self.quorum < len(self.names) and rng.random() < 0.5:
            # short rounds, and one who may sleep through several: they are collected meanwhile
            self.deadline, self.rounds = rng.uniform(0.5, 2.5), rng.randint(4, 6)
            for member in self.members:
                member.slowness = min(member.slowness, 20.0)
            sleeper = rng.choice(self.members)
            sleeper.naps_left, sleeper.longest_nap = rng.randint(1, 6), 6 * self.deadline
        self.initial: Content | None = None
        self.plans: dict[Version, Plan] = {}
        self.known: dict[Version, tuple[Params, State]] = {}
        self.results: dict[int, tuple[bytes, Version, str]] = {}
        self.counted: dict[tuple[str, int], int] = {}
        self.misspells = self.adversary and self.quorum < len(self.names) and rng.random() < 0.3
        for member in self.members:
            self.spawn(member, rng.choice((0.0, 0.0, 1.0)))
        if self.adversary:
            self.at(rng.random(), lambda: self.attack(0, set()))

    def make(self, number: int) -> SyncMember:
        return SyncMember(self, number, self.strategy)

    @property
    def open(self) -> int:
        """The round that takes updates now."""
        return max((r for r, _ in self.plans), default=-1) + 1

    def waited_for(self) -> tuple[set[str], int]:
        """Whom the open round is for, and how many of them are enough."""
        return set(self.names), self.quorum

    @property
    def hopeless(self) -> bool:
        return self.posters < self.quorum

    @property
    def posters(self) -> int:
        """How many will still deliver something that looks like an update."""
        delivering = self.adversary and not self.misspells
        return sum(not m.gone for m in self.members) + delivering

    def attack(self, sequence: int, done: set[int]) -> None:
        """Deliver into whichever round is open, as long as there are rounds."""
        number = self.open
        if number not in done:
            done.add(number)
            digest = "0123456789ab" if self.misspells else self.signature.digest
            folder = f"{keys.round_folder(number)}updates/"
            nonce = Incarnation(1, "badbadba")
            self.put_bad(Posted(folder, MALLORY, sequence, nonce, 3, number, digest))
            if self.sabotage == "slices" and self.rng.random() < 0.2:
                # in the place of a slice of the result: nobody but a signature could stop that
                attempt, index = self.rng.randint(0, 1), self.rng.randint(0, 1)
                digest = self.rng.randbytes(16).hex()
                key = keys.slice_key(number, attempt, index, MALLORY, nonce, digest)
                if key not in self.backing._objects:
                    self.backing.put(key, [self.rng.randbytes(200)])
                    self.bad.add(key)
                    self.note(MALLORY, "put", key, "garbage")
        if any(life.alive for life in self.lives) and number < self.rounds:
            again = self.now + self.rng.uniform(0.05, 0.6)
            self.at(again, lambda: self.attack(sequence + 1, done))

    def landed(self, key: str, body: bytes) -> None:
        if key == keys.INITIAL:
            self.initial = self.contents[key]
        rounds = keys.parse_listing([Entry(key, 0, 0.0)]).rounds if "/plan-" in key else {}
        for number, round_ in rounds.items():
            for attempt in round_.plans:
                said = json.loads(body)
                before = tuple(said["before"]) if said["before"] else None
                plan = Plan(tuple(said["included"]), attempt, before)
                plan = self.plans.setdefault((number, attempt), plan)
                folder = keys.round_folder(number)
                if not all(k.startswith(folder) for k in plan.included):
                    raise self.fail(f"{key} includes updates of another round")

    def expected(self, version: Version) -> tuple[Params, State]:
        """What a round comes to, by the plan that was there first."""
        if version not in self.known:
            plan = self.plans[version]
            current, state = None, State()
            if plan.before is not None and plan.before[0] < 0:
                assert self.initial is not None
                current = self.initial.flat
            elif plan.before is not None:
                current, state = self.expected(plan.before)
            state = State(version[0], state.slots)
            posted = plan.updates
            examples = capped([p.examples for p in posted], OUTWEIGH)
            updates = [
                Update(p.client, self.contents[p.key].flat, count, {}, p.version)
                for p, count in zip(posted, examples, strict=True)
            ]
            self.known[version] = self.strategy.aggregate(updates, current, state, version[0])
        return self.known[version]

    def check(self, life: Life, federation: Federation, result: Mapping[str, Any]) -> None:
        """A member has arrived at a version: is it the one that all others have?"""
        version = reached(federation)
        assert version is not None
        number, body = version[0], packed(result)
        before = self.results.setdefault(number, (body, version, life.name))
        if before[0] != body:
            raise self.fail(
                f"{life.name} ends round {version} with other bytes than {before[2]}, {before[1]}"
            )
        plan = self.plans[version]
        if any(key in self.bad for key in plan.included):
            raise self.fail(f"{life.name} ends round {version} with a bad update included")
        if body != packed(self.expected(version)[0]):
            raise self.fail(f"{life.name} ends round {version} with something else than planned")
        for key in plan.included:
            content = self.contents[key]
            first = self.counted.setdefault((content.client, content.serial), number)
            if first != number:
                raise self.fail(f"{content.client}'s {content.serial} counts in {first}, {number}")

    def check_missed(self, life: Life, missed: QuorumMissed, waited: float, lates: int) -> None:
        """A quorum that was missed must have been missed, in time, and with the right names."""
        self.counts["quorum missed"] += 1
        wanted, enough = self.waited_for()
        there = self.delivered() & wanted
        wanted -= set(keys.parse_listing(self.backing.list("")).left) - there
        if self.named:
            # without names nobody knows whether who left was one of those that count
            enough = min(enough, len(wanted))
        digest = self.signature.digest
        if len(there) >= enough:
            raise self.fail(f"{life.name} misses a quorum that is there ({digest}): {missed}")
        wrong = sorted(missed.missing) != sorted(wanted - there)
        if there & set(missed.missing) or not missed.missing or (self.named and wrong):
            raise self.fail(f"{life.name} misses {missed.missing}, there are {sorted(there)}")
        if waited > (lates + 1) * self.deadline * 1.1 + _SLACK:
            raise self.fail(f"{life.name} waited {waited:.0f} s with {self.deadline:.0f} to go")

    def delivered(self) -> set[str]:
        """Whose update lies in the open round and looks like one."""
        folder = keys.round_folder(self.open)
        there = {p.client for p in self.listed() if p.folder.startswith(folder)}
        return there - {MALLORY} if self.misspells else there

    def finally_wrong(self) -> str:
        finished = [life for life in self.lives if life.finished]
        for life in finished:
            assert isinstance(life.member, SyncMember)
            if life.member.gave_up and self.posters >= self.quorum:
                return f"{life.name} gave up although a quorum lives"
            last = [e.round for e in life.heard if isinstance(e, events.Closed)]
            if last and last[-1] == self.rounds - 1:
                old = [p for p in self.listed() if p.client == life.name]
                limit = keys.round_folder(last[-1] - KEPT_ROUNDS)
                newest = max((p.rank for p in old), default=None)
                leftover = [p for p in old if p.folder[: len(limit)] <= limit and p.rank != newest]
                if wrong := self.crowded(life, len(leftover) if last[-1] >= KEPT_ROUNDS else 0):
                    return wrong
        planned = {key for version in self.results for key in self.plans[version, 0].included}
        refused = {key for life in self.lives for key in life.refused}
        if unnamed := (planned & self.bad) - refused:
            return f"nobody refused {sorted(unnamed)} by name"
        return ""


class SyncMember(Member):
    """Takes part until the last round is over."""

    def __init__(self, world: SyncWorld, number: int, strategy: Strategy) -> None:
        super().__init__(world, number, strategy)
        self.gave_up = False
        self.starts = world.rng.random() < 0.4
        self.sync = world

    def live(self, life: Life) -> None:
        world = self.sync
        life.content = self.trained()
        federation = hubless.join(
            life.view,
            self.name,
            strategy=self.strategy,
            mode="sync",
            members=world.names if world.named else len(world.names),
            quorum=world.quorum,
            deadline=world.deadline,
            model=life.content.params if self.starts else None,
            clock=life.clock,
            on_event=life.hear,
            **self.terms(),
        )
        self.catch_up(life, federation)
        arrived = world.now
        while not self.done(federation):
            life.clock.sleep(world.rng.choice((0.0, 0.1, 2.0)) * world.rng.random())
            life.content = self.trained()
            began, stalled, told = life.clock.now(), life.stalled, len(life.heard)
            try:
                result = federation.step(
                    life.content.params,
                    examples=world.rng.choice((0, 1, 2, 3, 5, 8)),
                    **self.says(),
                )
            except QuorumMissed as missed:
                waited = life.clock.now() - began - (life.stalled - stalled) * 1.1
                lates = sum(isinstance(e, events.Late) for e in life.heard[told:])
                world.check_missed(life, missed, waited, lates)
            except TooLate:
                world.counts["too late"] += 1
            else:
                if result is not life.content.params:
                    arrived = world.now
                    world.check(life, federation, result)
                    continue
            before = reached(federation)
            self.catch_up(life, federation)
            if before != reached(federation):
                arrived = world.now
            hopeless = world.now - arrived > _MOST_PATIENT or world.hopeless
            if hopeless and not self.done(federation):
                self.give_up()
                return
        federation.close()

    def terms(self) -> dict[str, Any]:
        """What else this member joins with."""
        return {}

    def says(self) -> dict[str, Any]:
        """What else it says at a step."""
        return {}

    def give_up(self) -> None:
        self.gave_up = True

    def done(self, federation: Federation) -> bool:
        version = reached(federation)
        return version is not None and version[0] + 1 >= self.sync.rounds

    def catch_up(self, life: Life, federation: Federation) -> None:
        assert life.content is not None
        result = federation.pull(life.content.params)
        if reached(federation) is not None:
            self.sync.check(life, federation, result)


def reached(federation: Federation) -> Version | None:
    """The version that a synchronous member is at."""
    version: Version | None = federation._mode.reached  # type: ignore[attr-defined]
    return version


# ------------------------------------------------------------------- selecting


class SelectingWorld(SyncWorld):
    """Members of whom some are picked for each round, and who all have to know which."""

    mode = "select"

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        rng = self.rng
        selectors: list[Selector] = [Uniform(), Activity("n"), Activity("sqrt", "exact")]
        selectors += [Active(alpha1=0.5, alpha2=1.0), RoundRobin(), Refreshed(Uniform(), 3)]
        # with one bad update in a cohort there has to be another, or nothing is left of the round
        least = 2 if self.adversary else 1
        if not self.adversary:
            selectors.append(AtMost(Heavy(0.5)))
        self.selector = rng.choice(selectors)
        self.cohort = rng.randint(least, len(self.names))
        self.quorum = self.cohort if rng.random() < 0.4 else rng.randint(least, self.cohort)
        self.named = True
        self.drawn: dict[Version, tuple[tuple[str, ...], Roster]] = {}

    def make(self, number: int) -> SyncMember:
        return SelectingMember(self, number, self.strategy)

    def waited_for(self) -> tuple[set[str], int]:
        picked = self.pick(self.open)[0]
        return set(picked), min(self.quorum, len(picked))

    @property
    def hopeless(self) -> bool:
        picked, enough = self.waited_for()
        coming = {m.name for m in self.members if not m.gone} | self.delivered()
        if self.adversary and not self.misspells:
            coming.add(MALLORY)
        return len(picked & coming) < enough

    def hear(self, life: Life, event: events.Event) -> None:
        if isinstance(event, events.Picked):
            picked = self.pick(event.round)[0]
            if tuple(event.cohort) != picked:
                raise self.fail(
                    f"{life.name} draws {event.cohort} for round {event.round}, not {picked}"
                )
        elif isinstance(event, events.Pushed):
            posted = parsed(event.key)
            assert posted is not None
            if posted.client not in self.pick(int(posted.folder.split("/")[1]))[0]:
                raise self.fail(f"{life.name} pushes {event.key}, and was not picked")
            if posted.valuation != event.valuation:
                raise self.fail(f"{life.name} pushes {event.key}, and was worth {event.valuation}")

    def landed(self, key: str, body: bytes) -> None:
        super().landed(key, body)
        said = json.loads(body) if "/plan-" in key else {}
        if not said:
            return
        number = int(key.split("/")[1])
        picked, roster = self.pick(number)
        held = said["roster"]
        if tuple(said["picked"]) != picked or held["members"] != sorted(self.names):
            raise self.fail(f"{key} says that {said['picked']} were picked, not {picked}")
        for name in ("valued", "selected", "last_selected", "last_seen"):
            if held[name] != getattr(roster, name).tolist():
                raise self.fail(f"{key} has {name} {held[name]}, not {getattr(roster, name)}")
        values = [np.nan if value is None else value for value in held["valuation"]]
        if not np.array_equal(values, roster.valuation, equal_nan=True):
            raise self.fail(f"{key} has valuations {values}, not {roster.valuation}")

    def pick(self, number: int) -> tuple[tuple[str, ...], Roster]:
        """Who trains in a round, worked out from the plans of all rounds before."""
        final = max((a for r, a in self.plans if r == number - 1), default=0)
        if (number, final) not in self.drawn:
            names = sorted(self.names)
            examples: dict[str, int] = {}
            roster = Roster(np.zeros(len(names)))
            for r in range(number):
                roster.round = r
                before = self.pick(r)[0]
                roster.record_selected(np.array([names.index(name) for name in before]))
                attempt = max(a for n, a in self.plans if n == r)
                for posted in self.plans[r, attempt].updates:
                    place = np.array([names.index(posted.client)])
                    worth = None if posted.valuation is None else [posted.valuation]
                    roster.record_seen(place, worth)
                    examples[posted.client] = max(1, posted.examples)
            usual = median_low(examples.values()) if examples else 1
            roster.put("examples", slice(None), [examples.get(name, usual) for name in names])
            roster.round = number
            places = self.selector(roster, self.cohort, stream(self.seed, "pick", number))
            picked = tuple(sorted(names[place] for place in places))
            self.drawn[number, final] = picked, roster
        return self.drawn[number, final]


class SelectingMember(SyncMember):
    """Waits or trains on where it is not picked."""

    def __init__(self, world: SyncWorld, number: int, strategy: Strategy) -> None:
        super().__init__(world, number, strategy)
        self.unpicked = world.rng.choice(("wait", "wait", "train"))

    def terms(self) -> dict[str, Any]:
        world = self.sync
        assert isinstance(world, SelectingWorld)
        return {
            "selector": world.selector,
            "cohort": world.cohort,
            "seed": world.seed,
            "unpicked": self.unpicked,
        }

    def says(self) -> dict[str, Any]:
        return {"valuation": self.sync.rng.choice((0.0, 1.0, 2.5, -1.0))}

    def give_up(self) -> None:
        if not self.sync.hopeless:
            raise self.sync.fail(f"{self.name} gave up although a quorum of the picked lives")
        self.gone = True


# --------------------------------------------------------------------- running


class Nonces:
    """Stands in for `secrets`, so that a seed brings the same names back."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"nonces {seed}")

    def token_hex(self, size: int) -> str:
        return self.rng.randbytes(size).hex()

    def randbelow(self, stop: int) -> int:
        return self.rng.randrange(stop)


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Take away everything that would make one seed give two schedules."""
    nonces, state, logger = Nonces(seed), random.getstate(), logging.getLogger("hubless")
    level = logger.level
    random.seed(seed)
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            mock.patch("hubless.federate.keys.secrets", nonces),
            mock.patch("hubless.federate.rounds.plans.secrets", nonces),
            mock.patch("hubless.federate.rounds.completing.secrets", nonces),
            mock.patch("hubless.federate.outside.probe.secrets", nonces),
            # here nobody races in threads, so that two racers show as much as eight
            mock.patch("hubless.federate.outside.probe._RACERS", 2),
            mock.patch.object(signature, "BLOCK_BYTES", _BLOCK_BYTES),
            # it depends on nothing but the entry, and is half of the work
            mock.patch.object(Posted, "parse", staticmethod(lru_cache(4096)(Posted.parse))),
        ):
            yield
    finally:
        logger.setLevel(level)
        random.setstate(state)


def run_async(seed: int, sabotage: str = "", keep: int | None = 60) -> Report:
    """One asynchronous schedule; ScheduleFailure where it breaks a promise."""
    with repeatable(seed):
        return AsyncWorld(seed, sabotage, keep).run()


def run_sync(seed: int, sabotage: str = "", keep: int | None = 60) -> Report:
    """One synchronous schedule; ScheduleFailure where it breaks a promise."""
    with repeatable(seed):
        return SyncWorld(seed, sabotage, keep).run()


def run_select(seed: int, sabotage: str = "", keep: int | None = 60) -> Report:
    """One synchronous schedule with a selector; ScheduleFailure where it breaks a promise."""
    with repeatable(seed):
        return SelectingWorld(seed, sabotage, keep).run()


RUNS: dict[str, Callable[..., Report]] = {
    "async": run_async,
    "select": run_select,
    "sync": run_sync,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="run seeded schedules of a federation")
    parser.add_argument("--mode", choices=sorted(RUNS), default="async")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:STOP")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--trace", action="store_true", help="show all operations")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args(arguments)
    run = RUNS[options.mode]
    first, _, stop = options.seeds.partition(":")
    seeds = range(int(first), int(stop)) if options.seed is None else [options.seed]
    began, failed, counts = time.perf_counter(), [], Counter[str]()
    for seed in seeds:
        try:
            report = run(seed, keep=None if options.trace else 60)
            counts.update(report.counts)
        except ScheduleFailure as failure:
            failed.append(seed)
            shown = f"seed {seed}: {failure.what.splitlines()[0]}" if options.go_on else failure
            print(shown, flush=True)
            if not options.go_on:
                break
        if (seed + 1) % 500 == 0:
            print(f"{seed + 1} in {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{time.perf_counter() - began:.1f} s, {len(failed)} failed: {failed[:20]}")
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
