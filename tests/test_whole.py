"""Files that are whole or not there, in a folder where others plant links and pipes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubless.whole import write_new, write_whole


def _breaking_off() -> Iterator[bytes]:
    yield b"half"
    raise KeyboardInterrupt


def test_a_write_that_is_interrupted_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, _breaking_off())
    assert list(tmp_path.iterdir()) == []
    write_whole(path, "before")
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, _breaking_off())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    write_whole(tmp_path / "file", [b"a", memoryview(b"b")], sync=True)
    assert (tmp_path / "file").read_bytes() == b"ab"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "outside").read_text() == "untouched"


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "pipe"])
def test_a_new_file_is_never_written_through_what_stands_there(tmp_path: Path, kind: str) -> None:
    path, outside = tmp_path / "file", tmp_path / "outside"
    outside.write_text("untouched")
    if kind == "file":
        path.write_text("untouched")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside if kind == "link" else tmp_path / "new")
    with pytest.raises(FileExistsError):
        write_new(path, [b"x"])
    assert outside.read_text() == "untouched"
    assert not (tmp_path / "new").exists()
    assert kind != "file" or path.read_text() == "untouched"


def test_a_long_name_leaves_room_for_the_name_of_the_staged_file(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 250), "x")
    write_whole(tmp_path / ("ü" * 120), "x")
    assert len(list(tmp_path.iterdir())) == 2
