"""Data: who owns which examples, and where they come from."""

from __future__ import annotations

from hubless.data.partition import (
    Parts,
    by_column,
    dirichlet,
    iid,
    label_skew,
    lognormal_sizes,
    shards,
)
from hubless.data.population import Population
from hubless.data.timeline import Timeline

__all__ = [
    "Parts",
    "Population",
    "Timeline",
    "by_column",
    "dirichlet",
    "iid",
    "label_skew",
    "lognormal_sizes",
    "shards",
]
