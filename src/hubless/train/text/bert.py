"""BERT for lanes: the arrays of Hugging Face's models under their names, called our own way.

Masks are ready additions to the scores, because the helper that makes them elsewhere looks at
values, which cannot be vectorised. The last layer and the words' scores are worked out only where
an answer is wanted, and looking words up shares one gradient with scoring them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hubless.errors import TaskError
from hubless.train.losses import IGNORED
from hubless.train.text.masking import Masking

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BARRED = -1e9
"""Added to the score of what must not be seen; finite, so that a text of nothing stays a number."""
Pick = Callable[[Tensor], Tensor]


class Guesses(NamedTuple):
    """A score for every word, [examples, places, words], and the words that were to be guessed."""

    scores: Tensor
    wanted: Tensor


class _Bert(nn.Module):
    """What all of them have: the encoder, and how it is run."""

    kind = ""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.config: Any = model.config
        self.bert: Any = model.bert

    @property
    def _vectors(self) -> Tensor:
        """One of each word."""
        vectors: Tensor = self.bert.embeddings.word_embeddings.weight
        return vectors

    def _encoded(
        self, x: Tensor, ids: Tensor, *, causal: bool = False, pick: Pick | None = None
    ) -> Tensor:
        """From the words' vectors to what is known at each place, or at those that are picked."""
        embeddings, length = self.bert.embeddings, ids.shape[1]
        if length > self.config.max_position_embeddings:
            raise TaskError(
                f"texts are {length} pieces long, and this model has room for "
                f"{self.config.max_position_embeddings}"
            )
        # sliced rather than looked up, which is cheaper to differentiate
        x = x + embeddings.token_type_embeddings.weight[0]
        x = x + embeddings.position_embeddings.weight[:length]
        x = embeddings.dropout(embeddings.LayerNorm(x))
        barred = (ids == self.config.pad_token_id)[:, None, None, :] * _BARRED
        if causal:
            later = torch.ones(length, length, device=ids.device, dtype=torch.bool).triu(1)
            barred = barred + later * _BARRED
        layers = list(self.bert.encoder.layer)
        for layer in layers[:-1]:
            x = self._layer(layer, x, x, barred)
        return self._layer(layers[-1], x if pick is None else pick(x), x, barred)

    def _layer(self, layer: Any, asking: Tensor, x: Tensor, barred: Tensor) -> Tensor:
        """One layer's output, for the places that ask."""
        part = layer.attention.self
        heads = part.num_attention_heads

        def split(y: Tensor) -> Tensor:
            return y.view(*y.shape[:-1], heads, -1).transpose(1, 2)

        query, key, value = split(part.query(asking)), split(part.key(x)), split(part.value(x))
        scores = query @ key.mT * query.shape[-1] ** -0.5 + barred
        attended = part.dropout(scores.softmax(-1)) @ value
        x = layer.attention.output(attended.transpose(1, 2).flatten(2), asking)
        result: Tensor = layer.output(layer.intermediate(x), x)
        return result


class _Guessing(_Bert):
    """With a head that scores words by their own vectors."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.cls: Any = model.cls

    def _scores(
        self, ids: Tensor, padding: Tensor, *, causal: bool = False, pick: Pick | None = None
    ) -> Tensor:
        """How likely each word is, at each place or at those that are picked."""
        x, vectors = _Looked.apply(self._vectors, ids, padding)  # type: ignore[no-untyped-call]
        x = self._encoded(x, ids, causal=causal, pick=pick)
        head, turn = self.cls.predictions, self.cls.predictions.transform
        # as GPUs have it anyway; on a CPU half of one and half of the other is not differentiated
        x = turn.LayerNorm(turn.transform_act_fn(turn.dense(x)).float())
        return functional.linear(x, vectors, head.bias)


class MaskedBert(_Guessing):
    """Guesses hidden words: others every time while it trains, and always the same when tested.

    Unless `dynamic`, the same while it trains, too.
    """

    kind = "BertForMaskedLM"

    def __init__(self, model: PreTrainedModel, masking: Masking, dynamic: bool = True) -> None:
        super().__init__(model)
        self.masking, self.dynamic = masking, dynamic

    def forward(self, ids: Tensor, seed: Tensor) -> Guesses:
        if self.training and self.dynamic:
            seed = torch.randint(1 << 31, seed.shape, device=seed.device)
        hidden, places, wanted = self.masking(ids.long(), seed.long())
        # of the text itself: a word may have been replaced by what pads others
        padding = ids == self.config.pad_token_id
        return Guesses(self._scores(hidden, padding, pick=lambda x: _at(x, places)), wanted)


class CausalBert(_Guessing):
    """Guesses every next word of a text, and its end, from the words before it."""

    kind = "BertLMHeadModel"

    def __init__(self, model: PreTrainedModel, unknown: int) -> None:
        super().__init__(model)
        self.unknown = unknown

    def forward(self, ids: Tensor) -> Guesses:
        ids = ids.long()
        padding = ids == self.config.pad_token_id
        scores = self._scores(ids[:, :-1], padding[:, :-1], causal=True)
        wanted = ids[:, 1:]
        counts = ~padding[:, 1:] & (wanted != self.unknown)
        return Guesses(scores, torch.where(counts, wanted, IGNORED))


class ClassifyingBert(_Bert):
    """A score for every class of a text."""

    kind = "BertForSequenceClassification"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.dropout: Any = model.dropout
        self.classifier: Any = model.classifier

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids.long()
        x = self._encoded(functional.embedding(ids, self._vectors), ids, pick=lambda x: x[:, :1])
        scores: Tensor = self.classifier(self.dropout(self.bert.pooler(x)))
        return scores


def _at(x: Tensor, places: Tensor) -> Tensor:
    """The vectors at these places of each text."""
    # not gathered: adding gradients up in a fixed order goes by vectors then, not by numbers
    return x[torch.arange(len(x), device=x.device)[:, None], places]


class _Looked(torch.autograd.Function):
    """Vectors of words, and all vectors once more for who needs them all.

    The gradient of the latter is as large as a model's largest array. That of the few vectors that
    were looked up is added to it in place, instead of to zeros of that size and then to it. Padding
    has no gradient: its zeros go to many vectors, as additions to one would wait for each other.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, ids: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        return functional.embedding(ids, vectors), vectors.view_as(vectors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, looked: Tensor, all_of_them: Tensor) -> tuple[Tensor, None, None]:
        ids, padding = (saved.flatten() for saved in ctx.saved_tensors)
        anywhere = torch.arange(len(ids), device=ids.device) % len(all_of_them)
        place = torch.where(padding, anywhere, ids)
        moved = looked.flatten(0, -2).to(all_of_them.dtype)
        return all_of_them.index_put_((place,), moved, accumulate=True), None, None
