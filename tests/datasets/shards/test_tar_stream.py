"""Shards as a stream: each sample once, in a known order, also behind errors and when resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_shards import (
    ENDINGS,
    compressed,
    numbered,
    tar_bytes,
    write_numbered,
    write_shard,
)
from support.patience import PATIENCE, Spawn
from support.pictures import told_by
from support.resuming import as_json, check_each_state

from threadloader import StateError, ThreadLoader
from threadloader.datasets import TarStream
from threadloader.errors import DataError

SIZES = [5, 0, 7, 3, 6, 1]  # samples in the shards
COUNT = sum(SIZES)
each_ending = pytest.mark.parametrize("ending", ENDINGS)
each_shuffle = pytest.mark.parametrize("shuffle", [0, 1, 4])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_numbered(tmp_path, SIZES)
    return tmp_path


def stream(folder: Path, **arguments: Any) -> Any:
    return TarStream(folder / "*.tar*", **({"fields": ("cls",)} | arguments))


def numbers(samples: Any) -> list[int]:
    return [sample[0] for sample in samples]


def outcomes(samples: Any) -> list[Any]:
    """Return what each call of next() gives, errors too."""
    return told_by(samples, lambda sample: sample[0])


@each_ending
@each_shuffle
def test_each_sample_comes_once_in_an_order_that_seed_and_epoch_decide(
    tmp_path: Path, ending: str, shuffle: int
) -> None:
    write_numbered(tmp_path, SIZES, ending)
    made = stream(tmp_path, shuffle=shuffle, seed=3)
    first = numbers(made)
    assert numbers(made) == numbers(stream(tmp_path, shuffle=shuffle, seed=3)) == first
    made.set_epoch(1)
    second = numbers(made)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert (first == second) == (first == list(range(COUNT))) == (shuffle == 0)
    assert shuffle == 0 or numbers(stream(tmp_path, shuffle=shuffle, seed=4)) != first
    whole = list(TarStream(tmp_path / f"shard-{{000..005}}{ending}", decode=False))
    assert whole == [{"__key__": key} | parts for key, parts in numbered(0, COUNT).items()]


def test_a_buffer_shuffles_samples_as_far_as_it_reaches_and_one_the_shards_alone(
    folder: Path,
) -> None:
    found = numbers(stream(folder, shuffle=1, seed=2))
    starts = {now for before, now in zip([-2, *found], found, strict=False) if now != before + 1}
    assert len(starts) > 2
    assert starts <= {0, 5, 12, 15, 21}
    for path in folder.iterdir():
        path.unlink()
    write_numbered(folder, [200])
    early = [number - at for at, number in enumerate(numbers(stream(folder, shuffle=20, seed=1)))]
    assert max(early) == 19
    assert min(early) < -20


def batches(made: TarStream, threads: int, **arguments: Any) -> list[list[list[int]]]:
    """Return the batches of three epochs."""
    options = {"output": "numpy", "threads": threads, "seed": 5} | arguments
    with ThreadLoader(made, 3, **options) as loader:
        return [[np.asarray(cls).tolist() for (cls,) in loader] for _ in range(3)]


@pytest.mark.parametrize("shuffle", [0, 4])
@pytest.mark.parametrize(("threads", "persistent"), [(0, False), (2, True)])
@pytest.mark.parametrize("seed", [None, 7])
def test_workers_share_the_shards_and_the_loader_s_seed_decides(
    folder: Path, threads: int, shuffle: int, seed: int | None, persistent: bool, spawn: Spawn
) -> None:
    def epochs(loaders: int) -> list[Any]:
        options = {"persistent_workers": persistent, "seed": loaders}
        return batches(stream(folder, shuffle=shuffle, seed=seed), threads, **options)

    first = spawn(epochs, 1).result(PATIENCE)
    for epoch in first:
        assert sorted(chain(*epoch)) == list(range(COUNT))
    known = shuffle == 0 or seed is not None
    assert (first[0] == first[1] == first[2]) is known
    assert first == spawn(epochs, 1).result(PATIENCE)
    assert (first == spawn(epochs, 2).result(PATIENCE)) is known


def set_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize("seed", [None, 3])
def test_with_a_seed_a_rank_sees_other_shards_in_other_epochs(
    folder: Path, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(monkeypatch, 1)
    made = stream(folder, shuffle=1, seed=seed)
    orders = []
    for epoch in range(40):  # of two shards: all alike once in 2**39
        made.set_epoch(epoch)
        orders.append(tuple(numbers(made)))
    assert len(set(orders)) > 1
    set_rank(monkeypatch, 0)
    assert sorted([*orders[-1], *numbers(made)]) == list(range(COUNT))
    assert (len({tuple(sorted(order)) for order in orders}) > 1) is (seed is not None)


def test_rank_and_world_size_come_from_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for rank in range(2):
        set_rank(monkeypatch, rank)
        found.append(numbers(stream(folder)))
    assert found == [[0, 1, 2, 3, 4, *range(5, 12), *range(15, 21)], [12, 13, 14, 21]]
    monkeypatch.setenv("WORLD_SIZE", "7")
    with pytest.raises(ValueError, match="6 shards for 7 ranks"):
        iter(stream(folder))
    for told in ({"WORLD_SIZE": "3"}, {"RANK": "1"}, {"RANK": "x", "WORLD_SIZE": "3"}):
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE="):
            stream(folder)


def test_behind_a_sample_that_can_t_be_decoded_the_next_one_comes(tmp_path: Path) -> None:
    samples = numbered(0, 5)
    samples["00002"]["cls"] = b"two"
    del samples["00003"]["cls"]
    write_shard(tmp_path / "a.tar", samples)
    told = outcomes(stream(tmp_path))
    assert [each for each in told if isinstance(each, int)] == [0, 1, 4]
    assert "a.tar, member '00002.cls', offset" in str(told[2])
    assert "no cls in the sample, which has 'txt', 'bin'" in str(told[3])
    assert all(isinstance(error, DataError) for error in told[2:4])


@each_ending
def test_behind_a_damaged_or_missing_shard_the_next_one_comes(tmp_path: Path, ending: str) -> None:
    paths = write_numbered(tmp_path, [4, 4, 4], ending)
    broken = tar_bytes([(f"0000{number}.cls", b"%d" % number) for number in range(4, 8)])
    broken = broken[:2048] + b"x" + broken[2049:]
    paths[1].write_bytes(compressed(broken, ending))
    made = stream(tmp_path)
    told = outcomes(made)
    assert told[:5] + told[6:] == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert isinstance(told[5], DataError)
    assert (told[5].path, told[5].offset) == (str(paths[1]), 2048)
    paths[1].unlink()
    told = outcomes(made)
    assert isinstance(told.pop(4), FileNotFoundError)
    assert told == [0, 1, 2, 3, 8, 9, 10, 11]


def open_files(folder: Path) -> int:
    fds = Path("/proc/self/fd")
    if not fds.exists():
        pytest.skip("open files are not told of")
    links = [os.path.realpath(fds / name) for name in os.listdir(fds)]  # noqa: PTH208
    return sum(link.startswith(os.path.realpath(folder)) for link in links)


def test_a_pass_or_a_loader_that_was_left_closes_its_shards(tmp_path: Path) -> None:
    write_numbered(tmp_path, [400, 400])
    iterator = iter(stream(tmp_path))
    next(iterator)
    assert open_files(tmp_path) == 1
    del iterator
    assert open_files(tmp_path) == 0
    for threads in (0, 2):
        options: dict[str, Any] = {"prefetch_factor": 1} if threads else {}
        with ThreadLoader(stream(tmp_path), 2, threads=threads, **options) as loader:
            iterator = iter(loader)
            assert len(list(islice(iterator, 2))) == 2
            assert open_files(tmp_path) > 0
        assert open_files(tmp_path) == 0  # although the iterator is still referenced


@pytest.mark.parametrize("shuffle", [0, 6])
def test_after_ctrl_c_the_very_next_sample_comes(folder: Path, shuffle: int) -> None:
    class Interrupted(TarStream):
        left = 3

        def read_shard(self, number: int) -> Iterator[Any]:
            for at, sample in enumerate(super().read_shard(number)):
                if at == 2 and self.left:
                    self.left -= 1
                    raise KeyboardInterrupt
                yield sample

    made = Interrupted(folder / "*.tar", fields=("cls",), shuffle=shuffle, seed=1)
    found, interrupts, iterator = [], 0, iter(made)
    while len(found) < COUNT:
        try:
            found.append(next(iterator)[0])
        except KeyboardInterrupt:
            interrupts += 1
    assert found == numbers(stream(folder, shuffle=shuffle, seed=1))
    assert interrupts == 3


# Resuming: a stream that loads a state goes on with the very next sample ------------------------


def resumed(folder: Path, state: Any, **arguments: Any) -> Any:
    iterator: Any = iter(stream(folder, **arguments))
    iterator.load_state_dict(state)
    return iterator


def told(iterator: Any) -> tuple[list[Any], list[Any]]:
    """Return what each call of next() gives, and the state before each and at the end."""
    found: list[Any] = []
    states: list[Any] = [as_json(iterator.state_dict())]
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found, states
        except ValueError as error:
            found.append(str(error))
        states.append(as_json(iterator.state_dict()))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("shuffle", "rank"), [(0, None), (4, None), (4, 1)])
def test_from_every_sample_on_the_rest_is_the_same(
    tmp_path: Path, ending: str, shuffle: int, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbered(tmp_path, SIZES, ending)
    options = {"shuffle": shuffle, "seed": 3 if rank is None else None}
    if rank is not None:
        set_rank(monkeypatch, rank)
    whole = iter(stream(tmp_path, **options))
    samples, states = told(whole)
    for delivered, state in enumerate(states):
        iterator = resumed(tmp_path, state, **options)
        assert as_json(iterator.state_dict()) == state
        assert list(iterator) == samples[delivered:]
        assert iterator.state_dict() == whole.state_dict()


def test_after_an_error_the_rest_is_the_same(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [4, 6, 4])
    data = bytearray(paths[1].read_bytes())
    data[2 * 3 * 1024 + 100] ^= 1  # in the third sample
    paths[1].write_bytes(data)
    outcomes, states = told(iter(stream(tmp_path, shuffle=3, seed=2)))
    assert sum(isinstance(each, str) for each in outcomes) == 1
    for delivered, state in enumerate(states):
        assert told(resumed(tmp_path, state, shuffle=3, seed=2))[0] == outcomes[delivered:]


def test_a_state_is_small_and_only_shards_in_the_buffer_are_read_again(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [10] * 10)
    order = [number // 10 for (number,) in stream(tmp_path, shuffle=1, seed=1)][::10]
    iterator = iter(stream(tmp_path, shuffle=50, seed=1))
    for _ in range(30):
        next(iterator)
    assert len(json.dumps(iterator.state_dict())) < 300
    iterator = iter(stream(tmp_path, shuffle=3, seed=1))  # the same order of shards
    for _ in range(72):
        next(iterator)
    state, rest = as_json(iterator.state_dict()), list(iterator)
    for shard in order[:6]:
        paths[shard].write_bytes(b"gone")
    assert list(resumed(tmp_path, state, shuffle=3, seed=1)) == rest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version 1, and 3 can be read"),
        ({"shuffle": 5}, "of shuffle=5, not 4"),
        ({"shards": 1}, "other shards, or of another rank or worker"),
    ],
    ids=str,
)
def test_a_state_of_something_else_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    (path,) = write_numbered(tmp_path, [9])
    iterator = iter(stream(tmp_path, shuffle=4))
    for _ in range(6):
        next(iterator)
    state = iterator.state_dict()
    with pytest.raises(StateError, match=message):
        resumed(tmp_path, state | change, shuffle=4)
    write_shard(path, {"0": {"cls": b"0"}})
    with pytest.raises(StateError, match="other samples than when"):
        next(resumed(tmp_path, state, shuffle=4))


def loader(folder: Path, threads: int, **options: Any) -> ThreadLoader[Any]:
    made = stream(folder, shuffle=4, **options)
    return ThreadLoader(made, 5, collate_fn=list, threads=threads, seed=5, prefetch=4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.filterwarnings("ignore:.*is read again")
def test_a_loader_resumes_from_every_batch(tmp_path: Path, threads: int) -> None:
    write_numbered(tmp_path, SIZES)
    check_each_state(lambda: loader(tmp_path, threads))


def test_a_seeded_stream_goes_on_only_in_the_epoch_that_it_is_told(
    tmp_path: Path, spawn: Spawn
) -> None:
    write_numbered(tmp_path, [8] * 6)

    def make(epoch: int) -> ThreadLoader[Any]:
        made = loader(tmp_path, 3, seed=5)
        made.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
        return made

    def run() -> None:
        with make(2) as first:
            next(iter(first))
            state = as_json(first.state_dict())
        with make(0) as other:
            other.load_state_dict(state)
            with pytest.raises(StateError, match=r"'epoch': 2.*set_epoch\(\)"):
                iter(other)

    spawn(run).result(PATIENCE)
