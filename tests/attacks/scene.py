"""A scene: a fresh federation, an attacker who may write anything there, and what came of it.

An attack is a function that plays one finding on a scene and says, by `harmed`, `fooled` and
`unnamed`, what it achieved. Whether something hung is seen by the scene, because every call of a
victim goes through `call`, with the deadline that the call has to keep.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

import hubless
from hubless import events
from hubless.errors import HublessError
from hubless.store import open_store
from hubless.store.base import Store
from tests.support.joining import joined

T = TypeVar("T")
Place = Literal["folder", "s3"]
Params = dict[str, NDArray[Any]]

BOTH: tuple[Place, ...] = ("folder", "s3")
FOLDER: tuple[Place, ...] = ("folder",)
SLACK = 45.0
"""Seconds past its deadline after which a call hangs: a slow machine is none of its fault."""


class Stopped(Exception):
    """A call that an attack cannot go on without did not return."""


@dataclass(frozen=True)
class Attack:
    """One finding, played: its number in the review, and where it can be played."""

    number: str
    title: str
    play: Callable[[Scene], None]
    places: tuple[Place, ...] = BOTH
    open: str = ""
    """What an open federation cannot stop of it: the sentence in docs/trust.md that says so."""


ATTACKS: list[Attack] = []


def attack(
    number: str, title: str, *, places: tuple[Place, ...] = BOTH, open: str = ""
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Have a function played as an attack. With `open`, what it achieves is listed apart."""

    def register(play: Callable[[Scene], None]) -> Callable[[Scene], None]:
        ATTACKS.append(Attack(number, title, play, places, open))
        return play

    return register


@dataclass
class Scene:
    """A federation's place, a folder `home` outside it that no attack may touch, and what came."""

    url: str
    home: Path
    options: dict[str, Any] = field(default_factory=dict)
    hung: list[str] = field(default_factory=list)
    harm: list[str] = field(default_factory=list)
    fooling: list[str] = field(default_factory=list)
    silence: list[str] = field(default_factory=list)
    errors: dict[str, HublessError] = field(default_factory=dict)
    heard: dict[str, list[events.Event]] = field(default_factory=dict)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def folder(self) -> Path:
        """The federation's folder, where it is one."""
        return Path(self.url)

    def store(self) -> Store:
        """The attacker's own way into the store, with all rights."""
        return open_store(self.url, **self.options)

    def put(self, key: str, body: bytes = b"") -> None:
        """Write an object, whoever's it is."""
        self.store().put(key, [body])

    def get(self, key: str) -> bytes:
        """What lies under a key."""
        return self.store().get(key, 1 << 30)

    def keys(self, prefix: str = "") -> list[str]:
        """What lies there."""
        return [entry.key for entry in self.store().list(prefix)]

    def delete(self, *keys: str) -> None:
        """Remove objects, whoever's they are."""
        self.store().delete(keys)

    def join(self, client: str, at: Store | None = None, **terms: Any) -> hubless.Federation:
        """Join as an honest member; what it says is kept in `heard`. Left when the scene ends.

        With `at`, it comes to the federation by this store, and sees what that shows.
        """
        said = self.heard.setdefault(client, [])
        terms.setdefault("patience", 5.0)
        terms = {**self.options, **terms} if at is None else terms
        federation = self.call(
            f"join as {client}",
            lambda: joined(at or self.url, client, events=said.append, **terms),
            deadline=terms["patience"],
        )
        if federation is None:
            error = self.errors.pop(f"join as {client}", "it hung")
            self.harmed(f"{client} could not join: {error}")
            raise Stopped(client)
        self._open.callback(self._leave, federation)
        return federation

    def call(self, name: str, do: Callable[[], T], deadline: float = 5.0) -> T | None:
        """What a victim's call returns; None where it hung or raised, which `errors` then has.

        An error that is not of hubless.errors counts as silence: it names nobody.
        """
        return self.calls({name: do}, deadline)[0]

    def calls(
        self, several: dict[str, Callable[[], Any]], deadline: float = 5.0
    ) -> list[Any | None]:
        """The same for several at once, in threads of their own."""
        results: dict[str, Any] = {}

        def run(name: str, do: Callable[[], Any]) -> None:
            try:
                results[name] = do()
            except HublessError as error:
                self.errors[name] = error
            except BaseException as error:
                self.silence.append(f"{name} raised {type(error).__name__}: {error}"[:300])

        threads = {
            name: threading.Thread(target=run, args=(name, do), daemon=True)
            for name, do in several.items()
        }
        for thread in threads.values():
            thread.start()
        end = time.monotonic() + deadline + SLACK
        for name, thread in threads.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.hung.append(
                    f"{name} had {deadline:g} s and is still under way after {SLACK:g}"
                )
        return [results.get(name) for name in several]

    def harmed(self, what: str) -> None:
        """A file outside was touched, or a member's own training or objects were lost."""
        self.harm.append(what)

    def fooled(self, what: str) -> None:
        """Params were loaded that no honest set of updates gives, without a word."""
        self.fooling.append(what)

    def unnamed(self, what: str) -> None:
        """Nobody was told what was wrong, or which key or client it was."""
        self.silence.append(what)

    def check_within(self, name: str, result: Params | None, low: float, high: float) -> None:
        """Say so if a result is not what honest updates between these values give.

        No result is none to be fooled by; but then an error has to say why.
        """
        if result is None:
            if name not in self.errors and not self.hung:
                self.unnamed(f"{name} has no result and no error")
            return
        for key, values in result.items():
            inside = np.isfinite(values).all() and low <= values.min() and values.max() <= high
            if not inside:
                self.fooled(f"{name} got {key} = {np.ravel(values)[:3]}, not in [{low}, {high}]")

    def check_named(self, *words: str) -> None:
        """Say so unless an event or an error has each of these words."""
        text = "\n".join(
            [str(e) for said in self.heard.values() for e in said]
            + [e.to_json() for said in self.heard.values() for e in said]
            + [str(error) for error in self.errors.values()]
        )
        for word in words:
            if word not in text:
                self.unnamed(f"no event and no error names {word!r}")

    def close(self) -> None:
        """Have all members leave."""
        if not self.hung:
            self._open.close()

    def _leave(self, federation: hubless.Federation) -> None:
        self.call(f"{federation.client} leaves", federation.close, deadline=10.0)


