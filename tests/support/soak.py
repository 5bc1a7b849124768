"""A soak test: real member processes on a failing store, killed again and again, then audited."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

import hubless
from hubless import events
from hubless.errors import Denied, QuorumMissed
from hubless.federate import keys
from hubless.federate.asynchronous import Asynchronous
from hubless.federate.averaging import OUTRUN
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.outside.rights import policy
from hubless.store import open_store
from hubless.store.base import Entry
from hubless.store.reliable import Reliable
from tests.support import servers

Rank = tuple[Incarnation, int]
Mode = Literal["async", "sync"]

ELEMENTS = 2000
STAMPS = 500
CLOSE = 0.01
DEADLINE = 3.0
ROUNDS_AFTER = 3
STARTING = 4
"""Members that may be starting at one time: more only slow each other down."""


@dataclass(frozen=True)
class Setting:
    """What every member process is told; the files in `folder` are how they and the driver talk."""

    url: str
    options: dict[str, str]
    folder: str
    members: int
    seed: int
    mode: Mode = "async"
    quorum: int = 0
    patience: float = 60.0
    pause: float = 0.3
    confined: bool = False
    """Whether each member comes with credentials of its own, which let it write its own keys."""

    @cached_property
    def clients(self) -> list[str]:
        return _clients(self.members)

    def options_of(self, client: str) -> dict[str, str]:
        """How a member reaches the store."""
        return {**self.options, **(servers.credentials(client) if self.confined else {})}

    def targets(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Each member's value and number of examples, known to all so that all can check sums."""
        rng = np.random.default_rng(self.seed)
        return rng.uniform(0, 2, self.members), rng.integers(1, 100, self.members)

    def expected(self) -> float:
        """The average without any fault."""
        values, examples = self.targets()
        return float((values * examples).sum() / examples.sum())

    def log(self, index: int) -> Path:
        return Path(self.folder, f"{self.clients[index]}.jsonl")

    def signal(self, word: str) -> Path:
        return Path(self.folder, word)


# ---------------------------------------------------------------------------------- the member


