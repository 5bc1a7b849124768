"""Data: who owns which examples, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.data.partition import Parts as Parts
    from hubless.data.partition import by_column as by_column
    from hubless.data.partition import dirichlet as dirichlet
    from hubless.data.partition import iid as iid
    from hubless.data.partition import label_skew as label_skew
    from hubless.data.partition import lognormal_sizes as lognormal_sizes
    from hubless.data.partition import shards as shards
    from hubless.data.population import Population as Population
    from hubless.data.timeline import Timeline as Timeline
    from hubless.data.timeline import instant as instant

__getattr__, __dir__ = exported(__name__)
