"""Attacks on those who join: what the first member wrote, and what a name was used for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hubless import events
from hubless.federate import keys
from hubless.privacy.mechanisms import Count
from tests.attacks.scene import Scene, attack, params
from tests.support.joining import joined


def _agreement(scene: Scene, **changed: Any) -> bytes:
    """A federation's record as a member writes it, changed."""
    scene.delete(*scene.keys())
    with joined(scene.url, "founder", **scene.options) as founder:
        founder.step(params(1.0), examples=1)
    document = {**json.loads(scene.get(keys.FEDERATION)), **changed}
    scene.delete(*scene.keys())
    return json.dumps(document).encode()


@attack("21a", "garbage where everybody's first params are")
def garbage_to_start_from(scene: Scene) -> None:
    a = scene.join("a")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    scene.put(keys.INITIAL, b"\x80\x04garbage" * 100)
    b = scene.join("b", model=params(3.0))
    result = scene.call("b steps", lambda: b.step(params(3.0), examples=10))
    scene.check_within("b steps", result, 1.0, 3.0)
    if result is None:
        scene.harmed("b could not take part for garbage")


@attack("21b", "garbage to start from, before anybody has shared anything")
def garbage_before_anybody(scene: Scene) -> None:
    scene.put(keys.INITIAL, b"\x80\x04garbage" * 100)
    a = scene.join("a", model=params(1.0))
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    scene.check_within("a steps", result, 1.0, 1.0)
    if result is None:
        scene.harmed("a could not take part for garbage")
    scene.check_named(keys.INITIAL)


@attack("21c", "escapes for the terminal in a federation's record")
def escapes_in_a_record(scene: Scene) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J"
    for changed in ({"mode": evil}, {"strategy": evil, "mode": "sync"}, {"hubless": evil}):
        scene.put(keys.FEDERATION, _agreement(scene, **changed))

        mode: Any = {"members": ["a"]} if "strategy" in changed else {}

        def join(mode: Any = mode) -> None:
            with joined(scene.url, "a", **mode, **scene.options) as a:
                a.step(params(1.0), examples=1)

        scene.call(f"join {changed}", join)
    for error in scene.errors.values():
        if "\x1b" in str(error):
            scene.fooled("an error carries escapes that drive a terminal")
    if len(scene.errors) != 3:
        scene.unnamed("a record that is none of ours was taken for one")
    scene.check_named(keys.FEDERATION)


@attack(
    "21d",
    "a record of another model, written before anybody joined",
    open="Whoever writes `federation.json` first decides what the federation is.",
)
def a_squatted_record(scene: Scene) -> None:
    scene.put(keys.FEDERATION, _agreement(scene, signature={"v": ["F32", [3]]}))
    a = scene.join("a")
    scene.call("a steps", lambda: a.step(params(1.0), examples=10))


@attack("20", "the operator deletes what a member has shared, which its privacy ledger counted by")
def traces_of_spending_are_deleted(scene: Scene) -> None:
    spent: list[float] = []
    for _ in range(3):
        member = scene.join("a", private=Count(epsilon=1.0), ledger=scene.home / "ledger.json")
        for value in (1.0, 2.0):
            scene.call(
                "a steps",
                lambda member=member, value=value: member.step(
                    params(value), examples=10, valuation=1.0
                ),
            )
        member.close()
        pushed = [e for e in scene.heard["a"] if isinstance(e, events.Pushed)]
        spent.append(pushed[-1].epsilon or 0.0)
        scene.delete(*(key for key in scene.keys("updates/") if "/a=" in key))
        scene.delete(*(key for key in scene.keys("members/") if "/a=" in key))
    if not np.all(np.diff(spent) > 0):
        scene.fooled(f"after two reports each time the ledger says {spent}")
