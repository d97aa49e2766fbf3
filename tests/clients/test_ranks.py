"""``shard="auto"`` in frameworks that set up ranks, and may put samplers of their own in."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

pytest.importorskip("torch")

LOADING = """
from threadloader import ThreadLoader

class Drawing:
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return index, torch.rand(())

def made():
    return ThreadLoader(Drawing(), 4, shuffle=True, seed=1, shard="auto")
"""

LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = [[], []]
    def training_step(self, batch, number):
        parts = [part.tolist() for part in batch]
        self.seen[self.current_epoch] += [list(row) for row in zip(*parts)]
        return self.layer(batch[1][:, None]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def seen(own_sampler):
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        use_distributed_sampler=own_sampler, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, made())
    return model.seen

tell([seen(False), seen(True)])
"""

ACCELERATE = """
from accelerate import Accelerator
from threadloader.integrations.accelerate import prepare

def seen(loader):
    epochs = ([batch for batch in loader] for _ in range(2))
    return [
        [list(row) for batch in epoch for row in zip(*(part.tolist() for part in batch))]
        for epoch in epochs
    ]

accelerator = Accelerator(cpu=True)
tell([seen(made()), seen(prepare(accelerator, made()))])
"""


def check(ranks: list[list[list[list[list[float]]]]]) -> None:
    """Check that the ranks together have each sample once an epoch, and draw different numbers."""
    for one, other in zip(*ranks, strict=True):
        for epoch in range(2):
            rows = one[epoch] + other[epoch]
            assert sorted(index for index, _ in rows) == list(range(48))
            assert len({number for _, number in rows}) == 48
        assert one[0] != one[1]


def test_lightning_trains_on_two_ranks_with_and_without_its_sampler(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    check(run_ranks(LOADING + LIGHTNING, 2, tmp_path, group=False, NODE_RANK="0"))


def test_accelerate_has_a_loader_on_two_ranks_prepared_or_not(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    check(run_ranks(LOADING + ACCELERATE, 2, tmp_path, group=False))
