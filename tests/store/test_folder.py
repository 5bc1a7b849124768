"""Folders: killed writers, missing permissions, forks, odd paths and folders that go away."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubless.errors import AlreadyExists, NoObject, NotFound, StoreError
from hubless.store import open_store
from hubless.store.folder import FolderStore

# A put whose second part never comes: the process is certain to be in the middle of it.
_STUCK_PUT = """
import sys, threading
from hubless.store.folder import FolderStore

class Stuck(list):
    def __iter__(self):
        yield b"x" * 100_000
        print("in the middle", flush=True)
        threading.Event().wait()

FolderStore(sys.argv[1]).put("updates/a/1", Stuck(), create=sys.argv[2] == "create")
"""


@contextlib.contextmanager
def _stuck_writer(root: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _STUCK_PUT, str(root), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in the middle\n"
            yield process
        finally:
            process.kill()


def _staged(root: Path) -> list[Path]:
    return list((root / ".staging").iterdir())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user of the machine can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextlib.contextmanager
def _ordinary_user() -> Iterator[None]:
    """Root may write anywhere, so permissions are only seen by somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("how", ["overwrite", "create"])
def test_what_a_killed_writer_left_is_collected_after_a_day(tmp_path: Path, how: str) -> None:
    with _stuck_writer(tmp_path, how) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (left,) = _staged(tmp_path)
    assert left.stat().st_size == 100_000
    # it may be another machine's, or another container's, that goes by the same name
    store = FolderStore(tmp_path)
    assert _staged(tmp_path) == [left]
    os.utime(left, (0, 0))
    FolderStore(tmp_path)
    assert _staged(tmp_path) == []
    assert store.list("") == []
    store.put("updates/a/1", [b"again"], create=True)
    assert store.get("updates/a/1") == b"again"


def test_what_a_live_writer_has_staged_is_left_alone_and_unseen(tmp_path: Path) -> None:
    with _stuck_writer(tmp_path, "overwrite"):
        store = FolderStore(tmp_path)
        assert len(_staged(tmp_path)) == 1
        assert store.list("") == []
        with pytest.raises(NotFound):
            store.get("updates/a/1")


def test_what_no_writer_of_this_user_staged_is_left_alone_however_old(tmp_path: Path) -> None:
    staging = tmp_path / ".staging"
    staging.mkdir()
    name = f"{'0' * 32}.part"
    kept = [staging / f"{socket.gethostname()}-99999999999999999999-x", staging / "notes"]
    kept.append(staging / name.replace("0", "1"))
    for path in (*kept, staging / name):
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    if os.geteuid() == 0:
        os.chown(kept[-1], 65534, -1)
    else:
        kept.pop().unlink()
    (staging / name.replace("0", "2")).mkdir()
    (staging / name.replace("0", "3")).symlink_to(tmp_path / "anywhere")
    FolderStore(tmp_path)
    kept += [staging / name.replace("0", digit) for digit in "23"]
    assert sorted(_staged(tmp_path)) == sorted(kept)


def test_a_put_that_succeeded_or_failed_leaves_nothing_staged(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a", [b"1"])
    with pytest.raises(StoreError):
        store.put("a", [b"2"], create=True)
    with pytest.raises(StoreError):
        store.put("a/b", [b"3"])
    assert _staged(tmp_path) == []


def test_a_folder_without_write_permission_is_a_clear_error(open_folder: Path) -> None:
    locked = open_folder / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    with _ordinary_user(), pytest.raises(StoreError) as raised:
        FolderStore(locked).put("key", [b"x"])
    assert str(locked) in str(raised.value)
    assert "Permission denied" in str(raised.value)
    assert isinstance(raised.value.__cause__, PermissionError)


def test_permission_lost_while_running_is_a_clear_error_naming_the_key(open_folder: Path) -> None:
    store = FolderStore(open_folder)
    store.put("mine/1", [b"x"])
    with _ordinary_user():
        if os.geteuid() != 65534:
            (open_folder / ".staging").chmod(0o555)
            (open_folder / "mine").chmod(0o555)
        assert store.get("mine/1") == b"x"
        with pytest.raises(StoreError, match=r"cannot write .*Permission denied") as writing:
            store.put("mine/2", [b"x"])
        with pytest.raises(StoreError, match=r"cannot delete .*Permission denied") as deleting:
            store.delete(["mine/1"])
    assert (writing.value.key, deleting.value.key) == ("mine/2", "mine/1")
    for folder in (".staging", "mine"):
        (open_folder / folder).chmod(0o755)


def test_somebody_elses_private_staging_folder_is_a_clear_error(open_folder: Path) -> None:
    staging = open_folder / ".staging"
    staging.mkdir()
    staging.chmod(0o000 if os.geteuid() else 0o700)
    try:
        with _ordinary_user(), pytest.raises(StoreError, match="Permission denied"):
            FolderStore(open_folder).put("mine", [b"x"])
    finally:
        staging.chmod(0o755)


def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"not a folder")
    with pytest.raises(StoreError) as raised:
        FolderStore(path)
    assert str(path) in str(raised.value)
    assert "File exists" in str(raised.value)
    assert path.read_bytes() == b"not a folder"


