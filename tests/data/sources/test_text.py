"""Shakespeare and WikiText: who says what, and every token predicted exactly once."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.data import Population
from hubless.data.sources import shakespeare, wikitext
from hubless.data.sources.base import Split
from hubless.data.sources.sequences import sequences
from hubless.errors import DataError

PLAYS = """\ufeffThe Project Gutenberg EBook of The Complete Works of William Shakespeare

THE SONNETS

by William Shakespeare

  From fairest creatures we desire increase,


1603

THE TRAGEDY OF HAMLET


by William Shakespeare


ACT I. Scene I.

                       Enter Bernardo

  Ber. Who's there?
  Fran. Nay, answer me. Stand and
    unfold yourself.
    Quickly!                            Exit
  Ber. Long live the King!
 oddly indented
  FRAN. Bernardo?
  Ber. He.
    Tis now struck twelve.
  Ber. Get thee to bed, Francisco.

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1
AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.
ACT II. SCENE 2
no one says this
DUKE. Merchant of Syracuse,

plead no more.
<<THIS ELECTRONIC VERSION>>
nor this

End of the Project Gutenberg EBook
  Ber. Not said.
  Ber. Nor this.
"""
ROLES = {
    ("THE TRAGEDY OF HAMLET", "Ber"): [
        "Who's there?",
        "Long live the King!",
        "He.",
        "Tis now struck twelve.",
        "Get thee to bed, Francisco.",
    ],
    ("THE TRAGEDY OF HAMLET", "Fran"): [
        "Nay, answer me. Stand and",
        "unfold yourself.",
        "Quickly!                            Exit",
    ],
    ("THE TRAGEDY OF HAMLET", "FRAN"): ["Bernardo?"],
    ("THE COMEDY OF ERRORS", "AEGEON"): [
        "Proceed, Solinus, to procure my fall,",
        "And by the doom of death end woes and all.",
    ],
    ("THE COMEDY OF ERRORS", "DUKE"): ["Merchant of Syracuse,", "", "plead no more."],
}
WIKI = """ \n = One day = \n \n It was one <unk> . \n = Not a title = \n
 = = Part = = \n \n Again one . \n \n = Two = \n \n Two . \n"""


def _said(population: Population, client: int, classes: tuple[str, ...], join: str) -> str:
    """What a client's targets spell."""
    flat = population.client(client)["y"].ravel()
    return join.join(classes[code] for code in flat[flat != 0])


