"""Trackers, each read back with its own package's reader."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubless
from hubless.errors import HublessError
from hubless.events import (
    Ended,
    Joined,
    Left,
    Nothing,
    Pulled,
    Pushed,
    RefusedUpdate,
    Started,
    Trained,
)
from hubless.watch.trackers import Point, Tracker, point, to_mlflow, to_tensorboard, to_wandb
from tests.simulate.worlds import simulation
from tests.support.waiting import until


def _trained(round: int, client: str = "simulation", **changes: Any) -> Trained:
    values: dict[str, Any] = {
        "client": client,
        "time": 1000.0 + round,
        "round": round,
        "cohort": [1, 4],
        "skipped": 0,
        "dropped": 1,
        "metrics": {"loss": 1 / round},
        "bytes_down": 80,
        "bytes_up": 40,
        "seconds": 0.5,
        "virtual": 3.0 * round,
    }
    return Trained(**{**values, **changes})


def _member(name: str = "site-a") -> list[Any]:
    return [
        Joined(client=name, url="memory://x", mode="async", incarnation="i", resumed=False),
        Pushed(
            client=name, key="k", sequence=1, examples=9, bytes=8, metrics={"loss": 0.5}, time=10.0
        ),
        RefusedUpdate(client=name, peer="b", key="k", reason="too large", time=11.0),
        RefusedUpdate(client=name, peer="c", key="k", reason="too large", time=12.0),
        Pushed(
            client=name, key="k", sequence=2, examples=9, bytes=8, metrics={"loss": 0.25}, time=13.0
        ),
        Pulled(
            client=name,
            peers={"b": 1, "c": 2},
            weights={"b": 0.5, "c": 0.5},
            version=4,
            bytes=16,
            seconds=0.1,
            staleness={"b": 0, "c": 3},
            time=14.0,
        ),
        Left(client=name, steps=2),
    ]


class Kept:
    """A tracker in memory: what a fourth one has to be."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def opening(self, name: str, settings: Any, again: bool) -> Kept:
        self.calls.append(("again" if again else "new", name))
        return self

    def write(self, step: int, time: float, numbers: Any) -> None:
        self.calls.append((step, dict(numbers)))

    def close(self, well: bool) -> None:
        self.calls.append(well)


def test_a_round_says_its_metrics_costs_deciles_and_staleness() -> None:
    written = point(
        _trained(
            4,
            metrics={"loss": 0.25, "train_loss": float("nan")},
            deciles={"loss": [0.1, None]},
            phases={"train": 0.4},
            staleness=[0, 3],
        )
    )
    assert written.step == 4
    assert written.numbers == {
        "loss": 0.25,
        "deciles/loss/1": 0.1,
        "phases/train": 0.4,
        "staleness": 1.5,
        "staleness_most": 3,
        "clients": 2,
        "skipped": 0,
        "dropped": 1,
        "bytes_down": 80,
        "bytes_up": 40,
        "seconds": 0.5,
        "virtual": 12,
    }


def test_what_says_nothing_in_numbers_is_no_point() -> None:
    assert point(Nothing(client="a", version=2)) == Point()


def test_what_is_counted_adds_up_at_the_step_a_member_is_at() -> None:
    kept = Kept()
    tracker = Tracker(kept.opening)
    for event in _member():
        tracker(event)
    assert kept.calls[0] == ("new", "site-a") and kept.calls[-1] is True
    assert (1, {"refused": 1}) in kept.calls and (1, {"refused": 2}) in kept.calls
    assert kept.calls[-2][0] == 2 and kept.calls[-2][1]["staleness_most"] == 3


def test_a_run_that_goes_on_is_the_same_and_one_that_starts_anew_is_not() -> None:
    kept = Kept()
    tracker = Tracker(kept.opening)
    for start in (0, 1, 0):
        tracker(Started(round=start, settings={}))
        tracker(_trained(start + 1))
        tracker(Ended(round=start + 1, reason="failed" if start else "complete"))
    opened = [call[0] for call in kept.calls if isinstance(call, tuple) and call[1] == "simulation"]
    assert opened == ["new", "again", "new"]
    assert [call for call in kept.calls if isinstance(call, bool)] == [True, False, True]


def test_a_run_that_was_left_open_is_closed_where_its_name_starts_again() -> None:
    kept = Kept()
    tracker = Tracker(kept.opening)
    tracker(Started(round=0, settings={}))
    tracker(Started(round=0, settings={}))
    assert kept.calls == [("new", "simulation"), False, ("new", "simulation")]


