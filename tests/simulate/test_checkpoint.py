"""Checkpoints: whatever ends a run, it goes on to the same bits; what is broken is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from hubless.errors import DataError
from hubless.events import Ended, Event
from hubless.select.roster import Ints, Roster
from hubless.select.uniform import Uniform
from hubless.simulate import checkpoint
from hubless.simulate.callbacks import Checkpoint
from hubless.simulate.engine.machine import Local
from hubless.simulate.simulation import Simulation
from hubless.simulate.times import Buffered, Devices, Pace, constant, uniform
from hubless.strategy.fedadam import FedAdam
from hubless.strategy.fedasync import FedAsync
from hubless.strategy.fedavg import FedAvg
from hubless.strategy.fedbuff import FedBuff
from hubless.strategy.look import Seen
from hubless.train.losses import cross_entropy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.victim import victim
from tests.simulate.worlds import mlp, people, simulation

ROOT = Path(__file__).parents[2]
SLOW = Devices(speed=uniform(1, 50), down=constant(1e6), up=constant(1e5))


def by_root(seen: Seen) -> Any:
    """A weighting of one's own."""
    return np.sqrt(seen.examples)


KINDS: dict[str, dict[str, Any]] = {
    "FedAvg": {"strategy": FedAvg()},
    "FedAdam": {"strategy": FedAdam(lr=0.05)},
    "a function": {"strategy": FedAvg(weighting=by_root)},
    "lanes": {"engine": Local(lanes=3, compiled=False, processes=1)},
    "a falling rate": {"recipe": Recipe(SGD(0.3), batch=4, decay=0.9)},
    "over-selection": {"devices": SLOW, "pace": Pace(over=1.5, deadline=5.0)},
    "FedBuff": {
        "strategy": FedBuff(),
        "devices": SLOW,
        "pace": Buffered(concurrency=5, buffer=2),
    },
    "FedAsync": {
        "strategy": FedAsync(),
        "devices": SLOW,
        "pace": Buffered(concurrency=5, buffer=1, adding="params"),
    },
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def _made(kind: str, **changes: Any) -> Simulation:
    usual = {"test": people([20], seed=8), "evaluate_every": 1, "seed": 4}
    return simulation(**{**usual, **KINDS[kind], **changes})


def _assert_the_same(one: Simulation, other: Simulation) -> None:
    assert one.round == other.round
    assert torch.equal(one.flat, other.flat)
    assert one.virtual == other.virtual
    told = [simulation.history.drop("seconds") for simulation in (one, other)]
    assert_frame_equal(*told, check_exact=True)


@every_kind
def test_going_on_from_a_checkpoint_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole = _made(kind)
    whole.run(rounds=8)
    stopped = 0
    while stopped < 8:
        part = _made(kind)
        assert part.resume(tmp_path) == (stopped > 0)
        assert part.round == stopped
        stopped = min(8, stopped + 3)
        part.run(rounds=stopped)
        part.save(tmp_path)
    _assert_the_same(whole, part)


def test_where_there_is_no_checkpoint_yet_a_run_starts_from_the_beginning(tmp_path: Path) -> None:
    fresh = simulation()
    assert not fresh.resume(tmp_path)
    assert not fresh.resume(tmp_path / "nowhere")
    assert fresh.round == 0


def test_saving_before_the_first_round_is_possible(tmp_path: Path) -> None:
    fresh, again = _made("FedBuff"), _made("FedBuff")
    fresh.save(tmp_path)
    assert again.resume(tmp_path)
    again.run(rounds=3)
    fresh.run(rounds=3)
    _assert_the_same(fresh, again)


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    ran = _made("FedAvg", callbacks=[Checkpoint(tmp_path)])
    ran.run(rounds=3)
    again = _made("FedAvg")
    again.resume(tmp_path)
    again.run(rounds=3)
    _assert_the_same(ran, again)


class Alarm:
    """Interrupts as Ctrl-C does, the given number of calls from when it was set."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __call__(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.left = None
                raise KeyboardInterrupt


class Watched(Uniform):
    """Uniform selection that may be interrupted."""

    alarm: Callable[[], None] = staticmethod(lambda: None)

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        Watched.alarm()
        return super().__call__(roster, k, rng)


def _alarmed(kind: str, where: str, alarm: Alarm, folder: Path) -> Simulation:
    """A simulation that is interrupted in one place."""

    def loss(output: Any, target: Any) -> torch.Tensor:
        if where == "training" and output.requires_grad:
            alarm()
        return cross_entropy(output, target)

    def metric(output: Any, target: Any) -> torch.Tensor:
        if where == "evaluation":
            alarm()
        return cross_entropy(output, target)

    def callback(simulation: Simulation, row: Any) -> None:
        if where == "a callback":
            alarm()

    return _made(
        kind,
        task=Task(mlp(), loss, metrics={"again": metric}),
        selector=Watched(),
        callbacks=[callback, Checkpoint(folder, every=100)],
    )


@pytest.mark.parametrize("where", ["selection", "training", "evaluation", "a callback"])
@pytest.mark.parametrize("kind", ["FedAvg", "FedBuff"])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    kind: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm = Alarm()
    if where == "selection":
        monkeypatch.setattr(Watched, "alarm", staticmethod(alarm))
    whole = _alarmed(kind, where, alarm, tmp_path / "whole")
    whole.run(rounds=8)
    for calls in (2, 3, 7):
        folder = tmp_path / str(calls)
        broken = _alarmed(kind, where, alarm, folder)
        alarm.left = calls
        said: list[Event] = []
        broken.events.listeners.append(said.append)
        with pytest.raises(KeyboardInterrupt):
            broken.run(rounds=8)
        assert isinstance(said[-1], Ended)
        assert said[-1].reason == "interrupted"
        again = _alarmed(kind, where, alarm, folder)
        assert again.resume(folder)
        again.run(rounds=8)
        _assert_the_same(whole, again)


def test_an_interrupted_simulation_can_simply_be_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = Alarm()
    monkeypatch.setattr(Watched, "alarm", staticmethod(alarm))
    whole, broken = (_made("FedAdam", selector=Watched()) for _ in range(2))
    whole.run(rounds=5)
    alarm.left = 3
    with pytest.raises(KeyboardInterrupt):
        broken.run(rounds=5)
    assert broken.round == 2
    broken.run(rounds=5)
    _assert_the_same(whole, broken)


@contextmanager
def _started(folder: Path, processes: int, every: int) -> Iterator[subprocess.Popen[str]]:
    """A victim that has done a few rounds."""
    arguments = [str(folder), str(processes), str(every)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.simulate.victim", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 4:
                break
        yield process
    finally:
        process.kill()
        process.communicate()


def _goes_on(folder: Path, processes: int) -> None:
    """What a folder holds leads to where an undisturbed run gets."""
    again = victim(processes)
    assert again.resume(folder)
    assert again.round >= 3
    target = again.round + 2
    again.run(rounds=target)
    whole = victim(processes)
    whole.run(rounds=target)
    _assert_the_same(whole, again)


def test_a_run_that_was_killed_goes_on_to_the_same_bits_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    with _started(tmp_path, processes=2, every=1) as process:
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    _goes_on(tmp_path, processes=2)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_leaves_a_checkpoint_of_the_last_round(tmp_path: Path, processes: int) -> None:
    with _started(tmp_path, processes, every=1_000_000) as process:
        assert not (tmp_path / checkpoint.NAME).exists()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "KeyboardInterrupt" in err
        assert process.returncode != 0
    _, facts = checkpoint.read(tmp_path)
    assert [row["round"] for row in facts["rows"]] == list(range(1, facts["round"] + 1))
    _goes_on(tmp_path, processes)


@pytest.mark.parametrize("where", ["record_selected", "record_seen", "event"])
def test_ctrl_c_while_a_round_is_written_down_waits_for_it(where: str, tmp_path: Path) -> None:
    whole = _made("FedAdam")
    whole.run(rounds=6)
    stopped = _made("FedAdam", callbacks=[Checkpoint(tmp_path, every=1_000_000)])

    def interrupted(*args: Any) -> None:
        if stopped.round == 3:
            signal.raise_signal(signal.SIGINT)
        recorded(*args)

    if where == "event":
        recorded = stopped.events.emit
        stopped.events.emit = interrupted  # type: ignore[method-assign]
    else:
        recorded = getattr(stopped.roster, where)
        setattr(stopped.roster, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(rounds=6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = _made("FedAdam")
    resumed.resume(tmp_path)
    assert [row["round"] for row in resumed.rows] == [1, 2, 3]
    resumed.run(rounds=6)
    _assert_the_same(whole, resumed)
    picked = [run.roster.state()["selected"] for run in (whole, resumed)]
    assert np.array_equal(*picked)


def _written(folder: Path) -> Path:
    ran = _made("FedBuff")
    ran.run(rounds=2)
    return ran.save(folder)


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda raw: b"", "truncated"),
    "a few bytes": (lambda raw: raw[:5], "truncated"),
    "half": (lambda raw: raw[: len(raw) // 2], "truncated"),
    "short of a byte": (lambda raw: raw[:-1], "truncated, or longer"),
    "longer": (lambda raw: raw + b"more", "truncated, or longer"),
    "garbage": (lambda raw: np.random.default_rng(1).bytes(len(raw)), "cannot be used"),
    "text": (lambda raw: b"once upon a time there was a checkpoint", "cannot be used"),
    "a changed number": (lambda raw: raw[:-9] + b"!" + raw[-8:], "do not match their digests"),
    "a header without anything": (
        lambda raw: (2).to_bytes(8, "little") + b"{}",
        "cannot be used",
    ),
    "another header": (
        lambda raw: (4).to_bytes(8, "little") + b"null",
        "cannot be used",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_refused_and_named(what: str, tmp_path: Path) -> None:
    change, message = BROKEN[what]
    path = _written(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    fresh = _made("FedBuff")
    with pytest.raises(DataError, match=message) as caught:
        fresh.resume(tmp_path)
    assert str(path) in str(caught.value)
    assert fresh.round == 0
    fresh.run(rounds=1)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _written(tmp_path_factory.mktemp("intact")).read_bytes()


@settings(max_examples=200)
@given(data=st.data())
def test_a_flipped_bit_is_noticed_wherever_it_is(
    data: st.DataObject, intact: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    raw = bytearray(intact)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / checkpoint.NAME).write_bytes(raw)
    with pytest.raises(DataError):
        checkpoint.read(folder)


def test_no_checkpoint_at_all_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no checkpoint in .*checkpoint\.safetensors is missing"):
        checkpoint.read(tmp_path)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 5}, "its seed is 4, here it is 5"),
    "cohort": ({"cohort": 3}, "its cohort is 4, here it is 3"),
    "clients": ({"population": people((5, 5, 5, 5, 4))}, "its clients is 11, here it is 5"),
    "examples": ({"population": people((*[5] * 10, 4))}, "its examples is 64, here it is 54"),
    "model": ({"task": Task(mlp(classes=4))}, "its model is"),
    "recipe": ({"recipe": Recipe(SGD(0.2))}, r"its recipe is Recipe\(.*SGD\(lr=0.1"),
    "strategy": ({"strategy": FedAdam()}, "its strategy is FedAvg.*here it is FedAdam"),
    "pace": ({"pace": Buffered()}, r"its pace is Pace\(.*here it is Buffered"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_checkpoint_of_another_simulation_is_refused_with_the_difference(
    what: str, tmp_path: Path
) -> None:
    changes, message = OTHERS[what]
    _made("FedAvg").save(tmp_path)
    other = _made("FedAvg", **changes)
    with pytest.raises(DataError, match=f"of another simulation: {message}"):
        other.resume(tmp_path)
    assert other.round == 0


class Busiest:
    """A selector as one writes it: no text of its own."""

    def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
        return np.argsort(-roster.examples)[:k]


def test_a_selector_without_a_text_of_its_own_can_be_gone_on_with(tmp_path: Path) -> None:
    first, second = _made("FedAvg", selector=Busiest()), _made("FedAvg", selector=Busiest())
    first.save(tmp_path)
    assert second.resume(tmp_path)


def test_the_checkpoint_of_a_simulation_with_other_devices_is_refused(tmp_path: Path) -> None:
    _made("FedBuff").save(tmp_path)
    with pytest.raises(DataError, match="of another simulation"):
        _made("FedBuff", devices=Devices(speed=constant(1))).resume(tmp_path)


def test_what_stood_there_stays_until_the_new_checkpoint_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _written(tmp_path)
    before = path.read_bytes()

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    ran = _made("FedBuff")
    ran.run(rounds=3)
    with pytest.raises(OSError, match="No space left"):
        ran.save(tmp_path)
    assert path.read_bytes() == before


def test_a_checkpoint_holds_no_code(tmp_path: Path) -> None:
    raw = _written(tmp_path).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header) >= {"__metadata__", "params", "learned", "learned losses"}
