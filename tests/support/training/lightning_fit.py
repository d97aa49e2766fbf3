"""A fit and a test with Lightning, whose trainer makes loaders anew, after its quick start."""

import hashlib
import sys

import lightning as L  # noqa: N812
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split


class Data(L.LightningDataModule):
    def __init__(self, workers):
        super().__init__()
        self.workers = workers

    def setup(self, stage):
        values = torch.arange(40 * 4, dtype=torch.float32).view(40, 4).sin()
        whole = TensorDataset(values, values.sum(1, keepdim=True))
        split = torch.Generator().manual_seed(4)
        self.fitted, self.validated = random_split(whole, [30, 10], generator=split)

    def train_dataloader(self):
        return DataLoader(self.fitted, batch_size=4, shuffle=True, num_workers=self.workers)

    def val_dataloader(self):
        return DataLoader(self.validated, batch_size=4, num_workers=self.workers)

    def predict_dataloader(self):
        return DataLoader(self.validated, batch_size=4, num_workers=self.workers)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.total = hashlib.sha256()

    def training_step(self, batch, _index):
        values, targets = batch
        self.total.update(values.numpy().tobytes())
        loss = torch.nn.functional.mse_loss(self.line(values), targets)
        print(f"{loss.item():.9f}")
        return loss

    def validation_step(self, batch, _index):
        self.total.update(batch[0].numpy().tobytes())

    def predict_step(self, batch, _index):
        return self.line(batch[0]).flatten().tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


L.seed_everything(1, workers=True)
model, points = Model(), Data(int(sys.argv[1]))
quiet = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=2, strategy=sys.argv[2], **quiet)
trainer.fit(model, points)
print(trainer.predict(model, points))
print(model.total.hexdigest())
