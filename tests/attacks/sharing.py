"""Attacks on asynchronous members: by plain writes and deletes, so on any store."""

from __future__ import annotations

import time

import numpy as np

import hubless
from hubless import events
from hubless.federate.keys import Incarnation
from hubless.federate.member import Member
from tests.attacks import forged
from tests.attacks.operator import Counted
from tests.attacks.scene import FOLDER, Params, Scene, attack, memory_of, params


def _life(member: object) -> Incarnation:
    """The life that a member announced: everybody can read it in its keys."""
    joined: Member = member.member  # type: ignore[attr-defined]
    return joined.incarnation


@attack("4a", "NaN in an update")
def params_that_are_no_numbers(scene: Scene) -> None:
    a = scene.join("a")
    scene.call("share", lambda: a.step(params(1.0), examples=10))
    forged.update(scene, "mallory", params(np.nan))
    result = scene.call("step", lambda: a.step(params(1.0), examples=10))
    scene.check_within("step", result, 1.0, 1.0)
    scene.check_named("mallory")


@attack("5", "two updates forged in a member's name, of its own life and far ahead")
def updates_in_a_members_name(scene: Scene) -> None:
    a, b = scene.join("a"), scene.join("b")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    for sequence in (99_999_998, 99_999_999):
        forged.update(scene, "a", params(50.0), sequence=sequence, life=_life(a))
    for value in (1.0, 2.0, 3.0):
        scene.call("a steps", lambda value=value: a.step(params(value), examples=10))
    newest = [key for key in scene.keys("updates/") if key.startswith("updates/a=")]
    if not any(f"-{_life(a)}-" in key and "=9999999" not in key for key in newest):
        scene.harmed(f"a deleted its own newest update; there are {newest}")
    if not any(isinstance(e, events.Impostor) for e in scene.heard["a"]):
        scene.unnamed("a was not told that somebody writes in its name")
    # a goes on where peers hear it: what it shares now is what b takes in
    result = scene.call("b steps", lambda: b.step(params(3.0), examples=10))
    scene.check_within("b steps", result, 1.0, 3.0 + 1e-6)
    a.close()
    again = scene.join("a")
    result = scene.call("a again", lambda: again.step(params(3.0), examples=10))
    scene.check_within("a again", result, 1.0, 3.0 + 1e-6)


@attack("8a", "an empty object in a member's name, of the last life that there can be")
def the_last_life_in_a_members_name(scene: Scene) -> None:
    a = scene.join("a")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    last = Incarnation(9999, "badbadba")
    digest = scene.keys("updates/")[0].split("-")[-1].removesuffix(".safetensors")
    scene.put(f"updates/a=00000000-{last}-10-0-{digest}.safetensors")
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    if result is None:
        scene.harmed("a was stopped by an empty object")
    scene.check_named(f"updates/a=00000000-{last}")


@attack(
    "8b",
    "the same, and its owner joins again",
    open="Whoever may write under a client's name can use that name up.",
)
def a_name_that_is_used_up(scene: Scene) -> None:
    last = f"updates/a=00000000-{Incarnation(9999, 'badbadba')}-10-0-{'0' * 12}.safetensors"
    scene.put(last)
    scene.call("join as a", lambda: hubless.join(hubless.Bucket(scene.url, **scene.options), "a"))
    scene.check_named(last)


@attack("9", "an update of 10^15 - 1 examples")
def a_huge_number_of_examples(scene: Scene) -> None:
    honest = scene.join("a"), scene.join("b")
    for member in honest:
        scene.call("share", lambda member=member: member.step(params(1.0), examples=100))
    forged.update(scene, "mallory", params(50.0), examples=10**15 - 1)
    result = scene.call("step", lambda: honest[0].step(params(1.0), examples=100))
    # ten times the median of 100, 100 and its own is the most that it may weigh
    share = 1000 / 1200
    scene.check_within("step", result, 1.0, 1.0 + share * 49.0 + 1e-3)


@attack("10", "a federation's record with a limit of 1e300, and a member with one of 10")
def a_lenient_record(scene: Scene) -> None:
    first = scene.join("first", limit=1e300)
    scene.call("first shares", lambda: first.step(params(5e17), examples=10))
    strict = scene.join("strict", limit=10.0)
    result = scene.call("strict steps", lambda: strict.step(params(1.0), examples=10))
    scene.check_within("strict steps", result, 1.0, 1.0)
    scene.check_named("first")


@attack("11", "updates that are listed and cannot be read", places=FOLDER)
def updates_that_cannot_be_read(scene: Scene) -> None:
    a, b = scene.join("a", patience=2.0), scene.join("b")
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    for index in range(5):
        posted = forged.update(scene, f"mallory-{index}", params(1.0))
        path = scene.folder / posted.key
        body = path.stat().st_size
        path.unlink()
        # a file that ends before the size that its listing showed, and cannot be opened
        path.mkdir()
        (path / "x").write_bytes(b"x" * body)
    began = time.monotonic()
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=2.0)
    scene.check_within("a steps", result, 2.0, 2.0)
    if time.monotonic() - began > 3 * 2.0:
        scene.hung.append("each unreadable update cost a patience of its own")