def test_a_folder_below_a_key_is_no_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a/b", [b"x"])
    for key in ("a", "a/b/c"):
        with pytest.raises(NotFound):
            store.get(key)
        with pytest.raises(NotFound):
            store.read(key, 0, 1)


def _write_in_child(store: FolderStore, name: str) -> None:
    for i in range(50):
        store.put(f"{name}/{i:02d}", [name.encode()])
    store.delete([f"{name}/00"])
    assert len(store.list(f"{name}/")) == 49


def test_a_forked_child_goes_on_with_the_same_store(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("before", [b"x"])
    context = multiprocessing.get_context("fork")
    names = ["parent", "one", "two"]
    children = [context.Process(target=_write_in_child, args=(store, name)) for name in names[1:]]
    for child in children:
        child.start()
    _write_in_child(store, names[0])
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    keys = [f"{name}/{i:02d}" for name in names for i in range(1, 50)]
    assert [entry.key for entry in store.list("")] == sorted(["before", *keys])
    assert all(store.get(key) == key.split("/")[0].encode() for key in keys)
    assert _staged(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    ["with space", "50%25", "a#b?c", "ümläut-漢字-🌲", "quo'te\"s", "back\\slash", "new\nline"],
)
def test_odd_characters_in_the_path_survive_also_as_an_address(tmp_path: Path, name: str) -> None:
    root = tmp_path / name / "run"
    FolderStore(root).put("key", [b"x"])
    assert (root / "key").read_bytes() == b"x"
    for address in (str(root), root, FolderStore(root).url):
        opened = open_store(address)
        assert isinstance(opened, FolderStore)
        assert opened.root == root
        assert opened.get("key") == b"x"


@pytest.mark.parametrize("part", [" ", "%2F", "#?&=+", "ü漢🌲", "a:b*c"])
def test_odd_characters_in_a_key_come_back_in_the_listing(tmp_path: Path, part: str) -> None:
    store = FolderStore(tmp_path)
    store.put(f"x{part}/{part}y", [b"1"])
    assert [entry.key for entry in store.list(f"x{part}/")] == [f"x{part}/{part}y"]
    assert store.get(f"x{part}/{part}y") == b"1"


def test_the_home_folder_may_be_written_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    FolderStore("~/run").put("key", [b"x"])
    assert (tmp_path / "run" / "key").read_bytes() == b"x"


def test_a_relative_path_stays_what_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = FolderStore("run")
    monkeypatch.chdir("/")
    store.put("key", [b"x"])
    assert (tmp_path / "run" / "key").read_bytes() == b"x"


def test_writing_to_a_folder_that_vanished_is_an_error_and_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    store = FolderStore(root)
    store.put("key", [b"x"])
    shutil.rmtree(root)
    with pytest.raises(StoreError, match=str(root)):
        store.put("key", [b"x"])
    with pytest.raises(NotFound):
        store.get("key")
    # an unmounted share must not be written to underneath its mount point
    assert not root.exists()


def test_a_folder_that_vanished_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    root = tmp_path / "run"
    store = FolderStore(root)
    store.put("key", [b"x"])
    shutil.rmtree(root)
    with pytest.raises(StoreError, match=str(root)):
        store.list("")


def test_a_folder_that_comes_back_is_used_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    store = FolderStore(root)
    store.put("key", [b"x"])
    root.rename(tmp_path / "away")
    with pytest.raises(StoreError):
        store.put("other", [b"y"])
    (tmp_path / "away").rename(root)
    store.put("other", [b"y"])
    assert [entry.key for entry in store.list("")] == ["key", "other"]


def test_a_prefix_that_is_no_whole_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends in '/'"):
        FolderStore(tmp_path).list("run")


def test_an_address_of_no_known_kind_names_the_known_ones() -> None:
    with pytest.raises(StoreError, match=r"no store for ftp://.*s3://.*gs://.*az://.*memory://"):
        open_store("ftp://server/run")


def test_whoever_only_looks_leaves_a_folder_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        FolderStore(tmp_path / "none", make=False)
    assert not (tmp_path / "none").exists()
    left = tmp_path / ".staging" / f"{'0' * 32}.part"
    left.parent.mkdir()
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    FolderStore(tmp_path, make=False).list("")
    assert left.exists()
    FolderStore(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    "address", ["file://shared/run", "file://./run", "file://~/run", "file://"]
)
def test_a_file_address_that_names_no_folder_of_this_machine_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match=f"{address}.*file:///folder"):
        open_store(address, make=False)


