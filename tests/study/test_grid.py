"""Grids: every cell once, whatever happens in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hubless.errors import DataError
from hubless.study.grid import Cell, Grid, Rows, _run, cells, label
from hubless.study.results import STOPS, why
from tests.support.waiting import until

AXES = {"selector": ["uniform", "activity:n"], "set": ["0", "1", "2"]}


@dataclass(frozen=True)
class Counted:
    """Takes two steps, each written down, and can die between them."""

    log: Path
    die_in: str = ""

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        for step in ("first", "second"):
            if (folder / step).exists():
                continue
            with open(self.log, "a") as file:
                file.write(f"{label(cell)} {step}\n")
            (folder / step).touch()
            if step == "first" and label(cell) == self.die_in:
                os.kill(os.getpid(), signal.SIGKILL)
            if time.monotonic() >= deadline:
                return None
        return [{"decile": d, "perplexity": 10.0 + d + int(cell["set"])} for d in (1, 2)]


def test_every_cell_is_run_once_and_rows_know_their_choices(tmp_path: Path) -> None:
    grid = Grid(AXES, tmp_path / "out")
    run = Counted(tmp_path / "log")
    assert grid.complete(run)
    assert grid.complete(run)
    assert len((tmp_path / "log").read_text().splitlines()) == 2 * 6
    frame = grid.frame()
    assert frame.shape == (12, 4)
    assert frame.filter(selector="activity:n", set="2", decile=2)["perplexity"].item() == 14.0
    assert not [path for path in grid.out.iterdir() if path.is_dir()]


def test_a_killed_study_loses_no_finished_cell_and_repeats_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "from pathlib import Path\n"
        "from hubless.study.grid import Grid\n"
        "from tests.study.test_grid import AXES, Counted\n"
        f"Grid(AXES, Path({str(tmp_path / 'out')!r})).complete("
        f"Counted(Path({str(log)!r}), 'activity_n-0'))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    grid = Grid(AXES, tmp_path / "out")
    assert sorted(grid.finished()) == ["uniform-0", "uniform-1", "uniform-2"]
    assert grid.complete(Counted(log))
    assert sorted(log.read_text().splitlines()) == sorted(
        f"{label(cell)} {step}" for cell in cells(AXES) for step in ("first", "second")
    )
    assert grid.frame().shape == (12, 4)


@dataclass(frozen=True)
class Noted:
    """Something that cells need."""

    log: Path
    name: str

    def __call__(self) -> None:
        with open(self.log, "a") as file:
            file.write(f"{self.name}\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_cells_need_is_done_before_them_and_only_for_them(
    tmp_path: Path, workers: int
) -> None:
    grid, log = Grid(AXES, tmp_path / "out"), tmp_path / "log"
    needed = [Noted(log, "one"), Noted(log, "two")]
    for _ in range(2):
        assert grid.complete(Counted(log), workers=workers, first=needed)
        noted = log.read_text().splitlines()
        assert sorted(noted[:2]) == ["one", "two"]
        assert len(noted) == 2 + 2 * 6
    log.unlink()
    late = Grid(AXES, tmp_path / "late")
    assert not late.complete(Counted(log), deadline=0.0, workers=workers, first=needed)
    assert not log.exists()


def test_cells_run_side_by_side_come_to_the_same(tmp_path: Path) -> None:
    alone, together = Grid(AXES, tmp_path / "a"), Grid(AXES, tmp_path / "b")
    assert alone.complete(Counted(tmp_path / "log a"))
    assert together.complete(Counted(tmp_path / "log b"), workers=2)
    order = ["selector", "set", "decile"]
    assert together.frame().sort(order).equals(alone.frame().sort(order))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_deadline_ends_it_with_all_that_is_finished_kept(tmp_path: Path, workers: int) -> None:
    grid = Grid(AXES, tmp_path / "out")
    run = Counted(tmp_path / "log")
    assert not grid.complete(run, deadline=time.monotonic() - 1, workers=workers)
    assert not grid.finished()
    assert grid.complete(run, workers=workers)


@dataclass(frozen=True)
class Narrow:
    """There is memory for so many at a time: once there are more, one of them finds none."""

    place: Path
    room: int

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        mine, full = self.place / label(cell), self.place.with_name("full")
        mine.touch()
        try:
            assert until(lambda: full.exists() or len(list(self.place.iterdir())) > self.room)
            with suppress(FileExistsError):
                full.touch(exist_ok=not self.room)
                raise torch.OutOfMemoryError("no room")
        finally:
            mine.unlink()
        return [{"perplexity": 1.0}]


def test_cells_that_find_no_room_are_run_later_with_fewer_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    grid = Grid(AXES, tmp_path / "out")
    assert grid.complete(Narrow(place, 2), workers=3)
    assert len(grid.finished()) == 6
    assert "the memory is full: 2 side by side from now" in capsys.readouterr().err
    none = Grid(AXES, tmp_path / "none")
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        none.complete(Narrow(place, 0), workers=2)
    assert not none.finished()


@dataclass(frozen=True)
class Crowded:
    """Two that fill the memory together, each at its first attempt."""

    place: Path

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        if not (mine := self.place / label(cell)).exists():
            mine.touch()
            _until(lambda: len(list(self.place.iterdir())) == 2)
            raise torch.OutOfMemoryError("no room for two")
        return [{"perplexity": 1.0}]


def _until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not there() and time.monotonic() < end:
        time.sleep(0.02)


def test_who_finds_no_room_beside_another_is_run_again_alone(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    grid = Grid({"set": ["0", "1"]}, tmp_path / "out")
    assert grid.complete(Crowded(place), workers=2)
    assert sorted(grid.finished()) == ["0", "1"]


@dataclass(frozen=True)
class Failing:
    """One cell fails, or its process dies, while another is under way."""

    sign: Path
    dies: bool

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        if cell["set"] == "1":
            _until((self.sign / "begun").exists)
            (self.sign / "failing").touch()
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise DataError("nothing in it")
        (self.sign / "begun").touch()
        _until((self.sign / "failing").exists)
        time.sleep(0.5)
        return [{"perplexity": 1.0}]


def test_a_cell_that_fails_ends_the_study_once_what_is_under_way_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Grid({"set": ["0", "1", "2", "3"]}, tmp_path / "out")
    with pytest.raises(DataError, match="nothing in it"):
        grid.complete(Failing(tmp_path, dies=False), workers=2)
    assert sorted(grid.finished()) == ["0"]
    assert "stopping because of 1: nothing in it" in capsys.readouterr().err


def test_a_process_that_is_killed_ends_the_study_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Grid({"set": ["0", "1"]}, tmp_path / "out")
    with pytest.raises(STOPS) as stop:
        grid.complete(Failing(tmp_path, dies=True), workers=2)
    assert "was killed" in why(stop.value)
    assert capsys.readouterr().err.count("stopping because: a process was killed") == 1


def test_what_is_left_is_told_as_cells_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if each had taken two minutes
    monkeypatch.setattr("hubless.study.grid._run", lambda *cell: (_run(*cell)[0], 120.0))
    Grid({"set": ["0", "1", "2"]}, tmp_path).complete(Counted(tmp_path / "log"))
    assert capsys.readouterr().err == (
        "cell 1 of 3: set 0; about 4 min to go\n"
        "cell 2 of 3: set 1; about 2 min to go\n"
        "cell 3 of 3: set 2\n"
    )


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"set": []}, "no choice of set"),
        ({"set": ["0", "0"]}, "a choice of set twice"),
        (
            {"selector": ["active:unseen=1", "active:unseen=-1"]},
            "would both be kept as active_unseen_1",
        ),
    ],
)
def test_a_grid_without_choices_or_with_one_twice_is_refused(
    axes: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        cells(axes)


def test_a_study_that_stops_says_why_in_a_line() -> None:
    told = [why(stop) for stop in (DataError("no such file"), KeyboardInterrupt())]
    assert told == ["no such file", "interrupted"]
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")
    assert "fewer lanes" in why(full)
    assert all(isinstance(stop, STOPS) for stop in (DataError(), KeyboardInterrupt(), full))
