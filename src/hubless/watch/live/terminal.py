"""The live view in a terminal; plain lines where there is none."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hubless.errors import HublessError
from hubless.watch.feed import Feed
from hubless.watch.fold.federation import ALL
from hubless.watch.fold.overview import Overview, look
from hubless.watch.fold.run import RunFold, Trouble

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_SPARK = 32
_METRICS = 8
_TROUBLES = 3
_STYLES = {
    "training": "green",
    "trained": "green",
    "waiting": "cyan",
    "late": "yellow",
    "refused": "bold red",
    "offline": "magenta",
    "silent": "bold yellow",
    "restarted": "cyan",
    "skipped": "dim",
    "idle": "dim",
    "left": "dim",
}


def watch_terminal(
    feed: Feed | Sequence[Feed],
    *,
    interval: float = 1.0,
    once: bool = False,
    stay: bool = False,
) -> int:
    """Show how a run goes until it has ended or Ctrl-C; 1 where one has failed, and otherwise 0.

    Args:
        feed: What `open_feed` gave, or several of them.
        interval: Seconds between two looks.
        once: Show how things stand, and no more.
        stay: Go on when all has ended: it may be resumed.
    """
    feeds = list(feed) if isinstance(feed, Sequence) else [feed]
    state = Overview(", ".join(f.name for f in feeds))
    show = _display() if sys.stdout.isatty() else _Lines()
    try:
        with show:
            while True:
                look(state, feeds)
                show.update(state)
                if once or (state.is_over(time.time()) and not stay):
                    break
                time.sleep(interval)
    except KeyboardInterrupt:
        return 0
    if once and (state.feed_trouble or state.awaited):
        raise HublessError(state.feed_trouble or state.awaited)
    return int(any(run.reason == "failed" for run in state.runs))


class _Lines:
    """A line whenever something changed, for logs and pipes."""

    def __init__(self) -> None:
        self._printed: dict[int, tuple[int, str, dict[str, int]]] = {}
        self._noted = 0
        self._unreachable = self._awaited = ""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, state: Overview) -> None:
        """Print what is new."""
        for run in state.runs:
            # the time that is left goes by itself, and is no news
            now = time.time()
            news = run.changes, run.status(now), run.counts(now)
            if self._printed.get(run.number) != news:
                self._printed[run.number] = news
                print(printable(sentence(run, now)), flush=True)
        for trouble in list(state.troubles)[self._old(state) :]:
            print(f"  {printable(trouble_line(trouble))}", flush=True)
        if state.feed_trouble not in ("", self._unreachable):
            print(f"  {printable(state.feed_trouble)}", flush=True)
        self._unreachable = state.feed_trouble
        if state.awaited not in ("", self._awaited):
            print(f"waiting: {printable(state.awaited)}", flush=True)
        self._awaited = state.awaited

    def _old(self, state: Overview) -> int:
        """How many of the troubles that are kept have been printed."""
        new = state.noted - self._noted
        self._noted = state.noted
        return max(0, len(state.troubles) - new)


def _display() -> _Display:
    try:
        from rich.console import Console
    except ImportError as error:
        raise HublessError(
            "the live view in a terminal needs rich: pip install 'hubless[watch]', or pipe the "
            "output somewhere for plain lines"
        ) from error
    return _Display(Console())


class _Display:
    """The whole picture, drawn anew in place."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> _Display:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, state: Overview) -> None:
        """Draw how things stand."""
        self._live.update(picture(state, time.time()), refresh=True)


def picture(state: Overview, now: float) -> Group:
    """How things stand, for rich to draw."""
    from rich.console import Group
    from rich.text import Text

    # what still goes on comes first: a terminal is only so high
    runs = sorted(state.runs, key=lambda run: run.is_over(now))
    parts: list[RenderableType] = [Text(printable(state.name), style="bold")]
    for run in runs:
        parts += [Text(""), _head(run, now), *_bar(run), *_metrics(run), _clients(run, now)]
    if not runs:
        waiting = f"waiting: {printable(state.awaited)}" if state.awaited else ""
        parts.append(Text(waiting or "nothing has been said yet", style="dim"))
    if state.troubles:
        parts.append(Text(""))
        for trouble in list(state.troubles)[-_TROUBLES:]:
            line = printable(trouble_line(trouble))
            parts.append(Text(f"! {line}", style="yellow", overflow="fold"))
    if state.feed_trouble:
        parts.append(Text(f"! cannot read: {printable(state.feed_trouble)}", style="bold red"))
    return Group(*parts)


