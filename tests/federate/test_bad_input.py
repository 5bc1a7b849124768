"""Bad input is refused with what, where and what to do, and costs nobody anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
from hubless import errors, events
from hubless.federate.keys import Incarnation, Posted
from hubless.signature import Signature
from hubless.store import codec
from hubless.store.folder import FolderStore

Params = dict[str, Any]


def params(value: float = 1.0) -> Params:
    return {"w": np.full((300, 7), value, np.float32), "steps": np.array(3)}


def key(client: str, like: Params, round_: int | None = None) -> str:
    folder = "updates/" if round_ is None else f"rounds/{round_:08d}/updates/"
    digest = Signature.of(like).digest
    return Posted(folder, client, 0, Incarnation(1, "0" * 8), 50, 0, digest).key


def update(client: str, like: Params) -> bytes:
    signature = Signature.of(like)
    said = {"client": client, "sequence": "0", "examples": "50", "version": "0", "metrics": "{}"}
    return b"".join(codec.encode(signature, signature.pack(like), said))


def with_nan() -> Params:
    bad = params()
    bad["w"][17, 3] = np.nan
    return bad


def diverged() -> Params:
    return {**params(), "w": np.full((300, 7), 1e30, np.float32)}


def flipped() -> bytes:
    body = bytearray(update("mallory", params()))
    body[-100] ^= 1
    return bytes(body)


def foreign(**replaced: Any) -> bytes:
    """Other params under a key that claims the federation's signature."""
    return update("mallory", {**params(), **replaced})


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "a pickle": (lambda: pickle.dumps(params()), "pickle"),
    "garbage": (lambda: np.random.default_rng(1).bytes(9000), "not safetensors"),
    "nothing": (lambda: b"", "not safetensors"),
    "truncated": (lambda: update("mallory", params())[:-40], "truncated"),
    "a header alone": (lambda: update("mallory", params())[:300], "not safetensors|truncated"),
    "larger than declared": (lambda: update("mallory", params()) + b"x" * 64, "larger than"),
    "a flipped bit": (flipped, "do not match their digest"),
    "NaN": (lambda: update("mallory", with_nan()), "'w' holds NaN"),
    "diverged": (lambda: update("mallory", diverged()), "diverged"),
    "another shape": (lambda: foreign(w=np.zeros((7, 300), np.float32)), r"\[7, 300\] here"),
    "another dtype": (lambda: foreign(w=np.zeros((300, 7), np.int32)), r"int32\[300, 7\] here"),
    "another size": (lambda: foreign(w=np.zeros((300, 8), np.float32)), r"\[300, 8\] here"),
    "another name": (lambda: foreign(extra=np.zeros(2)), "extra: only here"),
    "somebody else's update": (lambda: update("alice", params()), "another object than its key"),
}


@pytest.mark.parametrize("what", BAD)
def test_async_refuses_a_bad_update_by_name_and_goes_on(what: str, tmp_path: Path) -> None:
    made, reason = BAD[what]
    said: list[events.Event] = []
    store = FolderStore(tmp_path)
    with (
        hubless.join(tmp_path, "alice") as alice,
        hubless.join(tmp_path, "bob", events=said.append) as bob,
    ):
        alice.step(params(2.0), examples=50)
        bad = key("mallory", params())
        store.put(bad, [made()])
        result = bob.step(params(4.0), examples=50)
        assert np.allclose(result["w"], 3.0)
        (refused,) = [e for e in said if isinstance(e, events.RefusedUpdate)]
        assert (refused.peer, refused.key) == ("mallory", bad)
        _matches(reason, refused.reason)
        bob.step(params(4.0), examples=50)
        assert len([e for e in said if isinstance(e, events.RefusedUpdate)]) == 1
        assert np.allclose(bob.pull(params())["w"], 3.0)


@pytest.mark.parametrize("what", BAD)
def test_sync_leaves_a_bad_update_out_and_all_agree(what: str, tmp_path: Path) -> None:
    made, reason = BAD[what]
    said: list[events.Event] = []
    store = FolderStore(tmp_path)
    names = ["alice", "bob", "mallory"]

    def take_part(client: str, value: float) -> np.ndarray[Any, Any]:
        with hubless.join(
            tmp_path, client, pace=hubless.Rounds(members=names), events=said.append
        ) as member:
            result: np.ndarray[Any, Any] = member.step(params(value), examples=50)["w"]
            return result

    store.put(key("mallory", params(), 0), [made()])
    results = _together(lambda: take_part("alice", 2.0), lambda: take_part("bob", 4.0))
    assert results[0].tobytes() == results[1].tobytes()
    assert np.allclose(results[0], 3.0)
    refused = [e for e in said if isinstance(e, events.RefusedUpdate)]
    assert {e.peer for e in refused} == {"mallory"}
    _matches(reason, refused[0].reason)


def test_own_params_that_are_not_finite_are_not_shared_and_stay_as_they_are(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "alice") as alice:
        bad = with_nan()
        with pytest.raises(errors.ParamsError, match="'w' holds NaN.*model is untouched"):
            alice.step(bad, examples=50)
        assert not FolderStore(tmp_path).list("updates/")
        assert np.isnan(bad["w"][17, 3])


