"""Credentials: none, wrong ones, and that they are never shown."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hubless
from hubless.errors import Denied, HublessError, StoreError
from hubless.masked import masked, masked_command, without
from hubless.store import open_store
from hubless.store.object import ObjectStore
from hubless.store.reliable import Reliable
from tests.support import servers
from tests.support.servers import Server

_GIVEN = ("AWS_", "GOOGLE_", "AZURE_", "IDENTITY_", "GCE_")


@pytest.fixture
def mute() -> Iterator[str]:
    """Where a cloud's metadata service would be, and nobody says a word."""
    with servers.mute() as address:
        yield address


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mute: str) -> None:
    """Somebody without credentials, far from any cloud."""
    import os

    for name in list(os.environ):
        if name.startswith(_GIVEN):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{mute}")
    monkeypatch.setenv("GCE_METADATA_HOST", mute)


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("url", "options", "variable"),
    [
        ("s3://bucket/run1", {}, "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/run1", {"region": "eu-west-1"}, "secret_access_key"),
        ("gs://bucket/run1", {}, "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_without_credentials_that_is_said_in_seconds(
    url: str, options: dict[str, str], variable: str
) -> None:
    began = time.monotonic()
    with pytest.raises(Denied, match="there are no credentials for this bucket") as raised:
        hubless.join(hubless.Bucket(url, options=options), "site-a")
    # nobody is asked at length, and no patience is spent on it
    assert time.monotonic() - began < 20
    assert variable in str(raised.value)


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("url", "options", "missing"),
    [
        ("s3://bucket/run", {"access_key_id": "a"}, "SecretAccessKey.*AWS_SECRET_ACCESS_KEY"),
        ("az://bucket/run", {}, "Account must be specified.*AZURE_STORAGE_ACCOUNT_KEY"),
        ("gs://bucket/run", {"service_account": "/none"}, "/none.*GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_what_is_missing_of_credentials_is_said_with_the_way_to_give_it(
    url: str, options: dict[str, str], missing: str
) -> None:
    with pytest.raises(StoreError, match=f"cannot open {url}: .*{missing}"):
        ObjectStore(url, options=options)


@pytest.mark.usefixtures("stranger")
def test_where_a_cloud_s_metadata_service_is_off_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Denied, match="there are no credentials"):
        ObjectStore("s3://bucket/run1").list("")


@pytest.mark.xdist_group("seaweedfs")
@pytest.mark.parametrize(
    "wrong", [{"secret_access_key": "wrong-secret"}, {"access_key_id": "nobody-of-this-name"}]
)
def test_wrong_credentials_are_named_at_once_and_not_shown(
    seaweedfs_server: Server, wrong: dict[str, str]
) -> None:
    options = {**seaweedfs_server.options, **wrong}
    began = time.monotonic()
    with pytest.raises(Denied, match="the credentials are wrong, or do not allow this") as raised:
        Reliable(ObjectStore(f"{seaweedfs_server.url}/run", options=options)).list("")
    assert time.monotonic() - began < 20
    assert options["secret_access_key"] not in str(raised.value)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "S3", "https", "nonsense"])
@pytest.mark.parametrize("secret", ["hunter2", "hun/ter2", "h@nter2"])
def test_an_address_with_credentials_is_refused_and_not_repeated(scheme: str, secret: str) -> None:
    with pytest.raises(StoreError, match="an address has no credentials in it") as raised:
        open_store(f"{scheme}://KEY:{secret}@bucket/run1")
    assert secret not in str(raised.value)
    assert "bucket/run1" in str(raised.value)
    assert "options=" in str(raised.value)


def test_a_folder_may_have_an_at_sign(tmp_path: Path) -> None:
    for address in (f"{tmp_path}/me@work", f"file://{tmp_path}/me@work"):
        store = open_store(address)
        assert store.url == f"file://{tmp_path}/me%40work"
        assert masked(f"{address} and {store.url}") == f"{address} and {store.url}"