class Member:
    """One life of one member: steps until told to finish, noting all it sees in its log."""

    def __init__(self, setting: Setting, index: int, life: int) -> None:
        self._setting = setting
        self._index = index
        self._life = life
        self._client = setting.clients[index]
        self._values, self._examples = setting.targets()
        self._stamp = life * 1000
        self._acknowledged = False
        self._pulled: events.Pulled | None = None
        self._random = random.Random(f"{setting.seed} {index} {life}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._log = os.open(setting.log(index), flags, 0o644)
        # a line that the previous life was killed in must not swallow this one's first
        os.write(self._log, b"\n")
        self._federation: hubless.Federation | None = None

    def run(self) -> None:
        setting = self._setting
        pace: hubless.Anytime | hubless.Rounds = hubless.Anytime()
        if setting.mode == "sync":
            pace = hubless.Rounds(setting.members, setting.quorum, DEADLINE)
        with hubless.join(
            hubless.Bucket(
                setting.url, options=setting.options_of(self._client), patience=setting.patience
            ),
            self._client,
            pace=pace,
            events=self._heard,
        ) as federation:
            self._federation = federation
            self._note("joined", life=self._life, incarnation=str(federation.member.incarnation))
            self._await("go")
            if setting.mode == "sync":
                self._rounds(federation)
            else:
                self._steps(federation)
            self._await("collect")
            result = federation.pull(self._params())
            self._check(result)
            if setting.mode == "sync":
                self._note("round", round=federation.version - 1, digest=_digest(result))
            self._note("result", average=float(np.mean(result["w"], dtype=float)))

    def _steps(self, federation: hubless.Federation) -> None:
        while not self._setting.signal("finish").exists():
            self._step(federation)
            time.sleep(self._random.uniform(0, self._setting.pause))
        self._acknowledged = False
        while not self._acknowledged:
            self._step(federation)
        self._note("final", stamp=self._stamp)

    def _step(self, federation: hubless.Federation) -> None:
        self._stamp += 1
        self._pulled = None
        mine = self._params()
        result = federation.step(
            mine, examples=int(self._examples[self._index]), metrics={"stamp": self._stamp}
        )
        self._check(result)
        if self._pulled is not None:
            weights = self._pulled.weights
            others = sum(weight * self._value(peer) for peer, weight in weights.items())
            should = others + (1 - sum(weights.values())) * self._value(self._client)
            if abs(float(result["w"][0]) - should) > 1e-4:
                self._note("torn", reason=f"average {result['w'][0]}, by its weights {should}")

    def _rounds(self, federation: hubless.Federation) -> None:
        while not self._setting.signal("finish").exists():
            self._stamp += 1
            began = time.monotonic()
            examples = int(self._examples[self._index])
            try:
                result = federation.step(self._params(), examples=examples)
            except QuorumMissed:
                self._note("missed", seconds=time.monotonic() - began)
                continue
            self._check(result)
            self._note(
                "round",
                round=federation.version - 1,
                digest=_digest(result),
                seconds=time.monotonic() - began,
            )
            time.sleep(self._random.uniform(0, self._setting.pause))
        self._note("final", stamp=self._stamp)

    def _params(self) -> dict[str, Any]:
        # a read that mixes two updates shows: in one array as unequal elements, across arrays
        # because the averages of stamp and mirror do not add up to zero
        return {
            "w": np.full(ELEMENTS, self._value(self._client), np.float32),
            "stamp": np.full(STAMPS, self._stamp, np.float32),
            "mirror": np.full(STAMPS, -self._stamp, np.float32),
        }

    def _value(self, client: str) -> float:
        return float(self._values[int(client[1:])])

    def _check(self, result: Mapping[str, Any]) -> None:
        for name, array in result.items():
            spread = float(array.max() - array.min())
            if not spread <= 1e-5 * max(1.0, abs(float(array[0]))):
                self._note("torn", reason=f"elements of {name} differ by {spread}")
        stamp, mirror = float(result["stamp"][0]), float(result["mirror"][0])
        if not abs(stamp + mirror) <= 1e-4 * max(1.0, stamp):
            self._note("torn", reason=f"stamp {stamp} came with mirror {mirror}")

    def _heard(self, event: events.Event) -> None:
        if isinstance(event, events.Pushed):
            self._acknowledged = True
            self._note("pushed", key=event.key, stamp=self._stamp)
        elif isinstance(event, events.Pulled):
            self._pulled = event
            assert self._federation is not None
            mode = self._federation._mode
            assert isinstance(mode, Asynchronous)
            # the event tells sequences only, and a rank is more than that
            seen = mode._taken_in
            ranks = {peer: [str(seen[peer][0]), seen[peer][1]] for peer in event.peers}
            self._note("pulled", peers=dict(event.peers), ranks=ranks)
        elif isinstance(event, events.RefusedUpdate):
            # who reads slowly, on a busy machine, leaves out what is replaced meanwhile
            kind = "outrun" if event.reason == OUTRUN else "refused"
            self._note(kind, reason=f"{event.key}: {event.reason}")
        elif isinstance(event, events.Offline):
            self._note("offline", reason=event.reason)
        elif isinstance(event, (events.Late, events.Closed)):
            self._note(event.kind, round=event.round)

    def _note(self, kind: str, **said: object) -> None:
        line = json.dumps({"event": kind, **said})
        os.write(self._log, line.encode() + b"\n")

    def _await(self, word: str) -> None:
        path = self._setting.signal(word)
        while not path.exists():
            time.sleep(0.2)


def _clients(members: int) -> list[str]:
    return [f"m{index:03d}" for index in range(members)]


def _digest(params: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(params[name].tobytes())
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------------------- what the logs say


@dataclass
class Ledger:
    """What the members' logs amount to, taken in line by line while they are written."""

    lives: dict[str, int] = field(default_factory=dict)
    """The life of each client that has joined last."""
    acknowledged: dict[str, tuple[Rank, int]] = field(default_factory=dict)
    """The rank and stamp of each client's last acknowledged update."""
    finals: set[str] = field(default_factory=set)
    results: dict[str, float] = field(default_factory=dict)
    rounds: dict[int, Counter[str]] = field(default_factory=dict)
    """Per round, how many members arrived at which digest."""
    completed: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    torn: list[str] = field(default_factory=list)
    rollbacks: list[str] = field(default_factory=list)
    offline: list[str] = field(default_factory=list)
    _seen: dict[str, dict[str, Rank]] = field(default_factory=dict)
    _offsets: dict[Path, int] = field(default_factory=dict)

    def read(self, setting: Setting) -> None:
        """Take in what was written since last time."""
        for index, client in enumerate(setting.clients):
            path = setting.log(index)
            start = self._offsets.get(path, 0)
            if not path.exists() or path.stat().st_size == start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offsets[path] = self._offsets.get(path, 0) + len(line)
                    try:
                        said = json.loads(line)
                    except ValueError:
                        continue  # blank, or cut short by a kill
                    self._take(client, said)

    def _take(self, client: str, said: dict[str, Any]) -> None:
        kind = said["event"]
        self.counts[kind] += 1
        self.slowest = max(self.slowest, said.get("seconds", 0.0))
        if kind == "joined":
            self.lives[client] = said["life"]
            self._seen[client] = {}
        elif kind == "pushed":
            self.acknowledged[client] = _rank(said["key"]), said["stamp"]
        elif kind == "pulled":
            seen = self._seen[client]
            for peer, (incarnation, sequence) in said["ranks"].items():
                rank = _incarnation(incarnation), sequence
                before = seen.get(peer)
                if said["peers"][peer] != sequence or (before is not None and rank < before):
                    self.rollbacks.append(f"{client} saw {peer} at {rank} after {before}")
                seen[peer] = rank
        elif kind in ("torn", "refused"):
            self.torn.append(f"{client} {kind}: {said['reason']}")
        elif kind == "offline":
            self.offline.append(f"{client}: {said['reason']}")
        elif kind == "final":
            self.finals.add(client)
        elif kind == "round":
            self.rounds.setdefault(said["round"], Counter())[said["digest"]] += 1
            self.completed[client] += 1
        elif kind == "result":
            self.results[client] = said["average"]


def _rank(key: str) -> Rank:
    posted = Posted.parse(Entry(key, 0, 0.0))
    assert posted is not None, key
    return posted.rank


def _incarnation(text: str) -> Incarnation:
    return Incarnation(int(text[:4]), text[4:])


# ----------------------------------------------------------------------------------- the auditor


class Unreachable(Exception):
    """The store itself did not answer in time, which on a busy machine proves nothing."""


@dataclass(frozen=True)
class Direct:
    """The store as it is, past the proxy and past hubless."""

    list: Callable[[], list[Entry]]
    get: Callable[[str], bytes | None]


def _direct_bucket(server: servers.Server, prefix: str) -> Direct:
    import obstore
    from obstore.exceptions import BaseError

    bucket = server.open()

    def entries() -> list[Entry]:
        try:
            found = [m for page in obstore.list(bucket, prefix + "/") for m in page]
        except BaseError as error:
            raise Unreachable(str(error)) from error
        return [Entry(m["path"].removeprefix(prefix + "/"), m["size"], 0.0) for m in found]

    def get(key: str) -> bytes | None:
        try:
            return bytes(obstore.get(bucket, f"{prefix}/{key}").bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise Unreachable(str(error)) from error

    return Direct(entries, get)


def _direct_folder(root: Path) -> Direct:
    def entries() -> list[Entry]:
        # os.walk, unlike rglob, puts up with folders that are removed on the way
        files = [Path(where, name) for where, _, names in os.walk(root) for name in names]
        return [Entry(path.relative_to(root).as_posix(), 0, 0.0) for path in files]

    def get(key: str) -> bytes | None:
        try:
            return (root / key).read_bytes()
        except FileNotFoundError:
            return None

    return Direct(entries, get)


class Auditor:
    """Reads every update there is, all along, and holds each against what it must say."""

    def __init__(self, direct: Direct, setting: Setting) -> None:
        self._direct = direct
        self._values, self._examples = setting.targets()
        self._audited: dict[str, bytes] = {}
        self._newest: dict[str, Rank] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="auditor")
        self.torn: list[str] = []
        self.rollbacks: list[str] = []
        self.trouble: list[str] = []
        self.looks = 0
        self.blind = 0

    @property
    def audited(self) -> int:
        return len(self._audited)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.5):
            try:
                self.look(again=False)
                self.looks += 1
            except Unreachable:
                self.blind += 1
            except Exception as error:
                self.trouble.append(f"the auditor could not look: {error!r}")

    def look(self, again: bool) -> dict[str, tuple[Rank, int]]:
        """Check what is listed, what was checked before only if `again`; each client's newest."""
        listed = keys.parse_updates(self._direct.list())
        newest = keys.newest(listed)
        for client, posted in newest.items():
            before = self._newest.get(client)
            if before is not None and posted.rank < before:
                self.rollbacks.append(f"listed: {client} at {posted.rank} after {before}")
            self._newest[client] = posted.rank
        stamps = {}
        for posted in listed:
            if posted.key in self._audited and not again:
                continue
            raw = self._direct.get(posted.key)
            if raw is None:
                continue  # its owner collected it since the listing
            stamp = self._audit(posted, raw)
            if posted == newest[posted.client]:
                stamps[posted.client] = posted.rank, stamp
        return stamps

    def _audit(self, posted: Posted, raw: bytes) -> int:
        from safetensors.numpy import load

        digest = hashlib.sha256(raw).digest()
        if self._audited.setdefault(posted.key, digest) != digest:
            self.torn.append(f"{posted.key} changed after it was written")
        try:
            arrays = load(raw)
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            said = header["__metadata__"]
            stamp = float(arrays["stamp"][0])
            index = int(posted.client[1:])
            stamped = json.loads(said["metrics"]).get("stamp", stamp)
            sound = {
                "w": (arrays["w"] == np.float32(self._values[index])).all(),
                "stamp": (arrays["stamp"] == stamp).all() and stamped == stamp,
                "mirror": (arrays["mirror"] == -stamp).all(),
                "examples": posted.examples == self._examples[index],
                "client": said["client"] == posted.client,
                "sequence": said["sequence"] == str(posted.sequence),
            }
        except Exception as error:
            self.torn.append(f"{posted.key} cannot be read: {error!r}")
            return -1
        if wrong := [name for name, fine in sound.items() if not fine]:
            self.torn.append(f"{posted.key} is not consistent in {', '.join(wrong)}")
        return int(stamp)


# ------------------------------------------------------------------------------------ the driver


class Crew:
    """The member processes: started a few at a time, killed, started again, and seen off."""

    def __init__(self, setting: Setting, ledger: Ledger, stack: ExitStack) -> None:
        self._setting = setting
        self._ledger = ledger
        self._spec = Path(setting.folder, "setting.json")
        self._spec.write_text(json.dumps(asdict(setting)))
        self._lives: Counter[int] = Counter()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stderr: dict[int, IO[bytes]] = {}
        self._done: set[int] = set()
        self._stack = stack
        self.failures: list[str] = []
        self.kills = 0
        stack.callback(self._end)

    def start(self, index: int) -> None:
        self._lives[index] += 1
        if index not in self._stderr:
            file = tempfile.TemporaryFile()  # noqa: SIM115
            self._stderr[index] = self._stack.enter_context(file)
        self._running[index] = servers.launch(
            [
                *("env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1"),
                *(sys.executable, "-m", "tests.support.soak", "member"),
                *(str(self._spec), str(index), str(self._lives[index])),
            ],
            cwd=servers.ROOT,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr[index],
        )

    def kill(self, index: int) -> None:
        process = self._running.pop(index)
        process.kill()
        process.wait()
        self.kills += 1

    def look(self) -> None:
        """Note who ended; who should not have counts as a failure and is started again."""
        ended = {i: status for i, p in self._running.items() if (status := p.poll()) is not None}
        # only now: what somebody wrote last is there once it has ended
        self._ledger.read(self._setting)
        for index, status in ended.items():
            del self._running[index]
            if status == 0 and self._setting.clients[index] in self._ledger.finals:
                self._done.add(index)
                continue
            said = servers.tail(self._stderr[index], 1500)
            life = self._lives[index]
            self.failures.append(
                f"{self._setting.clients[index]} (life {life}) ended with {status}: {said}"
            )
            self.start(index)

    @property
    def alive(self) -> list[int]:
        return sorted(self._running)

    @property
    def joined(self) -> list[int]:
        """Those whose present life has joined."""
        lives, clients = self._ledger.lives, self._setting.clients
        return [i for i in self._running if lives.get(clients[i]) == self._lives[i]]

    @property
    def finished(self) -> bool:
        return len(self._done) == self._setting.members

    def _end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def soak(
    *,
    members: int,
    seconds: float,
    seed: int = 1,
    store: Literal["seaweedfs", "folder"] = "seaweedfs",
    server: servers.Server | None = None,
    mode: Mode = "async",
    quorum: int = 0,
    kill_every: float = 1.0,
    delay_seconds: float = 0.3,
    restart_within: float = 1.0,
    member_patience: float = 60.0,
    patience: float = 300.0,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run the test and report; `verdict` holds the counts that must all be zero.

    At a server of its own each member has a policy that confines it to its own keys. Each phase
    after the killing is over may take up to `patience` seconds; `member_patience` is what the
    members join with.
    """
    began = time.monotonic()
    front: Any = None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        options: dict[str, str] = {}
        confined = store == "seaweedfs" and server is None
        prefix = f"soak-{os.urandom(4).hex()}"
        if store == "seaweedfs":
            from tests.support.proxy import faulty

            if server is None:
                place = f"s3://{servers.BUCKET}/{prefix}"
                policies = policy(place, dict.fromkeys(_clients(members), ""), conditions=False)
                server = stack.enter_context(servers.seaweedfs(folder / "seaweedfs", policies))
            front = stack.enter_context(
                faulty(
                    server,
                    seed=seed,
                    error=0.05,
                    lost=0.05,
                    delay=0.05,
                    delay_seconds=delay_seconds,
                )
            )
            url, options = f"{server.url}/{prefix}", dict(front.options)
            direct = _direct_bucket(server, prefix)
        else:
            url, direct = str(folder / "store"), _direct_folder(folder / "store")
        (folder / "talk").mkdir()
        talk = str(folder / "talk")
        quorum = quorum or max(1, members // 2)
        setting = Setting(
            url, options, talk, members, seed, mode, quorum, member_patience, confined=confined
        )
        if confined:
            _check_confined(setting)
        ledger = Ledger()
        auditor = Auditor(direct, setting)
        crew = Crew(setting, ledger, stack)
        with auditor.watching():
            report = _run(
                setting, crew, ledger, seconds, kill_every, restart_within, patience, say, began
            )
        newest = auditor.look(again=True)
        left = len(direct.list())
    lost = _lost(setting, ledger, newest) if mode == "async" else []
    expected = setting.expected()
    errors = [abs(value / expected - 1) for value in ledger.results.values()]
    split = [f"round {r}: {dict(d)}" for r, d in sorted(ledger.rounds.items()) if len(d) > 1]
    details = {
        "lost": lost,
        "torn": [*auditor.torn, *ledger.torn],
        "rollbacks": [*auditor.rollbacks, *ledger.rollbacks],
        "failures": [*crew.failures, *auditor.trouble],
        "hung": report["hung"],
        "far": [] if mode == "sync" else [f"off by {e:.3%}" for e in errors if e > CLOSE],
        "split": split,
    }
    for name, found in details.items():
        for line in found[:5]:
            say(f"{name}: {line}")
    for line in ledger.offline[:5]:
        say(f"offline: {line}")
    rounds = {"rounds": len(ledger.rounds), "missed": ledger.counts["missed"]}
    rounds |= {"late": ledger.counts["late"], "closed": ledger.counts["closed"]}
    return {
        "mode": mode,
        "store": store,
        "confined": confined,
        "members": members,
        "kills": crew.kills,
        "updates": ledger.counts["pushed"],
        "pulls": ledger.counts["pulled"],
        **(rounds if mode == "sync" else {}),
        "slowest_step": round(ledger.slowest, 1),
        "audited": auditor.audited,
        "left": left,
        "looks": auditor.looks,
        "blind": auditor.blind,
        "offline": len(ledger.offline),
        "outrun": ledger.counts["outrun"],
        "results": len(ledger.results),
        **({} if mode == "sync" else _spread(errors)),
        **({} if front is None else front.counts),
        "phases": report["phases"],
        "verdict": {name: len(found) for name, found in details.items()},
    }


def _check_confined(setting: Setting) -> None:
    """Raise unless the server keeps a member from writing another's keys."""
    client, other = setting.clients[:2]
    store = Reliable(open_store(setting.url, options=setting.options_of(client)))
    store.put(f"{keys.PROBE}{client}=soak", [b"own"])
    store.delete([f"{keys.PROBE}{client}=soak"])
    try:
        store.put(f"{keys.UPDATES}{other}=soak", [b"another's"])
    except Denied:
        return
    raise AssertionError(f"{client} may write what is {other}'s")


def _run(
    setting: Setting,
    crew: Crew,
    ledger: Ledger,
    seconds: float,
    kill_every: float,
    restart_within: float,
    patience: float,
    say: Callable[[str], None],
    began: float,
) -> dict[str, Any]:
    """Go through the phases: start, kill, settle, finish, collect."""
    phases: dict[str, float] = {}
    hung: list[str] = []
    since = began

    def over(phase: str) -> None:
        nonlocal since
        phases[phase], since = round(time.monotonic() - since, 1), time.monotonic()
        say(
            f"[{time.monotonic() - began:6.1f} s] {phase}: {crew.kills} kills, "
            f"{ledger.counts['pushed']} updates, {ledger.counts['pulled']} pulls, "
            f"{len(ledger.offline)} offline, {len(crew.failures)} failures"
        )

    def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = time.monotonic() + patience
        spoken = time.monotonic()
        while not condition():
            crew.look()
            if time.monotonic() > deadline:
                hung.append(what())
                return
            if time.monotonic() - spoken > 10:
                spoken = time.monotonic()
                say(f"[{spoken - began:6.1f} s] still waiting: {what()}")
            time.sleep(0.1)

    for index in range(setting.members):
        crew.start(index)
        until(
            lambda: len(crew.alive) - len(crew.joined) < STARTING,
            lambda: f"{len(crew.joined)} of {setting.members} joined",
        )
    until(
        lambda: len(crew.joined) == setting.members,
        lambda: f"{len(crew.joined)} of {setting.members} joined",
    )
    setting.signal("go").touch()
    over("start")

    rng = random.Random(setting.seed)
    down: dict[int, float] = {}
    start = time.monotonic()
    due = [start + kill_every * n for n in range(1, math.ceil(seconds / kill_every))]
    spoken = start
    # on a busy machine a kill may come late, but none is left out
    while (now := time.monotonic()) < start + seconds or due or down:
        crew.look()
        if due and due[0] <= now and (alive := crew.alive):
            del due[0]
            victim = rng.choice(alive)
            crew.kill(victim)
            down[victim] = now + rng.uniform(0, restart_within)
        for index in [i for i, at in down.items() if at <= now]:
            del down[index]
            crew.start(index)
        if now - spoken > 10:
            spoken = now
            say(
                f"[{now - began:6.1f} s] {crew.kills} kills, {ledger.counts['pushed']} updates, "
                f"{ledger.counts['pulled']} pulls"
            )
        time.sleep(0.1)
    over("kill")

    if setting.mode == "sync":
        # with everybody alive, rounds must go on for everybody
        crew.look()
        goal = {c: ledger.completed[c] + ROUNDS_AFTER for c in setting.clients}

        def behind() -> list[str]:
            return [c for c, rounds in goal.items() if ledger.completed[c] < rounds]

        until(lambda: not behind(), lambda: f"rounds of {_few(behind())}")
        over("settle")

    setting.signal("finish").touch()

    def unfinished() -> list[str]:
        return sorted(set(setting.clients) - ledger.finals)

    until(lambda: not unfinished(), lambda: f"final steps of {_few(unfinished())}")
    over("finish")
    setting.signal("collect").touch()

    def silent() -> list[str]:
        return sorted(set(setting.clients) - ledger.results.keys())

    until(lambda: crew.finished, lambda: f"results of {_few(silent())}")
    over("collect")
    return {"phases": phases, "hung": hung}


def _lost(setting: Setting, ledger: Ledger, newest: Mapping[str, tuple[Rank, int]]) -> list[str]:
    """Acknowledged updates that nothing as new stands for at the end.

    Stamps tell the order in which things really happened, whatever the ranks say.
    """
    lost = []
    for client in setting.clients:
        if client not in ledger.acknowledged:
            lost.append(f"{client} never got an update acknowledged")
            continue
        rank, stamp = ledger.acknowledged[client]
        found = newest.get(client)
        if found is None or found[0] < rank or found[1] < stamp:
            lost.append(f"{client}: acknowledged {rank} stamp {stamp}, newest is {found}")
    return lost


def _few(clients: list[str]) -> str:
    return f"{len(clients)} members ({', '.join(clients[:8])}...)"


def _spread(errors: list[float]) -> dict[str, float]:
    if not errors:
        return {"max_error": float("nan"), "mean_error": float("nan")}
    return {"max_error": max(errors), "mean_error": sum(errors) / len(errors)}


def main() -> int:
    """Run one member, or the whole test."""
    if sys.argv[1:2] == ["member"]:
        spec, index, life = sys.argv[2:]
        setting = Setting(**json.loads(Path(spec).read_text()))
        Member(setting, int(index), int(life)).run()
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", "--members-total", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("seaweedfs", "folder"), default="seaweedfs")
    parser.add_argument("--mode", choices=("async", "sync"), default="async")
    parser.add_argument("--quorum", type=int, default=0)
    parser.add_argument("--kill-every", type=float)
    parser.add_argument("--delay-seconds", type=float, default=0.3)
    parser.add_argument("--restart-within", type=float, default=1.0)
    parser.add_argument("--member-patience", type=float, default=60.0)
    given = vars(parser.parse_args())
    if given["kill_every"] is None:
        given["kill_every"] = 2.0 if given["mode"] == "sync" else 1.0
    report = soak(**given, say=lambda line: print(line, flush=True))
    print(json.dumps(report))
    return 1 if any(report["verdict"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
