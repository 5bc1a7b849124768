"""The area under the ROC curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hubless.errors import DataError


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """How often an example of label 1 scores above one of label 0; a tie counts half.

    From ranks (Mann and Whitney, 1947), in whole numbers until the last division: exact whatever
    the ties.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
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
    positive = truth == 1
    ones = int(positive.sum())
    zeros = len(truth) - ones
    if not ones or not zeros:
        raise DataError(
            f"all {len(truth)} labels are {int(not zeros)}: the AUC compares examples of both"
            if len(truth)
            else "there are no examples, and the AUC compares those of two labels"
        )
    _, tied, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    # twice the mean rank of those that tie is a whole number
    doubled = (2 * below + counts + 1)[tied]
    return (int(doubled[positive].sum()) - ones * (ones + 1)) / (2 * ones * zeros)
