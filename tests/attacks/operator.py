"""Attacks of whoever runs the store: it decides what each member gets to see, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hubless
from hubless import events
from hubless.errors import NotFound, QuorumMissed, RolledBack
from hubless.federate import keys
from hubless.store.base import Bytes, Entry, Store
from tests.attacks import forged
from tests.attacks.rounds import PAIR, check_round, expect_all, pair, play_round
from tests.attacks.scene import Scene, attack, params


class View(Store):
    """What an operator shows of a store: of several copies one, and what it does not hide."""

    def __init__(self, scene: Scene, copy: str = "") -> None:
        self._under, self.copy = scene.store(), copy
        self.hides: Callable[[str], bool] = lambda key: False
        self.after_put: Callable[[str], object] = lambda key: None
        self.url = scene.url
        self.request_bytes, self.parallel = self._under.request_bytes, self._under.parallel

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        self._under.put(self.copy + key, parts, create=create)
        self.after_put(key)

    def get(self, key: str, limit: int = 1 << 20) -> bytes:
        self._check(key)
        return self._under.get(self.copy + key, limit)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        self._check(key)
        return self._under.read(self.copy + key, start, stop, into)

    def list(self, prefix: str) -> list[Entry]:
        found = self._under.list(self.copy + prefix)
        shown = (Entry(e.key.removeprefix(self.copy), e.size, e.modified) for e in found)
        return [entry for entry in shown if not self.hides(entry.key)]

    def delete(self, keys: Sequence[str]) -> None:
        self._under.delete([self.copy + key for key in keys])

    def close(self) -> None:
        self._under.close()

    def _check(self, key: str) -> None:
        if self.hides(key):
            raise NotFound(f"there is no {key}", key)


def copy(scene: Scene, here: str, there: str) -> None:
    """Make one copy of the federation as another is now."""
    scene.delete(*scene.keys(there))
    for key in scene.keys(here):
        scene.put(there + key.removeprefix(here), scene.get(key))


class Counted(View):
    """Counts what a member asks of a store."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.count: Counter[str] = Counter()
        self.on_read: Any = lambda key, start: None

    def put(self, key: str, parts: Sequence[Bytes], *, create: bool = False) -> None:
        self.count["put"] += 1
        super().put(key, parts, create=create)

    def read(self, key: str, start: int, stop: int, into: memoryview | None = None) -> memoryview:
        self.count["read"] += 1
        self.count["bytes"] += stop - start
        self.on_read(key, start)
        return super().read(key, start, stop, into)

    def list(self, prefix: str) -> Any:
        self.count["list"] += 1
        return super().list(prefix)


@attack(
    "O1a",
    "the operator withholds everybody else's updates from an asynchronous member",
    open="An operator can withhold what it likes, and a member only sees that nobody else is "
    "there.",
)
def updates_are_withheld(scene: Scene) -> None:
    view = View(scene)
    view.hides = lambda key: "/b=" in key
    a, b = scene.join("a", view), scene.join("b")
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    scene.check_within("a steps", result, 1.0, 1.0)
    scene.fooled("a believes that it is alone")


@attack("O1b", "the operator withholds from a member what another does in rounds")
def updates_are_withheld_in_rounds(scene: Scene) -> None:
    view = View(scene)
    view.hides = lambda key: "/updates/b=" in key or "/plan-" in key
    terms = {**PAIR, "deadline": 1.0}
    a, b = scene.join("a", view, **terms), scene.join("b", **terms)
    check_round(scene, play_round(scene, (a, b)))
    error = scene.errors.get("a in round")
    if not isinstance(error, QuorumMissed) or error.missing != ["b"]:
        scene.unnamed(f"a was not told who is missing: {error}")
    view.hides = lambda key: False
    results = play_round(scene, (a, b), "the next round")
    check_round(scene, results, "the next round")
    expect_all(scene, results, "the next round")


@attack(
    "O2a",
    "the operator shows two asynchronous members two federations",
    open="An operator can show each member another federation.",
)
def two_federations(scene: Scene) -> None:
    a, b = scene.join("a", View(scene, "x/")), scene.join("b", View(scene, "y/"))
    for member, value in ((a, 1.0), (b, 3.0)):
        name = f"{member.client} steps"
        result = scene.call(name, lambda m=member, v=value: m.step(params(v), examples=10))
        scene.check_within(name, result, value, value)
    scene.fooled("each believes that it is alone")