@pytest.mark.parametrize("client", ["a/b", "../x", "..", "", ".hidden", "a b", "é", "x" * 65, "-a"])
def test_a_name_that_cannot_be_a_key_is_refused_with_the_rule(client: str, tmp_path: Path) -> None:
    with pytest.raises(errors.BadName, match="client name .* letters a-z"):
        hubless.join(tmp_path, client)


@pytest.mark.parametrize("examples", [-1, 2.5, True, 10**16])
def test_an_impossible_number_of_examples_is_refused(examples: Any, tmp_path: Path) -> None:
    with hubless.join(tmp_path, "alice") as alice, pytest.raises(errors.ParamsError):
        alice.step(params(), examples=examples)


@pytest.mark.parametrize("model", [3, "weights", [1, 2], {"w": "x"}, {"w": np.array(["a"])}, {}])
def test_what_is_no_model_is_refused(model: Any, tmp_path: Path) -> None:
    with hubless.join(tmp_path, "alice") as alice, pytest.raises(errors.ParamsError):
        alice.step(model, examples=1)


def test_an_unknown_federation_format_is_refused_at_join(tmp_path: Path) -> None:
    FolderStore(tmp_path).put("federation.json", [b'{"hubless": 99, "mode": "async"}'])
    with pytest.raises(errors.UnknownVersion, match="format 99.*same version"):
        hubless.join(tmp_path, "alice")


def test_a_folder_that_holds_something_else_is_refused_at_join(tmp_path: Path) -> None:
    FolderStore(tmp_path).put("federation.json", [b"not json"])
    with pytest.raises(errors.FederationError, match="not a federation's record"):
        hubless.join(tmp_path, "alice")


def test_two_sites_with_different_models_are_told_at_join_which_parameters_differ(
    tmp_path: Path,
) -> None:
    hubless.join(tmp_path, "alice", model=params())
    other = {"w": np.zeros((300, 8), np.float32), "bias": np.zeros(3)}
    with pytest.raises(errors.SignatureMismatch) as raised:
        hubless.join(tmp_path, "bob", model=other)
    assert raised.value.differences == [
        "bias: only here (float64[3]), the federation has none",
        "steps: missing here, the federation has int64[]",
        "w: float32[300, 8] here, float32[300, 7] in the federation",
    ]
    assert all(line in str(raised.value) for line in raised.value.differences)


def test_a_model_that_changes_shape_on_the_way_is_refused(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "alice") as alice:
        alice.step(params(), examples=1)
        with pytest.raises(errors.SignatureMismatch, match=r"w: float32\[3\] here"):
            alice.step({**params(), "w": np.zeros(3, np.float32)}, examples=1)


def test_modes_and_strategies_do_not_mix(tmp_path: Path) -> None:
    hubless.join(tmp_path / "a", "alice", model=params())
    with pytest.raises(errors.FederationError, match="meet at any time, this one in rounds"):
        hubless.join(tmp_path / "a", "bob", pace=hubless.Rounds(members=2))
    hubless.join(tmp_path / "b", "alice", pace=hubless.Rounds(members=2), model=params())
    with pytest.raises(errors.FederationError, match=r"aggregates with FedAvg.*FedAdam"):
        hubless.join(
            tmp_path / "b",
            "bob",
            pace=hubless.Rounds(members=2),
            strategy=hubless.FedAdam(),
            model=params(),
        )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pace": "rounds"}, r"Anytime\(\) or Rounds\(members"),
        ({"pace": hubless.Rounds(["bob", "carol"])}, "'alice' is not among"),
        ({"pace": hubless.Rounds(3), "who": hubless.Participation(0.5)}, "quorum="),
        ({"who": 0.5}, r"who= takes Selection"),
        ({"every": 0}, "every= is a whole number of at least 1"),
        ({"share": "w"}, r"share=\['w'\]"),
        ({"optimizer": object()}, "optimizer= needs model="),
    ],
)
def test_terms_that_make_no_sense_are_refused_at_join(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(errors.FederationError, match=said):
        hubless.join(tmp_path, "alice", **given)


def test_the_earlier_of_two_live_processes_with_one_name_is_told_and_keeps_its_model(
    tmp_path: Path,
) -> None:
    with hubless.join(tmp_path, "alice") as first, hubless.join(tmp_path, "alice") as second:
        first.step(params(1.0), examples=1)
        second_is_later = second.member.incarnation > first.member.incarnation
        second.step(params(2.0), examples=1) if second_is_later else None
        loser, winner = (first, second) if second_is_later else (second, first)
        mine = params(5.0)
        with pytest.raises(errors.NameTaken, match="'alice'.*name of its own.*untouched"):
            loser.step(mine, examples=1)
        assert (mine["w"] == 5.0).all()
        winner.step(params(3.0), examples=1)


def test_a_closed_federation_says_so(tmp_path: Path) -> None:
    federation = hubless.join(tmp_path, "alice")
    federation.close()
    federation.close()
    with pytest.raises(errors.FederationError, match="was closed"):
        federation.step(params(), examples=1)


def _matches(pattern: str, text: str) -> None:
    import re

    assert re.search(pattern, text), text


def _together(*jobs: Callable[[], Any]) -> list[Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(job) for job in jobs]]
