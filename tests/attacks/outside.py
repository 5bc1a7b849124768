"""Attacks outside the protocol: copied clones, settings, commands, credentials, litter."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

import hubless
from hubless.errors import Denied, HublessError
from tests.attacks.scene import BOTH, FOLDER, Scene, attack
from tests.support import servers

SECRET = "hunter2"


def check_hidden(scene: Scene, where: str, text: str) -> None:
    """The secret of these attacks is not in a text that others see."""
    if SECRET in text:
        scene.harmed(f"{where} shows a secret: {text[:200]}")


def ran(scene: Scene) -> Path:
    """A program that leaves a trace."""
    program = scene.home / "program"
    program.write_text(f"#!/bin/sh\ntouch '{scene.home / 'ran'}'\nexit 1\n")
    program.chmod(0o755)
    return program


def check_not_run(scene: Scene) -> None:
    """The program was not run."""
    if (scene.home / "ran").exists():
        scene.harmed("a stranger's program was run")


def _git(folder: Path, *words: str) -> None:
    names = ("GIT_AUTHOR", "GIT_COMMITTER")
    who = {f"{n}_{what}": "a@x.org" for n in names for what in ("NAME", "EMAIL")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(
        ["git", "-C", str(folder), *words], env={**clean, **who}, check=True, capture_output=True
    )


@attack("26", "a copied clone whose settings name programs", places=FOLDER)
def a_copied_clone(scene: Scene) -> None:
    from hubless.data.sources import gitlog

    program = ran(scene)
    source, copied = scene.home / "source", scene.home / "copied.git"
    source.mkdir()
    _git(source, "init", "-q", "-b", "main")
    (source / ".mailmap").write_text("Real <real@x.org> <a@x.org>\n")
    _git(source, "add", ".")
    _git(source, "commit", "-q", "-m", "one")
    _git(source, "config", "uploadpack.allowFilter", "true")
    _git(scene.home, "clone", "-q", "--bare", "--filter=blob:none", source.as_uri(), str(copied))
    for url in ("ssh://nowhere/x", f"ext::{program}"):
        settings = {"remote.origin.url": url}
        for name in ("core.sshCommand", "core.fsmonitor", "core.pager", "pager.log", "gpg.program"):
            settings[name] = str(program)
        settings.update({"protocol.ssh.allow": "always", "protocol.ext.allow": "always"})
        settings["log.showSignature"] = "true"
        for name, value in settings.items():
            _git(copied, "config", name, value)
        scene.call(f"reading a clone of {url}", lambda: gitlog.load(copied))
    check_not_run(scene)
    scene.check_named("partial clone")


@attack("27", "a study's settings that name a Python file", places=FOLDER)
def settings_that_run_code(scene: Scene) -> None:
    from hubless.study.settings import Settings

    code = scene.home / "mine.py"
    code.write_text(f"from pathlib import Path\nPath({str(scene.home / 'ran')!r}).touch()\n")
    for number, way in enumerate((f"{code}:name", f"at-most:{code}:name")):
        path = scene.home / f"study-{number}.toml"
        path.write_text(f"[grid]\nselectors = ['{way}']\n")
        scene.call(f"reading study {number}", lambda path=path: Settings.read(path))  # type: ignore[misc]
    check_not_run(scene)
    scene.check_named("mine.py", "--run-code")


@attack("28", "secrets on the command line of a script that simulates", places=FOLDER)
def secrets_in_commands(scene: Scene) -> None:
    from hubless.simulate.circumstances import command

    words = ["train.py", "--api-key", SECRET, f"--api-key={SECRET}", "--password", SECRET]
    words += [f"token={SECRET}", f"http://me:{SECRET}@host/x", f"WANDB_API_KEY={SECRET}"]
    words += ["-H", f"Authorization: Bearer {SECRET}", f"--header=X-Api-Key: {SECRET}"]
    before, sys.orig_argv = sys.orig_argv, ["python", *words]
    try:
        told = command()
    finally:
        sys.orig_argv = before
    check_hidden(scene, "what a run says of itself", told)
    if "train.py" not in told:
        scene.unnamed("the command is not told at all")


@attack("29a", "an address, an endpoint and options with secrets", places=BOTH)
def secrets_in_addresses(scene: Scene) -> None:
    url = f"s3://KEY:{SECRET}@bucket/run"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        endpoint = f"http://me:{SECRET}@127.0.0.1:{bound.getsockname()[1]}"
        options = {"access_key_id": "KEY", "secret_access_key": SECRET, "proxy_url": endpoint}
        said: list[hubless.Event] = []
        ways: dict[str, tuple[str, dict[str, object]]] = {
            "an address": (url, {}),
            "an endpoint": ("s3://bucket/run", {"endpoint": endpoint, "options": options}),
            "options": ("s3://bucket/run", {"options": {**options, SECRET: "x"}}),
        }
        if scene.options:
            wrong = {**scene.options["options"], "secret_access_key": SECRET}
            ways["wrong credentials"] = (scene.url, {"options": wrong})
        for name, (place, more) in ways.items():
            scene.call(
                name,
                lambda place=place, more=more: hubless.join(
                    hubless.Bucket(place, patience=2.0, **more), "a", events=said.append
                ),
                deadline=5.0,
            )
            if name not in scene.errors:
                scene.unnamed(f"{name} with a secret was no error")
            else:
                check_hidden(scene, name, str(scene.errors[name]))
        for words in (["ls", url], ["watch", url], ["report", url], ["pull", url, "-o", "x"]):
            check_hidden(scene, f"hubless {words[0]}", _printed(words))
    check_hidden(scene, "an event", "\n".join(event.to_json() for event in said))
    scene.check_named("credentials")


def _printed(words: list[str]) -> str:
    from hubless.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(words)
    return out.getvalue() + err.getvalue()


@attack("29b", "no credentials, and nobody at a cloud's metadata address", places=FOLDER)
def nobody_says_who_we_are(scene: Scene) -> None:
    with servers.mute() as address, _stranger(AWS_METADATA_ENDPOINT=f"http://{address}"):
        began = time.monotonic()
        scene.call("joining", lambda: hubless.join("s3://bucket/run1", "a"), deadline=0.0)
        seconds = time.monotonic() - began
    error = scene.errors.get("joining")
    if not isinstance(error, Denied) or "no credentials" not in str(error):
        scene.unnamed(f"missing credentials are told as {error!r}")
    if seconds > 30:
        scene.hung.append(f"it took {seconds:.0f} s to say so")


@contextlib.contextmanager
def _stranger(**variables: str) -> Iterator[None]:
    """An environment without any cloud's settings, but for these."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@attack("D3", "a check of the store that is interrupted anywhere")
def checks_that_are_interrupted(scene: Scene) -> None:
    from hubless.federate.outside.probe import examine
    from hubless.testing.faults import Faulty

    for strike in range(0, 40, 3):
        operations = count()

        def before(
            operation: str, key: str, operations: Iterator[int] = operations, strike: int = strike
        ) -> None:
            if next(operations) == strike:
                raise KeyboardInterrupt

        store = Faulty(scene.store(), np.random.default_rng(0), error=0, lost=0, before=before)
        with contextlib.suppress(KeyboardInterrupt, HublessError):
            examine(store, size=1 << 20, tries=2)
        if left := scene.keys():
            scene.harmed(f"interrupted at operation {strike}, it left {left}")
            return
