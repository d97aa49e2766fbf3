"""Collators that hold a tokenizer of Hugging Face's, and methods of Lightning's modules."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.patience import PATIENCE
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizer,
    PreTrainedTokenizerFast,
)

from threadloader import ThreadLoader
from threadloader._fetch.dataset_copy import Copied, copy_function

if TYPE_CHECKING:
    from support.patience import Spawn

WORKERS = 4
WORDS = [f"w{number}" for number in range(500)]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


def backend() -> Tokenizer:
    """Return a tokenizer with all parts that one can have."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL.values(), "[CLS]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
    )
    tokenizer.add_special_tokens([*SPECIAL.values(), "[CLS]"])
    tokenizer.add_tokens(["of course", AddedToken("new", lstrip=True)])
    return tokenizer


def fast() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend(), **SPECIAL)


class Slow(PreTrainedTokenizer):
    """A tokenizer in Python."""

    def __init__(self) -> None:
        self.words = {word: number for number, word in enumerate([*SPECIAL.values(), *WORDS])}
        super().__init__(**SPECIAL)

    vocab_size = property(lambda self: len(self.words))

    def get_vocab(self) -> dict[str, int]:
        return dict(self.words)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.words.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return list(self.words)[index]


each_tokenizer = pytest.mark.parametrize("make", [fast, Slow], ids=["fast", "slow"])


class Texts:
    """Sample ``i`` is a text, and a number of words to cut it after."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> tuple[str, str]:
        draw = random.Random(index)
        return " ".join(draw.choices(WORDS, k=2 + index % 60)), " ".join(draw.choices(WORDS, k=9))


class Encoded(Texts):
    """Sample ``i`` is what a tokenizer makes of the text."""

    def __init__(self, tokenizer: Any, *, labels: bool) -> None:
        self.tokenizer = tokenizer
        self.labels = labels

    def __getitem__(self, index: int) -> Any:
        words = len(super().__getitem__(index)[0].split())
        ids = [(index * 7 + word) % 400 for word in range(words)]
        sample = {"input_ids": ids, "attention_mask": [1] * words}
        return sample | {"labels": ids} if self.labels else sample


def two_lengths(samples: Any, tokenizer: Any) -> Any:
    """Set the tokenizer's truncation and padding twice a batch, as translation does."""
    texts, targets = zip(*samples, strict=True)
    length = 4 + len(texts[0]) % 13
    source = tokenizer(list(texts), truncation=True, max_length=length, padding="max_length")
    target = tokenizer(list(targets), truncation=True, max_length=5, padding="longest")
    return torch.tensor(source["input_ids"]), torch.tensor(target["input_ids"])


class Pads:
    """Sets padding and truncation of a bare tokenizer."""

    def __init__(self) -> None:
        self.tokenizer = backend()

    def collate(self, samples: Any) -> Any:
        texts = [text for text, _ in samples]
        self.tokenizer.enable_truncation(3 + len(texts[0]) % 11)
        self.tokenizer.enable_padding()
        return torch.tensor([encoded.ids for encoded in self.tokenizer.encode_batch(texts)])


def told(loader: Any) -> list[str]:
    return [repr(batch) for batch in loader]


def check(dataset: Any, collate_fn: Any, spawn: Spawn) -> None:
    """Compare with torch's loader, which collates one batch after the other."""
    expected = told(DataLoader(dataset, 2, collate_fn=collate_fn))
    with ThreadLoader(dataset, 2, collate_fn=collate_fn, num_workers=WORKERS) as loader:
        for _ in range(3):
            assert spawn(told, loader).result(PATIENCE) == expected


@each_tokenizer
def test_a_tokenizer_whose_padding_is_set_for_each_batch(make: Any, spawn: Spawn) -> None:
    check(Texts(), partial(two_lengths, tokenizer=make()), spawn)


