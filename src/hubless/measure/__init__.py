"""Measures: how good predictions are, beyond a mean over examples, and for whom.

Simulated or real, it starts with an `Outcome`: what a model made of every test example.

>>> outcome = Outcome([1, 2], {"accuracy": [1, 0, 1]}, nll=[0.5, 2.0, 1.0], tokens=[1, 2, 2])
>>> by_decile(outcome).columns
['decile', 'clients', 'examples', 'tokens', 'accuracy', 'perplexity']
"""

from __future__ import annotations

from hubless.measure.auc import auc_by
from hubless.measure.clients import by_client, spread
from hubless.measure.deciles import by_decile, decile_of, overall
from hubless.measure.novelty import Novelty, by_novelty
from hubless.measure.outcome import Outcome
from hubless.measure.perplexity import perplexity_by, perplexity_of
from hubless.measure.rcp import over_sets, rcp_over_sets, relative_change

# `auc` is not among them: it would hide the module of its name, or be hidden by it
__all__ = [
    "Novelty",
    "Outcome",
    "auc_by",
    "by_client",
    "by_decile",
    "by_novelty",
    "decile_of",
    "over_sets",
    "overall",
    "perplexity_by",
    "perplexity_of",
    "rcp_over_sets",
    "relative_change",
    "spread",
]
