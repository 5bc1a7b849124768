"""An HTTP/1.1 reverse proxy in its own process that injects errors, lost replies and delays."""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from tests.support.servers import ROOT, Server, Unavailable, launch, stop, tail

_PIECE = 1 << 16
_HEAD_LIMIT = 1 << 18


@dataclass(frozen=True)
class FaultyServer(Server):
    """A store behind the proxy; `counts` is filled in once the proxy has been stopped."""

    counts: dict[str, int] = field(default_factory=dict)


@contextmanager
def faulty(
    server: Server,
    *,
    seed: int = 1,
    error: float = 0.0,
    lost: float = 0.0,
    delay: float = 0.0,
    delay_seconds: float = 0.3,
) -> Iterator[FaultyServer]:
    """Put the fault-injecting proxy in front of `server`."""
    command = [
        *(sys.executable, "-m", "tests.support.proxy"),
        *("--upstream", urlsplit(server.endpoint).netloc, "--seed", str(seed)),
        *("--error", str(error), "--lost", str(lost)),
        *("--delay", str(delay), "--delay-seconds", str(delay_seconds)),
    ]
    with tempfile.TemporaryFile() as log:
        process = launch(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        with process.stdout as output:
            try:
                line = output.readline()
                if not line:
                    raise Unavailable(f"the proxy did not start: {tail(log)}")
                endpoint = f"http://127.0.0.1:{json.loads(line)['port']}"
                options = server.options["endpoint"].replace(server.endpoint, endpoint, 1)
                front = FaultyServer(
                    name=f"faulty {server.name}",
                    url=server.url,
                    options={**server.options, "endpoint": options},
                    pid=process.pid,
                    endpoint=endpoint,
                )
                yield front
            finally:
                stop(process, patience=30.0)
            front.counts.update(json.loads(output.readline()))


@dataclass(frozen=True)
class _Rates:
    error: float
    lost: float
    delay: float
    delay_seconds: float


@dataclass
class _Counts:
    requests: int = 0
    errors: int = 0
    lost: int = 0
    delayed: int = 0


@dataclass(frozen=True)
class _Head:
    raw: bytes
    start: str
    fields: dict[str, str]

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> "_Head":
        raw = await reader.readuntil(b"\r\n\r\n")
        start, *lines = raw[:-4].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        fields = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
        return cls(raw, start, fields)

    @property
    def method(self) -> str:
        return self.start.partition(" ")[0]

    @property
    def status(self) -> int:
        return int(self.start.split(" ", 2)[1])

    @property
    def chunked(self) -> bool:
        return "chunked" in self.fields.get("transfer-encoding", "")

    @property
    def length(self) -> int | None:
        value = self.fields.get("content-length")
        return None if value is None else int(value)

    @property
    def closing(self) -> bool:
        connection = self.fields.get("connection", "")
        if "HTTP/1.0" in self.start:
            return "keep-alive" not in connection
        return "close" in connection

    @property
    def expects_continue(self) -> bool:
        return self.fields.get("expect") == "100-continue"


class _Sink:
    """A writer that swallows everything once its peer has gone, so that the other side goes on."""

    def __init__(self, writer: asyncio.StreamWriter | None) -> None:
        self._writer = writer

    @property
    def alive(self) -> bool:
        return self._writer is not None

    async def write(self, data: bytes) -> None:
        if self._writer is None:
            return
        try:
            if self._writer.is_closing():
                raise ConnectionResetError
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            self._writer = None


async def _read_exactly(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    while length:
        piece = await reader.read(min(length, _PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(piece)
        yield piece


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    size = -1
    while size:
        line = await reader.readuntil(b"\r\n")
        yield line
        size = int(line.partition(b";")[0], 16)
        if size:
            async for piece in _read_exactly(reader, size + 2):
                yield piece
    line = b""
    while line != b"\r\n":
        line = await reader.readuntil(b"\r\n")
        yield line


async def _read_to_end(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(_PIECE):
        yield piece


def _request_body(head: _Head, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    return _read_chunks(reader) if head.chunked else _read_exactly(reader, head.length or 0)


def _reply_body(
    head: _Head, reader: asyncio.StreamReader, *, bodiless: bool
) -> AsyncIterator[bytes]:
    if bodiless:
        return _read_exactly(reader, 0)
    if head.chunked:
        return _read_chunks(reader)
    if head.length is not None:
        return _read_exactly(reader, head.length)
    return _read_to_end(reader)


async def _replay(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class _Proxy:
    def __init__(self, host: str, port: int, seed: int, rates: _Rates) -> None:
        self._host = host
        self._port = port
        self._rates = rates
        self._random = random.Random(seed)
        # apart, so that the draws do not depend on when a refusal is sent
        self._refusals = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = _Counts()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Session(self, reader, writer).run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def draw(self) -> str:
        rates = self._rates
        point = self._random.random()
        self.counts.requests += 1
        if point < rates.error:
            self.counts.errors += 1
            return "error"
        if point < rates.error + rates.lost:
            self.counts.lost += 1
            return "lost"
        if point < rates.error + rates.lost + rates.delay:
            self.counts.delayed += 1
            return "delay"
        return "pass"

    def failure(self) -> bytes:
        return self._refusals.choice((b"500 Internal Server Error", b"503 Service Unavailable"))

    async def pause(self) -> None:
        await asyncio.sleep(self._rates.delay_seconds)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=_HEAD_LIMIT)


class _Session:
    """One client connection and, as without a proxy, at most one connection to the store."""

    def __init__(
        self, proxy: _Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        try:
            while await self._exchange(await _Head.read(self._reader)):
                pass
        except* (
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            OSError,
            ValueError,
            IndexError,
        ):
            # One side went away or speaks something else than HTTP; both are hung up on below.
            pass
        finally:
            self._writer.close()
            if self._upstream is not None:
                self._upstream[1].close()

    async def _exchange(self, head: _Head) -> bool:
        """Serve one request and say whether the connection may carry another."""
        fault = self._proxy.draw()
        client = _Sink(self._writer)
        if fault == "error":
            return await self._refuse(head, client)
        if head.expects_continue:
            await client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = _request_body(head, self._reader)
        if fault == "delay":
            # Taken in whole first, so that the request lands even if its client dies meanwhile.
            body = _replay([piece async for piece in body])
            await self._proxy.pause()
        reader, writer = await self._connect()
        store = _Sink(writer)
        async with asyncio.TaskGroup() as group:
            # A store may answer, and hang up, before it has read the whole body.
            group.create_task(_upload(head, body, store))
            reusable = await _answer(head, reader, _Sink(None) if fault == "lost" else client)
        return reusable and store.alive and client.alive and fault != "lost" and not head.closing

    async def _refuse(self, head: _Head, client: _Sink) -> bool:
        reusable = not head.closing and not head.expects_continue
        if not head.expects_continue:
            # Closing on unread data would reset the connection and destroy the reply.
            async for _ in _request_body(head, self._reader):
                pass
        connection = b"keep-alive" if reusable else b"close"
        await client.write(
            b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: %b\r\n\r\n"
            % (self._proxy.failure(), connection)
        )
        return reusable

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._upstream is not None:
            reader, writer = self._upstream
            if not reader.at_eof() and not writer.is_closing():
                return self._upstream
            writer.close()
        self._upstream = await self._proxy.connect()
        return self._upstream


async def _upload(head: _Head, body: AsyncIterator[bytes], store: _Sink) -> None:
    await store.write(head.raw)
    async for piece in body:
        await store.write(piece)


async def _answer(request: _Head, reader: asyncio.StreamReader, client: _Sink) -> bool:
    reply = await _Head.read(reader)
    while reply.status < 200:
        # The proxy has already told the client to continue.
        reply = await _Head.read(reader)
    bodiless = request.method == "HEAD" or reply.status in (204, 304)
    await client.write(reply.raw)
    async for piece in _reply_body(reply, reader, bodiless=bodiless):
        await client.write(piece)
    framed = bodiless or reply.chunked or reply.length is not None
    return framed and not reply.closing


async def _serve(arguments: argparse.Namespace) -> None:
    host, _, port = str(arguments.upstream).rpartition(":")
    rates = _Rates(arguments.error, arguments.lost, arguments.delay, arguments.delay_seconds)
    proxy = _Proxy(host, int(port), arguments.seed, rates)
    server = await asyncio.start_server(
        proxy.accept, "127.0.0.1", arguments.port, limit=_HEAD_LIMIT, backlog=1024
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await ended.wait()
    server.close()
    print(json.dumps(asdict(proxy.counts)), flush=True)


def main() -> None:
    """Run the proxy until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--error", type=float, default=0.0)
    parser.add_argument("--lost", type=float, default=0.0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--delay-seconds", type=float, default=0.3)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
