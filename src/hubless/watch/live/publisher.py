"""Publishing a state: one look at the feeds for all viewers, and to each what is new to it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hubless.events import logger
from hubless.watch.feed import Feed
from hubless.watch.fold.overview import Overview, look
from hubless.watch.fold.run import RunFold

_UNWATCHED = 5
"""So many times less often is looked where nobody watches."""


class Publisher:
    """The state in sections, each with the version at which it last changed.

    A viewer that has seen version v needs the sections that are newer, whoever else is watching.
    """

    def __init__(self, feeds: Sequence[Feed], interval: float = 1.0) -> None:
        self.feeds, self.interval = list(feeds), interval
        self.state = Overview(", ".join(feed.name for feed in self.feeds))
        self.version = 0
        self.viewers = 0
        self._sections: dict[str, tuple[int, Any]] = {}
        self._gone: dict[str, int] = {}
        self._drawn: dict[int, tuple[int, dict[str, int]]] = {}
        self._whole: dict[str, Any] = {}
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self._publish(await asyncio.to_thread(self._look))
            patience = self.interval * (1 if self.viewers else _UNWATCHED)
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), patience)
                # who came or went may come again at once
                await asyncio.sleep(min(0.05, self.interval))

    @contextlib.contextmanager
    def viewing(self) -> Iterator[None]:
        """Somebody is watching during this block."""
        self.viewers += 1
        if self.viewers == 1:
            self._wanted.set()
        try:
            yield
        finally:
            self.viewers -= 1

    async def first(self) -> tuple[int, dict[str, Any]]:
        """Everything, once there is something."""
        await self.wait(0, 60.0)
        return self.since(0)

    async def wait(self, version: int, seconds: float) -> bool:
        """Whether there is something newer than this version, now or so many seconds later."""
        if self.version <= version:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        return self.version > version

    def since(self, version: int) -> tuple[int, dict[str, Any]]:
        """The sections that are newer than this version, and those that are gone."""
        new = {path: value for path, (at, value) in self._sections.items() if at > version}
        gone = [path for path, at in self._gone.items() if at > version]
        return self.version, {"now": time.time(), "set": new, "gone": gone}

    async def whole(self) -> dict[str, Any]:
        """The state, as `Overview.to_json` has it."""
        await self.wait(0, 60.0)
        runs: dict[int, dict[str, Any]] = {}
        for path, (_, value) in self._sections.items():
            number, _, rest = path.partition("/")
            part, _, metric = rest.partition("/")
            if part == "summary":
                runs.setdefault(int(number), {"lines": {}}).update(value)
            elif part == "lines":
                runs.setdefault(int(number), {"lines": {}})["lines"][metric] = value
            elif part == "strip":
                runs.setdefault(int(number), {"lines": {}})["strip"] = value
        return {
            "now": time.time(),
            **self._sections.get("top", (0, {}))[1],
            "runs": list(runs.values()),
        }

    def _look(self) -> dict[str, Any]:
        """What is new, by section; runs on a thread, which alone touches the state."""
        try:
            look(self.state, self.feeds)
        except Exception as error:
            # a page that stands still must not look as if all were well
            logger.exception("cannot follow %s", self.state.name)
            self.state.feed_trouble = f"{type(error).__name__}: {error}"
        now = time.time()
        sections: dict[str, Any] = {"top": self.state.summary()}
        for run in self.state.runs:
            sections[f"{run.number}/summary"] = run.summary(now)
            # what a row says of a member changes, too, by nothing being heard of it
            news = run.changes, run.counts(now)
            if self._drawn.get(run.number) != news:
                self._drawn[run.number] = news
                sections |= _drawings(run, now)
        return sections

    def _publish(self, sections: dict[str, Any]) -> None:
        published = {path: value for path, (_, value) in self._sections.items()}
        news = {
            p: value for p, value in sections.items() if p not in published or published[p] != value
        }
        gone = [path for path in published if _is_gone(path, sections)]
        if not news and not gone:
            return
        self.version += 1
        for path in gone:
            del self._sections[path]
            self._gone[path] = self.version
        for path, value in news.items():
            self._gone.pop(path, None)
            self._sections[path] = self.version, value
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _drawings(run: RunFold, now: float) -> dict[str, Any]:
    lines = {f"{run.number}/lines/{metric}": line for metric, line in run.lines().items()}
    return {**lines, f"{run.number}/strip": run.strip(now)}


def _is_gone(path: str, sections: dict[str, Any]) -> bool:
    """Whether a section that was there is not any more; drawings that stay as they are stay out."""
    number, _, part = path.partition("/")
    if not part:
        return False
    if f"{number}/summary" not in sections:
        return True
    return f"{number}/strip" in sections and path not in sections
