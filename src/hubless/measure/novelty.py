"""Where utterances come from: said before by the same client, by another one only, or new.

As in Figure 4 of Dupuy et al. (2022): the distinct utterances of a client in a period against all
that was said in the periods before it. Texts are equal if they are after `normalised`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubless.data.index import Index
from hubless.data.population import Population
from hubless.errors import DataError
from hubless.measure.deciles import DECILES, checked
from hubless.measure.groups import refuse
from hubless.measure.outcome import Outcome, framed

if TYPE_CHECKING:
    import polars

KINDS = ("own", "other", "new")
"""Said before by this client; by others only; by nobody."""
OWN, OTHER, NEW = range(3)


@dataclass(frozen=True, eq=False)
class Novelty:
    """The kind of every utterance of a period, in client order: "own", "other" or "new".

    "own" was said before by the same client, "other" by another one only, "new" by nobody.

    Args:
        sizes: How many utterances each client has in the period.
        kinds: The kind of each, as a place in `KINDS`: 0, 1 or 2.
        distinct: True where a client says something for the first time in the period.

    >>> texts = np.array(["Play jazz", "stop", "play  JAZZ ", "stop", "next", "next"])
    >>> days = Population.of({"text": texts}, [[0, 2, 4, 5], [1, 3]])
    >>> earlier, later = days.where(np.arange(6) < 2), days.where(np.arange(6) >= 2)
    >>> novelty = Novelty.between(earlier, later)
    >>> [KINDS[kind] for kind in novelty.kinds], novelty.distinct.tolist()
    (['own', 'new', 'new', 'own'], [True, True, False, True])

    Reference:
        Dupuy et al., "Learnings from Federated Learning in the Real World", 2022, Figure 4.
    """

    sizes: Index
    kinds: NDArray[np.int8]
    distinct: NDArray[np.bool_]

    def __post_init__(self) -> None:
        lengths = int(self.sizes.sum()), len(self.kinds), len(self.distinct)
        if len(set(lengths)) > 1:
            raise DataError(
                f"clients have {lengths[0]} utterances, and there are {lengths[1]} kinds and "
                f"{lengths[2]} marks of distinct ones"
            )
        wrong = (self.kinds < 0) | (self.kinds >= len(KINDS))
        refuse(wrong, lambda i: f"utterance {i} is of kind {self.kinds[i]}: give 0, 1 or 2")

    @classmethod
    def between(cls, earlier: Population, later: Population, text: str = "text") -> Novelty:
        """What clients say later, against all that was said earlier.

        Clients with names are the same where their names are; without, where their places are, as
        in windows of one population.

        Args:
            earlier: What was said before the period.
            later: What is said in it.
            text: The column of texts. They are equal if they are after `normalised`.
        """
        before, after = _texts(earlier, text, "earlier"), _texts(later, text, "later")
        ids = _ids([before, after])
        old, new = ids[: len(before)], ids[len(before) :]
        old_clients, clients = _clients(earlier, later)
        sayings = len(ids)
        familiar = np.zeros(sayings, bool)
        familiar[old] = True
        # one whole number for a client and what it says
        pairs = np.repeat(clients, later.sizes) * sayings + new
        mine = _among(pairs, np.repeat(old_clients, earlier.sizes) * sayings + old)
        kinds = np.where(mine, OWN, np.where(familiar[new], OTHER, NEW)).astype(np.int8)
        distinct = np.zeros(len(pairs), bool)
        # by place and not by name: a client that stands in the population twice counts twice
        places = np.repeat(np.arange(len(later)), later.sizes) * sayings + new
        distinct[np.unique(places, return_index=True)[1]] = True
        return cls(later.sizes, kinds, distinct)

    def mask(self, kind: str) -> NDArray[np.bool_]:
        """Which utterances are of a kind, for `Outcome.where`."""
        if kind not in KINDS:
            raise DataError(f"utterances are {', '.join(KINDS)}, not {kind!r}")
        mask: NDArray[np.bool_] = self.kinds == KINDS.index(kind)
        return mask

    def by_client(self, *, distinct: bool = True) -> Index:
        """How many utterances of each kind every client has, [clients, 3].

        Args:
            distinct: Count a client's every text once, as the paper does.

        >>> Novelty(np.array([2, 1]), np.array([0, 1, 2]), np.ones(3, bool)).by_client()
        array([[1, 1, 0],
               [0, 0, 1]])
        """
        clients = len(self.sizes)
        cells = np.repeat(np.arange(clients), self.sizes) * len(KINDS) + self.kinds
        if distinct:
            cells = cells[self.distinct]
        return np.bincount(cells, minlength=clients * len(KINDS)).reshape(clients, len(KINDS))

    def by_decile(
        self, decile: ArrayLike | None = None, *, distinct: bool = True
    ) -> polars.DataFrame:
        """One row per decile: how many utterances of each kind, and their shares.

        A share is the mean over clients of each one's own share, so every client counts alike; the
        counts give the shares of all utterances pooled.

        Args:
            decile: For each client 1 to 10, or 0 to leave it out. If not given clients are ranked
                by all their utterances of the period, repeated ones too.
            distinct: Count a client's every text once, as the paper does.

        >>> kinds = np.array([0, 0, 1, 2])
        >>> Novelty(np.array([1, 3]), kinds, np.ones(4, bool)).by_decile()["own_share"].to_list()
        [1.0, 0.3333333333333333]
        """
        deciles = checked(self.sizes, decile)
        counts = self.by_client(distinct=distinct)
        each = counts.sum(1)
        shares = counts / np.maximum(each, 1)[:, None]
        groups = np.where(each > 0, deciles, 0)
        clients = np.bincount(groups, minlength=DECILES + 1)[1:]
        there = clients > 0
        columns: dict[str, NDArray[Any]] = {"decile": np.arange(1, DECILES + 1), "clients": clients}
        columns["utterances"] = _summed(each, groups)
        for kind, name in enumerate(KINDS):
            columns[name] = _summed(counts[:, kind], groups)
        for kind, name in enumerate(KINDS):
            total = np.bincount(groups, shares[:, kind], DECILES + 1)[1:]
            columns[f"{name}_share"] = total / np.maximum(clients, 1)
        return framed({name: values[there] for name, values in columns.items()})


def by_novelty(
    outcome: Outcome, novelty: Novelty, decile: ArrayLike | None = None
) -> polars.DataFrame:
    """Every measure by decile and kind of utterance, pooled; a null decile is the whole test set.

    Rows are only those that have examples.

    Args:
        outcome: What the model made of the test examples.
        novelty: The kinds of the same examples.
        decile: For each client 1 to 10, or 0 to leave it out. If not given it goes by all its
            examples, so that a client is in the same decile whatever the kind.

    >>> outcome = Outcome([1, 3], nll=np.log([4, 2, 8, 8]), tokens=[1, 1, 1, 1])
    >>> novelty = Novelty(np.array([1, 3]), np.array([0, 0, 2, 2]), np.ones(4, bool))
    >>> by_novelty(outcome, novelty).select("decile", "novelty", "examples").rows()
    [(None, 'own', 2), (None, 'new', 2), (3, 'own', 1), (8, 'own', 1), (8, 'new', 2)]
    """
    import polars as pl

    if not np.array_equal(outcome.sizes, novelty.sizes):
        raise DataError(
            f"the outcome is of {len(outcome.sizes)} clients and {int(outcome.sizes.sum())} "
            f"examples, the novelty of {len(novelty.sizes)} and {int(novelty.sizes.sum())}, or "
            "they are dealt otherwise: both have to be of one test set"
        )
    deciles = np.repeat(checked(outcome.sizes, decile), outcome.sizes)
    frames = []
    for group in (np.zeros_like(deciles), np.where(deciles > 0, deciles, -1)):
        cells = np.where(group < 0, -1, group * len(KINDS) + novelty.kinds)
        measures = outcome.pooled(cells, (DECILES + 1) * len(KINDS))
        there = measures["examples"] > 0
        numbers = np.flatnonzero(there)
        names = {
            "decile": numbers // len(KINDS),
            "novelty": np.array(KINDS)[numbers % len(KINDS)],
        }
        frames.append(framed({**names, **{name: each[there] for name, each in measures.items()}}))
    decile_or_null = pl.when(pl.col("decile") > 0).then(pl.col("decile"))
    return pl.concat(frames).with_columns(decile_or_null.alias("decile"))


def normalised(texts: ArrayLike | Sequence[str] | polars.Series) -> polars.Series:
    """Texts in lower case, every stretch of white space one blank, and none at either end.

    Lower case and white space are Unicode's; accents and punctuation stay as they are.

    >>> normalised(["  Play\\tSOME  jazz\\n", "play some jazz!"]).to_list()
    ['play some jazz', 'play some jazz!']
    """
    import polars as pl

    given = texts
    if not isinstance(given, pl.Series):
        # numpy's own texts of fixed length lose a zero at the end
        array = given if isinstance(given, np.ndarray) else np.asarray(given, object)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "TUO"):
            raise DataError(f"texts are {array.dtype} of shape {array.shape}: give a list of texts")
        listed = array.tolist()
        try:
            given = pl.Series("text", listed, pl.String, strict=True)
        except UnicodeEncodeError as error:
            raise DataError(f"a text is not Unicode: {error}") from error
        except TypeError as error:
            place = next(i for i, each in enumerate(listed) if not isinstance(each, str))
            raise DataError(f"text {place} is {listed[place]!r}, no text") from error
    elif given.dtype != pl.String:
        raise DataError(f"texts are {given.dtype}: give a column of texts")
    if given.null_count():
        raise DataError(f"text {given.is_null().arg_max()} is missing")
    # \s+ would do the same, but replaces every blank by a blank and takes five times as long
    return given.str.to_lowercase().str.replace_all(r"\s\s+|[^\S ]", " ").str.strip_chars()


def _texts(population: Population, column: str, which: str) -> polars.Series:
    if column not in population.columns:
        there = ", ".join(population.columns)
        raise DataError(f"the {which} population has no column {column!r}; there are {there}")
    values = population.columns[column]
    return normalised(values if population.rows is None else values[population.rows])


def _ids(parts: Sequence[polars.Series]) -> Index:
    """For every text the place of the first that is equal; not only their hashes are compared."""
    import polars as pl

    texts = pl.concat([part.rename("text") for part in parts]).to_frame().with_row_index("place")
    return texts.select(pl.col("place").min().over("text"))["place"].to_numpy().astype(np.int64)


def _among(wanted: Index, pool: Index) -> NDArray[np.bool_]:
    """As numpy.isin, in a third of its time: that one looks for distinct numbers first."""
    if not len(pool):
        return np.zeros(len(wanted), bool)
    ordered = np.sort(pool)
    # without the last of them, so that no place is past the end
    matches: NDArray[np.bool_] = ordered[np.searchsorted(ordered[:-1], wanted)] == wanted
    return matches


def _clients(earlier: Population, later: Population) -> tuple[Index, Index]:
    """A number for every client of each, equal for the same client."""
    import polars as pl

    if earlier.names is not None and later.names is not None:
        if earlier.names is not later.names:
            names = [pl.Series(map(str, each)) for each in (earlier.names, later.names)]
            numbers = _ids(names)
            return numbers[: len(earlier)], numbers[len(earlier) :]
    elif (earlier.names is None) != (later.names is None) or len(earlier) != len(later):
        raise DataError(
            f"{len(earlier)} clients earlier and {len(later)} later cannot be matched: give both "
            "populations names, or the same clients in the same places"
        )
    return np.arange(len(earlier)), np.arange(len(later))


def _summed(counts: Index, groups: Index) -> Index:
    return np.bincount(groups, counts, DECILES + 1)[1:].astype(np.int64)
