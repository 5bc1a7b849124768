"""What a model made of every test example, client by client, and pooling it by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.data.index import Index, offsets_of
from hubless.data.population import Population
from hubless.errors import DataError
from hubless.measure import groups, perplexity
from hubless.measure.groups import Floats, added, counted, numbers, refuse, whole
from hubless.measure.roc import auc_by

if TYPE_CHECKING:
    import polars

NLL, TOKENS, SCORES, LABELS = "nll", "tokens", "scores", "labels"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model made of every test example, those of client 0 first.

    Args:
        sizes: How many test examples each client has.
        means: What is averaged over examples, by name: loss, accuracy, any metric. With `tokens`
            these are means over an example's tokens and are averaged over tokens: an example
            without any counts nowhere.
        nll: For each example the negative log-likelihood, summed over its tokens, for a perplexity.
            If not given, with tokens it is the loss times the tokens.
        tokens: How many tokens each example predicts.
        scores: For an AUC; the higher, the rather label 1.
        labels: 0 or 1 per example, with `scores`.
        names: What clients are called in errors.

    >>> outcome = Outcome([2, 1], {"accuracy": [1, 0, 1]})
    >>> outcome.pooled(outcome.owner, 2)["accuracy"]
    array([0.5, 1. ])
    """

    sizes: Index
    means: Mapping[str, Floats] = field(default_factory=dict)
    nll: Floats | None = None
    tokens: Index | None = None
    scores: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    names: NDArray[Any] | Sequence[str] | None = None

    def __post_init__(self) -> None:
        sizes = whole("examples", self.sizes, of=lambda client: f"client {client}")
        if self.names is not None and len(self.names) != len(sizes):
            raise DataError(f"there are {len(self.names)} names for {len(sizes)} clients")
        object.__setattr__(self, "sizes", sizes)
        length = int(sizes.sum())
        counts = None
        if self.tokens is not None:
            counts = whole("tokens", self.tokens, length, self.describe)
        means = {}
        for name, given in self.means.items():
            values = numbers(f"values of {name}", given, length)
            # what is not a number does not matter where there was nothing to predict
            wrong = np.isnan(values) if counts is None else np.isnan(values) & (counts > 0)
            self._refuse_nan(name, wrong)
            means[name] = values
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "tokens", counts)
        self._check_nll(means.get("loss"), length)
        self._check_scores(length)

    @classmethod
    def of(cls, test: Population, values: Mapping[str, ArrayLike]) -> Outcome:
        """From `Simulation.evaluate_by_example(test)`, and whatever was added to it by hand.

        Args:
            test: The population that was evaluated on.
            values: One number per example, by name. `nll`, `tokens`, `scores` and `labels` are what
                they are called; the others are means.

        >>> test = Population.of({"y": np.arange(3)}, [[2, 0], [1]])
        >>> Outcome.of(test, {"loss": [0.5, 1.5, 2.0], "tokens": [4, 4, 1]}).nll
        array([2., 6., 2.])
        """
        special = {name: values.get(name) for name in (NLL, TOKENS, SCORES, LABELS)}
        means = {name: given for name, given in values.items() if name not in special}
        return cls(test.sizes, means, names=test.names, **special)  # type: ignore[arg-type]

    @property
    def owner(self) -> Index:
        """The client of every example."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def measures(self) -> list[str]:
        """What `pooled` tells of a group, besides how much there is."""
        more = {"perplexity": self.nll, "auc": self.scores}
        return [*self.means, *(name for name, there in more.items() if there is not None)]

    def where(self, mask: ArrayLike) -> Outcome:
        """Only some examples; every client keeps its place.

        Args:
            mask: One bool per example.

        >>> Outcome([2, 1], {"loss": [1, 2, 3]}).where([True, False, False]).sizes
        array([1, 0])
        """
        kept, length = np.asarray(mask), int(self.sizes.sum())
        if kept.shape != (length,) or kept.dtype != np.bool_:
            raise DataError(
                f"the mask is {kept.dtype} of shape {kept.shape}: give one bool for each of "
                f"{length} examples"
            )
        columns = {name: getattr(self, name) for name in (NLL, TOKENS, SCORES, LABELS)}
        some = {name: each[kept] for name, each in columns.items() if each is not None}
        sizes = np.diff(offsets_of(kept)[offsets_of(self.sizes)])
        means = {name: values[kept] for name, values in self.means.items()}
        return replace(self, sizes=sizes, means=means, **some)

    def pooled(self, group: ArrayLike, count: int | None = None) -> dict[str, NDArray[Any]]:
        """Examples, tokens and every measure of each group of examples, NaN where there is none.

        Args:
            group: The group of each example, counted from 0; -1 counts nowhere.
            count: How many groups there are; one more than the largest number if not given.
        """
        length = int(self.sizes.sum())
        member, count = groups.groups_of(group, length, count)
        examples = counted(member, count)
        measures: dict[str, NDArray[Any]] = {"examples": examples}
        weights = examples.astype(np.float64)
        if self.tokens is not None:
            weights = added(self.tokens, member, count)
            measures["tokens"] = weights.astype(np.int64)
        for name, values in self.means.items():
            if self.tokens is not None:
                values = _times(values, self.tokens)
            sums = added(values, member, count)
            measures[name] = np.divide(sums, weights, out=np.full(count, np.nan), where=weights > 0)
        if self.nll is not None:
            measures["perplexity"] = perplexity.pooled(added(self.nll, member, count), weights)
        if self.scores is not None and self.labels is not None:
            measures["auc"] = auc_by(self.scores, self.labels, member, count)
        return measures

    def describe(self, place: int) -> str:
        """Whose example this is, in words.

        >>> Outcome([2, 1], names=["ann", "bob"]).describe(2)
        "example 2 (client 'bob', its number 0)"
        """
        offsets = offsets_of(self.sizes)
        client = int(np.searchsorted(offsets, place, side="right")) - 1
        name = client if self.names is None else repr(str(self.names[client]))
        return f"example {place} (client {name}, its number {place - offsets[client]})"

    def _check_nll(self, loss: Floats | None, length: int) -> None:
        if self.nll is not None:
            if self.tokens is None:
                raise DataError("a perplexity needs the number of tokens besides nll")
            numbers("negative log-likelihoods", self.nll, length)
            sums, _ = perplexity.checked(self.nll, self.tokens, self.describe)
            object.__setattr__(self, "nll", sums)
        elif self.tokens is not None and loss is not None:
            sums, _ = perplexity.checked(_times(loss, self.tokens), self.tokens, self.describe)
            object.__setattr__(self, "nll", sums)

    def _check_scores(self, length: int) -> None:
        if (self.scores is None) != (self.labels is None):
            raise DataError("an AUC needs both scores and labels, and one of them is missing")
        if self.scores is None or self.labels is None:
            return
        scores = numbers("scores", self.scores, length)
        labels = numbers("labels", self.labels, length)
        self._refuse_nan("score", np.isnan(scores))
        wrong = ~np.isin(labels, (0, 1))
        refuse(wrong, lambda i: f"the label of {self.describe(i)} is {labels[i]:g}, not 0 or 1")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "labels", labels)

    def _refuse_nan(self, what: str, wrong: NDArray[np.bool_]) -> None:
        refuse(wrong, lambda i: f"the {what} of {self.describe(i)} is not a number")


def framed(columns: Mapping[str, ArrayLike]) -> polars.DataFrame:
    """A frame in which what does not exist (a NaN) is null, so that polars leaves it out."""
    import polars as pl

    return pl.DataFrame(dict(columns), nan_to_null=True)


def _times(values: Floats, tokens: Index) -> Floats:
    """Values times tokens; no tokens make nothing even of what is infinite or not a number."""
    product = np.zeros(len(values))
    return np.multiply(values, tokens, out=product, where=tokens > 0)