def _head(run: RunFold, now: float) -> Text:
    from rich.text import Text

    summary = run.summary(now)
    colour = {"live": "green", "silent": "yellow", "ended": "blue"}[summary["status"]]
    if run.reason in ("failed", "interrupted"):
        colour = "bold red"
    line = Text.assemble((printable(run.name), "bold"), "  ", (_status(summary, now), colour))
    line.append("  " + "  ".join(_figures(summary, now)))
    return line


def _bar(run: RunFold) -> list[RenderableType]:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    if run.rounds is None:
        return []
    # a bar by itself does not end its line
    line = Table.grid()
    line.add_row(ProgressBar(total=run.rounds, completed=min(run.round, run.rounds), width=60))
    return [line]


def _metrics(run: RunFold) -> list[RenderableType]:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    lines = run.lines()
    for name, value in list(run.metrics.items())[:_METRICS]:
        drawn = lines.get(name, {})
        points = drawn.get(ALL) or drawn.get("") or []
        spark = sparkline([point.value for point in points], _SPARK)
        table.add_row(printable(name), spark, f"{value:.4g}")
    return [table] if table.row_count else []


def _clients(run: RunFold, now: float) -> Text:
    from rich.text import Text

    line = Text.assemble(("clients  ", "dim"))
    for state, count in run.counts(now).items():
        line.append(f"{count:,} {state}  ", style=_STYLES.get(state, ""))
    return line


def sentence(run: RunFold, now: float) -> str:
    """One line on how a run goes."""
    summary = run.summary(now)
    metrics = [f"{name} {value:.4g}" for name, value in list(run.metrics.items())[:_METRICS]]
    counts = [f"{count:,} {state}" for state, count in summary["counts"].items()]
    parts = [_status(summary, now), *_figures(summary, now), *metrics, " ".join(counts)]
    return f"{run.name}: {', '.join(part for part in parts if part)}"


def _status(summary: dict[str, Any], now: float) -> str:
    if summary["status"] == "ended":
        return str(summary["reason"] or "ended")
    if summary["status"] == "silent":
        return f"silent for {span(now - summary['updated'])}"
    return "live"


def _figures(summary: dict[str, Any], now: float) -> list[str]:
    """Rounds, bytes and the time that is left, as far as they are known."""
    figures = []
    if summary.get("in_rounds", True):
        total = f" of {summary['rounds']:,}" if summary["rounds"] else ""
        figures.append(f"round {summary['round']:,}{total}")
    else:
        figures.append(f"{summary['updates']:,} updates")
    moved = summary["bytes_down"] + summary["bytes_up"]
    figures += [size(moved)] if moved else []
    if summary["left"] is not None and summary["status"] == "live":
        figures.append(f"{span(max(0.0, summary['left'] - (now - summary['updated'])))} left")
    return figures


def trouble_line(trouble: Trouble) -> str:
    """A trouble in one line."""
    who = f"{trouble.client} " if trouble.client else ""
    again = f" ({trouble.times} times)" if trouble.times > 1 else ""
    at = time.strftime("%H:%M:%S", time.localtime(trouble.time))
    return f"{at} {who}{trouble.kind}: {trouble.text}{again}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a row of bars.

    >>> sparkline([0, 1, 2, 3], 4)
    '▁▃▆█'
    """
    # halves, as two finite values can be further apart than any number says
    values = [value / 2 for value in values if math.isfinite(value)]
    if not values:
        return ""
    count = min(width, len(values))
    # the last of each stretch, so that the newest is always there
    chosen = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    low, high = min(chosen), max(chosen)
    reach = high - low or 1.0
    return "".join(_BARS[round((value - low) / reach * (len(_BARS) - 1))] for value in chosen)


def size(count: float) -> str:
    """Bytes for people.

    >>> size(512), size(3 << 20)
    ('512 B', '3.0 MiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            break
    return f"{count:.1f} {unit}"


def span(seconds: float) -> str:
    """A length of time for people.

    >>> span(42), span(150), span(90_000)
    ('42 s', '2 min 30 s', '25 h 0 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def printable(text: str) -> str:
    """Text from a bucket, without what a terminal would act upon.

    >>> printable("a" + chr(27) + "[2J")
    'a?[2J'
    """
    return "".join(c if c.isprintable() else "?" for c in text)
