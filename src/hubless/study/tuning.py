"""Choosing among what was tried, and telling whether the best may lie beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Knobs = Mapping[str, float]


def at_edges(best: Knobs, tried: Iterable[Knobs]) -> list[str]:
    """Which knobs did best at the least or most that was tried of them, and may do better beyond.

    >>> at_edges({"client": 1.0, "server": 0.1}, [{"client": c, "server": 0.1} for c in (0.3, 1.0)])
    ['the most that was tried of client, 1']
    """
    others = list(tried)
    edges = []
    for name, value in best.items():
        values = {knobs[name] for knobs in others}
        if len(values) > 1 and value in (min(values), max(values)):
            which = "least" if value == min(values) else "most"
            edges.append(f"the {which} that was tried of {name}, {value:g}")
    return edges
