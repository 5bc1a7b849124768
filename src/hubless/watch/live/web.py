"""The live view as a page: one poll for all viewers, who are told what changed.

Everything shown may come from a bucket that others write to, so the page takes nothing from any
other host, runs no script but its own, and shows text only as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import secrets
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from hubless.errors import HublessError
from hubless.watch.feed import Feed
from hubless.watch.live.publisher import Publisher

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PORT = 8642
_VIEWERS = 100
_ALIVE_SECONDS = 15.0
_RETRY_MILLISECONDS = 1500
_STATIC = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/chart.js": ("chart.js", "text/javascript"),
    "/strip.js": ("strip.js", "text/javascript"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def serve(
    feed: Feed | Sequence[Feed],
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    open_browser: bool = False,
    interval: float = 1.0,
) -> int:
    """Serve the page until Ctrl-C.

    Args:
        feed: What `open_feed` gave, or several of them.
        host: Where to listen. Anywhere but on this machine alone takes a token.
        port: 0 takes any that is free.
        token: What viewers have to know; one is made up where it is needed and not given.
        open_browser: Show the page at once.
        interval: Seconds between two looks at the feed.
    """
    server, listening, url = _prepare(feed, host, port, token, interval)
    print(f"watching at {url} (Ctrl-C ends it)", flush=True)
    if open_browser:
        # the socket listens already: what asks too early only waits a little
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt), listening:
        server.run(sockets=[listening])
    return 0


@contextlib.contextmanager
def serving(
    feed: Feed | Sequence[Feed],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    interval: float = 1.0,
) -> Iterator[str]:
    """Serve the page while a block runs, such as a training script; gives the page's address."""
    server, listening, url = _prepare(feed, host, port, token, interval)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join(10.0)
        listening.close()


def _prepare(
    feed: Feed | Sequence[Feed], host: str, port: int, token: str | None, interval: float
) -> tuple[uvicorn.Server, socket.socket, str]:
    try:
        import uvicorn
    except ImportError as error:
        raise HublessError(
            "the page needs starlette and uvicorn: pip install 'hubless[watch]'"
        ) from error
    if token is not None and not token:
        raise HublessError("an empty token keeps nobody out: leave it away, or give a real one")
    from hubless.watch.live.connections import bounded

    local = _is_loopback(host)
    token = token or (None if local else secrets.token_urlsafe(18))
    listening = _listen(host, port)
    publisher = Publisher(list(feed) if isinstance(feed, Sequence) else [feed], interval)
    config = uvicorn.Config(
        app(publisher, token=token, only_local=local, stopping=lambda: server.should_exit),
        log_level="warning",
        access_log=False,
        ws="none",
        http=bounded(),
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    shown = "localhost" if host == "localhost" else host
    if host in ("0.0.0.0", "::", ""):
        shown = socket.gethostname()
    shown = f"[{shown}]" if ":" in shown else shown
    url = f"http://{shown}:{listening.getsockname()[1]}/"
    return server, listening, url + (f"?token={quote(token, safe='')}" if token else "")


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise HublessError(f"port is from 0 to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise HublessError(
            f"cannot listen at {host} port {port}: {error.strerror or error}. Choose another port "
            "(0 takes any that is free), or another host"
        ) from error


def app(
    publisher: Publisher,
    *,
    token: str | None = None,
    only_local: bool = True,
    stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """The page and its data as an ASGI application, to be served by whatever you like."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    folder = resources.files("hubless.watch.live")
    static = {path: (folder / name).read_bytes() for path, (name, _) in _STATIC.items()}

    def page(request: Request) -> Response:
        from starlette.responses import Response

        path = request.url.path
        return Response(static[path], media_type=_STATIC[path][1])

    async def state(request: Request) -> Response:
        return JSONResponse(await publisher.whole())

    async def health(request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def events(request: Request) -> Response:
        if publisher.viewers >= _VIEWERS:
            return PlainTextResponse("too many are watching already\n", 503)
        return StreamingResponse(
            _stream(publisher, stopping),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        polling = asyncio.create_task(publisher.run())
        yield
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await polling

    return Starlette(
        routes=[
            *(Route(path, page) for path in _STATIC),
            Route("/events", events),
            Route("/state.json", state),
            Route("/health", health),
        ],
        middleware=[Middleware(_Guard, token=token, only_local=only_local)],
        lifespan=lifespan,
    )


async def _stream(publisher: Publisher, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events for one viewer: the whole state, and from then on what changed.

    Who lost the connection gets a whole state again, so nothing has to be remembered for it.
    """
    with publisher.viewing():
        version, message = await publisher.first()
        yield f"retry: {_RETRY_MILLISECONDS}\n{_event('state', version, message)}"
        quiet = 0.0
        while not stopping():
            if await publisher.wait(version, 0.5):
                version, message = publisher.since(version)
                yield _event("change", version, message)
                quiet = 0.0
            elif (quiet := quiet + 0.5) >= _ALIVE_SECONDS:
                # what is sent into a dead connection ends it
                yield ": still here\n\n"
                quiet = 0.0


def _event(kind: str, version: int, message: dict[str, Any]) -> str:
    # json leaves no line break inside a string, so one data line holds it
    return f"id: {version}\nevent: {kind}\ndata: {json.dumps(message, allow_nan=False)}\n\n"


class _Guard:
    """Lets in who may look: on this machine by the name they ask for, elsewhere by a token.

    A site somewhere can make its own name point to this machine, and a browser would then let it
    read the page. The name it asked for tells.
    """

    def __init__(self, app: ASGIApp, token: str | None, only_local: bool) -> None:
        self.app = app
        self.token, self.only_local = token, only_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                more = ((k.encode(), v.encode()) for k, v in _HEADERS.items())
                message["headers"] += [(k, v) for k, v in more if k not in names]
            await send(message)

        answer = self._answer(scope)
        await (self.app if answer is None else answer)(scope, receive, headed)

    def _answer(self, scope: Scope) -> Response | None:
        """What to say instead of the page, or None where the viewer is welcome."""
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse

        request = Request(scope)
        if self.only_local and not _is_loopback(_host(request.headers.get("host", ""))):
            return PlainTextResponse("ask for localhost or 127.0.0.1\n", 421)
        if self.token is None or request.url.path == "/health":
            return None
        cookie = f"hubless-{(scope.get('server') or ('', 0))[1]}"
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_right(asked) and request.url.path == "/":
            # kept out of the address, and so out of what is copied and logged
            redirect: Response = RedirectResponse("/", 303)
            # a header holds no more letters than Latin-1 has
            kept = quote(self.token, safe="")
            redirect.set_cookie(cookie, kept, httponly=True, samesite="strict", path="/")
            return redirect
        kept = unquote(request.cookies.get(cookie, ""))
        if any(map(self._is_right, (asked, bearer, kept))):
            return None
        return PlainTextResponse("this needs the token: open the address with ?token=...\n", 401)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self.token or "").encode())


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).strip("[]")


def _is_loopback(host: str) -> bool:
    """Whether a name stands for this machine alone, whatever name servers say.

    >>> _is_loopback("127.0.0.1"), _is_loopback("localhost"), _is_loopback("10.0.0.7")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
