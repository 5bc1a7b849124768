"""Attacks on synchronous rounds: on what closes them, and on what they come to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hubless
from hubless import events
from hubless.errors import NotFound
from hubless.federate import keys
from hubless.federate.keys import Incarnation
from hubless.federate.rounds.plans import Plan
from hubless.federate.rounds.slices import Work, encode_slice
from hubless.signature import Signature
from tests.attacks import forged
from tests.attacks.scene import FOLDER, Params, Scene, attack, params

PAIR: dict[str, Any] = {"members": ["a", "b"], "deadline": 3.0}
ALONE: dict[str, Any] = {"members": ["a"], "deadline": 3.0}


def pair(scene: Scene, **more: Any) -> tuple[hubless.Federation, hubless.Federation]:
    """Two members that know each other by name."""
    terms = {**PAIR, **more}
    return scene.join("a", **terms), scene.join("b", **terms)


def play_round(
    scene: Scene,
    members: tuple[hubless.Federation, ...],
    name: str = "round",
    values: tuple[float, ...] = (1.0, 3.0),
    model: Callable[[float], Params] = params,
) -> list[Params | None]:
    """All members step at once, each with a value of its own."""

    def step(member: hubless.Federation, value: float) -> Callable[[], Params]:
        return lambda: member.step(model(value), examples=10)

    names = [f"{member.client} in {name}" for member in members]
    steps = {n: step(m, v) for n, m, v in zip(names, members, values, strict=True)}
    return scene.calls(steps, deadline=3.0)


def check_same(scene: Scene, results: list[Params | None], name: str = "round") -> None:
    """Whoever has a result has the same."""
    there = [result["w"] for result in results if result is not None]
    if any(not np.array_equal(there[0], other) for other in there[1:]):
        scene.fooled(f"members end {name} with {[w[0] for w in there]}")


def check_round(
    scene: Scene, results: list[Params | None], name: str = "round", low: float = 1, high: float = 3
) -> None:
    """Nobody hangs, is fooled, or ends otherwise than others."""
    for client, result in zip("ab", results, strict=False):
        scene.check_within(f"{client} in {name}", result, low, high)
    check_same(scene, results, name)


def expect_all(scene: Scene, results: list[Params | None], name: str) -> None:
    """This attack must not even cost a round."""
    for client, result in zip("ab", results, strict=False):
        if result is None:
            error = scene.errors.get(f"{client} in {name}")
            scene.harmed(f"{client} lost {name}: {error}")


def forge_slices(
    scene: Scene,
    number: int,
    plan: Plan,
    params: Params,
    *,
    client: str,
    life: Incarnation = forged.STRANGER,
    names: tuple[str, ...] = (),
    slots: float = 0.0,
    only: int | None = None,
) -> None:
    """Publish all slices of a round's result in somebody's name, sound but for their values."""
    signature = Signature.of(params)
    work = Work(signature, number, plan)
    work.out[...] = signature.pack(params)
    for index, blocks in enumerate(work.cuts):
        if only not in (None, index):
            continue
        held = {
            signature.blocks[i].start: tuple(
                np.full((signature.blocks[i].stop - signature.blocks[i].start) // 4, slots, "f4")
                for _ in names
            )
            for i in blocks
        }
        parts, digest = encode_slice(work, index, held, names)
        key = work.key(index, client, life, digest)
        scene.put(key, b"".join(bytes(part) for part in parts))


def read_plan(scene: Scene, number: int, attempt: int = 0, seconds: float = 30.0) -> Plan | None:
    """The plan of a round, as soon as it is there."""
    key, end = keys.plan_key(number, attempt), time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return Plan.parse(scene.get(key), number, attempt)
        except NotFound:
            time.sleep(0.002)
    return None


@attack("3a", "slices of future rounds, published in advance")
def slices_in_advance(scene: Scene) -> None:
    a, b = pair(scene)
    check_round(scene, play_round(scene, (a, b)))
    guess = [
        f"rounds/00000001/updates/{m.client}=00000001-{m.member.incarnation}-10-1-"
        f"{m.member.agreed.digest}.safetensors"
        for m in (a, b)
    ]
    plan = Plan.parse(forged.plan(guess, by="a"), 1, 0)
    for client in ("a", "b", "mallory"):
        forge_slices(scene, 1, plan, params(666.0), client=client)
    results = play_round(scene, (a, b), "round 1")
    check_round(scene, results, "round 1")
    expect_all(scene, results, "round 1")


@attack("3b", "slices forged in a member's name while a round is completed")
def slices_meanwhile(scene: Scene) -> None:
    a, b = pair(scene, deadline=10.0)
    # b has published its update, and is killed before it computes its slice
    life = b.member.incarnation
    forged.update(scene, "b", params(3.0), life=life, round=0)

    def mallory() -> None:
        plan = read_plan(scene, 0)
        if plan is not None:
            forge_slices(scene, 0, plan, params(666.0), client="b", life=life)

    forger = threading.Thread(target=mallory, daemon=True)
    forger.start()
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=10.0)
    forger.join(60)
    # what a has checked is right, or named once it shows: the next call looks again
    if result is not None and result["w"].max() > 3.0 + 1e-6:
        scene.call("a again", lambda: a.step(params(1.0), examples=10), deadline=10.0)
        if not any(isinstance(e, events.Forged) for e in scene.heard["a"]):
            scene.fooled(f"a got {result['w'][:3]} without a word")


@attack("4b", "a slice with NaN in the optimizer's memory")
def memory_that_is_no_number(scene: Scene) -> None:
    a, b = pair(scene, strategy=hubless.FedAdam(0.1))
    for number in range(3):
        results = play_round(scene, (a, b), f"round {number}", (1.0, 1.0))
        check_round(scene, results, f"round {number}", -2.0, 4.0)
        plan = read_plan(scene, number)
        done = results[0]
        if plan is not None and done is not None:
            names = tuple(a.member.strategy.optimizer.slots)
            life = b.member.incarnation
            for client, whose in (("b", life), ("mallory", forged.STRANGER)):
                forge_slices(
                    scene,
                    number,
                    plan,
                    done,
                    client=client,
                    life=whose,
                    names=names,
                    slots=float("nan"),
                )
    scene.check_named("b")


def _squat(scene: Scene, kind: str, key: str) -> None:
    path = scene.folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (scene.home / "secret").write_text("untouched")
        path.symlink_to(scene.home / "secret")
    elif kind == "dangling":
        path.symlink_to(scene.home / "nothing")
    else:
        os.mkfifo(path)


@attack("6a", "a folder, a link or a pipe where the plan would stand", places=FOLDER)
def no_plan_can_be_written(scene: Scene) -> None:
    for number, kind in enumerate(("folder", "link", "dangling", "pipe")):
        _squat(scene, kind, keys.plan_key(number, 0))
    a, b = pair(scene)
    for number in range(4):
        check_round(scene, play_round(scene, (a, b), f"round {number}"), f"round {number}")
    if (scene.home / "nothing").exists():
        scene.harmed("a plan was written through a link")
    if (scene.home / "secret").read_text() != "untouched":
        scene.harmed("a file outside was written through a link")
    scene.check_named(keys.plan_key(0, 0))


@attack("6b", "a folder or a link at a slice's key", places=FOLDER)
def no_slice_can_be_written(scene: Scene) -> None:
    a, b = pair(scene)

    def mallory() -> None:
        # digests cannot be guessed, so all that it can take is the folder of the slices
        (scene.home / "elsewhere").mkdir()
        for number, kind in ((0, "link"), (1, "pipe")):
            path = scene.folder / keys.round_folder(number) / "slices-0000"
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "link":
                path.symlink_to(scene.home / "elsewhere")
            else:
                os.mkfifo(path)

    mallory()
    for number in range(2):
        check_round(scene, play_round(scene, (a, b), f"round {number}"), f"round {number}")
    if any((scene.home / "elsewhere").iterdir()):
        scene.harmed("slices were written outside the federation's folder")
    scene.check_named("slices-0000")


@attack("6c", "the staging folder becomes a file during a wait", places=FOLDER)
def staging_is_taken(scene: Scene) -> None:
    a, _ = pair(scene)
    import shutil

    def mallory() -> None:
        time.sleep(0.5)
        shutil.rmtree(scene.folder / ".staging", ignore_errors=True)
        (scene.folder / ".staging").write_bytes(b"")

    thief = threading.Thread(target=mallory, daemon=True)
    thief.start()
    scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=3.0 + 5.0)
    thief.join(60)
    if "a steps" not in scene.errors:
        scene.unnamed("a round without its other member ended without an error")


@attack("6d", "the last attempt at a round, which includes an absent update")
def the_last_attempt(scene: Scene) -> None:
    a, b = pair(scene)
    absent = f"rounds/00000000/updates/b=00000000-0001badbadba-1-0-{'0' * 12}.safetensors"
    for attempt in (9999, 1, 99, 100):
        scene.put(keys.plan_key(0, attempt), forged.plan([absent]))
    check_round(scene, play_round(scene, (a, b)))
    scene.check_named("plan-9999")


@attack("6e", "a plan that steps from an attempt that was superseded")
def a_plan_from_nowhere(scene: Scene) -> None:
    a, b = pair(scene, strategy=hubless.FedAdam(0.1), model=params(1.0))
    check_round(scene, play_round(scene, (a, b), "round 0"), "round 0", -2, 4)
    absent = f"rounds/00000001/updates/b=00000007-{b.member.incarnation}-1-1-{'0' * 12}.safetensors"
    scene.put(keys.plan_key(1, 0), forged.plan([absent], [0, 7]))
    results = play_round(scene, (a, b), "round 1")
    check_round(scene, results, "round 1", -2, 4)
    expect_all(scene, results, "round 1")
    scene.check_named(keys.plan_key(1, 0))


@attack("6f", "a peer that closes every round without the others")
def rounds_without_me(scene: Scene) -> None:
    a, b = pair(scene, quorum=1)
    stop = threading.Event()

    def mallory() -> None:
        number = 0
        while not stop.is_set() and number < 400:
            posted = forged.update(
                scene,
                "b",
                params(3.0),
                life=b.member.incarnation,
                round=number,
                sequence=1000 + number,
                version=number,
            )
            try:
                store = scene.store()
                store.put(keys.plan_key(number, 0), [forged.plan([posted.key])], create=True)
            except hubless.errors.AlreadyExists:
                pass
            number += 1
            time.sleep(0.02)

    closer = threading.Thread(target=mallory, daemon=True)
    closer.start()
    began = time.monotonic()
    a_result = scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=3.0)
    seconds = time.monotonic() - began
    stop.set()
    closer.join(60)
    mine = [k for k in scene.keys("rounds/") if "/updates/a=" in k]
    if len(mine) > 60:
        scene.harmed(f"one step wrote {len(mine)} updates in {seconds:.0f} s")
    scene.check_within("a steps", a_result, 1.0, 3.0)


@attack("6g", "a plan that names 2,000 absent updates")
def a_plan_of_nothing(scene: Scene) -> None:
    members = ["a", "b", *(f"m{i}" for i in range(2000))]
    a, b = pair(scene, members=members, quorum=2)
    digest = Signature.of(params()).digest
    absent = [
        f"rounds/00000000/updates/m{i}=00000000-0001badbadba-1-0-{digest}.safetensors"
        for i in range(2000)
    ]
    scene.put(keys.plan_key(0, 0), forged.plan(absent))
    check_round(scene, play_round(scene, (a, b)))


@attack("7", "a plan for round 99,999,999")
def a_round_far_ahead(scene: Scene) -> None:
    a, b = pair(scene)
    check_round(scene, play_round(scene, (a, b), "round 0"), "round 0")
    for body in (b"",):
        scene.put(keys.plan_key(99_999_999, 0), body)
    scene.put(keys.plan_key(5, 0), b"{}")
    results = play_round(scene, (a, b), "round 1")
    check_round(scene, results, "round 1")
    expect_all(scene, results, "round 1")
    scene.check_named(keys.plan_key(99_999_999, 0))
    a.close()
    again = scene.join("a", **PAIR)
    results = play_round(scene, (again, b), "round 2")
    check_round(scene, results, "round 2")
    expect_all(scene, results, "round 2")


@attack("13", "a second attempt at a round, after some have returned")
def another_attempt_too_late(scene: Scene) -> None:
    a, b = pair(scene)
    check_same(scene, play_round(scene, (a, b)))
    plan = read_plan(scene, 0)
    if plan is None:
        scene.unnamed("round 0 has no plan")
        return
    scene.put(keys.plan_key(0, 1), forged.plan([plan.included[0]]))
    # a newcomer and those who were there go on from the same
    b.close()
    again = scene.join("b", **PAIR)
    results = scene.calls(
        {"a pulls": lambda: a.pull(params()), "b pulls": lambda: again.pull(params())}
    )
    for name, result in zip(("a pulls", "b pulls"), results, strict=True):
        scene.check_within(name, result, 2.0, 2.0)
    check_round(scene, play_round(scene, (a, again), "round 1"), "round 1")
    scene.check_named(keys.plan_key(0, 1))


@attack("14", "later rounds are deleted, and the federation is at an earlier version")
def rounds_are_deleted(scene: Scene) -> None:
    a, b = pair(scene)
    for number in range(4):
        check_same(scene, play_round(scene, (a, b), f"round {number}"))
    version = a.version
    scene.delete(*(key for key in scene.keys("rounds/") if key >= keys.round_folder(2)))
    results = play_round(scene, (a, b), "the next round")
    if a.version < version:
        scene.fooled(f"a went from version {version} back to {a.version}")
    if any(results):
        scene.fooled("a round was played after later ones were deleted")
    scene.check_named("gone back")


@attack(
    "16a",
    "two strangers, where members are a number",
    open="Where `members=` is a number, strangers count as members.",
)
def strangers_are_counted(scene: Scene) -> None:
    a = scene.join("a", members=3, deadline=3.0)
    for name in ("x", "y"):
        forged.update(scene, name, params(100.0), round=0, examples=10)
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=3.0)
    scene.check_within("a steps", result, 1.0, 100.0)


@attack("16b", "two strangers, where members are named")
def strangers_are_refused(scene: Scene) -> None:
    a, b = pair(scene)
    for name in ("x", "y"):
        forged.update(scene, name, params(100.0), round=0, examples=10)
    results = play_round(scene, (a, b))
    check_round(scene, results)
    expect_all(scene, results, "round")
    scene.check_named("x", "y")


@attack("16c", "an update in a named member's name, which is there as well")
def an_update_in_a_name(scene: Scene) -> None:
    a, b = pair(scene)
    forged.update(
        scene, "b", params(100.0), life=b.member.incarnation, sequence=99_999_999, round=0
    )
    results = play_round(scene, (a, b))
    check_same(scene, results)
    if not any(isinstance(e, events.Impostor) for e in scene.heard["b"]):
        scene.unnamed("b was not told that somebody writes in its name")


@attack("18", "garbage where a second attempt at a round long over would stand")
def garbage_in_an_old_round(scene: Scene) -> None:
    a, b = pair(scene)
    for number in range(3):
        check_round(scene, play_round(scene, (a, b), f"round {number}"), f"round {number}")
        for old in range(number + 1):
            scene.put(keys.plan_key(old, 1), b"garbage")
    results = play_round(scene, (a, b), "round 3")
    check_round(scene, results, "round 3")
    expect_all(scene, results, "round 3")


@attack("L1", "a plan that steps from infinity, and others that no parser likes")
def plans_that_no_parser_likes(scene: Scene) -> None:
    bodies = [
        b'{"included": ["x"], "before": [Infinity, 0], "by": "", "nonce": ""}',
        b'{"included": ["x"], "before": [1e400, 0], "by": "", "nonce": ""}',
        b"[" * 200_000,
        b'{"included": {"a": 1}, "before": null, "by": "", "nonce": ""}',
        b'{"included": [["a"]], "before": null, "by": "", "nonce": ""}',
        b"\xff\xfe",
    ]
    a, b = pair(scene)
    for number, body in enumerate(bodies):
        scene.put(keys.plan_key(number, 0), body)
        results = play_round(scene, (a, b), f"round {number}")
        check_round(scene, results, f"round {number}")
        expect_all(scene, results, f"round {number}")
        scene.check_named(keys.plan_key(number, 0))


@attack("16d", "somebody says in a member's name that it has left")
def a_member_said_to_have_left(scene: Scene) -> None:
    a, b = pair(scene)
    check_round(scene, play_round(scene, (a, b), "round 0"), "round 0")
    marker = keys.life_key("b", b.member.incarnation, left=True)
    scene.put(marker)
    # from its next look on the others wait for it again
    scene.call("b looks", lambda: b.pull(params(0.0)))
    results = play_round(scene, (a, b), "round 1")
    check_round(scene, results, "round 1")
    expect_all(scene, results, "round 1")
    scene.check_named(marker)
    if keys.parse_listing(scene.store().list("")).left:
        scene.harmed("b counts as gone for good")
