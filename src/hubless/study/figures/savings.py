"""How many epochs one selection saves over another, as numbers, tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import DataError

CHANCE = 0.5
"""The AUC of a model that was not trained."""
_TITLES = {
    "uniform": "uniform",
    "active": "active, by loss",
    "positives": "active, by positives",
}
_COLOURS = {"uniform": "#777777", "active": "#d95f02", "positives": "#1b9e77"}


def reached(curve: NDArray[np.float64], target: float) -> float:
    """The epoch at which a curve first comes to a target, between epochs; infinite if it never.

    >>> reached(np.array([0.52, 0.56, 0.54]), 0.55)
    1.75
    """
    values = np.concatenate([[CHANCE], curve])
    above = values >= target
    if not above.any():
        return float("inf")
    at = int(above.argmax())
    if at == 0:
        return 0.0
    return round(at - float((values[at] - target) / (values[at] - values[at - 1])), 4)


def saving(uniform: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, Any]:
    """Epochs that an arm needs to come to what uniform selection ends with.

    For each repetition by its own curves, and once for the mean curves. A repetition that does not
    get there counts as if it did in the last epoch; `reached` says how many did. `uniform` is when
    uniform selection itself first was as good, which noise may put before the last epoch.
    """
    epochs = uniform.shape[1]
    first = np.array(
        [[reached(c, u[-1]) for c in (u, o)] for u, o in zip(uniform, other, strict=True)]
    )
    needed = np.minimum(first[:, 1], epochs)
    means = uniform.mean(0), other.mean(0)
    of_means = [reached(mean, means[0][-1]) for mean in means]
    return {
        "target": float(means[0][-1]),
        "epochs": summed_up(needed),
        "reached": int(np.isfinite(first[:, 1]).sum()),
        "of": len(first),
        "uniform": summed_up(first[:, 0]),
        "saved": summed_up(1 - needed / epochs),
        "fewer_than_uniform": summed_up(first[:, 0] - needed),
        "of_means": {
            "uniform": of_means[0],
            "epochs": of_means[1] if np.isfinite(of_means[1]) else None,
            "saved": 1 - of_means[1] / epochs if np.isfinite(of_means[1]) else None,
        },
    }


def summed_up(values: NDArray[np.float64]) -> dict[str, float | None]:
    """The mean, and its standard error where there are several.

    >>> summed_up(np.array([1.0, 3.0]))
    {'mean': 2.0, 'error': 1.0}
    """
    spread = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    return {"mean": float(values.mean()), "error": None if spread is None else float(spread)}


def summary(runs: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[str, Any]:
    """Everything that tables and figure show, from the curve of each arm's repetitions."""
    curves = {arm: np.array([of[r] for r in sorted(of)]) for arm, of in runs.items()}
    arms = {
        arm: {
            "repetitions": len(values),
            "final": summed_up(values[:, -1]),
            "best": summed_up(values.max(1)),
            "by_epoch": [summed_up(column) for column in values.T],
        }
        for arm, values in curves.items()
    }
    uniform, savings = runs.get("uniform", {}), {}
    for arm in (arm for arm in runs if arm in _TITLES and arm != "uniform"):
        # a repetition is of the same messages for all arms
        if both := sorted(uniform.keys() & runs[arm].keys()):
            pair = (np.array([of[r] for r in both]) for of in (uniform, runs[arm]))
            savings[arm] = saving(*pair)
    return {"arms": arms, "savings": savings}


def markdown(numbers: Mapping[str, Any], knobs: Mapping[str, Mapping[str, float]]) -> str:
    """The two tables: epochs saved, and who selects what."""
    arms, savings = numbers["arms"], numbers["savings"]
    head = ["selection", "tuned to", "final AUC", "best AUC", "epochs to uniform's final AUC"]
    lines = [_row([*head, "fewer epochs"]), "|---" * 6 + "|"]
    for arm in (arm for arm in _TITLES if arm in arms):
        tuned = ", ".join(f"{name} {value:g}" for name, value in knobs[arm].items())
        shown = [_TITLES[arm], tuned, *(_spread(arms[arm][key]) for key in ("final", "best"))]
        if arm in savings:
            saved = savings[arm]
            there = f" ({saved['reached']} of {saved['of']} got there)"
            shown += [_spread(saved["epochs"], 1) + there, _percent(saved["saved"])]
        elif savings:
            shown += [_spread(next(iter(savings.values()))["uniform"], 1) + " (first time)", ""]
        else:
            shown += ["", ""]
        lines.append(_row(shown))
    for arm, saved in savings.items():
        of_means = saved["of_means"]
        what = "never gets there"
        if of_means["epochs"] is not None:
            what = f"takes {of_means['epochs']:.1f} epochs: {of_means['saved']:.0%} fewer"
        lines += ["", f"On mean curves, {_TITLES[arm]} {what} (target {saved['target']:.4f})."]
    lines += ["", _row(["final AUC", "random", "active"]), "|---" * 3 + "|"]
    for title, pair in (
        ("server selects examples", ("pooled", "oversampled")),
        ("federation selects clients", ("uniform", "positives")),
    ):
        lines.append(_row([title, *(_spread(arms[a]["final"]) if a in arms else "" for a in pair)]))
    return "\n".join(lines)


def draw(numbers: Mapping[str, Any], title: str, path: Path) -> list[Path]:
    """AUC by epoch with bands of one standard error, as PNG and SVG. Needs altair."""
    try:
        import altair
    except ImportError as error:
        raise DataError("figures need altair: pip install 'hubless[report]'") from error
    there = [arm for arm in _TITLES if arm in numbers["arms"]]
    if not there:
        return []
    points = [
        {
            "epoch": epoch,
            "selection": _TITLES[arm],
            "AUC": at["mean"],
            "low": at["mean"] - (at["error"] or 0),
            "high": at["mean"] + (at["error"] or 0),
        }
        for arm in there
        for epoch, at in enumerate(numbers["arms"][arm]["by_epoch"], 1)
    ]
    colour = altair.Color(
        "selection:N",
        scale=altair.Scale(
            domain=[_TITLES[arm] for arm in there], range=[_COLOURS[arm] for arm in there]
        ),
        legend=altair.Legend(title=None, symbolOpacity=1, symbolType="stroke", orient="top"),
    )
    whole = altair.Scale(zero=False)
    base = altair.Chart({"values": points}, title=title, width=480, height=300)
    band = base.mark_area(opacity=0.2).encode(
        x=altair.X("epoch:Q"), y=altair.Y("low:Q", scale=whole), y2="high:Q", color=colour
    )
    line = base.mark_line().encode(
        x=altair.X("epoch:Q", title="epochs"),
        y=altair.Y("AUC:Q", scale=whole, title="AUC on test messages"),
        color=colour,
    )
    paths = [path.with_suffix(".svg"), path.with_suffix(".png")]
    for one in paths:
        (band + line).save(str(one), **({"scale_factor": 2} if one.suffix == ".png" else {}))
    return paths


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(estimate: Mapping[str, float | None], digits: int = 4) -> str:
    mean, error = estimate["mean"], estimate["error"]
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _percent(estimate: Mapping[str, float | None]) -> str:
    return _spread({k: None if v is None else 100 * v for k, v in estimate.items()}, 0) + " %"
