"""Trackers: what a run says, written into TensorBoard, MLflow or Weights & Biases.

Each is a listener, for `Simulation(events=[...])` and `join(events=...)`, and gives every client
or simulation that it hears of a run of its own. Another tracker is a class with `write` and `close`
and a function that returns `Tracker(opening)`. None of them sends anything anywhere but to where
you say; what the packages would tell their makers is switched off unless you switched it on.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import quote

from hubless.errors import HublessError
from hubless.events import (
    Closed,
    Ended,
    Event,
    Joined,
    Late,
    Left,
    Listener,
    Offline,
    Pulled,
    Pushed,
    RefusedUpdate,
    Skipped,
    Started,
    Trained,
)


@dataclass(frozen=True)
class Point:
    """What there is to write down of an event.

    `step` is None where the event belongs to the step the run is at. `numbers` are as they are;
    `counts` are to be added up over the run. `settings` is what the run is made of, if this says.
    """

    step: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None


def point(event: Event) -> Point:
    """What there is to write down of an event: the only place that knows kinds of events.

    >>> pushed = Pushed(client="a", key="k", sequence=3, examples=9, bytes=80, metrics={"loss": 1})
    >>> point(pushed).step, point(pushed).numbers
    (3, {'loss': 1.0, 'examples': 9.0, 'bytes_up': 80.0})
    """
    match event:
        case Started():
            return Point(event.round, settings=event.settings)
        case Trained():
            return Point(event.round, _finite(_of_round(event)))
        case Joined():
            return Point(settings={"url": event.url, "mode": event.mode})
        case Pushed():
            sent = {"examples": event.examples, "bytes_up": event.bytes}
            rest = {"valuation": event.valuation, "epsilon": event.epsilon}
            return Point(event.sequence, _finite({**event.metrics, **sent, **rest}))
        case Pulled():
            got = {"peers": len(event.peers), "bytes_down": event.bytes, "seconds": event.seconds}
            stale = _spread("staleness", list((event.staleness or {}).values()))
            return Point(None, _finite({**got, **stale}))
        case Closed():
            closed = {"included": len(event.included), "seconds": event.seconds}
            return Point(None, _finite(closed))
        case RefusedUpdate() | Late() | Offline() | Skipped():
            return Point(counts={event.kind: 1})
    return Point()


def _of_round(event: Trained) -> dict[str, float | None]:
    return {
        **event.metrics,
        **{
            f"deciles/{name}/{place}": value
            for name, values in (event.deciles or {}).items()
            for place, value in enumerate(values, 1)
        },
        **{f"phases/{name}": seconds for name, seconds in (event.phases or {}).items()},
        **_spread("staleness", event.staleness or []),
        "clients": len(event.cohort),
        "skipped": event.skipped,
        "dropped": event.dropped,
        "bytes_down": event.bytes_down,
        "bytes_up": event.bytes_up,
        "seconds": event.seconds,
        "virtual": event.virtual,
    }


def _spread(name: str, values: Sequence[int]) -> dict[str, float | None]:
    if not values:
        return {}
    return {name: sum(values) / len(values), f"{name}_most": max(values)}


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    pairs = ((name, float(value)) for name, value in values.items() if value is not None)
    return {name: value for name, value in pairs if math.isfinite(value)}


class Run(Protocol):
    """One run as a tracker keeps it."""

    def write(self, step: int, time: float, numbers: Mapping[str, float]) -> None:
        """Write numbers down, at a step and a time in seconds since the epoch."""
        ...

    def close(self, well: bool) -> None:
        """Nothing more is to come, for now; `well` is False where the run failed."""
        ...


Opening: TypeAlias = Callable[[str, Mapping[str, Any], bool], Run]
"""Starts a run from its name and settings; the last says to go on with one of that name."""


class Tracker:
    """A listener that keeps a run for each name it hears of, and closes it where it ends."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._runs: dict[str, Run] = {}
        self._steps: dict[str, int] = {}
        self._counts: dict[str, Counter[str]] = {}
        # members of a federation may be threads of one process
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._hear(event, point(event))

    def _hear(self, event: Event, point: Point) -> None:
        name = event.client
        if isinstance(event, Started | Joined) and name in self._runs:
            # whoever ran under this name ended without a word
            self._runs.pop(name).close(False)
        if name not in self._runs:
            begins = isinstance(event, Started) and event.round == 0
            again = name in self._steps and not begins
            if not again:
                self._steps[name], self._counts[name] = 0, Counter()
            self._runs[name] = self._opening(name, point.settings or {}, again)
        if point.step is not None:
            self._steps[name] = point.step
        self._counts[name].update(point.counts)
        numbers = {**point.numbers, **{kind: self._counts[name][kind] for kind in point.counts}}
        if numbers:
            self._runs[name].write(self._steps[name], event.time, numbers)
        if isinstance(event, Ended | Left):
            failed = isinstance(event, Ended) and event.reason == "failed"
            self._runs.pop(name).close(not failed)


