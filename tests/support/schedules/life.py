"""One process of a member, its clock, and the store as it reaches it."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import greenlet

from hubless import events
from hubless.errors import AlreadyExists, NotFound, StoreError
from hubless.federate import keys
from hubless.store.base import Bytes, Entry, Store
from tests.support.schedules.basics import Content, Killed, is_joint, parsed

if TYPE_CHECKING:
    from tests.support.schedules.world import Member, World

T = TypeVar("T")


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
        self.everything: list[events.Event] = []

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
        self.everything.append(event)
        world.counts[event.kind] += 1
        world.hear(self, event)
        if isinstance(event, events.Pushed):
            posted = parsed(event.key)
            assert posted is not None
            world.acknowledged[self.name] = posted.rank
            world.check_visible(self.name)
        elif isinstance(event, events.RefusedUpdate):
            self.refused.add(event.key)
            world.check_refusal(self, event)
        elif isinstance(event, events.Impostor | events.Forged):
            world.check_alarm(self, event)
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
        if not (key.endswith(".safetensors") and not is_joint(key)):
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
