"""Clients in ten equal parts by how much they say, and measures pooled within each part.

As in Dupuy et al. (2022): clients are ranked by their number of test utterances, decile 1 the
lightest tenth and decile 10 the heaviest, and a decile's perplexity is that of all utterances of
its clients together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hubless.data.index import Index, tenths
from hubless.errors import DataError
from hubless.measure.groups import refuse, whole
from hubless.measure.outcome import Outcome, framed

if TYPE_CHECKING:
    import polars

DECILES = 10


def decile_of(utterances: ArrayLike) -> Index:
    """The decile of every client: 1 is the lightest tenth, 10 the heaviest.

    Deciles differ by at most one client. Clients with equally many utterances stand in the order of
    the population, and may fall on either side of a border. Fewer than ten clients spread evenly,
    and some deciles are empty.

    Args:
        utterances: How many each client has; clients with 0 are in decile 0, which is none.

    >>> decile_of([5, 0, 3, 3, 900, 1, 1, 2, 8, 13, 40])
    array([ 6,  0,  4,  5, 10,  1,  2,  3,  7,  8,  9])
    >>> decile_of([7, 2])
    array([8, 3])

    Reference:
        Dupuy et al., "Learnings from Federated Learning in the Real World", 2022, section 4.
    """
    return tenths(whole("utterances", utterances, of=lambda client: f"client {client}"))


def by_decile(outcome: Outcome, decile: ArrayLike | None = None) -> polars.DataFrame:
    """One row per decile that has examples: clients, examples and every measure, pooled.

    What a decile does not have, such as an AUC where all labels are equal, is null.

    Args:
        outcome: What the model made of the test examples.
        decile: For each client 1 to 10, or 0 to leave it out; by its examples if not given.

    >>> by_decile(Outcome([1, 3], {"accuracy": [1, 1, 0, 0]})).rows()
    [(3, 1, 1, 1.0), (8, 1, 3, 0.3333333333333333)]
    """
    deciles = checked(outcome.sizes, decile)
    # decile 0 becomes group -1, which counts nowhere
    measures = outcome.pooled(np.repeat(deciles - 1, outcome.sizes), DECILES)
    clients = np.bincount(deciles[outcome.sizes > 0], minlength=DECILES + 1)[1:]
    there = measures["examples"] > 0
    columns = {"decile": np.arange(1, DECILES + 1), "clients": clients, **measures}
    return framed({name: values[there] for name, values in columns.items()})


def overall(outcome: Outcome) -> polars.DataFrame:
    """The whole test set as one row like those of `by_decile`, its decile null.

    Args:
        outcome: What the model made of the test examples.

    >>> outcome = Outcome([1, 3], nll=np.log([4, 4, 4, 4]), tokens=[1, 1, 1, 1])
    >>> import polars
    >>> polars.concat([overall(outcome), by_decile(outcome)])["decile"].to_list()
    [None, 3, 8]
    """
    import polars as pl

    checked(outcome.sizes, None)
    measures = outcome.pooled(np.zeros(int(outcome.sizes.sum()), np.int64), 1)
    clients = np.array([np.count_nonzero(outcome.sizes)])
    row = framed({"clients": clients, **measures})
    return row.select(pl.lit(None, pl.Int64).alias("decile"), pl.all())


def checked(sizes: Index, decile: ArrayLike | None) -> Index:
    """The decile of every client, as given or by size; refused where there is nothing to rank."""
    if not sizes.any():
        raise DataError(f"none of {len(sizes)} clients has test examples")
    if decile is None:
        return decile_of(sizes)
    deciles = np.asarray(decile)
    if deciles.shape != sizes.shape or deciles.dtype.kind not in "iu":
        raise DataError(
            f"deciles are {deciles.dtype} of shape {deciles.shape}: give a number for each of "
            f"{len(sizes)} clients"
        )
    deciles = deciles.astype(np.int64, copy=False)
    wrong = (deciles < 0) | (deciles > DECILES)
    refuse(wrong, lambda i: f"client {i} is in decile {deciles[i]}: give 1 to 10, or 0 for none")
    return deciles
