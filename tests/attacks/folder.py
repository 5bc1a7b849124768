"""Attacks through a folder that others may write to: links, pipes, and what lies outside it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import hubless
from hubless.errors import NoObject, NotFound, StoreError
from hubless.federate import keys
from hubless.signature import Signature
from hubless.store.base import Store
from tests.attacks.scene import FOLDER, Params, Scene, attack, params
from tests.support import litter

_LONG_AGO = (0, 0)
_NOBODY = 65534


def old_file(path: Path) -> Path:
    """A file that nobody has touched for long."""
    path.write_text("untouched")
    os.utime(path, _LONG_AGO)
    return path


def check_untouched(scene: Scene, *allowed: str) -> None:
    """Nothing outside the federation's folder was changed, made or removed."""
    for path in sorted(scene.home.iterdir()):
        if path.name in allowed:
            continue
        if path.is_dir() and any(path.iterdir()):
            scene.harmed(f"{path.name} was written to: {[p.name for p in path.iterdir()]}")
        elif path.is_file() and path.read_bytes() != b"untouched":
            scene.harmed(f"{path.name} was overwritten")


def try_to_join(scene: Scene, client: str) -> hubless.Federation | None:
    """Join where that may well be refused, which then has to name the reason."""
    name = f"join as {client}"
    return scene.call(name, lambda: hubless.join(hubless.Bucket(scene.url, patience=2.0), client))


def step(scene: Scene, member: hubless.Federation, model: Params, name: str = "") -> Params | None:
    """What a step of a member gives."""
    name = name or f"{member.client} steps"
    return scene.call(name, lambda: member.step(model, examples=1))


@attack("1", "the folder of staged writes is a link to a victim's own", places=FOLDER)
def staging_leads_outside(scene: Scene) -> None:
    scene.folder.mkdir()
    mine = scene.home / "mine"
    mine.mkdir()
    names = ["thesis.tex", f"{secrets.token_hex(16)}.part", f"{socket.gethostname()}-1-a-0"]
    files = [old_file(mine / name) for name in names]
    (scene.folder / ".staging").symlink_to(mine)
    federation = try_to_join(scene, "a")
    if federation is not None:
        step(scene, federation, params())
    if sorted(mine.iterdir()) != sorted(files) or {f.read_text() for f in files} != {"untouched"}:
        scene.harmed(f"of {names}, {sorted(p.name for p in mine.iterdir())} are left")
    scene.check_named(".staging is a link")


@attack("2a", "links planted at the next names of staged writes", places=FOLDER)
def links_at_the_next_names(scene: Scene) -> None:
    _plant_while_writing(scene, lambda path: path.symlink_to(scene.home / ".bashrc"))


@attack("2b", "pipes planted at the next names of staged writes", places=FOLDER)
def pipes_at_the_next_names(scene: Scene) -> None:
    _plant_while_writing(scene, os.mkfifo)


def _plant_while_writing(scene: Scene, plant: Callable[[Path], object]) -> None:
    """Plant something at whatever may be the next names, as soon as one is seen."""
    old_file(scene.home / ".bashrc")
    with under_way(scene) as (victim, staged):
        for name in _next_names(staged.name):
            with contextlib.suppress(OSError):
                plant(staged.with_name(name))
    for number in range(4):
        scene.call(f"write {number}", lambda: victim.put("updates/more", [b"x" * 1000]))
    check_untouched(scene)