def params(value: float = 1.0, size: int = 8) -> Params:
    """What a member trains."""
    return {"w": np.full(size, value, np.float32)}


def played(each: Attack, scene: Scene) -> Scene:
    """Play an attack to its end, whatever happens."""
    try:
        each.play(scene)
    except Stopped:
        # the scene knows already what stopped it
        pass
    finally:
        scene.close()
    return scene


def attacks(only: Sequence[str] = ()) -> Iterator[Attack]:
    """All attacks, by number."""
    from importlib import import_module
    from pathlib import Path as File

    for path in sorted(File(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "__main__", "scene") and not path.stem.startswith("test_"):
            import_module(f"tests.attacks.{path.stem}")

    def place(each: Attack) -> tuple[int, str]:
        digits = "".join(c for c in each.number if c.isdigit())
        return int(digits or 999), each.number

    unique = {(each.number, each.title): each for each in ATTACKS}
    for each in sorted(unique.values(), key=place):
        if not only or each.number in only or each.number.rstrip("abcdefghijk") in only:
            yield each


PEAK = (
    "def peak():\n"
    "    # not ru_maxrss: that goes back to before the process began, and so to who started it\n"
    "    status = open('/proc/self/status').read()\n"
    "    return int(status.split('VmHWM:')[1].split()[0]) >> 10\n"
)
"""A function for a process of its own: how many MiB of memory it has taken at most."""


def memory_of(scene: Scene, code: str) -> int | None:
    """How many MiB more a process has taken at most once it has run this, where `join` is set."""
    whole = (
        "import functools, json, sys\n"
        "import numpy as np, hubless\n"
        "from hubless.errors import HublessError\n"
        "join = functools.partial(\n"
        "    hubless.join, sys.argv[1], client='a', **json.loads(sys.argv[2])\n"
        ")\n"
        "model = {'w': np.ones(8, np.float32)}\n"
        f"{PEAK}before = peak()\n{code}\nprint(peak() - before)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", whole, scene.url, json.dumps(scene.options)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if run.returncode:
        scene.unnamed(run.stderr[-300:])
        return None
    return int(run.stdout)
