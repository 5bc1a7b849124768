"""Which words of a text are hidden, to be guessed: by a number per text, the same on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hubless.errors import TaskError
from hubless.train.losses import IGNORED
from hubless.train.text.tokens import Vocabulary

_THOUSAND = 1000
_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Masking:
    """Hides a share of each text's words, as BERT does (Devlin et al. 2019).

    Of those that are chosen, eight in ten become `mask`, one in ten some word of the vocabulary,
    and one in ten stays. How many is the share of the text's own words, rounded, and one at least:
    so that short texts count as well, and no text ever has more of them than `most` says. Which
    ones depends on the text's seed alone, neither on its neighbours nor on the device.

    >>> hide = Masking(words=50, mask=4, spared=(0, 1, 2, 3))
    >>> text = torch.tensor([[2, 17, 18, 19, 3, 0], [2, 3, 0, 0, 0, 0]])
    >>> hidden, places, wanted = hide(text, torch.tensor([5, 6]))
    >>> hidden.tolist()
    [[2, 17, 4, 19, 3, 0], [2, 3, 0, 0, 0, 0]]
    >>> places[0].tolist(), wanted.tolist()
    ([2], [[18], [-100]])
    """

    words: int
    mask: int
    spared: tuple[int, ...]
    share: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise TaskError(
                f"the share of words to hide is above 0 and at most 1, not {self.share}"
            )

    @classmethod
    def of(cls, vocabulary: Vocabulary, share: float = 0.15) -> Masking:
        """That of a vocabulary: words are hidden, but not where a text starts or ends."""
        spared = (vocabulary.pad, vocabulary.unknown, vocabulary.start, vocabulary.end)
        return cls(vocabulary.size, vocabulary.mask, spared, share)

    def most(self, length: int) -> int:
        """How many words are hidden of a text of this length, at most."""
        return max(1, self._rounded(length - 2))

    def _rounded(self, words: int) -> int:
        # whole numbers throughout: a device that rounds otherwise must not hide another word
        return (words * round(self.share * _THOUSAND) + _THOUSAND // 2) // _THOUSAND

    def __call__(self, ids: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The texts with words hidden, [examples, length]; where, and what they were.

        The latter two are [examples, most]: a text with fewer has IGNORED for what it was.
        """
        length = ids.shape[1]
        # as a number like any other: compilers take an index to have 32 bits
        place = torch.arange(length, device=ids.device) & _BITS
        can = torch.ones_like(ids, dtype=torch.bool)
        for piece in self.spared:
            can = can & (ids != piece)
        drawn = scrambled(scrambled(seeds)[:, None] + place * 0x9E3779B1)
        # no two are alike, or devices would settle it differently
        ranked = torch.where(can, drawn * length + place, -1 - place)
        places = ranked.topk(self.most(length), 1).indices
        was = ids.gather(1, places)
        number = can.sum(1, keepdim=True)
        number = torch.minimum(number, self._rounded_all(number))
        chosen = torch.arange(places.shape[1], device=ids.device) < number
        again = scrambled(drawn.gather(1, places) + 1)
        word = scrambled(again) % self.words
        kind = again % 10
        becomes = torch.where(kind < 8, self.mask, torch.where(kind == 8, word, was))
        hidden = ids.scatter(1, places, torch.where(chosen, becomes, was))
        return hidden, places, torch.where(chosen, was, IGNORED)

    def _rounded_all(self, words: Tensor) -> Tensor:
        share = round(self.share * _THOUSAND)
        return ((words * share + _THOUSAND // 2) // _THOUSAND).clamp(min=1)


def scrambled(numbers: Tensor) -> Tensor:
    """Another number below 2^32 for each: what looks random, of what is counted.

    >>> scrambled(torch.tensor([0, 1, 2]))
    tensor([         0,  824515495, 1722258072])
    """
    numbers = numbers & _BITS
    for _ in range(2):
        # products stay below 2^63
        numbers = ((numbers >> 16) ^ numbers) * 0x45D9F3B & _BITS
    return (numbers >> 16) ^ numbers
