"""Every utterance was said before by its client, by another one only, or by nobody."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hubless.data.population import Population
from hubless.errors import DataError
from hubless.measure.deciles import by_decile, decile_of
from hubless.measure.novelty import KINDS, Novelty, by_novelty, normalised
from hubless.measure.outcome import Outcome

STRINGS = np.dtypes.StringDType()
SAYINGS = st.sampled_from(["stop", " Stop", "STOP\n", "play jazz", "play\t JAZZ", "jazz", "", " "])
PEOPLE = st.lists(st.lists(SAYINGS, max_size=4), min_size=1, max_size=14)


def _population(said: list[list[str]], names: list[str] | None = None) -> Population:
    texts = np.array([text for each in said for text in each], STRINGS)
    offsets = np.cumsum([0, *map(len, said)])
    return Population({"text": texts}, offsets, None, names)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


@settings(max_examples=60)
@given(PEOPLE, st.data())
def test_kinds_are_those_of_looking_everything_up(
    later: list[list[str]], data: st.DataObject
) -> None:
    said = st.lists(SAYINGS, max_size=3)
    earlier = data.draw(st.lists(said, min_size=len(later), max_size=len(later)))
    novelty = Novelty.between(_population(earlier), _population(later))
    everything = {_plain(text) for each in earlier for text in each}
    kinds, distinct = [], []
    for before, now in zip(earlier, later, strict=True):
        mine, already = {_plain(text) for text in before}, set()
        for text in map(_plain, now):
            kinds.append("own" if text in mine else "other" if text in everything else "new")
            distinct.append(text not in already)
            already.add(text)
    assert [KINDS[kind] for kind in novelty.kinds] == kinds
    assert novelty.distinct.tolist() == distinct
    if any(later):
        _assert_deciles(novelty, later, kinds, distinct)


def _assert_deciles(
    novelty: Novelty, later: list[list[str]], kinds: list[str], distinct: list[bool]
) -> None:
    deciles = decile_of([len(each) for each in later])
    ends = np.cumsum([0, *map(len, later)])
    for row in novelty.by_decile().rows(named=True):
        shares = []
        for client in np.flatnonzero(deciles == row["decile"]):
            mine = range(ends[client], ends[client + 1])
            shares.append([kinds[i] for i in mine if distinct[i]])
        assert row["clients"] == len(shares)
        assert row["utterances"] == sum(map(len, shares))
        for kind in KINDS:
            assert row[kind] == sum(each.count(kind) for each in shares)
            wanted = sum(each.count(kind) / len(each) for each in shares) / len(shares)
            assert row[f"{kind}_share"] == pytest.approx(wanted)


def test_figure_4_worked_by_hand() -> None:
    """Two clients; the heavy one repeats itself, which counts once, and explores."""
    earlier = _population([["lights on"], ["weather", "alarm at six"]])
    light = ["lights on", "weather"]
    heavy = ["weather", "weather", "Weather ", "lights on", "tell a joke", "play jazz"]
    novelty = Novelty.between(earlier, _population([light, heavy]))
    frame = novelty.by_decile()
    assert frame.select("decile", "clients", "utterances", *KINDS).rows() == [
        (3, 1, 2, 1, 1, 0),
        (8, 1, 4, 1, 1, 2),
    ]
    shares = [f"{kind}_share" for kind in KINDS]
    assert frame.select(shares).rows() == [(0.5, 0.5, 0), (0.25, 0.25, 0.5)]
    every = novelty.by_decile(distinct=False)
    assert every.select("utterances", *KINDS).rows() == [(2, 1, 1, 0), (6, 3, 1, 2)]


def test_a_share_is_a_mean_over_clients_and_counts_give_the_pooled_one() -> None:
    # a decile of two clients, one with 1 utterance of 1 known and one with 0 of 3
    novelty = Novelty(np.array([1, 3]), np.array([0, 2, 2, 2]), np.ones(4, bool))
    row = novelty.by_decile([7, 7]).row(0, named=True)
    assert row["own_share"] == 0.5 and row["own"] / row["utterances"] == 0.25


def test_clients_are_matched_by_name_where_they_have_names() -> None:
    earlier = _population([["a"], ["b"]], ["ann", "bob"])
    later = _population([["b", "a"], ["c"], ["a"]], ["bob", "eve", "ann"])
    kinds = [KINDS[kind] for kind in Novelty.between(earlier, later).kinds]
    assert kinds == ["own", "other", "new", "own"]
    strings = Population(later.columns, later.offsets, None, np.array(later.names, STRINGS))
    assert Novelty.between(earlier, strings).kinds.tolist() == [0, 1, 2, 0]


def test_windows_of_one_population_are_matched_by_place_without_a_copy() -> None:
    texts, owner = np.array(["a", "b", "b", "a"]), ["ann", "bob", "ann", "ann"]
    people = Population.by({"utterance": texts}, owner)
    earlier, later = people.where(np.arange(4) < 2), people.where(np.arange(4) >= 2)
    novelty = Novelty.between(earlier, later, "utterance")
    assert novelty.kinds.tolist() == [1, 0] and novelty.sizes.tolist() == [2, 0]


def test_before_the_first_period_everything_is_new() -> None:
    later = _population([["a", "a"], ["a"]])
    novelty = Novelty.between(_population([[], []]), later)
    assert novelty.mask("new").all() and not novelty.mask("own").any()
    assert novelty.by_decile()["new"].to_list() == [1, 1]


def test_a_period_in_which_nobody_speaks_has_no_deciles() -> None:
    novelty = Novelty.between(_population([["a"]]), _population([[]]))
    assert novelty.kinds.shape == (0,)
    with pytest.raises(DataError, match="none of 1 clients"):
        novelty.by_decile()


def test_perplexity_splits_by_novelty_and_decile() -> None:
    outcome = Outcome(np.array([1, 3]), nll=np.log([4, 2, 8, 32]), tokens=np.ones(4, int))
    novelty = Novelty(np.array([1, 3]), np.array([0, 0, 2, 2]), np.ones(4, bool))
    frame = by_novelty(outcome, novelty)
    assert frame.select("decile", "novelty", "examples").rows() == [
        (None, "own", 2),
        (None, "new", 2),
        (3, "own", 1),
        (8, "own", 1),
        (8, "new", 2),
    ]
    assert frame["perplexity"].to_list() == pytest.approx([8**0.5, 16, 4, 2, 16])


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=25).filter(any))
def test_a_split_is_what_masks_give(kinds: list[list[int]]) -> None:
    sizes = np.array([len(each) for each in kinds])
    flat = np.array([kind for each in kinds for kind in each])
    novelty = Novelty(sizes, flat, np.ones(len(flat), bool))
    outcome = Outcome(sizes, {"loss": np.arange(len(flat)) / 7}, tokens=np.ones(len(flat), int))
    frame, deciles = by_novelty(outcome, novelty), decile_of(sizes)
    for kind in KINDS:
        some = outcome.where(novelty.mask(kind))
        mine = frame.filter(pl.col("novelty") == kind, pl.col("decile").is_not_null())
        if not some.sizes.any():
            assert mine.height == 0
            continue
        wanted = by_decile(some, deciles).drop("clients")
        assert mine.drop("novelty").equals(wanted)


def test_texts_are_compared_in_lower_case_and_without_superfluous_blanks() -> None:
    given_ = ["  Play\u00a0 SOME\r\njazz\t", "ÄRGER", "it's 5.", "a b", "a  b", ""]
    assert normalised(given_).to_list() == ["play some jazz", "ärger", "it's 5.", "a b", "a b", ""]


@given(st.lists(st.text(st.characters(max_codepoint=0x17F) | st.sampled_from(" \t\n\u2003Σς"))))
@example(["\x00"])
def test_normalising_is_what_python_would_do(texts: list[str]) -> None:
    # Python takes four separators of ASCII for blanks that Unicode does not
    texts = [text.translate(dict.fromkeys(range(0x1C, 0x20))) for text in texts]
    for form in (
        texts,
        np.array(texts, STRINGS),
        np.array(texts, object),
        pl.Series(texts, dtype=pl.String),
    ):
        assert normalised(form).to_list() == [_plain(text) for text in texts]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([1, 2], "text 0 is 1, no text"),
        ([["a"]], r"shape \(1, 1\)"),
        (np.array(["a", None], object), "text 1 is missing"),
        (np.array(["a", 3], object), "text 1 is 3, no text"),
        (pl.Series([1]), "texts are Int64"),
        (["\ud800"], "not Unicode"),
    ],
)
def test_what_is_no_text_is_refused(texts: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        normalised(texts)  # type: ignore[arg-type]


def test_populations_that_cannot_be_matched_are_refused() -> None:
    one, two = _population([["a"]]), _population([["a"], []])
    with pytest.raises(DataError, match="1 clients earlier and 2 later cannot be matched"):
        Novelty.between(one, two)
    with pytest.raises(DataError, match="give both populations names"):
        Novelty.between(one, _population([["a"]], ["ann"]))
    with pytest.raises(DataError, match="the earlier population has no column 'x'; there are text"):
        Novelty.between(one, one, "x")


def test_what_does_not_fit_together_is_refused() -> None:
    novelty = Novelty(np.array([1]), np.array([0]), np.array([True]))
    with pytest.raises(DataError, match="not 'old'"):
        novelty.mask("old")
    with pytest.raises(DataError, match="both have to be of one test set"):
        by_novelty(Outcome(np.array([2]), {"loss": np.ones(2)}), novelty)
    with pytest.raises(DataError, match="clients have 2 utterances, and there are 1 kinds"):
        Novelty(np.array([2]), np.array([0]), np.array([True]))
    with pytest.raises(DataError, match="utterance 0 is of kind 3"):
        Novelty(np.array([1]), np.array([3]), np.array([True]))