@attack(
    "O2b",
    "the operator shows two members of a round what the other does not see",
    open="An operator can show each member another federation.",
)
def two_ends_of_a_round(scene: Scene) -> None:
    view = View(scene)
    view.hides = lambda key: "/updates/b=" in key
    terms = {**PAIR, "deadline": 1.0, "strategy": hubless.FedAvgM()}
    a, b = scene.join("a", view, **terms), scene.join("b", **terms)
    check_round(scene, play_round(scene, (a, b)))
    view.hides = lambda key: False
    check_round(scene, play_round(scene, (a, b), "the next round"), "the next round")


@attack("O3a", "the operator goes back to what an asynchronous member has seen before")
def an_older_copy(scene: Scene) -> None:
    view = View(scene, "now/")
    a, b = scene.join("a", view), scene.join("b", View(scene, "now/"))
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    copy(scene, "now/", "then/")
    scene.call("b shares again", lambda: b.step(params(3.0), examples=10))
    scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    view.copy = "then/"
    for name in ("a, back", "a, back again"):
        result = scene.call(name, lambda: a.step(params(1.0), examples=10))
        # what it has taken in before does not count a second time
        scene.check_within(name, result, 1.0, 1.0)
    last = [e for e in scene.heard["a"] if isinstance(e, events.Pushed)][-1]
    if last.sequence < 2:
        scene.harmed("a counts from an earlier number again")


@attack("O3b", "the operator goes back to before a member's last round")
def an_older_copy_of_rounds(scene: Scene) -> None:
    views = View(scene, "now/"), View(scene, "now/")
    a, b = scene.join("a", views[0], **PAIR), scene.join("b", views[1], **PAIR)
    check_round(scene, play_round(scene, (a, b), "round 0"), "round 0")
    copy(scene, "now/", "then/")
    check_round(scene, play_round(scene, (a, b), "round 1"), "round 1")
    for view in views:
        view.copy = "then/"
    play_round(scene, (a, b), "round 2")
    for client in "ab":
        if not isinstance(scene.errors.get(f"{client} in round 2"), RolledBack):
            scene.fooled(f"{client} went on from an earlier state")


@attack(
    "O3c",
    "the same, for a member that joins anew",
    open="A member that joins anew, or is asynchronous, cannot tell that a store has gone back.",
)
def an_older_copy_for_a_newcomer(scene: Scene) -> None:
    view = View(scene, "now/")
    a, b = scene.join("a", view, **PAIR), scene.join("b", View(scene, "now/"), **PAIR)
    check_round(scene, play_round(scene, (a, b), "round 0", (1.0, 1.0)), "round 0")
    copy(scene, "now/", "then/")
    check_round(scene, play_round(scene, (a, b), "round 1", (3.0, 3.0)), "round 1")
    again = scene.join("a", View(scene, "then/"), **PAIR)
    result = scene.call("a pulls", lambda: again.pull(params(0.0)))
    if result is not None and np.allclose(result["w"], 1.0):
        scene.fooled("a was given the model of an earlier round")


@attack(
    "O4",
    "the operator puts another sound update in the place of a member's",
    open="What lies under a member's name is taken for that member's.",
)
def another_update_in_its_place(scene: Scene) -> None:
    a, b = scene.join("a"), scene.join("b")
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    (posted,) = keys.parse_updates(e for e in scene.store().list("updates/") if "/b=" in e.key)
    other = forged.update(
        scene, "b", params(100.0), sequence=posted.sequence, life=posted.incarnation
    )
    if other.key != posted.key:
        scene.unnamed("the forgery lies under another key, which b would see")
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    if result is not None and result["w"].max() > 3.0:
        scene.fooled("a averaged in what b never shared")


@attack("O5", "the operator deletes an update as soon as a round includes it")
def an_included_update_is_deleted(scene: Scene) -> None:
    view = View(scene)
    a, b = scene.join("a", view, **PAIR), scene.join("b", **PAIR)
    posted = forged.update(scene, "b", params(3.0), life=b.member.incarnation, round=0)
    view.after_put = lambda key: "/plan-" in key and scene.delete(posted.key)
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=3.0)
    scene.check_within("a steps", result, 1.0, 3.0)
    if result is None:
        scene.harmed("a lost a round for an update of another's")
    scene.check_named(posted.key, "it is not there")


@attack("O6", "the operator empties the folder between two rounds")
def the_folder_is_emptied(scene: Scene) -> None:
    a, b = pair(scene)
    check_round(scene, play_round(scene, (a, b), "round 0"), "round 0")
    scene.delete(*scene.keys())
    results: list[Any] = play_round(scene, (a, b), "round 1")
    if any(result is not None for result in results):
        scene.fooled("a round was played in a store that has gone back")
    scene.check_named("gone back")
