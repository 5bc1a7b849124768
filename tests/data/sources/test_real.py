"""The sources on the real files, where $HUBLESS_DATA names a folder that has them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hubless.data import Population, shards
from hubless.data.sources import cifar10, mnist, shakespeare, wikitext
from hubless.data.sources.base import read_bytes


def _real(*parts: str) -> Path:
    data = os.environ.get("HUBLESS_DATA")
    if not data:
        pytest.skip("HUBLESS_DATA names no folder of real data")
    path = Path(data, *parts)
    if not path.exists():
        pytest.skip(f"there is no {path}")
    return path


def test_mnist_has_its_digits_and_writers() -> None:
    _real("mnist")
    split = mnist.load(by="writer")
    assert split.train.columns["x"].shape == (60_000, 28, 28)
    assert split.test.columns["x"].shape == (10_000, 28, 28)
    assert np.bincount(split.train.columns["y"])[:3].tolist() == [5923, 6742, 5958]
    assert (len(split.train), len(split.test)) == (539, 297)
    assert (split.train.sizes.min(), split.train.sizes.max()) == (19, 131)
    assert not set(np.asarray(split.train.names)) & set(np.asarray(split.test.names))


def test_mnist_in_shards_is_that_of_mcmahan() -> None:
    _real("mnist")
    train = mnist.load().train
    people = train.partition(shards(train.columns["y"], clients=100, seed=0))
    assert people.sizes.tolist() == [600] * 100
    digits = [len(np.unique(people.client(i)["y"])) for i in range(100)]
    assert np.median(digits) == 2 and max(digits) <= 4


def test_the_first_cifar_images_are_those_of_the_official_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (_real("cifar10", f"cifar10-part{i}-of-2.parquet") for i in (1, 2))
    few = pl.concat([pl.read_parquet(first, n_rows=500), pl.read_parquet(second)[-10_000:-9_500]])
    (tmp_path / "cifar10").mkdir()
    few.write_parquet(tmp_path / "cifar10" / "few.parquet")
    monkeypatch.setenv("HUBLESS_CACHE", str(tmp_path / "cache"))
    split = cifar10.load(tmp_path)
    assert split.train.columns["y"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert split.test.columns["y"][:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert split.train.columns["x"][0, :, 0, 0].tolist() == [59, 62, 63]
    means = split.train.columns["x"].mean(axis=(0, 2, 3)) / 255
    assert np.allclose(means, [0.4914, 0.4822, 0.4465], atol=0.02)


def test_shakespeare_has_the_roles_and_characters_of_the_paper() -> None:
    _real("shakespeare", "pg100.txt.gz")
    split = shakespeare.load()
    assert len(split.train) == len(split.test) == 1146
    assert split.train.columns["x"].shape[1] == 80
    # the paper counts 3,564,579 and 870,014
    assert np.count_nonzero(split.train.columns["y"]) == 3_569_256
    assert np.count_nonzero(split.test.columns["y"]) == 870_941
    assert not (split.train.columns["y"] == split.classes.index("<other>")).any()


def test_the_plays_parse_into_the_table_of_roles() -> None:
    table = pl.read_parquet(_real("shakespeare", "shakespeare_roles.parquet"))
    text = read_bytes(_real("shakespeare", "pg100.txt.gz")).decode("utf-8-sig")
    parsed = [
        (play, role, line, said)
        for (play, role), lines in shakespeare.parse_plays(text).items()
        for line, said in enumerate(lines)
    ]
    assert parsed == table.select("play", "role", "line_no", "text").rows()


def test_wikitext_has_its_articles_and_words() -> None:
    _real("wikitext-2")
    split = wikitext.load()
    assert (len(split.train), len(split.test)) == (600, 60)
    assert np.count_nonzero(split.train.columns["y"]) == 2_051_910 + 36_718
    assert len(split.classes) == 33_278 + 1
    assert (split.test.columns["y"] < len(split.classes)).all()


def test_chat_messages_are_grouped_by_their_users() -> None:
    path = _real("chat", "freecodecamp_gitter.parquet")
    people = Population.from_parquet(path, client="user", columns=["timestamp", "text"])
    assert (len(people), people.examples, people.sizes.max()) == (7466, 204_359, 7696)
    when = people.columns["timestamp"]
    year = people.where((when >= np.datetime64("2015-07")) & (when < np.datetime64("2016-07")))
    assert (year.examples, int((year.sizes > 0).sum())) == (153_505, 6075)
