"""Schedules of members that never wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import hubless
from hubless import events
from hubless.errors import FederationError
from hubless.federate import keys
from hubless.federate.asynchronous import KEPT_UPDATES
from hubless.federate.federation import Federation
from hubless.federate.fold import OUTWEIGH, capped
from hubless.federate.keys import Incarnation, Posted
from hubless.params import is_floating
from hubless.strategy.base import Slots, Strategy
from tests.support.schedules.basics import MALLORY, Content, Params, Rank, packed, parsed
from tests.support.schedules.life import Life
from tests.support.schedules.world import Member, World

_RENEWALS = 3


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
        left = Counter(p.client for p in self.listed() if p.key not in self.planted)
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
            pace=hubless.Anytime(peers=self.peers),
            strategy=self.strategy,
            model=life.content.params if self.starts else None,
            clock=life.clock,
            events=life.hear,
        )
        if self.name not in world.acknowledged and federation.resumed:
            world.counts["resumed on a late write"] += 1
        oracle = Oracle(world, life, self.strategy, federation)
        while self.steps:
            life.clock.sleep(world.rng.choice((0.0, 0.1, 1.0)) * world.rng.random())
            life.content = content = self.trained()
            examples = world.rng.choice((0, 1, 2, 3, 5, 8))
            oracle.begin()

            def step(params: Params = content.params, examples: int = examples) -> Params:
                return federation.step(params, examples=examples)

            try:
                result = world.call(life, federation, step)
            except FederationError as error:
                world.excuse(life, error)
                return
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
        self.seen: dict[str, Rank] = dict(mode._taken_in)  # type: ignore[attr-defined]
        self.version = 0
        self.refused: set[str] = set()
        """What somebody planted and this member has refused before its step."""
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
        self.refused = self.life.refused & set(self.world.planted)
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
        usable = [p for p in listed if p.key not in self.refused]
        # what is refused hides what its client shared before, but only this time
        newly = (self.life.refused - self.refused) & set(self.world.planted)
        hidden = {posted.client for posted in map(parsed, newly) if posted}
        for client, posted in keys.newest(usable).items():
            if client in (self.life.name, *included):
                continue
            if client in hidden:
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
