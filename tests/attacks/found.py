"""Attacks that were found once the first ones were held."""

from __future__ import annotations

import json
import threading

import hubless
from hubless import events
from hubless.federate import keys
from hubless.federate.keys import Incarnation
from tests.attacks import forged
from tests.attacks.operator import Counted
from tests.attacks.rounds import forge_slices, pair, read_plan
from tests.attacks.scene import Scene, attack, memory_of, params


@attack(
    "F1",
    "updates forged in a member's name, each of a later life than the one before",
)
def a_ladder_of_lives(scene: Scene) -> None:
    view = Counted(scene)
    a = scene.join("a", view)
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    digest = a.member.agreed.digest
    for index in range(200):
        life = Incarnation(2 + 2 * index, "badbadba")
        scene.put(f"updates/a={index:08d}-{life}-10-0-{digest}.safetensors")
    view.count.clear()
    scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    if view.count["put"] > 10 or view.count["list"] > 10:
        scene.hung.append(f"200 forged keys cost one step {dict(view.count)}")


@attack(
    "F2",
    "many empty updates of one client, above a sound one",
)
def many_above_a_sound_one(scene: Scene) -> None:
    view = Counted(scene)
    a, b = scene.join("a", view), scene.join("b")
    for member in (a, b):
        scene.call("share", lambda member=member: member.step(params(1.0), examples=10))
    forged.update(scene, "m", params(3.0))
    digest = a.member.agreed.digest
    for index in range(1, 201):
        scene.put(f"updates/m={index:08d}-{forged.STRANGER}-10-0-{digest}.safetensors")
    view.count.clear()
    pulled = scene.call("a pulls", lambda: a.pull(params(0.0)))
    if view.count["list"] > 20:
        scene.hung.append(f"200 empty updates cost one pull {dict(view.count)}")
    result = scene.call("b steps", lambda: b.step(params(1.0), examples=10))
    for name, params_after in (("a", pulled), ("b", result)):
        if params_after is not None and params_after["w"][0] == 1.0:
            scene.harmed(f"what m shared before is hidden from {name}")


@attack(
    "F4",
    "a record that lets a single update weigh anything",
)
def a_record_that_lets_all_in(scene: Scene) -> None:
    first = scene.join("first")
    scene.call("first shares", lambda: first.step(params(1.0), examples=100))
    document = {**json.loads(scene.get(keys.FEDERATION)), "outweigh": None}
    scene.delete(keys.FEDERATION)
    scene.put(keys.FEDERATION, json.dumps(document).encode())
    a = scene.join("a")
    scene.call("a shares", lambda: a.step(params(1.0), examples=100))
    forged.update(scene, "m", params(50.0), examples=10**15 - 1)
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=100))
    scene.check_within("a steps", result, 1.0, 1.0 + 49.0 * 1000 / 1100 + 1e-3)


@attack(
    "F5",
    "peers that delete their updates one after another while they are read",
)
def deleted_one_after_another(scene: Scene) -> None:
    view = Counted(scene)
    big = 1 << 19
    a = scene.join("a", view)
    scene.call("a shares", lambda: a.step(params(1.0, big), examples=10), deadline=20)
    posted = [forged.update(scene, f"m{i:02d}", params(1.0, big)).key for i in range(20)]
    left = list(posted)

    def delete(key: str, start: int) -> None:
        # as soon as the last of them is read at its second block, the first goes
        if left and key == left[-1] and start > 1 << 20:
            scene.delete(left.pop())

    view.count.clear()
    view.on_read = delete
    scene.call("a steps", lambda: a.step(params(1.0, big), examples=10), deadline=20)
    model = big * 4
    if view.count["bytes"] > 60 * model:
        scene.hung.append(
            f"20 updates were read {view.count['bytes'] / model:.0f} times in one step"
        )


@attack(
    "F6",
    "a plan of 60 MiB that is hardly anything but brackets",
)
def a_plan_of_brackets(scene: Scene) -> None:
    nested = b"{}," * (20 << 20) + b"{}"
    body = b'{"included": [' + nested + b'], "before": null, "by": "", "nonce": ""}'
    scene.put(keys.plan_key(0, 0), body)
    terms = "pace=hubless.Rounds(['a', 'm'], quorum=1, deadline=2.0)"
    used = memory_of(scene, f"join({terms}).step(model, examples=10)")
    if used is not None and used > 400:
        scene.harmed(f"a plan of 60 MiB took {used} MiB of memory")


@attack(
    "F7",
    "a record of 60 MiB that is hardly anything but brackets",
)
def a_record_of_brackets(scene: Scene) -> None:
    scene.put(keys.FEDERATION, b'{"hubless": 1, "x": [' + b"{}," * (20 << 20) + b"{}]}")
    used = memory_of(scene, "try:\n    join(model=model)\nexcept HublessError:\n    pass")
    if used is not None and used > 400:
        scene.harmed(f"a record of 60 MiB took {used} MiB of memory")


@attack(
    "F8",
    "an update in a member's name, of a life before its own",
    open="What claims a life before the present one is not told apart",
)
def an_update_of_a_former_life(scene: Scene) -> None:
    a, b = pair(scene)
    earlier = Incarnation(0, "badbadba")
    forged.update(scene, "a", params(100.0), life=earlier, round=0)
    scene.call("b steps", lambda: b.step(params(3.0), examples=10), deadline=3.0)
    scene.calls(
        {
            "a steps": lambda: a.step(params(1.0), examples=10),
            "b steps again": lambda: b.step(params(3.0), examples=10),
        },
        deadline=3.0,
    )
    if not any(isinstance(e, events.Impostor) for e in scene.heard["a"]):
        scene.unnamed("a was not told that somebody wrote in its name")


@attack(
    "F11",
    "a slice with right params and made-up memory of the optimizer",
)
def made_up_memory(scene: Scene) -> None:
    size = 1 << 19
    strategy, life = hubless.FedAvgM(), Incarnation(1, "11111111")
    a = scene.join(
        "a",
        members=["a", "m"],
        deadline=4.0,
        strategy=strategy,
        model=params(2.0, size),
    )

    def publish() -> None:
        plan = read_plan(scene, 0)
        if plan is not None:
            right = params(2.0, size)
            names = tuple(strategy.optimizer.slots)
            forge_slices(
                scene, 0, plan, right, client="m", life=life, names=names, slots=100.0, only=1
            )

    threading.Thread(target=publish, daemon=True).start()
    for number in range(3):
        forged.update(
            scene, "m", params(2.0, size), life=life, round=number, sequence=number, version=number
        )
        name = f"a in round {number}"
        result = scene.call(name, lambda: a.step(params(2.0, size), examples=10), deadline=4.0)
        scene.check_within(name, result, 1.9, 2.1)
    if not any(isinstance(e, events.Forged) for e in scene.heard["a"]):
        scene.unnamed("nobody says that the memory is made up")
