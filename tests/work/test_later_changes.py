"""What the loop sets on its objects between epochs, kept workers see from the next one on."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader


class Scale:
    def __init__(self, by: float = 1.0) -> None:
        self.by = by

    def __call__(self, sample: Any) -> Any:
        return sample * self.by


class Jitter(Scale):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__(by)
        self.rng = random.Random(0)

    def __call__(self, sample: Any) -> Any:
        return sample * self.by + self.rng.random()


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: Any) -> Any:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Inner:
    offset = 7

    def __init__(self) -> None:
        self.offset = 0
        self.transform: Any = Scale()

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.transform(np.full(2, float(index + self.offset)))


class Outer:
    """A dataset over another one, which opens something on first use."""

    def __init__(self) -> None:
        self.inner = Inner()
        self.mosaic = False
        self.options = {"gain": 1.0}
        self.handle: Any = None
        self.opened: list[int] = []  # shared by all copies

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if self.handle is None:
            self.handle = iter(range(10**9))
            self.opened.append(index)
        next(self.handle)
        return (self.inner[index] + 100 * self.mosaic) * self.options["gain"]


class Collate:
    def __init__(self) -> None:
        self.length = 2

    def __call__(self, samples: list[Any]) -> Any:
        return np.stack(samples)[:, : self.length]


def set_numbers(dataset: Outer, collate: Collate, epoch: int) -> None:
    dataset.mosaic = bool(epoch % 2)
    dataset.inner.offset = epoch
    dataset.inner.transform.by = 1.0 + epoch
    collate.length = 1 + epoch % 2


def set_transforms(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    if epoch % 2:
        dataset.inner.transform = Compose(Scale(epoch), Jitter(epoch))
    else:
        dataset.inner.transform.transforms[1].by = 7.0  # of the object that was set before


def set_container(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    dataset.options = {"gain": float(epoch)}


def set_object(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    before, dataset.inner = dataset.inner, Inner()
    dataset.inner.offset = before.offset + epoch


def edit_list(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    if epoch == 1:
        dataset.inner.transform = Compose(Scale(2.0))
    else:
        dataset.inner.transform.transforms.append(Jitter(epoch))


def set_generator(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    if epoch == 1:
        dataset.inner.transform = Jitter()
    else:
        dataset.inner.transform.rng = random.Random(epoch)


def delete(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    dataset.inner.offset = epoch
    if epoch == 2:
        del dataset.inner.offset  # its class has another one


def nothing(dataset: Outer, collate: Collate, epoch: int) -> None:
    pass


def use_it(dataset: Outer, collate: Collate, epoch: int) -> None:  # noqa: ARG001
    assert dataset[0] is not None  # which opens a handle for the loop's own thread


CHANGES: list[Callable[[Outer, Collate, int], None]] = [
    *(set_numbers, set_transforms, set_container, set_object, edit_list, set_generator, delete),
    *(nothing, use_it),
]


def batches_of(change: Callable[[Outer, Collate, int], None], **workers: Any) -> list[Any]:
    dataset, collate = Outer(), Collate()
    found = []
    with ThreadLoader(
        dataset, 4, shuffle=True, seed=3, collate_fn=collate, output="numpy", **workers
    ) as loader:
        for epoch in range(5):
            if epoch:
                change(dataset, collate, epoch)
            found.append([np.asarray(batch).tolist() for batch in loader])
    if workers.get("persistent_workers") and change is nothing:
        assert len(dataset.opened) <= workers["threads"], "what workers have opened stays open"
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_kept_workers_see_what_was_set_between_epochs(
    change: Callable[[Outer, Collate, int], None], threads: int, spawn: Spawn
) -> None:
    expected = batches_of(change, threads=0)
    kept = {"threads": threads, "persistent_workers": True}
    assert spawn(lambda: batches_of(change, **kept)).result(PATIENCE) == expected


def test_of_deep_copies_the_attributes_of_the_dataset_are_seen() -> None:
    dataset = Outer()
    options: Any = {"dataset_copy": "deep", "persistent_workers": True}
    with ThreadLoader(dataset, 24, threads=2, output="numpy", **options) as loader:
        before = next(iter(loader))
        dataset.mosaic = True
        assert (next(iter(loader)) == before + 100).all()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_goes_on_with_what_was_set_at_an_exact_batch(*, persistent: bool) -> None:
    def epoch(**workers: Any) -> list[Any]:
        dataset, found = Outer(), []
        dataset.inner.transform = Jitter()
        with ThreadLoader(dataset, 2, shuffle=True, seed=3, output="numpy", **workers) as loader:
            for step in range(12):
                if step in (3, 4, 9):
                    loader.load_state_dict(loader.state_dict())
                    dataset.mosaic = step != 9
                    batches = iter(loader)
                elif not step:
                    batches = iter(loader)
                found.append(next(batches).tolist())
        return found

    kept = {"persistent_workers": persistent}
    expected = epoch(threads=0)
    assert [step for step, batch in enumerate(expected) if min(batch[0]) >= 100] == [*range(3, 9)]
    assert [epoch(threads=threads, **kept) for threads in (1, 2, 7)] == [expected] * 3


def test_an_epoch_that_is_under_way_goes_on_with_what_there_was() -> None:
    dataset = Outer()
    with ThreadLoader(
        dataset, 4, threads=1, prefetch=1, output="numpy", persistent_workers=True
    ) as loader:
        first = iter(loader)
        next(first)
        dataset.mosaic = True
        second = list(loader)
        rest = list(first)
        assert all((batch < 100).all() for batch in rest)
        assert all((batch >= 100).all() for batch in second)
        assert (len(rest), len(second)) == (5, 6)


def test_what_was_set_before_is_kept_by_no_worker() -> None:
    dataset, gone = Outer(), []
    with ThreadLoader(dataset, 4, threads=2, persistent_workers=True) as loader:
        for epoch in range(5):
            dataset.inner.transform = Scale(epoch)
            gone.append(weakref.ref(dataset.inner.transform))
            assert len(list(loader)) == 6
            dataset.inner.transform.by = 3.0
            assert len(list(loader)) == 6
        loader.close()  # waits for workers that were told to end
        gc.collect()
        assert [transform() is None for transform in gone[:-1]] == [True] * 4


def test_workers_that_are_kept_go_on_with_another_collate_fn(spawn: Spawn) -> None:
    def run(dataset: Any) -> list[Any]:
        with ThreadLoader(dataset, 2, num_workers=1, persistent_workers=True) as loader:
            told = [batch.tolist() for batch in loader]
            loader.collate_fn = sum
            return [told, *map(list, (loader, loader))]

    assert spawn(run, range(2)).result(PATIENCE) == [[[0, 1]], [1], [1]]
    data = pytest.importorskip("torch.utils.data")

    class Passes(data.IterableDataset):  # type: ignore[misc,name-defined]
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter([self.passes] * 2)

    assert spawn(run, Passes()).result(PATIENCE) == [[[1, 1]], [4], [6]]
