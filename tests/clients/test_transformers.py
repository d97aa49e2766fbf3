"""transformers: a Trainer whose loader is a ThreadLoader, prepared by Accelerate or not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from clients.points import Points
from threadloader import ThreadLoader
from threadloader.integrations.accelerate import prepare


def sequence(index: int) -> dict[str, torch.Tensor]:
    """Return token ids and their labels."""
    words = (torch.arange(8) * (index + 1)) % 32
    return {"input_ids": words, "labels": words}


class Bare(Trainer):
    """Loads with torch, and does not let Accelerate prepare the loader."""

    def get_train_dataloader(self) -> Any:
        return self.loader(DataLoader)

    def loader(self, kind: type, **options: Any) -> Any:
        options |= {"sampler": self._get_train_sampler(), "collate_fn": default_data_collator}
        return kind(self.train_dataset, batch_size=self.args.train_batch_size, **options)


class BareThreads(Bare):
    def get_train_dataloader(self) -> Any:
        return self.loader(ThreadLoader, threads=2)


class Prepared(Bare):
    def get_train_dataloader(self) -> Any:
        return prepare(self.accelerator, self.loader(ThreadLoader, threads=2))


def train(
    kind: type[Trainer], words: Points, folder: Path, resume: str | None = None, **options: Any
) -> Any:
    """Return the losses of two epochs, and the loader that was used."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 8}
    trainer = kind(
        model=GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)),
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_steps=8,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **options,
        ),
        train_dataset=words,
    )
    trainer.train(resume_from_checkpoint=resume)
    used = trainer.callback_handler.train_dataloader
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], used


@pytest.mark.parametrize(("torchs", "ours"), [(Trainer, Prepared), (Bare, BareThreads)])
@pytest.mark.parametrize("accumulated", [1, 4])
def test_a_trainer_has_the_same_losses(
    torchs: type[Trainer], ours: type[Trainer], accumulated: int, tmp_path: Path
) -> None:
    words = Points(make=sequence)
    options = {"gradient_accumulation_steps": accumulated}
    expected, _ = train(torchs, Points(make=sequence), tmp_path, **options)
    got, used = train(ours, words, tmp_path, **options)
    assert got == expected
    assert isinstance(used, ThreadLoader)
    assert words.by_workers


def test_a_trainer_resumes_with_the_same_losses_but_without_threads(tmp_path: Path) -> None:
    words = Points(make=sequence)
    expected, _ = train(Prepared, Points(make=sequence), tmp_path)
    got, _ = train(Prepared, words, tmp_path, resume=str(tmp_path / "checkpoint-8"))
    assert got == expected
    assert not words.visits  # the trainer skips by Accelerate's function, not by ours
