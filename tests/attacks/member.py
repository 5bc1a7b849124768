"""Attacks of a member that is one: it writes its own keys alone, and creates plans."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import numpy as np

import hubless
from hubless import events
from hubless.federate import keys
from hubless.federate.outside.survey import survey
from hubless.federate.picking.draw import Selection
from hubless.federate.picking.standing import Standing
from hubless.federate.rounds.plans import Plan
from hubless.select.activity import Activity
from tests.attacks import forged
from tests.attacks.operator import View
from tests.attacks.rounds import check_round, check_same, forge_slices, play_round, read_plan
from tests.attacks.scene import Scene, attack, params

LIFE = keys.Incarnation(1, "11111111")
TRIO: dict[str, Any] = {"members": ["a", "b", "m"], "quorum": 2, "deadline": 1.0}


def trio(scene: Scene, **more: Any) -> tuple[hubless.Federation, hubless.Federation]:
    """Two honest members of three; the third is the attacker."""
    terms = {**TRIO, **more}
    return scene.join("a", **terms), scene.join("b", **terms)


@attack(
    "M1a",
    "a member makes up plausible params",
    open="A member can lie about its own update, and nobody can tell.",
)
def params_that_are_made_up(scene: Scene) -> None:
    a = scene.join("a")
    forged.update(scene, "m", params(100.0))
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    if result is not None and result["w"].max() > 1.0:
        scene.fooled(f"a went from 1 to {result['w'][0]}")


@attack("M1b", "the same, where the others take the median")
def params_that_are_made_up_for_a_median(scene: Scene) -> None:
    honest = [scene.join(name, strategy=hubless.FedMedian()) for name in "abc"]
    for member in honest:
        scene.call("share", lambda member=member: member.step(params(1.0), examples=10))
    forged.update(scene, "m", params(100.0))
    result = scene.call("a steps", lambda: honest[0].step(params(1.0), examples=10))
    scene.check_within("a steps", result, 1.0, 1.0)


@attack("M2", "metrics and valuations that nobody can draw or count")
def metrics_that_are_made_up(scene: Scene) -> None:
    a = scene.join("a")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    for index, metrics in enumerate(
        (
            {"loss": math.nan, "accuracy": math.inf},
            {"loss": 10**400},
            {"\x1b[2J": 1.0, "__proto__": 2.0, "": 3.0},
            {"loss": {"loss": 1.0}},
            {str(i): float(i) for i in range(3000)},
        )
    ):
        forged.update(scene, f"m{index}", params(1.0), metrics=metrics)
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    scene.check_within("a steps", result, 1.0, 1.0)
    seen = scene.call("ls", lambda: survey(scene.store()))
    if seen is None or len(seen[1]) < 6:
        scene.harmed("a look at the federation died of a member's metrics")
    elif any(not isinstance(value, float) for m in seen[1] for value in m.metrics.values()):
        scene.fooled("metrics that are no numbers are shown as such")


@attack(
    "M3",
    "a member claims more updates, and a version as far ahead as these allow",
    open="A version is believed up to a bound",
)
def a_version_as_far_as_it_goes(scene: Scene) -> None:
    a, b = scene.join("a", strategy=hubless.FedAsync()), scene.join("b")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    forged.update(scene, "m", params(1.0), sequence=10**7, version=10**7)
    scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    result = scene.call("a steps again", lambda: a.step(params(1.0), examples=10))
    if result is not None and result["w"][0] < 1.01:
        scene.fooled(f"an honest update of 3.0 moved 1.0 to {result['w'][0]}")


@attack(
    "M4a",
    "a member closes a round with its own update alone",
    open="Whoever creates a round's plan first decides who is in it: itself alone, if it likes.",
)
def a_round_of_its_own(scene: Scene) -> None:
    a, b = trio(scene)
    check_round(scene, play_round(scene, (a, b), "round 0"), "round 0")
    posted = forged.update(scene, "m", params(100.0), life=LIFE, round=1)
    scene.put(keys.plan_key(1, 0), forged.plan([posted.key], by="m"))
    result = scene.call("a pulls", lambda: a.pull(params(0.0)))
    if result is not None and result["w"].max() > 3.0:
        scene.fooled(f"the federation's model is the attacker's alone: {result['w'][0]}")
    # in the next round all are counted again
    check_round(scene, play_round(scene, (a, b), "round 2"), "round 2")


@attack(
    "M4b",
    "a member closes the last two rounds that there can be",
    open="At the last number that there is, no round can follow",
)
def the_last_rounds(scene: Scene) -> None:
    a, b = trio(scene)
    play_round(scene, (a, b), "round 0")
    for number in (99_999_998, 99_999_999):
        posted = forged.update(scene, "m", params(100.0), life=LIFE, round=number)
        scene.put(keys.plan_key(number, 0), forged.plan([posted.key], by="m"))
    if not any(play_round(scene, (a, b), "round 1")):
        scene.harmed("no round can follow")


@attack(
    "M4c",
    "a member closes two rounds ahead, by a roster of its own",
    open="With a selector such a round brings its own roster",
)
def a_roster_of_its_own(scene: Scene) -> None:
    names = ["a", "b", "m"]
    terms: dict[str, Any] = {
        "members": names,
        "deadline": 2.0,
        "selector": Activity("sqrt"),
        "cohort": 1,
    }
    a = scene.join("a", **terms)
    # m claims to have all examples, and draws itself for as long as it takes
    rich = {n: Standing(10**14 if n == "m" else 1, None, -1, 1, 0, 0) for n in names}
    selection = Selection(Activity("sqrt"), 1, 0)
    for number in (3, 4):
        pick = selection.pick(rich, number)
        assert pick.members == ("m",), pick.members
        posted = forged.update(scene, "m", params(100.0), round=number, examples=10**14)
        plan = Plan((posted.key,), 0, None, pick, "m", "0" * 16)
        scene.put(keys.plan_key(number, 0), plan.to_bytes())
    result = scene.call("a pulls", lambda: a.pull(params(0.0)))
    if result is not None and result["w"][0] == 100.0:
        scene.fooled("a round that only m can be drawn for, by a roster of its own")


@attack("M5", "a member that delivers, and publishes a slice that is wrong")
def a_slice_of_its_own_that_is_wrong(scene: Scene) -> None:
    a = scene.join("a", members=["a", "m"], deadline=5.0)
    # two blocks, and so a slice for each of them
    honest = params(3.0, 1 << 19)
    forged.update(scene, "m", honest, life=LIFE, round=0)

    def publish() -> None:
        plan = read_plan(scene, 0)
        if plan is not None:
            wrong = params(666.0, 1 << 19)
            forge_slices(scene, 0, plan, wrong, client="m", life=LIFE, only=1)

    forger = threading.Thread(target=publish, daemon=True)
    forger.start()
    own = params(1.0, 1 << 19)
    result = scene.call("a steps", lambda: a.step(own, examples=10), deadline=5.0)
    forger.join(60)
    scene.check_within("a steps", result, 1.0, 3.0)
    if result is not None and not any(isinstance(e, events.Forged) for e in scene.heard["a"]):
        scene.unnamed("a was not told of a slice that is wrong")


@attack("M6", "a member that shares updates of no examples, and of all that a key can hold")
def examples_at_the_edges(scene: Scene) -> None:
    a = scene.join("a")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    forged.update(scene, "m0", params(50.0), examples=0)
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    scene.check_within("a steps", result, 1.0, 1.0)
    forged.update(scene, "m1", params(1.0), examples=10**15 - 1, metrics={"n": 10**15})
    result = scene.call("a steps again", lambda: a.step(params(1.0), examples=10))
    scene.check_within("a steps again", result, 1.0, 1.0)
    if result is not None and not np.isfinite(result["w"]).all():
        scene.fooled(json.dumps(result["w"].tolist()))


@attack(
    "M7",
    "a member takes its update and its slice away once some have ended the round",
    open="A member that takes away its own update and slice while a round is completed can make "
    "others end it in different ways",
)
def taken_away_in_the_middle(scene: Scene) -> None:
    size = 3 << 18
    view = View(scene)
    terms: dict[str, Any] = {"members": ["a", "b", "m"], "deadline": 3.0}
    # b is slow: it has not seen m's slice when m takes it away
    view.hides = lambda key: "/slices-" in key and "=m=" in key
    a, b, m = scene.join("a", **terms), scene.join("b", view, **terms), scene.join("m", **terms)

    def takes_away() -> None:
        scene.call("m", lambda: m.step(params(5.0, size), examples=10), deadline=3.0)

    def ends() -> Any:
        result = a.step(params(1.0, size), examples=10)
        thread.join(30)
        scene.delete(*(k for k in scene.keys("rounds/") if "/m=" in k or "=m=" in k))
        view.hides = lambda key: False
        return result

    thread = threading.Thread(target=takes_away, daemon=True)
    thread.start()
    results = scene.calls({"a": ends, "b": lambda: b.step(params(3.0, size), examples=10)}, 3.0)
    check_same(scene, results, "round 0")


@attack(
    "M8",
    "a member writes its own update again while others reduce it",
    open="A member that writes its own update again, with other bytes, while a round is completed "
    "can make others end it in different ways and take each other for forgers",
)
def written_again_in_the_middle(scene: Scene) -> None:
    size = 3 << 18
    view = View(scene)
    terms: dict[str, Any] = {"members": ["a", "b", "m"], "deadline": 3.0}
    a, b = scene.join("a", **terms), scene.join("b", view, **terms)
    forged.update(scene, "m", params(5.0, size), life=LIFE, round=0)

    def again(key: str, start: int) -> None:
        # b reads it after a has
        if "/updates/m=" in key:
            view.on_read = lambda key, start: None
            forged.update(scene, "m", params(2.0, size), life=LIFE, round=0)

    view.on_read = again
    steps = {
        "a": lambda: a.step(params(1.0, size), examples=10),
        "b": lambda: b.step(params(3.0, size), examples=10),
    }
    results = scene.calls(steps, 3.0)
    check_same(scene, results, "round 0")
    for client in ("a", "b"):
        forgers = {e.peer for e in scene.heard[client] if isinstance(e, events.Forged)}
        if forgers & {"a", "b"}:
            scene.fooled(f"{client} takes an honest member for a forger")
