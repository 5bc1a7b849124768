"""What runs came to, in numbers and in a sentence or two, and how their settings differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hubless.watch.fold.federation import ALL, FederationFold
from hubless.watch.fold.simulation import SimulationFold
from hubless.watch.report.tables import Tables
from hubless.watch.values import mapping, text

if TYPE_CHECKING:
    import polars

_FIRST = ("accuracy", "auc", "f1", "perplexity", "loss")
_LOWER = re.compile(r"loss|perplex|ppl|err|mse|mae|nll|entropy|bits|regret|distance", re.IGNORECASE)
_NOT_SETTINGS = ("labels", "activity", "versions", "command", "engine", "model", "rounds")


@dataclass(frozen=True)
class Summary:
    """One run in a line: a simulation, or a federation, whose metrics are its members' means."""

    run: str
    rounds: int
    planned: int | None
    clients: int | None
    seconds: float
    bytes: float
    final: Mapping[str, float]
    best: tuple[float, int] | None
    """The best of the main metric, and in which round it was."""
    reached: int | None
    """The round in which the main metric came to the `target`."""
    ended: str


@dataclass(frozen=True)
class Comparison:
    """All runs in a line each; the main metric, and what the worst of them reaches at its best."""

    runs: Sequence[Summary]
    metric: str | None
    target: float | None

    @property
    def lower(self) -> bool:
        """Whether less of the main metric is better."""
        return self.metric is not None and lower_is_better(self.metric)


def lower_is_better(metric: str) -> bool:
    """Whether a metric of this name is one that should fall.

    >>> lower_is_better("train_loss"), lower_is_better("accuracy")
    (True, False)
    """
    return bool(_LOWER.search(metric))


def compare(
    tables: Tables,
    simulations: Sequence[SimulationFold],
    federations: Sequence[FederationFold] = (),
    now: float = 0.0,
) -> Comparison:
    """Sum up every run in the tables."""
    metric = main_metric(tables)
    frames = {
        str(key[0]): frame for key, frame in tables.rounds.partition_by("run", as_dict=True).items()
    }
    curves = {name: _curve(frame, metric) for name, frame in frames.items()}
    target = _target(metric, list(curves.values()))
    summaries = []
    for run in (*simulations, *federations):
        curve = curves.get(run.name, [])
        final = _finals(frames.get(run.name), tables.metrics)
        summaries.append(
            Summary(
                run=run.name,
                rounds=run.progress(),
                planned=run.rounds,
                clients=run.clients or None,
                seconds=run.seconds(),
                bytes=run.bytes_up + run.bytes_down,
                final=final,
                best=_best(curve, metric),
                reached=_reached(curve, metric, target),
                ended=run.ended(now),
            )
        )
    return Comparison(summaries, metric, target)


def main_metric(tables: Tables) -> str | None:
    """The metric to judge runs by: one that most have, on a test rather than in training."""

    def rank(name: str) -> tuple[int, int, int]:
        runs = tables.rounds.filter(tables.rounds[name].is_not_null())["run"].n_unique()
        plain = name.lower()
        place = next((at for at, word in enumerate(_FIRST) if word in plain), len(_FIRST))
        return -runs, int(plain.startswith("train")), place

    return min(tables.metrics, key=rank, default=None)


def _curve(frame: polars.DataFrame, metric: str | None) -> list[tuple[int, float]]:
    """A metric by round; a federation's is what its members' newest come to together."""
    if metric is None:
        return []
    rows = _of_all(frame).drop_nulls(metric).sort("round")
    return [(int(at), value) for at, value in zip(rows["round"], rows[metric], strict=True)]


def _target(metric: str | None, curves: Sequence[Sequence[tuple[int, float]]]) -> float | None:
    """What every run reaches sooner or later."""
    measured = [curve for curve in curves if curve]
    if metric is None or len(measured) < 2 or len(measured) < len(curves):
        return None
    lower = lower_is_better(metric)
    bests = [(min if lower else max)(value for _, value in curve) for curve in measured]
    return max(bests) if lower else min(bests)


def _best(curve: Sequence[tuple[int, float]], metric: str | None) -> tuple[float, int] | None:
    lower = metric is not None and lower_is_better(metric)
    best = min(curve, key=lambda at: at[1] if lower else -at[1], default=None)
    return None if best is None else (best[1], best[0])


def _reached(
    curve: Sequence[tuple[int, float]], metric: str | None, target: float | None
) -> int | None:
    if metric is None or target is None:
        return None
    lower = lower_is_better(metric)
    return next((at for at, v in curve if (v <= target if lower else v >= target)), None)


def _of_all(frame: polars.DataFrame) -> polars.DataFrame:
    """The rows of a simulation, or of a federation's members together."""
    return frame.filter(frame["client"].is_null() | (frame["client"] == ALL))


def _finals(frame: polars.DataFrame | None, metrics: Sequence[str]) -> dict[str, float]:
    """The last value of each metric."""
    finals: dict[str, float] = {}
    for metric in metrics:
        if frame is not None and len(rows := _of_all(frame).drop_nulls(metric)):
            finals[metric] = float(rows.sort("round")[metric][-1])
    return finals


