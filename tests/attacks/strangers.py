"""Attacks of strangers who may write under any name, and of nobody's in particular."""

from __future__ import annotations

from hubless import events
from hubless.select.uniform import Uniform
from tests.attacks import forged
from tests.attacks.scene import Scene, attack, params


@attack(
    "S1",
    "ninety made-up clients, where each draws who shares next",
    open="Where members are not named, made-up clients are drawn like others.",
)
def made_up_clients_are_drawn(scene: Scene) -> None:
    a = scene.join("a", selector=Uniform(), cohort=5)
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    for index in range(90):
        forged.update(scene, f"m{index}", params(1.0))
    for _ in range(10):
        scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    turns = sum(isinstance(event, events.Pushed) for event in scene.heard["a"]) - 1
    if turns < 10:
        scene.harmed(f"a had {turns} of 10 turns")


@attack(
    "S2",
    "the same, each of them with a sound update of 4 MiB",
    open="Each sound update costs every member a download.",
)
def made_up_clients_are_read(scene: Scene) -> None:
    model, count = params(1.0, 1 << 20), 10
    a = scene.join("a")
    scene.call("a shares", lambda: a.step(model, examples=10), deadline=30.0)
    for index in range(count):
        forged.update(scene, f"m{index}", model)
    scene.call("a steps", lambda: a.step(model, examples=10), deadline=30.0)
    read = [event.bytes for event in scene.heard["a"] if isinstance(event, events.Pulled)]
    if sum(read) > count * model["w"].nbytes:
        scene.harmed(f"a downloaded {sum(read) >> 20} MiB of strangers'")
