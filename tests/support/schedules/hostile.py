"""Schedules with somebody who may write anything anywhere, but not delete or replace.

Whoever may do that as well is the store's operator. What is planted goes by the members' own
names: updates with sequences, examples and versions that nobody honest has, plans of rounds far
and near, slices that are somebody's guess. No call may outlast its deadline, no member may lose
what is its own, and who ends a round with something else than its plan says has to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from hubless import events
from hubless.errors import NameTaken, QuorumMissed, TooLate
from hubless.federate import keys
from hubless.federate.federation import Federation
from hubless.federate.keys import Incarnation, Made, Posted
from hubless.federate.rounds.completing import UNSETTLED, Completing
from hubless.federate.rounds.looks import Looked, encode_look
from hubless.federate.rounds.plans import Plan
from hubless.federate.rounds.slices import Work, encode_slice, read_slots
from hubless.params import Array
from hubless.store import codec
from hubless.store.base import Entry
from hubless.store.reliable import Reliable
from hubless.strategy.base import Slots
from tests.support.schedules.asynchronous import AsyncWorld
from tests.support.schedules.bad import bad_object
from tests.support.schedules.basics import MALLORY, Content, Report, Version, packed, parsed
from tests.support.schedules.life import Life
from tests.support.schedules.synchronous import SyncWorld, reached
from tests.support.schedules.world import World

T = TypeVar("T")

_SLACK = 75.0
"""Seconds past its deadline that a call may take: some twenty looks, each of many slow requests."""
_LAST = keys.SEQUENCES - 1
_NOBODY = Incarnation(1, "badbadba")
_ALARMS = events.Forged | events.RefusedUpdate
_ABSURD_VERSIONS = (10**9, keys.VERSIONS - 1)


class Hostile(World):
    """A world in which somebody plants objects under everybody's names."""

    adversaries = 0.0
    deadline = 0.0

    def begin_attacks(self) -> None:
        """Have so many things planted, at any time."""
        self.serial = 500
        self.deeds_left = self.rng.randint(4, 16)
        self.at(self.now + self.rng.random(), self._do)

    def deeds(self) -> list[Callable[[], None]]:
        """What may be done next."""
        return [lambda: self.forge_update(keys.UPDATES, 0), self.junk]

    def plant(self, key: str, body: bytes, what: str) -> bool:
        """Write an object where none is."""
        if key in self.backing._objects:
            return False
        self.backing.put(key, [body], create=True)
        self.planted[key] = what
        self.counts["planted"] += 1
        self.note(MALLORY, "plant", key, what)
        return True

    def victim(self) -> tuple[str, int, Incarnation, int]:
        """Somebody's name and number, its newest life and the last sequence of that."""
        number = self.rng.randrange(len(self.names))
        name = self.names[number]
        lives = keys.lives((Entry(key, 0, 0.0) for key in self.backing._objects), name)
        own = {key: life for key, life in lives.items() if key not in self.planted}
        life = max(own.values(), default=_NOBODY)
        theirs = [p for p in self.listed() if p.client == name and p.key not in self.planted]
        return name, number, life, max((p.sequence for p in theirs), default=-1)

    def forge_update(self, folder: str, version: int) -> None:
        """An update in somebody's name: sound as far as anybody can see, or not."""
        rng = self.rng
        name, number, life, last = self.victim()
        life = rng.choice((life, life, Incarnation(life.count + 3, "badbadba"), _NOBODY))
        sequence = rng.choice((max(0, last), last + 1, last + 5, _LAST - 1, _LAST))
        # no honest member counts so many, so that no key is written by both
        examples = rng.choice((4, 9, 10**15 - 1))
        if rng.random() < 0.2:
            version = rng.choice(_ABSURD_VERSIONS)
        digest = self.signature.digest
        posted = Posted(folder, name, sequence, life, examples, version, digest)
        if posted.key in self.backing._objects:
            return
        if rng.random() < 0.3:
            what, body = bad_object(rng, self.signature, posted)
            self.bad.add(posted.key)
        else:
            self.serial += 1
            content, what = Content.make(name, number, self.serial), "in its name"
            body = self.encoded(content, posted)
            self.contents[posted.key] = content
            if version in _ABSURD_VERSIONS and folder == keys.UPDATES:
                self.bad.add(posted.key)
        self.plant(posted.key, body, what)

    def encoded(self, content: Content, posted: Posted) -> bytes:
        """What a member's update looks like as an object."""
        header = {
            "client": posted.client,
            "sequence": str(posted.sequence),
            "examples": str(posted.examples),
        }
        return b"".join(codec.encode(self.signature, self.signature.pack(content.params), header))

    def junk(self) -> None:
        """Something that no member ever writes."""
        rng = self.rng
        name = rng.choice(self.names)
        key = rng.choice(
            (
                f"updates/{name}=x.safetensors",
                f"members/{name}",
                f"rounds/{'9' * 9}/plan-0000.json",
                f"rounds/{rng.randrange(5):08d}/plan-10000.json",
                f"rounds/{rng.randrange(5):08d}/updates/{name}.safetensors",
                f"junk-{rng.randrange(100)}",
            )
        )
        self.plant(key, rng.randbytes(rng.choice((0, 40))), "junk")

    def call(self, life: Life, federation: Federation, do: Callable[[], T]) -> T:
        """Every call ends in its time, and says so if somebody writes under the caller's name."""
        began, stalled = life.clock.now(), life.stalled
        clear = self.impersonating(life, federation)
        try:
            result = do()
        finally:
            took = life.clock.now() - began - (life.stalled - stalled) * 1.1
            if life.alive and not self.over and took > self.due() * 1.1 + _SLACK:
                raise self.fail(
                    f"{life.name}'s call took {took:.0f} s, with {self.due():.0f} to go"
                )
        if clear and not any(isinstance(e, events.Impostor) for e in life.everything):
            raise self.fail(f"{life.name} was not told of {sorted(clear)[0]}")
        return result

    def due(self) -> float:
        """How long a call may take."""
        return self.deadline

    def impersonating(self, life: Life, federation: Federation) -> set[str]:
        """What lies where this process would have to be told of it."""
        mine = federation.member.incarnation
        theirs = [p for p in map(parsed, self.planted) if p is not None and p.client == life.name]
        return {p.key for p in theirs if p.incarnation >= mine and self.is_looked_at(p)}

    def is_looked_at(self, posted: Posted) -> bool:
        """Whether a member that looks for updates sees this one."""
        return posted.folder == keys.UPDATES

    def check_refusal(self, life: Life, event: events.RefusedUpdate) -> None:
        # a planted plan may include what is not there, or not yet
        known = event.key in self.backing._objects and not self.is_excused(event.key)
        known = known and event.reason != UNSETTLED
        if known and event.key not in self.bad and event.key not in self.planted:
            raise self.fail(f"{life.name} refuses {event.peer}'s {event.key}: {event.reason}")

    def is_excused(self, key: str) -> bool:
        """Whether members may see what lies here in different ways, as docs/trust.md says."""
        return False

    def check_alarm(self, life: Life, event: events.Impostor | events.Forged) -> None:
        if event.key not in self.planted:
            raise self.fail(f"{life.name} takes {event.key} for a forgery: {event.reason}")

    def excuse(self, life: Life, error: Exception) -> None:
        self.counts[f"excused {type(error).__name__}"] += 1
        self.note(life.name, "gave up", str(error)[:200], "")

    def _do(self) -> None:
        if not any(life.alive for life in self.lives):
            return
        self.rng.choice(self.deeds())()
        self.deeds_left -= 1
        if self.deeds_left:
            self.at(self.now + self.rng.choice((0.05, 0.3, 2.0)) * self.rng.random(), self._do)


