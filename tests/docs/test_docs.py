"""The documentation: every block of Python in it runs, and every command that it names exists."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from markdown_it import MarkdownIt
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from hubless.cli import parser
from tests.support.servers import Server

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SYBIL = Sybil([PythonCodeBlockParser()], path=str(ROOT), patterns=["*.md"])
COMMANDS = ("hubless ", "make ", "pip ", "python ")


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _fences(page: Path, *languages: str) -> list[tuple[int, str]]:
    """The blocks of code in a language: the line each starts in, and its text."""
    return [
        (token.map[0] + 1, token.content)
        for token in MarkdownIt().parse(page.read_text(encoding="utf-8"))
        if token.type == "fence" and token.map and token.info.strip() in languages
    ]


def _commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Every command of a page's blocks, with its line, and without what is said of it.

    Blocks without a language hold commands too, and other things.
    """
    for language in ("sh", ""):
        for line, text in _fences(page, language):
            # a command may go on in the next line
            for number, command in enumerate(text.replace("\\\n", "").splitlines(), line + 1):
                command = command.removeprefix("$ ")
                shown = language or command.startswith(COMMANDS)
                if shown and (words := shlex.split(command, comments=True)):
                    yield number, words


WITH_PYTHON = [page for page in PAGES if _fences(page, "python")]
WITH_COMMANDS = [page for page in PAGES if any(_commands(page))]


@pytest.fixture
def bucket(moto_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`s3://bucket`, where a cloud would have it: found by what the environment says."""
    settings = {
        "AWS_ENDPOINT_URL": moto_server.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="bucket")


@pytest.mark.parametrize("page", WITH_PYTHON, ids=_named)
def test_every_block_of_a_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if "s3://" in page.read_text(encoding="utf-8"):
        request.getfixturevalue("bucket")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "cache"))
    examples = list(SYBIL.parse(page).examples())
    assert len(examples) == len(_fences(page, "python")), "a block of Python was not found"
    for example in examples:
        example.evaluate()


def test_the_contracts_that_a_page_shows_are_kept(tmp_path: Path) -> None:
    """The page as a file of tests: what it subclasses of hubless.testing is run, and passes."""
    blocks = [text for _, text in _fences(ROOT / "docs" / "extend.md", "python")]
    (tmp_path / "test_page.py").write_text("\n".join(blocks), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert int(re.findall(r"(\d+) passed", ran.stdout)[0]) > 15


def test_nothing_is_shown_as_python_that_does_not_run() -> None:
    others = {
        token.info.strip()
        for page in PAGES
        for token in MarkdownIt().parse(page.read_text(encoding="utf-8"))
        if token.type == "fence"
    }
    assert others <= {"python", "sh", "toml", "json", ""}
    assert len(WITH_PYTHON) >= 8


def _parses(words: list[str]) -> bool:
    """Whether the command line takes these words; [--web] may be there, and A|B is A or B."""
    try:
        parser().parse_args([word.strip("[]").split("|")[0] for word in words])
    except SystemExit as ended:
        return not ended.code
    return True


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=_named)
def test_every_command_of_a_page_exists(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    makefile = (ROOT / "Makefile").read_text()
    for line, (command, *words) in _commands(page):
        where = f"{_named(page)}:{line}: {command} {shlex.join(words)}"
        if command == "hubless":
            assert _parses(words), where
        elif command == "make":
            for target in words:
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), where
        elif command == "python" and words[0] == "-m":
            assert importlib.util.find_spec(words[1]) is not None, where
        elif command == "python":
            assert (ROOT / words[0]).is_file(), where
        elif command == "pip":
            for name in re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", words[-1]))):
                assert name in extras["optional-dependencies"], where
        else:
            pytest.fail(f"{where} is not known to be a command that works")


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr[-3000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    loading = re.compile(
        r"<(?:script|img|iframe|link|source)\b[^>]*?(?:src|href)=[\"']?(https?:)?//"
    )
    for page in pages:
        found = loading.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.name}: {found and found.group()}"
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", style.read_text(encoding="utf-8")), style
