"""A run that was stopped within an epoch goes on where it was, in the packages' own ways."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("datasets.arrow_dataset")  # "datasets" may be a folder of tests
pytest.importorskip("lightning")
pytest.importorskip("torchdata")
pytest.importorskip("webdataset")

import datasets
import lightning as L  # noqa: N812  # its own name for itself
import numpy as np
import torch
import webdataset as wds
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from clients.points import Points, Stream, lists, model
from threadloader import ThreadLoader
from threadloader.integrations.accelerate import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

each_number_of_threads = pytest.mark.parametrize("threads", [0, 2])


def stopped(loader: Any, batches: int) -> Any:
    """Return the state of a loader after some batches; after StopIteration if it has fewer."""
    iterator = iter(loader)
    for _ in itertools.islice(iterator, batches):
        pass
    return loader.state_dict()


# Lightning


class Seen(L.LightningModule):
    """Keeps the epoch, the index and the targets of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.line = model()
        self.seen: list[tuple[int, int, Any]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        batches = batch if isinstance(batch, dict) else {"": batch}
        told = [targets.tolist() for _, targets in batches.values()]
        self.seen.append((self.current_epoch, index, told))
        return sum(self.line(values).mean() for values, _ in batches.values())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Endless(IterableDataset):
    """A stream that does not tell its length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(Stream())


def fit(loaders: Any, folder: Path, resume: str | None = None, every: int = 4) -> list[Any]:
    """Return what is seen in three epochs of six steps; save it every so many steps."""
    seeing = Seen()
    L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(seeing, loaders, ckpt_path=None if resume is None else folder / resume)
    return seeing.seen


def shuffled(size: int = 22, **arguments: Any) -> ThreadLoader:
    return ThreadLoader(Points(size), 4, shuffle=True, **{"seed": size, "threads": 2} | arguments)


@pytest.mark.parametrize(
    "load",
    [
        lambda: shuffled(threads=0),
        shuffled,
        lambda: shuffled(seed=None, generator=torch.Generator().manual_seed(3)),
        lambda: ThreadLoader(Stream(), 4, threads=2),
        lambda: {"long": shuffled(), "cycled": shuffled(10)},
    ],
    ids=["calling_thread", "threads", "generator", "stream", "two_loaders"],
)
@pytest.mark.parametrize("checkpoint", ["epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt"])
def test_a_fit_sees_the_rest_of_the_epoch_and_then_the_next(
    load: Callable[[], Any], checkpoint: str, tmp_path: Path
) -> None:
    whole = fit(load(), tmp_path)
    assert len(whole) == 18
    steps = 4 if "step=4" in checkpoint else 8
    assert fit(load(), tmp_path, checkpoint) == whole[steps:]


@pytest.mark.parametrize(
    ("data", "checkpoint"),
    [(Points, "epoch=0-step=6.ckpt"), (Endless, "epoch=0-step=3.ckpt")],
    ids=["end_of_epoch", "no_length"],
)
def test_what_lightning_loses_of_a_stateful_loader_is_lost_of_ours(
    data: type, checkpoint: str, tmp_path: Path
) -> None:
    def resumed(kind: type, folder: Path) -> list[Any]:
        fit(kind(data(), 4, num_workers=0), folder, every=3)
        return fit(kind(data(), 4, num_workers=0), folder, checkpoint, every=3)

    assert resumed(ThreadLoader, tmp_path / "ours") == resumed(StatefulDataLoader, tmp_path / "its")


def test_a_checkpoint_without_the_state_of_a_loader_is_resumed_from_as_ever(tmp_path: Path) -> None:
    fit(DataLoader(Points(), 4), tmp_path)
    expected = fit(DataLoader(Points(), 4), tmp_path, "epoch=0-step=4.ckpt")
    ours = ThreadLoader(Points(), 4, threads=2)
    assert fit(ours, tmp_path, "epoch=0-step=4.ckpt") == expected


@each_number_of_threads
def test_a_sampler_that_lightning_tells_of_the_epoch_goes_on(threads: int, tmp_path: Path) -> None:
    def load() -> ThreadLoader:
        sampler = DistributedSampler(Points(), num_replicas=1, rank=0, seed=3)
        return ThreadLoader(Points(), 4, sampler=sampler, threads=threads)

    whole = fit(load(), tmp_path)
    assert fit(load(), tmp_path, "epoch=0-step=4.ckpt") == whole[4:]
    assert fit(load(), tmp_path, "epoch=1-step=8.ckpt") == whole[8:]


def test_fabric_saves_and_loads_a_loader(tmp_path: Path) -> None:
    fabric = L.Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(shuffled())
    epochs = [lists(loader), lists(loader)]
    loader = fabric.setup_dataloaders(shuffled())
    for _ in itertools.islice(loader, 2):
        pass
    fabric.save(tmp_path / "saved", {"loader": loader})
    loader = fabric.setup_dataloaders(shuffled())
    fabric.load(tmp_path / "saved", {"loader": loader})
    assert [lists(loader), lists(loader)] == [epochs[0][2:], epochs[1]]


# Accelerate

PREPARED = pytest.mark.parametrize(
    "load",
    [
        lambda: shuffled(threads=0),
        shuffled,
        lambda: shuffled(seed=None, generator=torch.Generator().manual_seed(3)),
        lambda: ThreadLoader(Points(), None, threads=2),
        lambda: ThreadLoader(Stream(), 4, threads=2),
    ],
    ids=["calling_thread", "threads", "generator", "samples", "stream"],
)


@PREPARED
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("batches", [1, 3, 5])
def test_a_prepared_loader_goes_on_with_what_was_not_yielded(
    load: Callable[[], Any], epoch: int, batches: int
) -> None:
    loader = prepare(Accelerator(cpu=True), load())
    epochs = [lists(loader) for _ in range(3)]
    loader = prepare(Accelerator(cpu=True), load())
    for _ in range(epoch):
        lists(loader)
    state = stopped(loader, batches)
    loader = prepare(Accelerator(cpu=True), load())
    loader.load_state_dict(state)
    assert lists(loader) == epochs[epoch][batches:]
    assert lists(loader) == epochs[epoch + 1]


@PREPARED
def test_a_prepared_loader_goes_on_with_the_next_epoch(load: Callable[[], Any]) -> None:
    loader = prepare(Accelerator(cpu=True), load())
    epochs = [lists(loader), lists(loader)]
    for at_last_batch in (False, True):
        loader = prepare(Accelerator(cpu=True), load())
        state = stopped(loader, len(epochs[0]) + 1 - at_last_batch)
        loader = prepare(Accelerator(cpu=True), load())
        loader.load_state_dict(state)
        assert lists(loader) == epochs[1]


def test_a_prepared_loader_has_a_state_before_its_first_batch() -> None:
    state = prepare(Accelerator(cpu=True), shuffled()).state_dict()
    loader = prepare(Accelerator(cpu=True), shuffled())
    whole = lists(loader)
    loader.load_state_dict(state)
    assert lists(loader) == whole


def stateful(load: Callable[[], Any], *others: Any) -> Any:
    """Return an accelerator that saves its loaders, and what it prepared."""
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    line = model()
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    return accelerator, prepare(accelerator, line, optimizer, load(), *others)


@PREPARED
@pytest.mark.parametrize("batches", [0, 3, 6])
def test_an_accelerator_saves_and_loads_its_loaders(
    load: Callable[[], Any], batches: int, tmp_path: Path
) -> None:
    accelerator, (*_, loader) = stateful(load)
    epochs = [lists(loader), lists(loader)]
    accelerator, (*_, loader) = stateful(load)
    stopped(loader, batches)
    accelerator.save_state(str(tmp_path))
    accelerator, (*_, loader) = stateful(load)
    accelerator.load_state(str(tmp_path))
    assert lists(loader) == (epochs[0][batches:] or epochs[1])
    assert type(loader.base_dataloader) is ThreadLoader


def test_no_stateful_loader_of_torchdatas_is_made_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StatefulDataLoader, "__init__", None)  # not to be called
    accelerator, _ = stateful(shuffled)
    assert accelerator.use_stateful_dataloader


def test_two_kinds_of_stateful_loaders_are_not_prepared_in_one_call() -> None:
    with pytest.raises(ValueError, match="a call of their own"):
        stateful(shuffled, DataLoader(Points()))
    accelerator, (*_, ours) = stateful(shuffled)
    torchs = prepare(accelerator, DataLoader(Points()), ours)[0]
    assert type(torchs.base_dataloader) is StatefulDataLoader


# Hugging Face datasets

each_rhythm = pytest.mark.parametrize("every", [1, 4])


class Rows:
    """A stream of 22 rows in four shards, and a loader of it."""

    def __init__(self, *, buffer: int = 0, **arguments: Any) -> None:
        rows = datasets.Dataset.from_dict({"y": list(range(22))}).to_iterable_dataset(num_shards=4)
        if buffer:
            rows = rows.shuffle(seed=3, buffer_size=buffer)
        self.rows = rows.with_format("torch")
        self.loader = ThreadLoader(self.rows, 3, **arguments)

    def epoch(self, number: int | None = None) -> list[Any]:
        """Return the batches of an epoch, which the stream is told of unless it is None."""
        if number is not None:
            self.rows.set_epoch(number)
        return [batch["y"].tolist() for batch in self.loader]


@pytest.mark.parametrize("threads", [0, 1, 2])
@each_rhythm
@pytest.mark.parametrize("batches", [0, 1, 3, 5, 7])
def test_a_hugging_face_stream_goes_on_and_its_next_epoch_is_whole(
    threads: int, every: int, batches: int
) -> None:
    arguments = {"threads": threads, "snapshot_every_n_steps": every}
    whole = Rows(**arguments).epoch(0)
    state = stopped(Rows(**arguments).loader, batches)
    resumed = Rows(**arguments)
    resumed.loader.load_state_dict(state)
    assert resumed.epoch(0) == whole[batches:]
    assert resumed.epoch(1) == whole
    assert sorted(itertools.chain(*whole)) == list(range(22))


@pytest.mark.parametrize("threads", [0, 1, 2])
@each_rhythm
def test_a_hugging_face_stream_that_ended_begins_again(threads: int, every: int) -> None:
    arguments = {"threads": threads, "snapshot_every_n_steps": every}
    whole = Rows(**arguments).epoch()
    state = stopped(Rows(**arguments).loader, 99)
    resumed = Rows(**arguments)
    resumed.loader.load_state_dict(state)
    assert resumed.epoch() == whole
    assert resumed.epoch() == whole


@pytest.mark.parametrize(
    "arguments",
    [{"threads": 0}, {"threads": 1}, {"threads": 1, "persistent_workers": True}],
    ids=["calling_thread", "thread", "persistent"],
)
@pytest.mark.parametrize("batches", [3, 8])
def test_the_next_epoch_is_whole_also_of_a_stream_that_is_not_told_of_it(
    arguments: dict[str, Any], batches: int
) -> None:
    before = Rows(**arguments)
    whole = before.epoch()
    before.loader.close()
    before = Rows(**arguments)
    state = stopped(before.loader, batches)
    before.loader.close()
    resumed = Rows(**arguments)
    resumed.loader.load_state_dict(state)
    assert resumed.epoch() == whole[batches:]
    again = resumed.epoch()
    resumed.loader.close()
    assert again == whole


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("batches", [3, 7])
def test_a_shuffle_buffer_is_filled_again_if_no_state_of_the_stream_is_kept(
    threads: int, batches: int
) -> None:
    arguments = {"threads": threads, "buffer": 5, "snapshot_every_n_steps": 0, "seed": 3}
    whole = Rows(**arguments).epoch()
    state = stopped(Rows(**arguments).loader, batches)
    resumed = Rows(**arguments)
    resumed.loader.load_state_dict(state)
    assert resumed.epoch() == whole[batches:]


# Samplers of torchdata's and torch's


def sampled(kind: type[DistributedSampler], **arguments: Any) -> tuple[Any, ThreadLoader]:
    rows = list(range(22))
    sampler = kind(rows, num_replicas=2, rank=1, seed=3)
    return sampler, ThreadLoader(rows, 2, sampler=sampler, **arguments)


def epochs_of(sampler: Any, loader: ThreadLoader, first: int, last: int) -> list[Any]:
    """Return the batches of epochs, each of which the sampler is told of."""
    epochs = []
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        epochs.append([batch.tolist() for batch in loader])
    return epochs


@pytest.mark.parametrize("kind", [StatefulDistributedSampler, DistributedSampler])
@each_number_of_threads
@pytest.mark.parametrize("every", [1, 4, 0])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_distributed_sampler_goes_on(
    kind: type[DistributedSampler], threads: int, every: int, epoch: int
) -> None:
    arguments = {"threads": threads, "snapshot_every_n_steps": every}
    whole = epochs_of(*sampled(kind, **arguments), 0, 3)
    for batches in (0, 2, 5, 6, 7):
        sampler, loader = sampled(kind, **arguments)
        epochs_of(sampler, loader, 0, epoch)
        sampler.set_epoch(epoch)
        state = stopped(loader, batches)
        sampler, loader = sampled(kind, **arguments)
        loader.load_state_dict(state)
        if batches > 6:
            assert epochs_of(sampler, loader, epoch + 1, epoch + 2) == [whole[epoch + 1]]
        else:
            rest = [whole[epoch][batches:], whole[epoch + 1]]
            assert epochs_of(sampler, loader, epoch, epoch + 2) == rest


@pytest.mark.parametrize("kind", [StatefulDistributedSampler, DistributedSampler])
@each_number_of_threads
def test_a_distributed_sampler_that_is_not_told_of_the_epoch_goes_on_all_the_same(
    kind: type[DistributedSampler], threads: int
) -> None:
    _, whole = epochs_of(*sampled(kind, threads=threads), 0, 2)
    sampler, loader = sampled(kind, threads=threads)
    sampler.set_epoch(1)
    state = stopped(loader, 3)
    _, loader = sampled(kind, threads=threads)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole[3:]


# webdataset


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_webdataset_pipeline_is_read_again_with_a_warning(threads: int, tmp_path: Path) -> None:
    shards = [str(tmp_path / f"{number}.tar") for number in range(4)]
    for number, shard in enumerate(shards):
        with wds.TarWriter(shard) as tar:
            for row in range(5 * number, 5 * number + 5):
                tar.write({"__key__": f"{row:03}", "y.cls": row})

    def load() -> ThreadLoader:
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(shards),
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.decode(),
            wds.to_tuple("y.cls"),
        )
        return ThreadLoader(pipeline, 3, threads=threads)

    whole = [np.asarray(batch).tolist() for batch in load()]
    state = stopped(load(), 2)
    loader = load()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"is read again, to be left out \(batches: 2\)"):
        rest = [np.asarray(batch).tolist() for batch in loader]
    assert rest == whole[2:]
    assert [np.asarray(batch).tolist() for batch in loader] == whole