def sentences(comparison: Comparison, simulations: Sequence[SimulationFold]) -> list[str]:
    """What was found, in plain words."""
    measured = [run for run in comparison.runs if comparison.metric in run.final]
    lines = []
    if comparison.metric is None or not measured:
        lines.append("No metric has been told of yet.")
    elif len(measured) == 1:
        lines.append(_alone(comparison, measured[0]))
    else:
        lines += _compared(comparison, measured)
    if comparison.metric is not None and comparison.metric.lower().startswith("train"):
        lines.append("Nothing was evaluated on a test, so this is what clients saw in training.")
    for run in simulations:
        summary = next(one for one in comparison.runs if one.run == run.name)
        if note := _unfinished(run, summary):
            lines.append(note)
    return lines


def _alone(comparison: Comparison, run: Summary) -> str:
    metric = str(comparison.metric)
    sentence = f"After {counted(run.rounds, 'round')} {metric} is {figure(run.final[metric])}"
    if run.best is not None and run.best[1] != run.rounds:
        extreme = "lowest" if comparison.lower else "highest"
        sentence += f"; it was {extreme} in round {run.best[1]}, at {figure(run.best[0])}"
    return f"{sentence}."


def _compared(comparison: Comparison, runs: Sequence[Summary]) -> list[str]:
    metric, sign = str(comparison.metric), 1 if comparison.lower else -1
    order = sorted(runs, key=lambda run: sign * run.final[metric])
    first, others = order[0], order[1:]
    extreme = "lowest" if comparison.lower else "highest"
    figures = [f"{figure(run.final[metric])} of {quoted(run.run)}" for run in others[:3]]
    if figure(first.final[metric]) == figure(others[-1].final[metric]):
        every = "Both" if len(runs) == 2 else f"All {len(runs)}"
        lines = [f"{every} runs end with {metric} {figure(first.final[metric])}."]
    else:
        rest = "" if len(others) <= 3 else f", and less good in {len(others) - 3} more"
        lines = [
            f"{quoted(first.run)} ends with the {extreme} {metric}, {figure(first.final[metric])}, "
            f"against {joined(figures)}{rest}."
        ]
    reached = sorted(
        (run for run in runs if run.reached is not None), key=lambda run: run.reached or 0
    )
    if (
        comparison.target is not None
        and len(reached) > 1
        and reached[0].reached != reached[-1].reached
    ):
        quick, slow = reached[0], reached[-1]
        lines.append(
            f"{figure(comparison.target)} is reached soonest by {quoted(quick.run)}, in round "
            f"{quick.reached}, and last by {quoted(slow.run)}, in round {slow.reached}."
        )
    lines.append("Each is one run: a small difference may be chance.")
    return lines


def _unfinished(run: SimulationFold, summary: Summary) -> str:
    of = f" of {summary.planned}" if summary.planned else ""
    if not run.reason:
        name, done = quoted(run.name), f"{summary.rounds}{of} rounds"
        return f"{name} has not ended, or was killed: {done} are told of."
    if run.reason in ("complete", "stopped"):
        return ""
    return f"{quoted(run.name)} {_how(run.reason)} after round {summary.rounds}{of}."


def _how(reason: str) -> str:
    return {"failed": "failed", "interrupted": "was interrupted"}.get(reason, f"ended ({reason})")


def settings_of(run: SimulationFold) -> dict[str, str]:
    """What a run is made of, as pairs of texts."""
    settings = {name: text(v, 400) for name, v in run.settings.items() if name not in _NOT_SETTINGS}
    for group in ("engine", "versions"):
        values = mapping(run.settings.get(group))
        settings |= {f"{text(name, 40)} ({group})": text(v, 100) for name, v in values.items()}
    if "rounds" in run.settings:
        settings["rounds"] = text(run.settings["rounds"], 40)
    if "model" in run.settings:
        settings["model"] = text(run.settings["model"], 2000)
    return {text(name, 60): value for name, value in list(settings.items())[:200]}


def differences(settings: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The settings that are not the same in all runs.

    >>> differences({"a": {"seed": "1", "cohort": "5"}, "b": {"seed": "2", "cohort": "5"}})
    ['seed']
    """
    names = dict.fromkeys(name for run in settings.values() for name in run)
    return [name for name in names if len({run.get(name) for run in settings.values()}) > 1]


def figure(value: Any) -> str:
    """A number as people read it.

    >>> figure(0.712345), figure(1234567.0), figure(None)
    ('0.7123', '1.235e+06', '')
    """
    return "" if value is None else f"{value:.4g}"


def quoted(name: str) -> str:
    """A name that is seen to be one within a sentence.

    >>> quoted("by activity")
    '“by activity”'
    """
    return f"“{name}”"


def counted(number: float, thing: str) -> str:
    """So many of something.

    >>> counted(1, "round"), counted(2000, "round")
    ('1 round', '2,000 rounds')
    """
    return f"{number:,.0f} {thing}{'' if number == 1 else 's'}"


def joined(parts: Sequence[str]) -> str:
    """Parts of a sentence, one after the other.

    >>> joined(["a"]), joined(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
