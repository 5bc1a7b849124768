"""Git log: authors and subjects of a small repository made here, and what is no repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hubless.data import Population, Timeline
from hubless.data.sources import gitlog
from hubless.errors import DataError

KEY = b"a key"
Git = Callable[..., str]


def _clean() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def _in(folder: Path) -> Git:
    def git(*arguments: str, input: bytes = b"", **variables: str) -> str:
        ran = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=_clean() | variables,
            input=input,
            capture_output=True,
            check=True,
        )
        return ran.stdout.decode()

    return git


def _commit(
    git: Git, subject: bytes | str, author: str, date: str, *more: str, name: str = "Somebody"
) -> None:
    raw = subject.encode() if isinstance(subject, str) else subject
    git(
        "commit", "-q", "--allow-empty", "--allow-empty-message", "-F", "-", *more,
        input=raw,
        GIT_AUTHOR_NAME=name,
        GIT_AUTHOR_EMAIL=author,
        GIT_AUTHOR_DATE=date,
        GIT_COMMITTER_NAME="Committer",
        GIT_COMMITTER_EMAIL="committer@example.org",
        GIT_COMMITTER_DATE="2020-01-01T00:00:00Z",
    )  # fmt: skip


def _written(git: Git, subject: bytes, date: str) -> None:
    """A commit as old or broken tools left them, which git itself would not make."""
    tree, parent = git("write-tree").strip(), git("rev-parse", "HEAD").strip()
    head = f"tree {tree}\nparent {parent}\nauthor A <a@x.org> {date}\n"
    raw = f"{head}committer A <a@x.org> 0 +0000\n\n".encode() + subject
    made = git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", input=raw)
    git("reset", "-q", "--soft", made.strip())


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    _in(folder)("init", "-q", "-b", "main")
    return folder


def _texts(people: Population) -> list[list[str]]:
    return [people.client(i)["text"].tolist() for i in range(len(people))]


def test_subjects_are_grouped_by_author_in_the_order_of_authoring(clone: Path) -> None:
    git = _in(clone)
    _commit(git, "Second of Bob\n\nA body that nobody reads.", "bob@x.org", "2019-05-02T00:00:00Z")
    _commit(git, "First of Ann", "ann@x.org", "2019-05-01T12:00:00Z")
    _commit(git, "First of Bob", "bob@x.org", "2019-04-30T12:00:00Z")
    people = gitlog.load(clone)
    assert _texts(people) == [["First of Bob", "Second of Bob"], ["First of Ann"]]
    assert isinstance(people.columns["text"].dtype, np.dtypes.StringDType)
    assert people.columns["time"].dtype == "datetime64[us]"
    assert Timeline.of(people).last(1).sizes.tolist() == [1, 0]


def test_times_of_other_zones_become_utc(clone: Path) -> None:
    git = _in(clone)
    _commit(git, "east", "a@x.org", "2016-03-01T01:30:00+0530")
    _commit(git, "west", "a@x.org", "2015-12-31T20:00:00-0800")
    _commit(git, "old", "a@x.org", "@1234567 +0000")
    times = gitlog.load(clone).client(0)["time"]
    assert times.tolist() == [
        np.datetime64(text, "us").item()
        for text in ("1970-01-15T06:56:07", "2016-01-01T04:00", "2016-02-29T20:00")
    ]


def test_equal_times_stay_in_the_order_of_history(clone: Path) -> None:
    for text in ("one", "two", "three"):
        _commit(_in(clone), text, "a@x.org", "2016-03-01T00:00:00Z")
    assert _texts(gitlog.load(clone)) == [["one", "two", "three"]]


def test_subjects_in_any_encoding_are_read(clone: Path) -> None:
    git = _in(clone)
    _commit(git, "Füge ein \u2014 日本", "a@x.org", "2016-01-01T00:00:00Z")
    _written(git, b"caf\xe9", "1451692800 +0000")
    git("config", "i18n.commitEncoding", "ISO-8859-1")
    _commit(git, b"caf\xe9", "a@x.org", "2016-01-03T00:00:00Z")
    assert _texts(gitlog.load(clone)) == [["Füge ein \u2014 日本", "caf\ufffd", "café"]]


def test_merges_are_commits_too_unless_asked(clone: Path) -> None:
    git = _in(clone)
    _commit(git, "root", "a@x.org", "2016-01-01T00:00:00Z")
    git("checkout", "-q", "-b", "side")
    _commit(git, "side", "b@x.org", "2016-01-02T00:00:00Z")
    git("checkout", "-q", "main")
    _commit(git, "main", "a@x.org", "2016-01-03T00:00:00Z")
    git(
        "merge", "-q", "--no-ff", "side", "-m", "Merge side",
        GIT_AUTHOR_NAME="A", GIT_AUTHOR_EMAIL="a@x.org", GIT_AUTHOR_DATE="2016-01-04T00:00:00Z",
        GIT_COMMITTER_NAME="A", GIT_COMMITTER_EMAIL="a@x.org",
    )  # fmt: skip
    assert _texts(gitlog.load(clone)) == [["root", "main", "Merge side"], ["side"]]
    assert _texts(gitlog.load(clone, merges=False)) == [["root", "main"], ["side"]]
    assert _texts(gitlog.load(clone, revision="side")) == [["root"], ["side"]]


def test_authors_are_hashed_with_a_key(clone: Path) -> None:
    git = _in(clone)
    _commit(git, "a", "ann@x.org", "2016-01-01T00:00:00Z")
    _commit(git, "b", "bob@x.org", "2016-01-02T00:00:00Z")
    first, second = gitlog.load(clone), gitlog.load(clone)
    assert "ann" not in str(first.names)
    assert not set(np.asarray(first.names)) & set(np.asarray(second.names))
    # all but the names is the same whatever the key
    assert _texts(first) == _texts(second)
    one, other = gitlog.load(clone, key=KEY), gitlog.load(clone, key=KEY)
    assert np.array_equal(np.asarray(one.names), np.asarray(other.names))
    assert len(one.name(0)) == 24
    for key in (b"", b"k" * 65):
        with pytest.raises(DataError, match="1 to 64 bytes"):
            gitlog.load(clone, key=key)


def test_one_person_of_several_addresses_is_one_client(clone: Path) -> None:
    git = _in(clone)
    (clone / ".mailmap").write_text("Ann <ann@x.org> <ann@old.org>\n")
    _commit(git, "new", "ann@x.org", "2016-01-01T00:00:00Z")
    _commit(git, "capital", "Ann@X.org", "2016-01-02T00:00:00Z")
    _commit(git, "old", "ann@old.org", "2016-01-03T00:00:00Z")
    _commit(git, "Nobody's", "", "2016-01-04T00:00:00Z", name="Nobody")
    _commit(git, "Another's", "", "2016-01-05T00:00:00Z", name="Another")
    assert _texts(gitlog.load(clone)) == [["new", "capital", "old"], ["Nobody's"], ["Another's"]]


def test_commits_without_a_subject_are_left_out(clone: Path) -> None:
    _commit(_in(clone), "", "a@x.org", "2016-01-01T00:00:00Z")
    with pytest.raises(DataError, match="no commit has a subject"):
        gitlog.load(clone)
    _commit(_in(clone), "said", "a@x.org", "2016-01-02T00:00:00Z")
    assert _texts(gitlog.load(clone)) == [["said"]]


def test_a_commit_without_a_time_is_refused_with_its_hash(clone: Path) -> None:
    git = _in(clone)
    _commit(git, "said", "a@x.org", "2016-01-01T00:00:00Z")
    _written(git, b"when?", "someday")
    broken = git("rev-parse", "HEAD").strip()
    with pytest.raises(DataError, match=f"commit {broken} has no author time"):
        gitlog.load(clone)
    git("reset", "-q", "--soft", "HEAD~1")
    _written(git, b"when?", "99999999999999 +0000")
    with pytest.raises(DataError, match="commit .*beyond the years 1 to 9999"):
        gitlog.load(clone)


def test_a_shallow_and_a_bare_clone_will_do(clone: Path, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        _commit(_in(clone), f"day {day}", "a@x.org", f"2016-01-0{day}T00:00:00Z")
    git = _in(tmp_path)
    git("clone", "-q", "--depth", "2", f"file://{clone}", "shallow")
    git("clone", "-q", "--bare", str(clone), "bare.git")
    assert _texts(gitlog.load(tmp_path / "shallow")) == [["day 2", "day 3"]]
    assert gitlog.load(str(tmp_path / "bare.git")).examples == 3


def test_what_the_clone_and_the_environment_ask_for_is_not_done(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = _in(clone)
    _commit(git, "said", "a@x.org", "2016-01-01T00:00:00Z")
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for setting in ("core.pager", "gpg.program", "pager.log"):
        git("config", setting, str(trap))
    git("config", "log.showSignature", "true")
    git("config", "format.pretty", "fuller")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert _texts(gitlog.load(clone)) == [["said"]]
    assert not (tmp_path / "sprung").exists()


def test_a_revision_is_never_an_option(clone: Path, tmp_path: Path) -> None:
    _commit(_in(clone), "said", "a@x.org", "2016-01-01T00:00:00Z")
    for revision in (f"--output={tmp_path}/written", "--all", "no-such-branch"):
        with pytest.raises(DataError, match=f"has no commit {revision}"):
            gitlog.load(clone, revision=revision)
    assert not (tmp_path / "written").exists()


def test_what_is_no_clone_is_refused(clone: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="clone has no commit HEAD: it is empty"):
        gitlog.load(clone)
    with pytest.raises(DataError, match="absent is no folder"):
        gitlog.load(tmp_path / "absent")
    # a folder in a clone is none: its history would be that of more than the folder
    (clone / "inner").mkdir()
    _commit(_in(clone), "said", "a@x.org", "2016-01-01T00:00:00Z")
    for folder in (tmp_path, clone / "inner"):
        with pytest.raises(DataError, match="cannot be read as a git repository: .*not a git repo"):
            gitlog.load(folder)


def test_a_machine_without_git_is_told_so(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(clone))
    with pytest.raises(DataError, match="needs git"):
        gitlog.load(clone)


@pytest.mark.parametrize(
    "settings",
    [
        {"remote.origin.url": "ssh://nowhere/x", "core.sshCommand": "RUN"},
        {
            "remote.origin.url": "ssh://nowhere/x",
            "core.sshCommand": "RUN",
            "protocol.allow": "always",
            "protocol.ssh.allow": "always",
        },
        {"remote.origin.url": "ext::RUN", "protocol.ext.allow": "always"},
        {"remote.origin.url": "SOURCE", "remote.origin.uploadpack": "RUN"},
        {
            "core.fsmonitor": "RUN",
            "core.pager": "RUN",
            "pager.log": "RUN",
            "gpg.program": "RUN",
            "log.showSignature": "true",
            "diff.external": "RUN",
            "core.askPass": "RUN",
        },
    ],
    ids=["ssh", "ssh-allowed", "ext", "uploadpack", "others"],
)
def test_nothing_that_a_copied_clone_names_is_run(
    clone: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    git = _in(clone)
    (clone / ".mailmap").write_text("Real <real@x.org> <a@x.org>\n")
    git("add", ".mailmap")
    _commit(git, "one", "a@x.org", "2020-01-01T00:00:00Z")
    git("config", "uploadpack.allowFilter", "true")
    copied, ran = tmp_path / "copied.git", tmp_path / "ran"
    source = clone.as_uri()
    _in(tmp_path)("clone", "-q", "--bare", "--filter=blob:none", source, str(copied))
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\nexit 1\n")
    program.chmod(0o755)
    for name, value in settings.items():
        meant = value.replace("RUN", str(program)).replace("SOURCE", source)
        _in(copied)("config", name, meant)
    is_lacking = "remote.origin.url" in settings
    if is_lacking:
        # as it is without the care that is taken
        subprocess.run(["git", "-C", copied, "log", "--format=%aE"], capture_output=True)
        assert ran.exists()
        ran.unlink()
    with pytest.raises(DataError, match="is a partial clone.*nothing is fetched"):
        gitlog.load(copied)
    assert not ran.exists()
