"""Attacks on views: what is read may not use up memory, lie about others or end the view."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import hubless
from hubless.federate import keys
from hubless.watch.feed import open_feed
from hubless.watch.fold.overview import Overview, look
from hubless.watch.report.page import write_report
from tests.attacks.scene import FOLDER, PEAK, Scene, attack, params

_NAMES = ["constructor", "toString", "__proto__", "hasOwnProperty", "valueOf", "x\u200b", "a[0].b"]
_MEMORY_MIB = 400
_MEASURED = f"""
{PEAK}
import sys
from hubless.watch.feed import open_feed
from hubless.watch.fold.overview import Overview, look
overview = Overview()
look(overview, [open_feed(sys.argv[1])])
overview.to_json()
print(overview.feed_trouble or "-")
print(peak())
"""


def _overview(scene: Scene, source: str = "") -> Overview:
    overview = Overview()
    feed = open_feed(source or scene.url, **scene.options)
    scene.call("a look", lambda: look(overview, [feed]), deadline=20.0)
    if overview.feed_trouble:
        scene.harmed(f"nothing can be seen any more: {overview.feed_trouble}")
    return overview


def _check_memory(scene: Scene, source: Path) -> None:
    """Say so where looking at this takes too much memory, or ends the view."""
    command = [sys.executable, "-c", _MEASURED, str(source)]
    ran = scene.call(
        "a look in a process of its own",
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=120),
        deadline=60.0,
    )
    if ran is None or ran.returncode:
        scene.harmed(f"the view died: {ran and ran.stderr[-300:]}")
    elif (took := int(ran.stdout.split()[-1])) > _MEMORY_MIB:
        scene.harmed(f"the view took {took} MiB for {source.stat().st_size >> 10} KiB")


@attack("24", "metrics called as every object of JavaScript's has something")
def names_of_javascript(scene: Scene) -> None:
    a, b = scene.join("constructor"), scene.join("toString")
    for value in (1.0, 2.0):
        for member in (a, b):
            metrics = dict.fromkeys(_NAMES, value)
            member.step(params(value), examples=3, metrics=metrics)
    page = scene.home / "report.html"
    written = scene.call(
        "the report", lambda: write_report([scene.url], page, **scene.options), deadline=60.0
    )
    if written is None:
        scene.harmed(f"the report died: {scene.errors}")
    elif not all(name in page.read_text() for name in _NAMES[:5]):
        scene.unnamed("the report has not all metrics")


@attack("25a", "12 KiB of events that would take gigabytes", places=FOLDER)
def events_that_blow_up(scene: Scene) -> None:
    path = scene.home / "small.jsonl"
    lines = []
    for run in range(64):
        record = {"event": "trained", "client": f"r{run}", "round": 1, "time": 1e9}
        lines.append(json.dumps({**record, "cohort": [49_999_999, 10**11 + run, 2**62]}))
    path.write_text("\n".join(lines) + "\n")
    _check_memory(scene, path)


@attack("25b", "a line of events that never ends, and one nested without end", places=FOLDER)
def events_without_end(scene: Scene) -> None:
    path = scene.home / "lines.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"event": "left", "client": "' + b"x" * (3 << 20) + b'"}\n')
        file.write(b'{"event": ' + b"[" * (1 << 20) + b"\n")
        file.write(b'{"event": "left", "client": "a", "metrics": ' + b"9" * 100_000 + b"}\n")
        file.write(b'{"event": "left", "client": "b"}\n')
        file.truncate(200 << 20)
    _check_memory(scene, path)
    overview = _overview(scene, str(path))
    if "b" not in overview.federations[0].members:
        scene.fooled("what stands between is not seen any more")


@attack("25c", "a peer's file in the federation's folder tells of others", places=FOLDER)
def a_peer_tells_of_others(scene: Scene) -> None:
    a, b = scene.join("a"), scene.join("b")
    for value in (1.0, 2.0):
        for member in (a, b):
            member.step(params(value), examples=10, metrics={"loss": value})
    honest = _overview(scene).to_json()["runs"][0]
    lies = [
        {"event": "left", "client": "b"},
        {"event": "pushed", "client": "b", "sequence": 40, "bytes": 10**12, "metrics": {"loss": 9}},
        {"event": "offline", "client": "b", "reason": "lies"},
        {"event": "refused", "client": "evil", "peer": "b", "key": "x", "reason": "lies"},
        {"event": "forged", "client": "evil", "peer": "b", "key": "x", "reason": "lies"},
        {"event": "closed", "client": "evil", "round": 0, "included": ["a", "b"]},
        {"event": "picked", "client": "evil", "round": 0, "cohort": ["b"]},
        {"event": "left", "client": "b", "believed_about": "b"},
    ]
    lines = [json.dumps({**lie, "time": time.time() + 60}) for lie in lies]
    (scene.folder / "evil.jsonl").write_text("\n".join(lines))
    os.symlink("/dev/zero", scene.folder / "zero.jsonl")
    os.symlink(scene.folder / "evil.jsonl", scene.folder / "b.jsonl")
    os.mkfifo(scene.folder / "pipe.jsonl")
    overview = _overview(scene)
    (run,) = overview.to_json()["runs"]
    members = overview.federations[0].members
    if members["b"].status != "training" or members["b"].troubles or members["b"].updates != 2:
        scene.fooled(f"b is {members['b']}, as a peer has it")
    if run["metrics"] != honest["metrics"] or run["bytes_up"] != honest["bytes_up"]:
        scene.fooled(f"the federation is {run}, as a peer has it")


@attack("L20", "a huge plan, of which nearly nothing is there")
def a_sparse_plan(scene: Scene) -> None:
    a = scene.join("a", members=["a"])
    for value in (1.0, 2.0):
        a.step(params(value), examples=10, metrics={"loss": value})
    scene.put(keys.plan_key(2, 0), bytes(65 << 20))
    scene.put(keys.plan_key(3, 0), b"[" * (2 << 20))
    overview = _overview(scene)
    (meeting,) = overview.federations
    if meeting.round != 2 or meeting.updates != 2:
        scene.fooled(f"the view says {meeting.round} rounds and {meeting.updates} updates, not 2")
    if not any("plan" in trouble.text for trouble in overview.troubles):
        scene.unnamed("the view does not say which plan it cannot read")


@attack("L21", "junk of members that never were, by the thousand")
def junk_of_strangers(scene: Scene) -> None:
    a = scene.join("a")
    a.step(params(1.0), examples=10, metrics={"loss": 1.0})
    digest = keys.parse_updates(scene.store().list(keys.UPDATES))[0].signature
    for number in range(300 if scene.options else 6000):
        scene.put(f"updates/stranger{number}=00000000-00011234abcd-1-0-{digest}.safetensors")
    overview = _overview(scene)
    if "a" not in overview.federations[0].members:
        scene.fooled("the member that is there is not seen any more")


@attack("L22", "300 requests that never end, where a process may have 256 files", places=FOLDER)
def half_open_requests(scene: Scene) -> None:
    with hubless.join(scene.url, "a") as a:
        a.step(params(1.0), examples=1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import sys, time\nfrom hubless.watch.feed import open_feed\n"
        "from hubless.watch.live.web import serve\n"
        "serve(open_feed(sys.argv[1]), port=0, token='secret')"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code, scene.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard)),
    )
    half: list[socket.socket] = []
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2].partition("?")[0]
        port = int(url.rstrip("/").rpartition(":")[2])
        for _ in range(300):
            opened = socket.create_connection(("127.0.0.1", port), timeout=10)
            opened.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            half.append(opened)
        asked = urllib.request.Request(
            f"{url}state.json", headers={"Authorization": "Bearer secret"}
        )
        answer = scene.call(
            "the page", lambda: urllib.request.urlopen(asked, timeout=30).read(), deadline=10.0
        )
        if answer is None or b'"runs"' not in answer:
            scene.harmed("nobody gets the page any more")
    finally:
        for opened in half:
            opened.close()
        server.kill()
        server.wait()