def test_a_file_address_may_name_this_machine(tmp_path: Path) -> None:
    opened = open_store(f"file://localhost{tmp_path}/run")
    assert opened.url == f"file://{tmp_path}/run"


@pytest.mark.parametrize("kind", ["file:///run", "memory://run", "s3://box/run", "az://box/run"])
@pytest.mark.parametrize("rest", ["#1", "?lr=1"])
def test_addresses_that_would_differ_in_what_is_dropped_are_refused(kind: str, rest: str) -> None:
    with pytest.raises(StoreError, match="no '\\?' and no '#'.*%3F and %23"):
        open_store(kind + rest, make=False)


@pytest.mark.parametrize("name", ["lost+found", ".Trash-0"])
def test_what_a_disk_keeps_for_itself_does_not_hide_the_rest(open_folder: Path, name: str) -> None:
    store = FolderStore(open_folder)
    store.put("updates/1", [b"x"])
    _make_private(open_folder / name)
    with _ordinary_user():
        assert [entry.key for entry in store.list("")] == ["updates/1"]


@pytest.mark.parametrize("name", ["updates", "updates/lost+found", "updates/.hidden"])
def test_a_folder_that_cannot_be_read_is_passed_over_and_named_once(
    open_folder: Path, name: str
) -> None:
    store = FolderStore(open_folder)
    store.put("rounds/1", [b"x"])
    passed_over: list[tuple[str, str]] = []
    store.on_skip = lambda key, reason: passed_over.append((key, reason))
    _make_private(open_folder / name)
    with _ordinary_user():
        for _ in range(3):
            assert [entry.key for entry in store.list("")] == ["rounds/1"]
    assert passed_over == [(f"{name}/", "Permission denied")]


@contextlib.contextmanager
def _socket_at(path: Path) -> Iterator[None]:
    # an address of a socket is short, and a folder of tests is not
    with socket.socket(socket.AF_UNIX) as bound, tempfile.TemporaryDirectory() as near:
        bound.bind(f"{near}/s")
        os.rename(f"{near}/s", path)
        yield


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Path]:
    """A store's folder with something else than a file under each of its keys."""
    root = tmp_path / "run"
    (root / "keys").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "keys" / "link").symlink_to(outside / "secret")
    (root / "keys" / "dangling").symlink_to(outside / "new")
    (root / "keys" / "zeros").symlink_to("/dev/zero")
    (root / "keys" / "folder").symlink_to(outside)
    os.mkfifo(root / "keys" / "pipe")
    with _socket_at(root / "keys" / "socket"):
        yield root
    assert [path.read_bytes() for path in outside.iterdir()] == [b"secret"]


