"""WikiText-2: one client per Wikipedia article, predicting the next word (Merity et al., 2016)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from hubless.data.population import Population
from hubless.data.sources.base import Split, find, read_bytes, source_folder
from hubless.data.sources.sequences import sequences
from hubless.errors import DataError

_PAD, _END, _UNKNOWN = "<pad>", "<eos>", "<unk>"
_TITLE = re.compile(r"= (?!=).* =(?<!= =)")

Article = tuple[str, list[str]]


def load(
    data: str | Path | None = None, *, length: int = 64, test: Literal["test", "valid"] = "test"
) -> Split:
    """Sequences of `length` words as int32; the vocabulary is that of the training set.

    Reads train.txt and test.txt (valid.txt with `test="valid"`), plain or .gz, or the official
    wiki.train.tokens and so on. There is no download: the address that the authors gave is gone,
    and no other file has a digest that is known to stay.
    """
    if test not in ("test", "valid"):
        raise DataError(f"WikiText is tested on its test or its valid set, not on {test!r}")
    folder = source_folder("wikitext-2", data)
    training, testing = _read(folder, "train"), _read(folder, test)
    counts = Counter(word for _, words in training for word in words)
    # the most frequent first, so that a smaller vocabulary is a prefix of this one
    frequent = (word for word, _ in counts.most_common())
    classes = tuple(dict.fromkeys((_PAD, _END, _UNKNOWN, *frequent)))
    codes = {word: code for code, word in enumerate(classes)}
    return Split(_examples(training, codes, length), _examples(testing, codes, length), classes)


def parse_articles(text: str) -> list[Article]:
    r"""The title and the words of every article, with `<eos>` at the end of each line.

    An article starts at the blank line above its title, ` = Title = `, which another follows.

    >>> parse_articles(" \n = One = \n \n a b \n")
    [('One', ['<eos>', '=', 'One', '=', '<eos>', '<eos>', 'a', 'b', '<eos>'])]
    """
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    titles = [
        number
        for number, line in enumerate(lines)
        if _TITLE.fullmatch(line)
        and not any(lines[max(number - 1, 0) : number])
        and not any(lines[number + 1 : number + 2])
    ]
    starts = [0, *(number - 1 for number in titles[1:]), len(lines)]
    return [
        (lines[title][2:-2], [w for line in lines[start:stop] for w in (*line.split(), _END)])
        for title, start, stop in zip(titles, starts, starts[1:], strict=False)
    ]


def _read(folder: Path, part: str) -> list[Article]:
    path = find(folder, f"{part}.txt", f"wiki.{part}.tokens")
    if path is None:
        raise DataError(
            f"{folder} lacks {part}.txt (plain or .gz) or wiki.{part}.tokens: put the files of "
            "wikitext-2-v1 there, or name another folder with data= or HUBLESS_DATA"
        )
    articles = parse_articles(read_bytes(path).decode("utf-8", errors="replace"))
    if not articles:
        raise DataError(f"{path} has no titles like ' = Title = ' between blank lines")
    return articles


def _examples(articles: Sequence[Article], codes: Mapping[str, int], length: int) -> Population:
    unknown = codes[_UNKNOWN]
    sizes = np.array([len(words) for _, words in articles], np.int64)
    coded = (codes.get(word, unknown) for _, words in articles for word in words)
    tokens = np.fromiter(coded, np.int32, int(sizes.sum()))
    names = np.array([title for title, _ in articles], np.dtypes.StringDType())
    return sequences(tokens, sizes, length, codes[_END], names)