@contextlib.contextmanager
def under_way(scene: Scene) -> Iterator[tuple[Store, Path]]:
    """A victim that is in the middle of a write, and the file that it writes; it ends after."""
    writing, go_on = threading.Event(), threading.Event()

    class Slow(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"x" * 1000
            writing.set()
            go_on.wait(60)

    victim = scene.store()

    def write() -> None:
        with contextlib.suppress(StoreError):
            victim.put("updates/slow", Slow())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writing.wait(60)
    (staged,) = (scene.folder / ".staging").iterdir()
    yield victim, staged
    go_on.set()
    writer.join(60)


def _next_names(seen: str) -> Iterator[str]:
    """Names that may follow one: its last number, decimal or hexadecimal, counted on."""
    stem, dot, end = seen.partition(".")
    head, dash, last = stem.rpartition("-")
    for ahead in range(1, 4):
        with contextlib.suppress(ValueError):
            yield f"{head}{dash}{int(last) + ahead}{dot}{end}"
        with contextlib.suppress(ValueError):
            yield f"{head}{dash}{int(last, 16) + ahead:0{len(last)}x}{dot}{end}"


@attack("2c", "what is staged is replaced by a link before it is in place", places=FOLDER)
def staged_writes_are_swapped(scene: Scene) -> None:
    old_file(scene.home / ".bashrc")
    member = scene.join("a")
    with under_way(scene) as (_, staged):
        staged.unlink()
        staged.symlink_to(scene.home / ".bashrc")
    _expect(scene, step(scene, member, params(1.0)), 1.0)
    with contextlib.suppress(NotFound, NoObject):
        scene.fooled(f"the link is read as an update: {scene.get('updates/slow')!r}")
    check_untouched(scene)


@attack("6h", "links, pipes, sockets and folders at the keys of updates", places=FOLDER)
def traps_at_every_key(scene: Scene) -> None:
    secret = old_file(scene.home / "secret")
    life = "0001badbadba"
    digest = Signature.of(params()).digest
    for folder in ("updates/", "rounds/00000000/updates/"):
        (scene.folder / folder).mkdir(parents=True)
        for sequence, kind in enumerate(("link", "pipe", "folder", "zeros", "dangling")):
            key = f"{folder}m={sequence:08d}-{life}-10-1-{digest}.safetensors"
            _trap(scene.folder / key, kind, secret)
    for kind, key in (("pipe", keys.INITIAL), ("link", "members/a=0001badbadba.json")):
        (scene.folder / key).parent.mkdir(exist_ok=True)
        _trap(scene.folder / key, kind, secret)
    a, b = scene.join("a"), scene.join("b")
    _expect(scene, step(scene, a, params(1.0)), 1.0)
    _expect(scene, step(scene, b, params(3.0)), 2.0)
    check_untouched(scene)
    scene.check_named("m=00000000", "m=00000001", "m=00000003", keys.INITIAL)


def _trap(path: Path, kind: str, secret: Path) -> None:
    targets = {"link": str(secret), "zeros": "/dev/zero", "dangling": str(secret.parent / "new")}
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(targets[kind])


def _expect(scene: Scene, result: Params | None, value: float) -> None:
    if result is None:
        scene.harmed("a step gave nothing, for what no member wrote")
    elif not np.allclose(result["w"], value):
        scene.fooled(f"a step came to {result['w'][:3]}, not to {value}")


@attack("15", "a folder that nobody may list, and folders nested without end", places=FOLDER)
def folders_that_cannot_be_listed(scene: Scene) -> None:
    with tempfile.TemporaryDirectory(prefix="hubless-attacks-") as place:
        # where another user can get to, unlike a test's own folder
        os.chmod(place, 0o755)
        scene.url = f"{place}/run"
        scene.folder.mkdir(mode=0o777)
        os.chmod(scene.folder, 0o777)
        closed = scene.folder / "updates" / "closed"
        closed.mkdir(parents=True)
        os.chmod(closed.parent, 0o777)
        closed.chmod(0o700 if os.geteuid() == 0 else 0)
        inner = os.open(scene.folder, os.O_RDONLY)
        for _ in range(100):
            os.mkdir("n" * 200, dir_fd=inner)
            below = os.open("n" * 200, os.O_RDONLY, dir_fd=inner)
            os.close(inner)
            inner = below
        os.close(inner)
        with _another_user():
            a, b = scene.join("a"), scene.join("b")
            step(scene, a, params(1.0))
            _expect(scene, step(scene, b, params(3.0)), 2.0)
            scene.close()
        closed.chmod(0o700)
    scene.check_named("updates/closed/", "nnnn/")


@contextlib.contextmanager
def _another_user() -> Iterator[None]:
    """Nothing is closed to root, so that the victim is somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@attack("22", "a join while others that share the host's name are writing", places=FOLDER)
def joins_while_others_write(scene: Scene) -> None:
    with under_way(scene) as (_, live):
        # another container's process, whose number none has here
        number = next(n for n in range(2**22 - 1, 0, -1) if not Path(f"/proc/{n}").exists())
        others = live.with_name(f"{socket.gethostname()}-{number}-0123abcd-0")
        others.write_bytes(b"x")
        scene.join("a")
        if not live.exists() or not others.exists():
            scene.harmed("a write that was under way elsewhere was removed")
    if scene.get("updates/slow") != b"x" * 1000:
        scene.harmed("a write that was under way elsewhere was torn")


@attack("23", "a file among the staged writes whose name has a number too large", places=FOLDER)
def a_number_too_large(scene: Scene) -> None:
    staging = scene.folder / ".staging"
    staging.mkdir(parents=True)
    host = socket.gethostname()
    for name in (f"{host}-99999999999999999999-x", f"{host}-{'9' * 200}-0", "-1-", "---", "\udcff"):
        old_file(staging / name)
    a = scene.join("a")
    _expect(scene, step(scene, a, params(1.0)), 1.0)


@attack("D1", "the folder of updates is a link to elsewhere", places=FOLDER)
def updates_lead_outside(scene: Scene) -> None:
    for name in ("updates", "members", "rounds"):
        (scene.home / name).mkdir()
    scene.folder.mkdir()
    (scene.folder / "updates").symlink_to(scene.home / "updates")
    a = scene.join("a", patience=2.0)
    step(scene, a, params(1.0))
    scene.call("a pulls", lambda: a.pull(params(1.0)))
    check_untouched(scene)
    scene.check_named("updates is a link")


@attack("D2", "a link at the temporary name of what `hubless pull -o` writes", places=FOLDER)
def pull_writes_through_a_link(scene: Scene) -> None:
    from hubless.cli import main

    a = scene.join("a")
    step(scene, a, params(1.0))
    old_file(scene.home / ".bashrc")
    shared = scene.folder.parent / "shared"
    shared.mkdir()
    output = shared / "model.safetensors"
    for name in (f".{output.name}.{os.getpid()}", f"{output.name}.part", f".{output.name}.part"):
        (shared / name).symlink_to(scene.home / ".bashrc")
    with contextlib.redirect_stdout(None):
        scene.call("pull", lambda: main(["pull", scene.url, "-o", str(output)]))
    if not output.is_file() or output.is_symlink():
        scene.unnamed(f"the model is not there: {list(shared.iterdir())}")
    check_untouched(scene)


@attack("15b", "objects under keys that no library lists", places=("s3",))
def keys_that_cannot_be_listed(scene: Scene) -> None:
    litter.put(scene.url, scene.options["options"])
    a, b = scene.join("a"), scene.join("b")
    _expect(scene, step(scene, a, params(1.0)), 1.0)
    _expect(scene, step(scene, b, params(3.0)), 2.0)
    scene.check_named("two?lines")