_KINDS = ("link", "dangling", "zeros", "pipe", "socket", "folder", "folder/secret")


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_no_file_cannot_be_read_and_does_not_hang(trap: Path, kind: str) -> None:
    store = FolderStore(trap)
    with pytest.raises(NoObject, match=f"cannot read .*keys/{kind}: .* is ") as raised:
        store.get(f"keys/{kind}")
    assert raised.value.key == f"keys/{kind}"
    with pytest.raises(NoObject):
        store.read(f"keys/{kind}", 0, 1)


def test_what_is_no_file_is_not_listed_and_named_once(trap: Path) -> None:
    store = FolderStore(trap)
    store.put("keys/good", [b"x"])
    (trap / "keys" / "back\\slash").write_bytes(b"")
    (trap / "keys" / os.fsdecode(b"no \xff text")).write_bytes(b"")
    passed_over: list[str] = []
    store.on_skip = lambda key, reason: passed_over.append(key)
    for prefix in ("", "keys/", "", "keys/folder/"):
        assert [e.key for e in store.list(prefix)] == ["keys/good"] * (prefix != "keys/folder/")
    assert len(passed_over) == 9
    assert {"keys/link", "keys/folder", "keys/pipe", "keys/folder/"} <= set(passed_over)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_write_where_something_else_stands_goes_nowhere_else(trap: Path, kind: str) -> None:
    store = FolderStore(trap)
    is_inside = kind == "folder/secret"
    with pytest.raises(NoObject if is_inside else AlreadyExists):
        store.put(f"keys/{kind}", [b"x"], create=True)
    if is_inside:
        with pytest.raises(NoObject, match="keys/folder is a link, and links are not followed"):
            store.put(f"keys/{kind}", [b"x"])
        store.delete([f"keys/{kind}"])
    else:
        # what stands there is replaced, not followed
        store.put(f"keys/{kind}", [b"x"])
        assert store.get(f"keys/{kind}") == b"x"
        store.delete([f"keys/{kind}"])
    assert _staged(trap) == []


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "pipe"])
def test_a_folder_of_staged_writes_that_is_none_is_an_error_that_names_it(
    tmp_path: Path, kind: str
) -> None:
    root, victim = tmp_path / "run", tmp_path / "victim"
    store = FolderStore(root)
    victim.mkdir()
    old = victim / f"{'0' * 32}.part"
    old.write_bytes(b"mine")
    os.utime(old, (0, 0))
    staging = root / ".staging"
    if kind == "link":
        staging.symlink_to(victim)
    elif kind == "dangling":
        staging.symlink_to(tmp_path / "new")
    elif kind == "file":
        staging.write_bytes(b"")
    else:
        os.mkfifo(staging)
    with pytest.raises(NoObject, match=r"\.staging is (a link|no folder|neither).*Remove it"):
        store.put("key", [b"x"])
    with pytest.raises(NoObject, match=r"\.staging is "):
        FolderStore(root)
    assert FolderStore(root, make=False).list("") == []
    assert [path.read_bytes() for path in victim.iterdir()] == [b"mine"]
    assert not (tmp_path / "new").exists()


def test_folders_nested_without_end_hide_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("/".join(["a"] * 32), [b"x"])
    inner = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("x" * 200, dir_fd=inner)
        below = os.open("x" * 200, os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(inner)
    passed_over: list[str] = []
    store.on_skip = lambda key, reason: passed_over.append(reason)
    assert [entry.key for entry in store.list("")] == ["/".join(["a"] * 32)]
    assert passed_over == ["it lies more than 32 folders deep"]
    with pytest.raises(ValueError, match="not a key"):
        store.put("/".join(["a"] * 33), [b"x"])


def test_the_store_s_own_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    store = FolderStore(tmp_path / "run")
    store.put("a/b", [b"x"])
    assert [entry.key for entry in store.list("")] == ["a/b"]
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"x"


def test_the_store_may_lie_below_a_folder_of_staged_writes(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / ".staging" / "run")
    store.put("a", [b"x"])
    assert store.get("a") == b"x"


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o000 if os.geteuid() else 0o700)