@each_tokenizer
def test_a_closure_around_a_tokenizer(make: Any, spawn: Spawn) -> None:
    tokenizer = make()
    check(Texts(), lambda samples: two_lengths(samples, tokenizer), spawn)


def test_a_method_of_an_object_that_has_a_bare_tokenizer(spawn: Spawn) -> None:
    check(Texts(), Pads().collate, spawn)


@each_tokenizer
@pytest.mark.parametrize(
    ("collator", "labels"),
    [
        (DataCollatorWithPadding, False),
        (partial(DataCollatorForSeq2Seq, padding=True), True),
        (DataCollatorForTokenClassification, True),
        (partial(DataCollatorForLanguageModeling, mlm=False), False),
    ],
    ids=["padding", "seq2seq", "token classification", "language modeling"],
)
def test_a_data_collator(collator: Any, labels: bool, make: Any, spawn: Spawn) -> None:
    tokenizer = make()
    check(Encoded(tokenizer, labels=labels), collator(tokenizer), spawn)


def test_a_data_collator_that_draws_gives_the_same_batches_on_any_number_of_threads(
    spawn: Spawn,
) -> None:
    tokenizer = fast()
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)

    def masked(threads: int) -> list[str]:
        dataset = Encoded(tokenizer, labels=False)
        with ThreadLoader(dataset, 2, collate_fn=collator, threads=threads, seed=3) as loader:
            return spawn(told, loader).result(PATIENCE)

    assert masked(0) == masked(1) == masked(WORKERS)


def test_a_copy_of_a_fast_tokenizer_is_equal_and_has_its_own_settings() -> None:
    tokenizer = backend()
    tokenizer.enable_padding(length=9, pad_id=0, pad_token=SPECIAL["pad_token"])
    tokenizer.enable_truncation(7, stride=2)
    tokenizer.encode_special_tokens = True
    twin = copy_function(partial(two_lengths, tokenizer=tokenizer), "auto", Copied()).keywords[
        "tokenizer"
    ]
    assert twin is not tokenizer
    assert twin.to_str() == tokenizer.to_str()
    assert twin.encode_special_tokens
    texts = ["w1 of course W2 new [MASK] w3", "w4"]
    encoded = [[each.tokens for each in one.encode_batch(texts)] for one in (twin, tokenizer)]
    assert encoded[0] == encoded[1]
    twin.no_padding()
    twin.no_truncation()
    assert tokenizer.padding["length"] == 9
    assert tokenizer.truncation["max_length"] == 7


def test_a_model_that_a_collator_has_is_shared() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=64))
    collator = DataCollatorForSeq2Seq(fast(), model=model)
    twin = copy_function(collator, "auto", Copied())
    assert twin.model is model
    assert twin.tokenizer is not collator.tokenizer
    assert twin.tokenizer.backend_tokenizer is not collator.tokenizer.backend_tokenizer


def test_a_method_of_a_lightning_module_shares_model_and_trainer(spawn: Spawn) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 2)
            self.tokenizer = fast()

        def collate(self, samples: Any) -> Any:
            assert self.trainer.max_epochs == 5
            return two_lengths(samples, self.tokenizer)

    module = Module()
    trainer = module.trainer = lightning.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.strategy.connect(module)  # as fit() does
    check(Texts(), module.collate, spawn)
    twin = copy_function(module.collate, "auto", Copied()).__self__
    assert twin.model is module.model
    assert twin.trainer is trainer
    assert module.trainer is trainer


def test_a_method_of_a_lightning_data_module_shares_its_trainer(spawn: Spawn) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Data(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.texts = Texts()
            self.tokenizer = fast()

        def collate(self, samples: Any) -> Any:
            return two_lengths(samples, self.tokenizer)

    data = Data()
    data.trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[]
    )
    data.trainer.datamodule = data
    check(data.texts, data.collate, spawn)
    twin = copy_function(data.collate, "auto", Copied()).__self__
    assert twin.trainer is data.trainer
    assert twin.tokenizer is not data.tokenizer
