"""One of two processes that share the samples: compares torch's batches and ours, and resumes."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from clients.points import Points, Stream, lists
from threadloader import ThreadLoader
from threadloader.integrations.accelerate import prepare

CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"split_batches": True},
    {"dispatch_batches": True},
    {"dispatch_batches": True, "split_batches": True},
    {"use_seedable_sampler": True, "data_seed": 6},
]


def two_epochs(accelerator: Accelerator, loader: Any) -> list[Any]:
    """Return what this process gets, what is gathered of both, and what the state says."""
    seen: list[Any] = []
    for _ in range(2):
        for batch in loader:
            state = accelerator.gradient_state
            seen += lists([batch, accelerator.gather_for_metrics(batch)])
            seen.append((state.end_of_dataloader, state.remainder))
    return seen


def compare(samples: type, configuration: dict[str, Any]) -> None:
    """Fail unless a ThreadLoader gives what torch's loader does."""
    arguments = {"batch_size": 4, "shuffle": True if samples is Points else None}
    config = DataLoaderConfiguration(**configuration)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    assert accelerator.num_processes == 2
    torch.manual_seed(6)
    expected = two_epochs(accelerator, accelerator.prepare(DataLoader(samples(), **arguments)))
    torch.manual_seed(6)
    dataset = samples()
    loader = prepare(accelerator, ThreadLoader(dataset, num_workers=1, **arguments))
    assert two_epochs(accelerator, loader) == expected, (samples, configuration)
    assert type(loader.base_dataloader) is ThreadLoader
    dispatched = configuration.get("dispatch_batches") or False
    if accelerator.is_main_process or not dispatched:  # it alone makes batches to dispatch
        assert dataset.by_workers


def resume(samples: type, configuration: dict[str, Any]) -> None:
    """Fail unless a loader goes on with the batches that were not yielded."""

    def load() -> Any:
        config = DataLoaderConfiguration(**configuration)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        shuffle = True if "use_seedable_sampler" in configuration else None  # or it is in no state
        loader = ThreadLoader(samples(), 2, num_workers=1, shuffle=shuffle)
        return prepare(accelerator, loader)

    loader = load()
    epochs = [lists(loader) for _ in range(3)]
    last = len(epochs[1])
    for batches in (2, last):
        loader = load()
        lists(loader)
        for _ in itertools.islice(loader, batches):
            state = loader.state_dict()
        loader = load()
        loader.load_state_dict(state)
        if batches < last:
            loader.set_epoch(1)
            assert lists(loader) == epochs[1][batches:], (samples, configuration)
        loader.set_epoch(2)
        assert lists(loader) == epochs[2], (samples, configuration)


if __name__ == "__main__":
    for configuration in CONFIGURATIONS:
        compare(Points, configuration)
        compare(Stream, configuration)
        resume(Points, configuration)
        if "use_seedable_sampler" not in configuration:
            resume(Stream, configuration)
    torch.distributed.destroy_process_group()
