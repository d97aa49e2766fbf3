"""A plain loop with a loader for training and one for tests, after pytorch/examples' mnist."""

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = torch.arange(64, dtype=torch.float32).add(index).sin().view(1, 8, 8)
        return image, index % 10


def seen(total, batch):
    for part in batch:
        total.update(part.numpy().tobytes())


def train(model, loader, optimizer, epoch, total):
    model.train()
    for number, (data, target) in enumerate(loader):
        seen(total, (data, target))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}, batch {number} of {len(loader)}: {loss.item():.9f}")


def test(model, loader, total):
    model.eval()
    loss = 0.0
    with torch.no_grad():
        for data, target in loader:
            seen(total, (data, target))
            loss += nn.functional.cross_entropy(model(data), target, reduction="sum").item()
    print(f"test: {loss / len(loader.dataset):.9f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    options = {"num_workers": args.workers}
    train_loader = DataLoader(Digits(70), 16, shuffle=True, **options)
    test_loader = DataLoader(Digits(33), 16, **options)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.2), nn.Linear(16, 10))
    optimizer = torch.optim.Adadelta(model.parameters())
    total = hashlib.sha256()
    for epoch in range(args.epochs):
        train(model, train_loader, optimizer, epoch, total)
        test(model, test_loader, total)
    print(total.hexdigest())


if __name__ == "__main__":
    main()
