"""Data-parallel training on two processes, after PyTorch's DDP tutorial; for `torchrun`."""

import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    inputs = torch.arange(44 * 6, dtype=torch.float32).view(44, 6).cos()
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(dataset, seed=5)
    workers = int(os.environ.get("WORKERS", "0"))
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers)
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    total = hashlib.sha256()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for values, targets in loader:
            total.update(values.numpy().tobytes())
            loss = nn.functional.mse_loss(model(values), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank}, epoch {epoch}: {loss.item():.9f}", flush=True)
    print(f"rank {rank}: {total.hexdigest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
