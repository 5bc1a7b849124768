"""Measures: how good predictions are, beyond a mean over examples, and for whom.

Simulated or real, it starts with an `Outcome`: what a model made of every test example.

>>> from hubless.measure import Outcome, by_decile
>>> outcome = Outcome([1, 2], {"accuracy": [1, 0, 1]}, nll=[0.5, 2.0, 1.0], tokens=[1, 2, 2])
>>> by_decile(outcome).columns
['decile', 'clients', 'examples', 'tokens', 'accuracy', 'perplexity']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.measure.clients import by_client as by_client
    from hubless.measure.clients import spread as spread
    from hubless.measure.deciles import by_decile as by_decile
    from hubless.measure.deciles import decile_of as decile_of
    from hubless.measure.deciles import overall as overall
    from hubless.measure.novelty import Novelty as Novelty
    from hubless.measure.novelty import by_novelty as by_novelty
    from hubless.measure.outcome import Outcome as Outcome
    from hubless.measure.perplexity import perplexity_by as perplexity_by
    from hubless.measure.perplexity import perplexity_of as perplexity_of
    from hubless.measure.rcp import over_sets as over_sets
    from hubless.measure.rcp import rcp_over_sets as rcp_over_sets
    from hubless.measure.rcp import relative_change as relative_change
    from hubless.measure.roc import auc as auc
    from hubless.measure.roc import auc_by as auc_by

__getattr__, __dir__ = exported(__name__)