class HostileAsyncWorld(Hostile, AsyncWorld):
    """Members that never wait, and somebody who writes under their names."""

    mode = "hostile-async"

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        self.begin_attacks()

    def excuse(self, life: Life, error: Exception) -> None:
        # a write of a former life, on its way while this one began, may rank above it
        if not (isinstance(error, NameTaken) and self.late_writes[life.name]):
            raise self.fail(f"{life.name} failed with {type(error).__name__}: {error}")
        super().excuse(life, error)


class HostileSyncWorld(Hostile, SyncWorld):
    """Members that wait for each other, and somebody who closes and completes their rounds."""

    mode = "hostile-sync"
    patience = 100.0

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        self.named = True
        for member in self.members:
            # who takes a second for each request is late whatever anybody plants
            member.slowness = min(member.slowness, 5.0)
        self.doubts: dict[tuple[Life, int], Version] = {}
        self.contradicted: set[tuple[Life, int]] = set()
        self.split: set[int] = set()
        """Rounds of which an update came later than a plan that includes it."""
        self.fooled_in = 10**9
        """The first round that anybody took another result of; what comes after builds on that."""
        self.ended: dict[int, dict[str, Version]] = {}
        self.stopped = False
        self.begin_attacks()

    def run(self) -> Report:
        be_at = Completing._be_at

        def seen(completing: Completing, work: Work) -> None:
            if not self.is_right(work.version, work.signature.unpack(work.out)):
                self.fooled_in = min(self.fooled_in, work.number)
            be_at(completing, work)

        def read(
            store: Reliable, work: Work, index: int, made: Made, names: tuple[str, ...]
        ) -> Any:
            if made.key in self.planted:
                self.fooled_in = min(self.fooled_in, work.number)
            return read_slots(store, work, index, made, names)

        with (
            mock.patch.object(Completing, "_be_at", seen),
            mock.patch("hubless.federate.rounds.results.read_slots", read),
        ):
            return super().run()

    def is_right(self, version: Version, result: Mapping[str, Any]) -> bool:
        """Whether a version is what its plan says."""
        return self.is_known(version) and packed(result) == packed(self.expected(version)[0])

    def deeds(self) -> list[Callable[[], None]]:
        def forge_update() -> None:
            self.forge_update(f"{keys.round_folder(self.open)}updates/", self.open)

        slices, plans = self.forge_slices, self.forge_plan
        if self.strategy.look and self.rng.random() < 0.5:
            slices = self.forge_looks
        return [forge_update, slices, slices, plans, plans, self.forge_next_attempt, self.junk]

    @property
    def open(self) -> int:
        """The round after the last one that a member closed."""
        honest = {r for r, a in self.plans if keys.plan_key(r, a) not in self.planted}
        return max(honest | set(self.ended), default=-1) + 1

    def is_looked_at(self, posted: Posted) -> bool:
        return posted.folder != keys.UPDATES

    def forge_plan(self) -> None:
        """A plan that nobody made: of what is there, of what is not, of strangers', of nothing."""
        rng = self.rng
        number = rng.choice((self.open, self.open, self.open - 1, self.open + 1, self.open + 10**7))
        attempt = rng.choice((0, 0, 1, 2, 99, 9999))
        if number < 0:
            return
        folder = f"{keys.round_folder(number)}updates/"
        newest = keys.newest(p for p in self.listed() if p.folder == folder)
        sound = [p.key for p in newest.values() if p.client in self.names]
        kind = rng.choice(("sound", "sound", "some", "absent", "stranger", "empty", "garbage"))
        included = sound if kind != "some" else sound[: rng.randint(0, len(sound))]
        if kind in ("absent", "stranger"):
            client = MALLORY if kind == "stranger" else rng.choice(self.names)
            digest = self.signature.digest
            absent = Posted(folder, client, rng.randrange(50), _NOBODY, 4, number, digest)
            included = [*(key for key in included if f"/{client}=" not in key), absent.key]
        elif kind == "empty":
            included = []
        before: Version | None = None
        if self.strategy.needs_current:
            before = (number - 1, rng.choice((0, 0, 0, 1, 7)))
            if number == 0:
                before = (-1, 0) if keys.INITIAL in self.backing._objects else None
        if rng.random() < 0.1:
            before = rng.choice((None, (-1, 0), (10**9, 3)))
        body = Plan(tuple(included), attempt, before, None, MALLORY, "0" * 16).to_bytes()
        if kind == "garbage":
            body = rng.choice((b"", b"{", b'{"before": [Infinity, 0]}', body[:-9], b"[" * 5000))
        key = keys.plan_key(number, attempt)
        if self.plant(key, body, f"{kind} plan"):
            self.landed(key, body)

    def forge_next_attempt(self) -> None:
        """A plan like the one that closed a round, without somebody."""
        rng = self.rng
        at = [version for version in self.plans if version[0] >= self.open - 1]
        if not at:
            return
        number, attempt = version = rng.choice(at)
        plan = self.plans[version]
        included = list(plan.included)
        del included[rng.randrange(len(included))]
        follower = Plan(tuple(included), attempt + 1, plan.before, None, MALLORY, "0" * 16)
        key = keys.plan_key(number, attempt + 1)
        if self.plant(key, follower.to_bytes(), "next attempt"):
            self.landed(key, follower.to_bytes())

    def forge_slices(self) -> None:
        """All slices of an attempt, or one, with anything in them."""
        rng = self.rng
        at = [version for version in self.plans if version[0] >= self.open - 2]
        if not at:
            return
        version = rng.choice(at)
        # its digest is of its bytes, which anybody can read
        raw = self.backing.get(keys.plan_key(*version), 1 << 20)
        work = Work(self.signature, version[0], Plan.parse(raw, *version))
        values = rng.choice((np.nan, 1e30, 666.0, 666.0, 666.0))
        content = Content.make(MALLORY, 6, 66)
        work.out[:] = self.signature.pack(content.params)
        work.out[8:].view(np.float32)[:] = values
        indices = range(len(work.cuts))
        names = self.strategy.optimizer.slots
        slot = rng.choice((0.0, 3.0, np.nan))
        slots: dict[int, Slots] = {}
        for block in self.signature.blocks:
            count = (block.stop - block.start) // block.dtype.itemsize
            held: Array = np.full(count, slot, np.float32)
            slots[block.start] = tuple(held for _ in names)
        for index in indices if rng.random() < 0.6 else [rng.choice(indices)]:
            name, _, life, _ = self.victim()
            life = rng.choice((life, _NOBODY))
            encoded, digest = encode_slice(work, index, slots, names)
            body = b"".join(encoded)
            if rng.random() < 0.2:
                body = body[: rng.randrange(len(body))]
            key = work.key(index, name, life, digest)
            if self.plant(key, body, f"slice of {values}"):
                self.bad.add(key)

    def forge_looks(self) -> None:
        """All records of what updates are like, or one: with anything in them."""
        rng, look = self.rng, self.strategy.look
        at = [version for version in self.plans if version[0] >= self.open - 2]
        if not at or not look:
            return
        version = rng.choice(at)
        raw = self.backing.get(keys.plan_key(*version), 1 << 20)
        work = Looked(self.signature, version[0], Plan.parse(raw, *version), look)
        value = rng.choice((0.0, 0.0, 1.0, 1e30, -1.0, np.nan))
        indices = range(len(work.cuts))
        for index in indices if rng.random() < 0.6 else [rng.choice(indices)]:
            name, _, life, _ = self.victim()
            life = rng.choice((life, _NOBODY))
            record = np.full((len(work.units(index)), work.width), value)
            encoded, digest = encode_look(work, index, record)
            body = b"".join(encoded)
            if rng.random() < 0.2:
                body = body[: rng.randrange(len(body))]
            key = work.key(index, name, life, digest)
            if self.plant(key, body, f"look of {value}"):
                self.bad.add(key)

    def landed(self, key: str, body: bytes) -> None:
        if key not in self.planted or self.is_plan(key, body):
            super().landed(key, body)

    def is_plan(self, key: str, body: bytes) -> bool:
        """Whether what was planted can be a plan at all, of members' updates."""
        for number, round_ in keys.parse_listing([Entry(key, 0, 0.0)]).rounds.items():
            for attempt in round_.plans:
                try:
                    plan = Plan.parse(body, number, attempt)
                except ValueError:
                    return False
                return all(posted.client in self.names for posted in plan.updates)
        return False

    def check(self, life: Life, federation: Federation, result: Mapping[str, Any]) -> None:
        version = reached(federation)
        assert version is not None
        self.check_told(life, version[0])
        plan = self.plans.get(version)
        if plan is None:
            raise self.fail(f"{life.name} ends round {version} by a plan of nothing")
        if not self.is_right(version, result):
            self.counts["fooled"] += 1
            if version[0] <= self.fooled_in:
                self.doubts[life, version[0]] = version
            return
        self.doubts.pop((life, version[0]), None)
        ended = self.ended.setdefault(version[0], {})
        ended[life.name] = version
        is_split = any(version[0] >= split for split in self.split)
        if len(set(ended.values())) > 1 and not is_split:
            raise self.fail(f"round {version[0]} ends in more than one way: {ended}")

    def check_alarm(self, life: Life, event: events.Impostor | events.Forged) -> None:
        # who was fooled computes the next round from there, and is told from the others by that
        if int(event.key.split("/")[1]) <= self.fooled_in:
            super().check_alarm(life, event)

    def check_missed(self, life: Life, missed: QuorumMissed, waited: float, lates: int) -> None:
        self.counts["quorum missed"] += 1

    def late(self, life: Life, error: TooLate) -> None:
        super().late(life, error)
        self.excuse(life, error)

    def excuse(self, life: Life, error: Exception) -> None:
        # who may create plans can keep others from the end of a round, but not without a word
        self.stopped = True
        super().excuse(life, error)

    def finally_wrong(self) -> str:
        gave_up = [life.name for life in self.lives if getattr(life.member, "gave_up", False)]
        if gave_up and self.posters >= self.quorum and not self.stopped:
            return f"{gave_up[0]} gave up although a quorum lives"
        return ""

    def call(self, life: Life, federation: Federation, do: Callable[[], T]) -> T:
        for (doubting, number), version in self.doubts.items():
            if doubting is life and self.honest_slices(version):
                self.contradicted.add((life, number))
        return super().call(life, federation, do)

    def is_known(self, version: Version) -> bool:
        """Whether a version follows from sound updates, all the way from the first."""
        plan = self.plans.get(version)
        if plan is None or any(key not in self.contents for key in plan.included):
            return False
        return plan.before is None or plan.before[0] < 0 or self.is_known(plan.before)

    def plant(self, key: str, body: bytes, what: str) -> bool:
        number = int(key.split("/")[1]) if parsed(key) and key.startswith(keys.ROUNDS) else -1
        plans = [plan for (at, _), plan in self.plans.items() if at == number]
        if any(key in plan.included for plan in plans):
            self.split.add(number)
        return super().plant(key, body, what)

    def is_excused(self, key: str) -> bool:
        if "/plan-" not in key:
            return False
        number = int(key.split("/")[1])
        return number >= self.fooled_in or any(number >= split for split in self.split)

    def check_told(self, life: Life, reached: int) -> None:
        """Who was fooled has to be told, as soon as the others show something else."""
        for doubting, number in list(self.doubts):
            if doubting is not life or number >= reached:
                continue
            folder = keys.round_folder(number)
            told = [e for e in life.everything if isinstance(e, _ALARMS) and folder in e.key]
            version = self.doubts.pop((life, number))
            if not told and (life, number) in self.contradicted:
                raise self.fail(f"{life.name} was fooled in round {version} without a word")

    def honest_slices(self, version: Version) -> bool:
        """Whether members have published all slices of a version, for others to compare."""
        listing = keys.parse_listing(self.backing.list(""))
        by_index = listing.rounds[version[0]].slices.get(version[1], {})
        cuts = len(Work(self.signature, version[0], self.plans[version]).cuts)
        return all(
            any(made.key not in self.planted for made in by_index.get(index, ()))
            for index in range(cuts)
        )
