"""Attacks of strangers who may write under any name, and of nobody's in particular."""

from __future__ import annotations

import time

from hubless import events
from hubless.federate import keys
from hubless.select.uniform import Uniform
from tests.attacks import forged
from tests.attacks.rounds import pair, play_round
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


@attack(
    "S3",
    "that a live member has left, written in its name",
    open="Whoever writes that a member has left makes others stop waiting for it, until it "
    "notices.",
)
def said_to_have_left(scene: Scene) -> None:
    a, b = pair(scene, quorum=1)
    play_round(scene, (a, b), "round 0")
    scene.put(keys.life_key("b", b.member.incarnation, left=True), b"{}")
    began = time.monotonic()
    scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=3.0)
    if time.monotonic() - began < 1.5:
        scene.harmed("a did not wait for b, which is there")
    scene.call("b steps", lambda: b.step(params(3.0), examples=10), deadline=3.0)
    if not any(isinstance(e, events.Impostor) for e in scene.heard["b"]):
        scene.unnamed("b was not told that somebody writes in its name")
