"""The area under the ROC curve, of all examples or group by group."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.data.index import offsets_of
from hubless.errors import DataError
from hubless.measure.groups import Floats, groups_of


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """How often an example of label 1 scores above one of label 0; a tie counts half.

        AUC = (sum of the ranks of label 1 - n1 · (n1 + 1) / 2) / (n1 · n0)

    n1 and n0 are how many examples have each label. It is worked out in whole numbers until the
    last division, so it is exact whatever the ties.

    Args:
        scores: One per example; the higher, the rather label 1.
        labels: 0 or 1 per example; both have to occur.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875

    Reference:
        Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger
        than the Other", 1947.
    """
    values, positive = _checked(scores, labels)
    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        raise DataError(
            f"all {len(positive)} labels are {int(not zeros)}: the AUC compares examples of both"
            if len(positive)
            else "there are no examples, and the AUC compares those of two labels"
        )
    _, tied, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    # twice the mean rank of those that tie is a whole number
    doubled = (2 * below + counts + 1)[tied]
    return (int(doubled[positive].sum()) - ones * (ones + 1)) / (2 * ones * zeros)


def auc_by(
    scores: ArrayLike, labels: ArrayLike, group: ArrayLike, groups: int | None = None
) -> Floats:
    """The AUC within each group, NaN for a group that lacks either label.

    Args:
        scores: One per example; the higher, the rather label 1.
        labels: 0 or 1 per example.
        group: The group of each example, counted from 0; -1 counts nowhere.
        groups: How many groups there are; one more than the largest number if not given.

    >>> auc_by([0.1, 0.8, 0.4, 0.9, 0.4], [0, 1, 1, 1, 0], [0, 0, 1, 2, 1])
    array([1. , 0.5, nan])
    """
    values, positive = _checked(scores, labels)
    member, count = groups_of(group, len(values), groups)
    kept = np.flatnonzero(member >= 0)
    order = kept[np.lexsort((values[kept], member[kept]))]
    values, positive, member = values[order], positive[order], member[order]
    offsets = offsets_of(np.bincount(member, minlength=count))
    fresh = np.ones(len(order), bool)
    fresh[1:] = (values[1:] != values[:-1]) | (member[1:] != member[:-1])
    starts = np.flatnonzero(fresh)
    ends = np.append(starts[1:], len(order))
    # the ranks of a run of ties are below + 1 .. below + length within its group
    doubled = np.repeat(starts + ends + 1 - 2 * offsets[member[starts]], ends - starts)
    ranks = np.diff(offsets_of(np.where(positive, doubled, 0))[offsets])
    ones = np.diff(offsets_of(positive)[offsets])
    pairs = ones * (np.diff(offsets) - ones)
    return np.where(pairs > 0, (ranks - ones * (ones + 1)) / np.maximum(2 * pairs, 1), np.nan)


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.number], NDArray[np.bool_]]:
    values, truth = np.asarray(scores), np.asarray(labels)
    if values.ndim != 1 or values.shape != truth.shape:
        raise DataError(
            f"scores have shape {values.shape} and labels {truth.shape}: give one of each per "
            "example"
        )
    if np.isnan(values).any():
        raise DataError(f"the score of example {int(np.isnan(values).argmax())} is not a number")
    if not np.isin(truth, (0, 1)).all():
        raise DataError(f"labels are 0 or 1, and one is {truth[~np.isin(truth, (0, 1))][0]}")
    return values, truth == 1
