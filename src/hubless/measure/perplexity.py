"""Perplexity: how many tokens a language model hesitates between, on average.

It is exp(total negative log-likelihood / number of predicted tokens), natural logarithm: pooled
over all tokens of a group, never a mean of perplexities. Beyond what a float holds it is infinite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hubless.data.index import Index
from hubless.errors import DataError
from hubless.measure.groups import (
    Describe,
    Floats,
    added,
    example,
    groups_of,
    numbers,
    refuse,
    whole,
)


def perplexity_of(nll: ArrayLike, tokens: ArrayLike) -> float:
    """The perplexity of all examples together.

        exp(Σ nll / Σ tokens)

    Without any token there is no perplexity, and an error says so.

    Args:
        nll: For each example the negative log-likelihood, summed over its predicted tokens; natural
            logarithm.
        tokens: How many tokens each example predicts.

    >>> round(perplexity_of([4 * np.log(2), 2 * np.log(16)], [4, 2]), 9)
    4.0
    """
    sums, counts = checked(nll, tokens)
    total = int(counts.sum())
    if not total:
        raise DataError(
            f"no token is predicted in {len(counts)} examples: there is no perplexity of nothing"
        )
    with np.errstate(over="ignore"):
        return float(np.exp(sums.sum() / total))


def perplexity_by(
    nll: ArrayLike, tokens: ArrayLike, group: ArrayLike, groups: int | None = None
) -> Floats:
    """The perplexity of each group, pooled within it; NaN for a group without tokens.

    Args:
        nll: For each example the negative log-likelihood, summed over its predicted tokens; natural
            logarithm.
        tokens: How many tokens each example predicts.
        group: The group of each example, counted from 0; -1 counts nowhere.
        groups: How many groups there are; one more than the largest number if not given.

    >>> perplexity_by(np.log([2, 8, 5, 5]), [1, 1, 1, 1], [0, 0, -1, 2]).round(9)
    array([ 4., nan,  5.])
    """
    sums, counts = checked(nll, tokens)
    member, count = groups_of(group, len(sums), groups)
    return pooled(added(sums, member, count), added(counts, member, count))


def pooled(nll: Floats, tokens: Floats) -> Floats:
    """Perplexities from sums that are already those of groups."""
    mean: Floats = np.full(len(nll), np.nan)
    np.divide(nll, tokens, out=mean, where=tokens > 0)
    with np.errstate(over="ignore"):
        return np.exp(mean, out=mean)


def checked(nll: ArrayLike, tokens: ArrayLike, of: Describe = example) -> tuple[Floats, Index]:
    """Both as arrays, or an error about the first example that makes no sense."""
    sums = numbers("negative log-likelihoods", nll)
    counts = whole("tokens", tokens, len(sums), of)
    refuse(
        np.isnan(sums) | (sums == -np.inf),
        lambda i: f"the negative log-likelihood of {of(i)} is {sums[i]}",
    )
    refuse(
        (counts == 0) & (sums != 0),
        lambda i: f"{of(i)} has no tokens, and a negative log-likelihood of {sums[i]:g}",
    )
    return sums, counts