def to_tensorboard(folder: str | Path) -> Listener:
    """A listener that writes TensorBoard's files, a folder for each run; needs `tensorboard`."""
    _needed("tensorboard.summary.writer.event_file_writer", "tensorboard")
    return Tracker(lambda name, settings, again: _TensorBoard(Path(folder), name, settings))


def to_mlflow(experiment: str = "hubless", uri: str | None = None) -> Listener:
    """A listener that writes MLflow runs; needs `mlflow`, or `mlflow-skinny` for a server.

    Args:
        experiment: What the runs stand under.
        uri: A server, or `sqlite:///runs.db`; without, what MLflow itself is set to.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = _needed("mlflow", "mlflow")
    client = mlflow.MlflowClient(tracking_uri=uri)
    entry = client.get_experiment_by_name(experiment)
    number = entry.experiment_id if entry else client.create_experiment(experiment)
    runs: dict[str, str] = {}

    def opening(name: str, settings: Mapping[str, Any], again: bool) -> Run:
        if again:
            client.update_run(runs[name], status="RUNNING")
        else:
            runs[name] = client.create_run(number, run_name=name).info.run_id
        return _MLflow(client, runs[name], settings)

    return Tracker(opening)


def to_wandb(
    project: str,
    *,
    mode: Literal["offline", "online"] = "offline",
    folder: str | Path = ".",
    entity: str | None = None,
) -> Listener:
    """A listener that writes runs of Weights & Biases; needs `wandb`.

    Args:
        project: What the runs stand under.
        mode: `offline` only writes files, which `wandb sync` uploads when you call it. `online`
            sends everything to the server that wandb is set to.
        folder: Where the files go, below `wandb/`.
        entity: Whose project it is; without, what wandb is set to.
    """
    if mode not in ("offline", "online"):
        raise HublessError(f"mode is 'offline' or 'online', not {mode!r}")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb = _needed("wandb", "wandb")
    runs: dict[str, str] = {}

    def opening(name: str, settings: Mapping[str, Any], again: bool) -> Run:
        if not again:
            runs[name] = secrets.token_hex(4)
        return _WandB(
            wandb.init(
                project=project,
                entity=entity,
                name=name,
                id=runs[name],
                resume="allow" if again else None,
                dir=str(folder),
                mode=mode,
                config=dict(settings),
                reinit="create_new",
                settings=wandb.Settings(
                    console="off", silent=True, disable_git=True, x_disable_stats=True
                ),
            )
        )

    return Tracker(opening)


class _TensorBoard:
    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # a name must not lead out of the folder
        self._writer = EventFileWriter(str(folder / quote(name, safe=" ").replace(".", "%2E")))
        if settings:
            rows = [f"| {key} | `{value}` |" for key, value in flattened(settings).items()]
            table = "\n".join(["| setting | value |", "|---|---|", *rows])
            self._add(text_pb("settings", table), 0, None)

    def write(self, step: int, time: float, numbers: Mapping[str, float]) -> None:
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, number in numbers.items():
            self._add(scalar_pb(name, number), step, time)
        self._writer.flush()

    def close(self, well: bool) -> None:
        self._writer.close()

    def _add(self, summary: Any, step: int, time: float | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Written

        self._writer.add_event(Written(wall_time=time, step=step, summary=summary))


class _MLflow:
    def __init__(self, client: Any, run: str, settings: Mapping[str, Any]) -> None:
        self._client, self._run = client, run
        from mlflow.entities import Param

        old = client.get_run(run).data.params
        # MLflow keeps the first of two values, and does not take long ones
        new = {_allowed(key): value[:500] for key, value in flattened(settings).items()}
        params = [Param(key, value) for key, value in new.items() if key not in old]
        for start in range(0, len(params), 100):
            client.log_batch(run, params=params[start : start + 100])

    def write(self, step: int, time: float, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        at = int(1000 * time)
        metrics = [Metric(_allowed(name), value, at, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, well: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if well else "FAILED")


class _WandB:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, time: float, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self, well: bool) -> None:
        self._run.finish(exit_code=0 if well else 1)


def flattened(settings: Mapping[str, Any], under: str = "") -> dict[str, str]:
    """Settings as pairs of texts, what stands within others by a dotted name.

    >>> flattened({"seed": 3, "engine": {"lanes": 4}, "value": None})
    {'seed': '3', 'engine.lanes': '4', 'value': 'None'}
    """
    texts = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            texts.update(flattened(value, f"{under}{name}."))
        else:
            texts[f"{under}{name}"] = str(value)
    return texts


def _allowed(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w.\- :/]", "_", name)


def _needed(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise HublessError(f"this tracker needs {package}: pip install {package}") from error