@pytest.mark.parametrize("module", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    made = {
        "tensorboard": lambda: to_tensorboard("x"),
        "mlflow": lambda: to_mlflow("x"),
        "wandb": lambda: to_wandb("x"),
    }
    with pytest.raises(HublessError, match=f"pip install {module}"):
        made[module]()


def test_no_tracker_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, hubless.watch.trackers;"
        "print({'tensorboard', 'mlflow', 'wandb', 'torch', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def _scalars(folder: Path) -> tuple[dict[str, list[tuple[int, float, float]]], str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    read = EventAccumulator(str(folder)).Reload()
    points: dict[str, list[tuple[int, float, float]]] = {}
    text = ""
    for tag in read.Tags()["tensors"]:
        for event in read.Tensors(tag):
            value = make_ndarray(event.tensor_proto)
            if tag == "settings":
                text += str(value)
            else:
                points.setdefault(tag, []).append((event.step, event.wall_time, float(value)))
    return points, text


def test_tensorboard_reads_a_simulation(tmp_path: Path) -> None:
    ran = simulation(events=[to_tensorboard(tmp_path)], test=None)
    ran.run(rounds=3)
    numbers, settings = _scalars(tmp_path / "simulation")
    assert [step for step, _, _ in numbers["train_loss"]] == [1, 2, 3]
    losses = [value for _, _, value in numbers["train_loss"]]
    assert losses == pytest.approx(ran.history["train_loss"].to_list(), rel=1e-6)
    assert "FedAvg" in settings and "seed" in settings


def test_tensorboard_has_a_folder_for_each_member_and_none_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "boards"
    listener = to_tensorboard(folder)
    for event in [*_member("site-a"), *_member("../../site-b")]:
        listener(event)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 2 and [path.name for path in tmp_path.iterdir()] == ["boards"]
    numbers, _ = _scalars(folder / "site-a")
    assert [(step, value) for step, _, value in numbers["loss"]] == [(1, 0.5), (2, 0.25)]
    assert [(step, value) for step, _, value in numbers["refused"]] == [(1, 1.0), (1, 2.0)]
    assert numbers["loss"][1][1] == 13.0


@pytest.fixture
def mlflow_uri(tmp_path: Path) -> str:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_reads_two_simulations_and_a_member(mlflow_uri: str) -> None:
    from mlflow import MlflowClient

    listener = to_mlflow("études", mlflow_uri)
    ran = simulation(events=[listener])
    ran.run(rounds=2)
    ran.run(rounds=3)
    for event in _member():
        listener(event)
    listener(Started(client="other", round=0, settings={"seed": 3}))
    listener(_trained(1, "other", metrics={"top@5": 0.5}))
    listener(Ended(client="other", round=1, reason="failed"))
    client = MlflowClient(tracking_uri=mlflow_uri)
    experiment = client.get_experiment_by_name("études")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in runs.items()} == {
        "simulation": "FINISHED",
        "site-a": "FINISHED",
        "other": "FAILED",
    }
    history = client.get_metric_history(runs["simulation"].info.run_id, "train_loss")
    assert [metric.step for metric in history] == [1, 2, 3]
    values = [metric.value for metric in history]
    assert values == pytest.approx(ran.history["train_loss"].to_list())
    assert runs["simulation"].data.params["seed"] == "0"
    assert runs["site-a"].data.metrics["refused"] == 2
    assert runs["site-a"].data.metrics["staleness"] == 1.5
    assert runs["other"].data.metrics["top_5"] == 0.5


def test_wandb_writes_files_offline_and_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise AssertionError(f"{address} was called")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    listener = to_wandb("études", folder=tmp_path)
    for event in _member():
        listener(event)
    simulation(events=[listener]).run(rounds=2)
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    wanted = (b"staleness_most", b"site-a", b"train_loss", b"FedAvg", b"refused")

    def is_written() -> bool:
        contents = b"".join(path.read_bytes() for path in files)
        return all(part in contents for part in wanted)

    # by a process of its own, which may come to it later
    assert until(is_written)


def test_wandb_knows_two_modes_only() -> None:
    with pytest.raises(HublessError, match="offline"):
        to_wandb("x", mode="disabled")  # type: ignore[arg-type]


def test_members_that_are_threads_share_a_tracker(tmp_path: Path) -> None:
    listener = to_tensorboard(tmp_path / "boards")

    def site(name: str) -> None:
        with hubless.join(tmp_path / "meet", name, events=listener) as federation:
            for step in range(3):
                weights = {"w": np.full(4, float(step))}
                federation.step(weights, examples=10, metrics={"loss": 1 / (step + 1)})

    threads = [threading.Thread(target=site, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b", "c"):
        numbers, _ = _scalars(tmp_path / "boards" / name)
        assert len(numbers["loss"]) == 3
        assert numbers["loss"][-1][2] == pytest.approx(1 / 3)
