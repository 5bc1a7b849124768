"""A hostile or damaged bucket can make a member stop with an error, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import events
from hubless.cli import main
from hubless.errors import FederationError, HublessError, ParamsError, QuorumMissed
from hubless.federate.keys import Incarnation, Posted, plan_key
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.folder import FolderStore
from hubless.store.memory import MemoryStore
from tests.support.waiting import until, wait_at_most


def params(value: float = 1.0) -> dict[str, Any]:
    return {"w": np.full(8, value, np.float32)}


def record(**changed: Any) -> bytes:
    document = {
        "hubless": 1,
        "mode": "async",
        "limit": 1e9,
        "strategy": "",
        "slots": [],
        "signature": {"w": ["F32", [8]]},
    }
    return json.dumps({**document, **changed}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b"[]",
        b'{"hubless": 1}',
        record(signature=[]),
        record(signature={"w": ["F32", [10**30]]}),
        record(signature={"w": ["F32", [2**61]]}),
        record(signature={"w": ["F32", [-8]]}),
        record(signature={"w": ["F99", [8]]}),
        record(signature={}),
        record(limit="1" + "0" * 400),
        record(limit=-1),
        record(slots=3),
    ],
)
def test_a_damaged_agreement_is_an_error_that_says_so(raw: bytes, tmp_path: Path) -> None:
    FolderStore(tmp_path).put("federation.json", [raw])
    with pytest.raises(FederationError, match=r"federation\.json"):
        hubless.join(tmp_path, "a")
    assert main(["ls", str(tmp_path)]) == 1
    assert main(["pull", str(tmp_path), "-o", str(tmp_path / "out")]) == 1


def plans(key: str) -> list[bytes]:
    def plan(included: Any, before: Any = None) -> bytes:
        return json.dumps({"included": included, "before": before}).encode()

    return [
        b"garbage",
        b"[]",
        plan([]),
        plan([1]),
        plan(["updates/x"]),
        plan([key, key]),
        plan([key.replace("00000000/", "00000009/")]),
        plan([key], [7, 0]),
        plan([key], [0, 0]),
        plan([key], ["x"]),
    ]


@pytest.mark.parametrize("index", range(10))
def test_a_damaged_plan_is_refused_by_name_and_binds_nobody(index: int, tmp_path: Path) -> None:
    key = Posted(
        "rounds/00000000/updates/",
        "a",
        0,
        Incarnation(1, "0" * 8),
        1,
        0,
        Signature.of(params()).digest,
    ).key
    FolderStore(tmp_path).put(plan_key(0, 0), [plans(key)[index]])
    heard: list[events.Event] = []
    with hubless.join(tmp_path, "a", pace=hubless.Rounds(members=1), events=heard.append) as a:
        assert (a.step(params(2.0), examples=1)["w"] == 2.0).all()
    (refused,) = [e for e in heard if isinstance(e, events.RefusedUpdate)]
    assert refused.key == plan_key(0, 0)


@pytest.mark.parametrize(
    "name",
    [
        "x=00000000-000100000000-{e400}-0-{d}.safetensors",
        "x=00000000-000100000000-1-{e400}-{d}.safetensors",
        "a\\b=00000000-000100000000-1-0-{d}.safetensors",
        "x\u0661=00000000-000100000000-1-0-{d}.safetensors",
        "..=00000000-000100000000-1-0-{d}.safetensors",
        "nothing",
    ],
)
def test_keys_that_no_member_writes_are_not_even_looked_at(name: str) -> None:
    store = MemoryStore()
    said: list[events.Event] = []
    with hubless.join(store, "a", events=said.append) as a:
        digest = Signature.of(params()).digest
        key = "updates/" + name.format(e400="9" * 400, d=digest)
        store._objects[key] = (b"x" * 500, 0.0)
        mine = params(2.0)
        assert a.step(mine, examples=1) is mine
        assert a.version == 1
    assert not [e for e in said if isinstance(e, (events.RefusedUpdate, events.Offline))]


def test_numbers_that_no_member_reaches_do_not_bar_a_name() -> None:
    store = MemoryStore()
    digest = Signature.of(params()).digest
    last = Posted("updates/", "a", 10**8 - 1, Incarnation(1, "0" * 8), 1, 0, digest)
    store.put(last.key, [b"x"])
    with hubless.join(store, "a") as a, hubless.join(store, "c") as c:
        a.step(params(1.0), examples=1)
        assert (c.step(params(3.0), examples=1)["w"] == 2.0).all()


def test_a_name_whose_lives_are_used_up_is_an_error_rather_than_silence() -> None:
    store = MemoryStore()
    digest = Signature.of(params()).digest
    final = Posted("updates/", "b", 0, Incarnation(9999, "0" * 8), 1, 0, digest)
    store.put(final.key, [b"x"])
    with pytest.raises(FederationError, match="used up"):
        hubless.join(store, "b")


@pytest.mark.parametrize(
    "metrics", ["[]", '{"a": "x"}', "[" * 60_000, '{"a": 1' + "0" * 400 + "}", "{"]
)
def test_ls_survives_any_metrics(
    metrics: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _post_metrics(tmp_path, metrics)
    assert main(["ls", str(tmp_path)]) == 0
    assert "its metrics cannot be read" in capsys.readouterr().out


def test_ls_does_not_let_a_peer_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _post_metrics(tmp_path, json.dumps({"\x1b[2Jloss": 1.0}))
    assert main(["ls", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def _post_metrics(folder: Path, metrics: str) -> None:
    with hubless.join(folder, "a") as a:
        a.step(params(), examples=1)
    signature = Signature.of(params())
    posted = Posted("updates/", "b", 0, Incarnation(1, "0" * 8), 1, 0, signature.digest)
    said = {"client": "b", "sequence": "0", "examples": "1", "version": "0", "metrics": metrics}
    FolderStore(folder).put(posted.key, codec.encode(signature, signature.pack(params()), said))


def test_a_stray_slice_neither_crashes_nor_counts(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with hubless.join(tmp_path, "a", pace=hubless.Rounds(members=1)) as a:
        for round_ in range(4):
            store.put(f"rounds/{round_:08d}/slices-0000/99999.safetensors", [b"x"])
            assert (a.step(params(float(round_)), examples=1)["w"] == round_).all()
    assert main(["pull", str(tmp_path), "-o", str(tmp_path / "m.safetensors")]) == 0


def test_deep_folders_links_and_pipes_in_the_folder_do_no_harm(tmp_path: Path) -> None:
    import os

    deep = tmp_path
    for _ in range(300):
        deep = deep / "d"
        deep.mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "root").symlink_to("/")
    os.mkfifo(tmp_path / "federation.json")
    with hubless.join(hubless.Bucket(tmp_path, patience=0.1), "a") as a:
        assert FolderStore(tmp_path).list("") != []
        with pytest.raises(HublessError):
            a.pull(params())


def test_metrics_that_no_peer_would_accept_are_refused_at_home(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as a, pytest.raises(ParamsError, match="metrics take"):
        a.step(params(), examples=1, metrics={f"metric-{i:05d}": 0.0 for i in range(5000)})


def test_a_limit_is_the_same_for_own_and_peers_params(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a", limit=10.0) as a:
        a.step(params(5.0), examples=1)
        with pytest.raises(ParamsError, match="beyond 10"):
            a.step(params(50.0), examples=1)
    with hubless.join(tmp_path, "b", limit=1e6) as b, pytest.raises(ParamsError):
        b.step(params(50.0), examples=1)
    for limit in (0.0, float("nan"), float("inf")):
        with pytest.raises(FederationError, match="limit= is a number"):
            hubless.join(tmp_path, "c", limit=limit)


def test_an_update_that_a_given_up_step_left_counts_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    said: list[events.Event] = []
    pace = hubless.Rounds(members=["a", "b"], deadline=0.2)
    with (
        hubless.join(tmp_path, "a", events=said.append, pace=pace) as a,
        hubless.join(tmp_path, "b", pace=pace) as b,
    ):
        with pytest.raises(QuorumMissed):
            a.step(params(1.0), examples=1)
        look = b.member.look
        first = set(look().rounds[0].updates)

        def stale() -> Any:
            # b's listing is older than a's second try
            b.member.look = look  # type: ignore[method-assign]
            listing = look()
            for key, posted in list(listing.rounds[0].updates.items()):
                if posted.client == "a" and key not in first:
                    del listing.rounds[0].updates[key]
            return listing

        wait_at_most(a, 30.0)
        wait_at_most(b, 30.0)
        with ThreadPoolExecutor(2) as pool:
            again = pool.submit(a.step, params(1.0), examples=1)
            assert until(lambda: len(look().rounds[0].updates) == 2)
            post = b.member.post

            def posting(*args: Any) -> Any:
                posted = post(*args)
                b.member.look = stale  # type: ignore[method-assign]
                return posted

            b.member.post = posting  # type: ignore[method-assign]
            theirs = pool.submit(b.step, params(3.0), examples=1)
            results = [again.result(60)["w"], theirs.result(60)["w"]]
    assert np.allclose(results[0], 2.0)
    assert np.allclose(results[1], 2.0)
    assert not [e for e in said if isinstance(e, events.Late)]


def test_a_weighting_without_a_text_is_refused_where_texts_are_compared(tmp_path: Path) -> None:
    strategy = hubless.FedAvg(lambda seen: seen.examples)
    with pytest.raises(FederationError, match="__repr__"):
        hubless.join(tmp_path, "a", pace=hubless.Rounds(members=2), strategy=strategy)


def test_what_was_pulled_counts_as_taken_in(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as a:
        for _ in range(5):
            a.step(params(4.0), examples=1)
    b = hubless.join(tmp_path, "b", model=params())
    assert b.version == 5
    mine = params(7.0)
    assert b.step(mine, examples=1) is mine
