"""Loaders of many kinds: prints what a program sees of each, and of its own random state.

To stderr go the kinds of which no sample was made in this process.
"""

import copy
import inspect
import pickle
import random
import sys

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

made = []


class Numbers(Dataset):
    def __init__(self, size=22):
        self.size = size
        self.level = 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        made.append(index)
        return torch.full((2,), float(index)), str(index), self.level


class Broken(Numbers):
    def __getitem__(self, index):
        raise KeyError(*super().__getitem__(index)[1:])


class Shared(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 23, info.num_workers):
            made.append(number)
            yield torch.full((2,), float(number)), random.random()


class Curriculum:
    """Follows the training."""

    level = 0

    def __iter__(self):
        return ([self.level] for _ in range(9))


class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


class Infinite(DataLoader):
    """Source: InfiniteDataLoader in ultralytics/data/build.py."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Reversed(DataLoader):
    """PyG's loaders wrap what this makes."""

    def _get_iterator(self):
        return (batch[::-1] for batch in super()._get_iterator())


def follows_training():
    sampler = Curriculum()
    for batch in DataLoader(Numbers(), batch_sampler=sampler):
        yield batch
        sampler.level += 1


def follows_attributes():
    loader = DataLoader(Numbers(), 4, **kept)
    yield list(loader)
    loader.collate_fn = len
    yield list(loader)
    yield loader._iterator._num_yielded
    loader.dataset.level = 1  # not seen by torch's workers that are kept
    loader._iterator = None  # they are dismissed: mmdet's mode switch
    yield list(loader)


def stays_its_class():
    loader = DataLoader(Numbers(), 4, num_workers=2)
    yield inspect.signature(DataLoader), len(iter(loader))
    for twin in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        yield type(twin) is DataLoader, list(twin)


def fails(workers):
    try:
        list(DataLoader(Broken(), num_workers=workers))
    except KeyError as error:
        # Workers send texts only, with the traceback of theirs.
        return "'0'" in str(error)


def learns():
    weights = torch.ones(4, requires_grad=True)
    for batch in DataLoader(list(weights * 2), 2):
        made.append(batch)
        batch.sum().backward(retain_graph=True)
    return weights.grad


def passes(dataset, *args, kind=DataLoader, **kwargs):
    loader = kind(dataset, *args, **kwargs)
    return [list(loader) for _ in range(2)]


kept = {"num_workers": 2, "persistent_workers": True}
KINDS = {
    "shuffled": lambda: passes(Numbers(), 4, shuffle=True, num_workers=2),
    "kept": lambda: passes(Numbers(), 4, shuffle=True, **kept),
    "iterable": lambda: passes(Shared(), 4, num_workers=2),
    "infinite": lambda: passes(Numbers(), 4, shuffle=True, num_workers=2, kind=Infinite),
    "iterator wrapped": lambda: passes(Numbers(), 4, num_workers=2, kind=Reversed),
    "no workers": lambda: passes(Numbers(), 4, shuffle=True, drop_last=True),
    "no workers, follows training": lambda: list(follows_training()),
    "follows attributes": lambda: list(follows_attributes()),
    "stays its class": lambda: list(stays_its_class()),
    "no workers, fails": lambda: fails(0),
    "fails": lambda: fails(2),
    "learns": learns,
}


def main():
    elsewhere = []
    for name, kind in KINDS.items():
        made.clear()
        torch.manual_seed(1)
        random.seed(2)
        print(name, repr(kind()).replace("\n", ""), torch.rand(3), random.random())
        elsewhere += [] if made else [name]
    print("made elsewhere:", elsewhere, file=sys.stderr)


if __name__ == "__main__":
    main()
