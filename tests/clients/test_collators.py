"""Collators that hold a tokenizer of Hugging Face's."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from collections.abc import Callable

import torch
from support.patience import PATIENCE, Spawn
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

from threadloader import ThreadLoader

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


class Texts:
    """Sample ``i`` is a text, and one to translate it into."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> Any:
        draw = random.Random(index)
        return " ".join(draw.choices(WORDS, k=2 + index % 60)), " ".join(draw.choices(WORDS, k=9))


class Encoded(Texts):
    """Sample ``i`` is what a tokenizer makes of a text."""

    def __init__(self, *names: str) -> None:
        self.names = ("input_ids", *names)

    def __getitem__(self, index: int) -> Any:
        ids = [(index * 7 + word) % 400 for word in range(2 + index % 60)]
        return dict.fromkeys(self.names, ids) | {"attention_mask": [1] * len(ids)}


class Pads:
    """Sets padding and truncation of a bare tokenizer, or of that of a framework's module."""

    def __init__(self) -> None:
        self.tokenizer = backend()

    def collate(self, samples: Any) -> Any:
        texts = [text for text, _ in samples]
        self.tokenizer.enable_truncation(3 + len(texts[0]) % 11)
        self.tokenizer.enable_padding()
        return torch.tensor([encoded.ids for encoded in self.tokenizer.encode_batch(texts)])


COLLATORS: dict[str, Callable[[Any], Any]] = {
    "method": lambda _: Pads().collate,
    "padding": DataCollatorWithPadding,
    "seq2seq": partial(DataCollatorForSeq2Seq, padding=True),
    "token classification": DataCollatorForTokenClassification,
    "language modeling": partial(DataCollatorForLanguageModeling, mlm=False),
}


@pytest.mark.parametrize("name", COLLATORS)
def test_batches_are_those_of_one_thread(name: str, spawn: Spawn) -> None:
    labels = ("labels",) if name in {"seq2seq", "token classification"} else ()
    dataset = Texts() if name == "method" else Encoded(*labels)
    collate_fn = COLLATORS[name](fast())

    def told(loader: Any) -> list[str]:
        return [repr(batch) for batch in loader]

    expected = told(DataLoader(dataset, 2, collate_fn=collate_fn))
    with ThreadLoader(dataset, 2, collate_fn=collate_fn, num_workers=4) as loader:
        for _ in range(3):
            assert spawn(told, loader).result(PATIENCE) == expected