def test_secrets_of_an_endpoint_and_of_options_are_not_in_errors() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        options = {
            "access_key_id": "a",
            "secret_access_key": "hunter2",
            "proxy_url": f"http://me:hunter2@{place}",
        }
        for given in (options, {**options, "hunter2": "x"}, {**options, "timeout": "hunter2"}):
            with pytest.raises(StoreError) as raised:
                ObjectStore("s3://bucket/run", f"http://me:hunter2@{place}", given).list("")
            assert "hunter2" not in str(raised.value)


def test_every_error_of_hubless_hides_what_an_address_gives_away() -> None:
    error = HublessError("nothing at http://me:hunter2@host/run?sig=hunter2&sv=1")
    assert str(error) == "nothing at http://***@host/run?sig=***&sv=1"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--api-key=hunter2", "--api-key=***"),
        ("api_key=hunter2", "api_key=***"),
        ("WANDB_API_KEY=hunter2", "WANDB_API_KEY=***"),
        ("token=hunter2", "token=***"),
        ('{"password": "hunter2", "lr": 1}', '{"password": "***", "lr": 1}'),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("--header=X-Api-Key: hunter2", "--header=X-Api-Key: ***"),
        ("lr=0.1 key=hunter2 x=1", "lr=0.1 key=*** x=1"),
        ("http://me:hunter2@host:80/x", "http://***@host:80/x"),
        ("s3://AKIA:hun/ter2@bucket", "s3://***@bucket"),
        ("https://host/x?X-Amz-Signature=hunter2", "https://host/x?X-Amz-Signature=***"),
        ("sk-proj-0123456789abcdefghij", "***"),
        ("--lr=0.1", "--lr=0.1"),
        ("--max-tokens=5", "--max-tokens=5"),
        ("--token-file=here", "--token-file=here"),
        ("http://host:9000/run@1", "http://host:9000/run@1"),
        ("--tokenizer=bert", "--tokenizer=bert"),
    ],
)
def test_what_is_secret_in_a_command_is_hidden(word: str, shown: str) -> None:
    assert masked_command([word]) == [shown]


@pytest.mark.parametrize("name", ["--api-key", "--password", "--hf_token", "--secret", "-token"])
def test_the_word_after_a_secret_option_is_hidden(name: str) -> None:
    assert masked_command(["x.py", name, "hunter2", "2"]) == ["x.py", name, "***", "2"]
    assert masked_command([name, "-hunter2"]) == [name, "***"]
    assert masked_command([name, "--lr", "1"]) == [name, "--lr", "1"]


def test_secrets_that_are_too_short_to_be_any_are_left_alone() -> None:
    assert without("a 403 for abcd", {"token": "a", "account_key": "abcd"}) == "a 403 for ***"


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    "words",
    [
        ["ls", "URL"],
        ["check", "URL"],
        ["pull", "URL", "-o", "model.safetensors"],
        ["policy", "URL", "--member", "site-a"],
        ["watch", "URL"],
        ["report", "URL"],
        ["ls", "URL", "--endpoint", "http://me:hunter2@127.0.0.1:1"],
        ["ls", "s3://bucket/run", "--option", "hunter2"],
    ],
    ids=" ".join,
)
def test_no_command_repeats_a_secret(
    words: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from hubless.cli import main

    given = [word.replace("URL", "s3://KEY:hunter2@bucket/run") for word in words]
    assert main(given) == 1
    out, err = capfd.readouterr()
    assert "hunter2" not in out + err
    assert err


@pytest.mark.usefixtures("stranger")
def test_the_first_lines_of_the_readme_say_what_is_missing(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = readme.partition("## Ten lines\n\n```python\n")[2].partition("```")[0]
    assert "s3://bucket/run1" in lines
    ran = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("hubless.errors.Denied: s3://bucket/run1: there")