def _follows(population: Population, start: int) -> None:
    for client in range(len(population)):
        columns = population.client(client)
        x, y = columns["x"].ravel(), columns["y"].ravel()
        spoken = y[y != 0]
        assert x[: len(spoken)].tolist() == [start, *spoken][:-1]
        assert not x[len(spoken) :].any()


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=12), max_size=6),
    st.integers(1, 5),
)
def test_every_token_is_predicted_once_from_the_one_before(
    said: list[list[int]], length: int
) -> None:
    sizes = np.array([len(tokens) for tokens in said], np.int64)
    flat = np.array([token for tokens in said for token in tokens], np.int32)
    names = np.array([str(i) for i in range(len(said))], np.dtypes.StringDType())
    population = sequences(flat, sizes, length, 7, names)
    assert population.sizes.tolist() == [-(-len(tokens) // length) for tokens in said]
    _follows(population, 7)
    for client, tokens in enumerate(said):
        y = population.client(client)["y"].ravel()
        assert y[: len(tokens)].tolist() == tokens
        assert not y[len(tokens) :].any()


def test_a_sequence_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="not 0"):
        sequences(np.zeros(0, np.int8), np.zeros(0, np.int64), 0, 1, np.zeros(0))


def test_plays_are_parsed_into_roles() -> None:
    assert list(shakespeare.parse_plays(PLAYS).items()) == list(ROLES.items())


def _check_roles(split: Split) -> None:
    names = [split.train.name(i) for i in range(len(split.train))]
    assert names == [
        "THE TRAGEDY OF HAMLET: Ber",
        "THE TRAGEDY OF HAMLET: Fran",
        "THE COMEDY OF ERRORS: DUKE",
    ]
    assert names == [split.test.name(i) for i in range(len(split.test))]
    assert (
        _said(split.train, 0, split.classes, "").splitlines()
        == ROLES[("THE TRAGEDY OF HAMLET", "Ber")][:4]
    )
    assert _said(split.test, 0, split.classes, "") == "Get thee to bed, Francisco.\n"
    assert _said(split.train, 2, split.classes, "") == "Merchant of Syracuse,\n\n"
    assert split.train.columns["x"].dtype == np.uint8
    _follows(split.train, split.classes.index("\n"))


@pytest.mark.parametrize("name", ["pg100.txt", "pg100.txt.gz"])
def test_roles_of_more_than_two_lines_are_clients(tmp_path: Path, name: str) -> None:
    (tmp_path / "shakespeare").mkdir()
    raw = PLAYS.replace("\n", "\r\n").encode()
    raw = gzip.compress(raw) if name.endswith(".gz") else raw
    (tmp_path / "shakespeare" / name).write_bytes(raw)
    split = shakespeare.load(tmp_path, length=10)
    _check_roles(split)
    assert split.train.columns["x"].shape[1] == 10


def test_roles_may_come_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    rows = [(play, role, text) for (play, role), said in ROLES.items() for text in said]
    frame = pl.DataFrame(rows, schema=["play", "role", "text"], orient="row")
    frame = frame.with_columns(pl.col("play", "role").cast(pl.Categorical))
    frame.write_parquet(tmp_path / "shakespeare" / "shakespeare_roles.parquet")
    _check_roles(shakespeare.load(tmp_path))


def test_characters_out_of_the_ordinary_are_one_class(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    odd = PLAYS.replace("He.", "Hé~\x7f.")
    (tmp_path / "shakespeare" / "pg100.txt").write_bytes(odd.encode())
    split = shakespeare.load(tmp_path)
    assert "\nH<other><other><other>.\n" in _said(split.train, 0, split.classes, "")


def test_a_text_without_speeches_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "pg100.txt").write_text("To be or not to be")
    with pytest.raises(DataError, match="has no speeches"):
        shakespeare.load(tmp_path)


def test_without_the_plays_it_is_said_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lacks pg100.txt.*gutenberg.org") as caught:
        shakespeare.load(tmp_path)
    assert str(tmp_path / "shakespeare") in str(caught.value)


def _wiki(folder: Path, official: bool = False) -> Path:
    (folder / "wikitext-2").mkdir()
    for part, text in (("train", WIKI), ("test", WIKI.replace("Two", "Six")), ("valid", WIKI)):
        name = f"wiki.{part}.tokens" if official else f"{part}.txt.gz"
        raw = text.encode() if official else gzip.compress(text.encode())
        (folder / "wikitext-2" / name).write_bytes(raw)
    return folder


@pytest.mark.parametrize("official", [True, False])
def test_articles_are_clients(tmp_path: Path, official: bool) -> None:
    split = wikitext.load(_wiki(tmp_path, official), length=5)
    assert [split.train.name(0), split.train.name(1)] == ["One day", "Two"]
    assert _said(split.train, 1, split.classes, " ") == "<eos> = Two = <eos> <eos> Two . <eos>"
    said = _said(split.train, 0, split.classes, " ")
    assert "= Not a title = <eos>" in said and "= = Part = = <eos>" in said
    assert split.train.columns["x"].dtype == np.int32
    _follows(split.train, split.classes.index("<eos>"))


def test_the_vocabulary_is_that_of_the_training_set_by_frequency(tmp_path: Path) -> None:
    split = wikitext.load(_wiki(tmp_path))
    assert split.classes[:5] == ("<pad>", "<eos>", "<unk>", "=", ".")
    assert len(set(split.classes)) == len(split.classes)
    assert split.test.name(1) == "Six"
    assert "= <unk> =" in _said(split.test, 1, split.classes, " ")


def test_the_validation_set_can_be_the_one_to_test_on(tmp_path: Path) -> None:
    assert wikitext.load(_wiki(tmp_path), test="valid").test.name(1) == "Two"
    with pytest.raises(DataError, match="not on 'train'"):
        wikitext.load(tmp_path, test="train")  # type: ignore[arg-type]


def test_no_word_is_lost_between_articles() -> None:
    words = [word for _, said in wikitext.parse_articles(WIKI) for word in said]
    assert words == [w for line in WIKI[:-1].split("\n") for w in (*line.split(), "<eos>")]


def test_a_text_without_titles_is_refused(tmp_path: Path) -> None:
    _wiki(tmp_path)
    (tmp_path / "wikitext-2" / "train.txt").write_text("words without a title\n")
    with pytest.raises(DataError, match="train.txt has no titles"):
        wikitext.load(tmp_path)


def test_without_articles_it_is_said_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lacks train.txt.*wiki.train.tokens"):
        wikitext.load(tmp_path)
