"""One schedule: the store, the time, the members, and everything that was promised."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import greenlet

from hubless import events
from hubless.errors import AlreadyExists
from hubless.federate import keys
from hubless.federate.federation import Federation
from hubless.federate.keys import Posted
from hubless.signature import Signature
from hubless.strategy.base import Strategy
from tests.support.schedules.bad import bad_object
from tests.support.schedules.basics import (
    MALLORY,
    Backing,
    Content,
    Killed,
    Rank,
    Report,
    ScheduleFailure,
    is_joint,
    parsed,
)
from tests.support.schedules.life import Life

T = TypeVar("T")

_MOST_STEPS = 60_000
_MOST_SECONDS = 3_000.0


class World:
    """One schedule: the store, the time, the members, and everything that was promised."""

    mode = ""
    adversaries = 0.25
    """How often somebody shares what nobody can use, under a name of its own."""

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
        self.planted: dict[str, str] = {}
        """What somebody wrote under the members' own names, and what that is."""
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
        self.adversary = draw.random() < self.adversaries

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
        elif held and held[0] != body and (not create or is_joint(key)) and key not in self.bad:
            raise self.fail(f"{who} writes {key} again, with other bytes")
        self.backing.put(key, [body], create=create)
        if content is not None:
            self.contents.setdefault(key, content)
        self.landed(key, body)

    def landed(self, key: str, body: bytes) -> None:
        """An object is there, possibly not for the first time."""

    def hear(self, life: Life, event: events.Event) -> None:
        """A member says something."""

    def call(self, life: Life, federation: Federation, do: Callable[[], T]) -> T:
        """Have a member call its federation: every call goes through here."""
        return do()

    def excuse(self, life: Life, error: Exception) -> None:
        """Say whether a call may end in this error: here none may."""
        raise self.fail(f"{life.name} failed with {type(error).__name__}: {error}")

    def check_refusal(self, life: Life, event: events.RefusedUpdate) -> None:
        """A member refuses something by name: it has to be bad."""
        named = event.peer == MALLORY or is_joint(event.key)
        if event.key not in self.bad or not named:
            raise self.fail(f"{life.name} refuses {event.peer}'s {event.key}: {event.reason}")

    def check_alarm(self, life: Life, event: events.Impostor | events.Forged) -> None:
        """A member says that something was forged: it has to be."""
        if event.key not in self.bad:
            raise self.fail(f"{life.name} takes {event.key} for a forgery: {event.reason}")

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
            listed = [p for p in self.listed() if p.key not in self.planted]
            ranks = [p.rank for p in listed if p.client == client]
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
