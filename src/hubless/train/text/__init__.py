"""Language models: their vocabulary, what is hidden from them, and their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.train.text.language import Size as Size
    from hubless.train.text.language import classification as classification
    from hubless.train.text.language import masked_lm as masked_lm
    from hubless.train.text.language import minilm as minilm
    from hubless.train.text.language import next_word as next_word
    from hubless.train.text.language import to_huggingface as to_huggingface
    from hubless.train.text.masking import Masking as Masking
    from hubless.train.text.tokens import Vocabulary as Vocabulary
    from hubless.train.text.tokens import minilm_folder as minilm_folder

__getattr__, __dir__ = exported(__name__)