@attack("12", "3,000 empty updates of made-up members")
def a_heap_of_empty_updates(scene: Scene) -> None:
    view = Counted(scene)
    a, b = scene.join("a", view), scene.join("b")
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    digest = scene.keys("updates/")[0].split("-")[-1].removesuffix(".safetensors")
    store, count = scene.store(), 3000 if "://" not in scene.url else 300
    for index in range(count):
        store.put(f"updates/m{index}=00000000-0001badbadba-1-0-{digest}.safetensors", [b""])
    view.count.clear()
    result = scene.call("a steps", lambda: a.step(params(1.0), examples=10), deadline=30.0)
    if result is None:
        scene.harmed("a could not take its step for junk")
    # each is looked at once, and no listing is made for each
    if view.count["list"] > 10 or view.count["read"] > count + 10:
        scene.hung.append(f"{count} empty updates cost one step {dict(view.count)}")
    scene.check_named("m0", f"m{count - 1}")


@attack("17", "a counter of 10^9 from a peer of little weight")
def a_counter_far_off(scene: Scene) -> None:
    def model(value: float, counted: int) -> Params:
        return {**params(value), "position_ids": np.full(4, counted, np.int64)}

    honest = scene.join("a"), scene.join("b")
    for member in honest:
        scene.call("share", lambda member=member: member.step(model(1.0, 5), examples=1000))
    forged.update(scene, "mallory", model(1.0, 10**9), examples=1)
    result = scene.call("step", lambda: honest[0].step(model(1.0, 5), examples=1000))
    if result is not None and not (result["position_ids"] == 5).all():
        scene.fooled(f"position_ids became {result['position_ids']}")


@attack("19", "an update of version 10^12 - 1")
def a_version_far_ahead(scene: Scene) -> None:
    from hubless import FedAsync

    a, b = scene.join("a", strategy=FedAsync()), scene.join("b")
    scene.call("a shares", lambda: a.step(params(1.0), examples=10))
    forged.update(scene, "mallory", params(1.0), version=10**12 - 1)
    scene.call("a steps", lambda: a.step(params(1.0), examples=10))
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    result = scene.call("a steps again", lambda: a.step(params(1.0), examples=10))
    if result is not None and result["w"][0] < 1.01:
        scene.fooled(f"an honest update of 3.0 moved 1.0 to {result['w'][0]}")
    scene.check_named("mallory")


@attack("30", "150 peers of 4 MiB, to be sorted for a median")
def many_large_updates_for_a_median(scene: Scene) -> None:
    size, peers = 1 << 20, 150 if "://" not in scene.url else 20
    model = params(1.0, size)
    scene.call("a joins", lambda: scene.join("a").step(model, examples=10), deadline=30.0)
    for index in range(peers):
        # in a folder, one file under many names is many updates as far as a reader can see
        if index == 0 or "://" in scene.url:
            forged.update(scene, f"m{index}", model)
        else:
            _copy_of(scene, index, size)
    used = memory_of(
        scene,
        f"median = join(client='b', strategy=hubless.FedMedian())\n"
        f"median.step({{'w': np.ones({size}, np.float32)}}, examples=10)",
    )
    if used is not None and used > 480:
        scene.harmed(f"{used} MiB more for {peers} peers of 4 MiB")


def _copy_of(scene: Scene, index: int, size: int) -> None:
    """The update of m0 in another name; only its header says whose it is."""
    key = next(key for key in scene.keys("updates/") if key.startswith("updates/m0="))
    raw = scene.get(key)
    other = key.replace("updates/m0=", f"updates/m{index}=")
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip().replace(b'"client": "m0"', b'"client": "m%d"' % index)
    header += b" " * (-len(header) % 8)
    scene.put(other, len(header).to_bytes(8, "little") + header + raw[8 + length :])


@attack("5b", "garbage in the name of a member that has left, above its last update")
def garbage_above_a_last_update(scene: Scene) -> None:
    b = scene.join("b")
    scene.call("b shares", lambda: b.step(params(3.0), examples=10))
    life = _life(b)
    b.close()
    digest = scene.keys("updates/")[0].split("-")[-1].removesuffix(".safetensors")
    scene.put(f"updates/b=00000009-{life}-10-0-{digest}.safetensors", b"garbage")
    forged.update(scene, "b", params(np.inf), sequence=8, life=life)
    a = scene.join("a")
    result = scene.call("a pulls", lambda: a.pull(params(0.0)))
    scene.check_within("a pulls", result, 3.0, 3.0)
    again = scene.join("again")
    for name in ("again steps", "again steps once more", "again steps a third time"):
        result = scene.call(name, lambda: again.step(params(1.0), examples=10))
    scene.check_within("again steps a third time", result, 1.0, 3.0)
    pulled = [e for e in scene.heard["again"] if isinstance(e, events.Pulled)]
    if not pulled:
        scene.harmed("what b shared before it left is hidden for good")
    scene.check_named("00000009")
