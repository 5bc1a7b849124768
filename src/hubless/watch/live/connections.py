"""Connections to the page: few at a time, and none that asks for nothing.

A process has only so many files. Whoever opens connections and never asks for anything would
otherwise keep everybody else from the page, before any token is looked at.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from uvicorn.protocols.http.h11_impl import H11Protocol

_ASKING_SECONDS = 10.0
_ASKING = 64
"""So many connections may be without a whole request at one time."""


class Asking:
    """The connections that have not asked for anything yet, the oldest first."""

    def __init__(self, most: int = _ASKING) -> None:
        self._most = most
        self._waiting: OrderedDict[asyncio.BaseTransport, asyncio.TimerHandle] = OrderedDict()

    def add(self, transport: asyncio.Transport) -> None:
        """Give a connection some seconds to ask; of too many, the oldest is closed."""
        self.done(transport)
        loop = asyncio.get_running_loop()
        self._waiting[transport] = loop.call_later(_ASKING_SECONDS, transport.abort)
        while len(self._waiting) > self._most:
            oldest, timer = self._waiting.popitem(last=False)
            timer.cancel()
            # takes its file away at once, whatever has not been sent
            oldest.abort()  # type: ignore[attr-defined]

    def done(self, transport: asyncio.BaseTransport) -> None:
        """A connection has asked, or is gone."""
        if timer := self._waiting.pop(transport, None):
            timer.cancel()


def bounded() -> type[asyncio.Protocol]:
    """A protocol for one server, whose connections share a bound."""
    asking = Asking()

    class Bounded(H11Protocol):
        """HTTP, of which a request's head has to come within seconds."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            asking.add(transport)

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and not self.cycle.response_complete:
                asking.done(self.transport)

        def on_response_complete(self) -> None:
            # before the next request is looked for among what came already
            if not self.transport.is_closing():
                asking.add(self.transport)
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            asking.done(self.transport)
            super().connection_lost(exc)

    return Bounded
