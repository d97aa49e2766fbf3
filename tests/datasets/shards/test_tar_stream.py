"""TarStream: shards in a row, each sample once, whoever shares them."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader.datasets._shards.tar_stream import TarStream
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

    from threadloader.datasets._tar.samples import RawSample

SIZES = [5, 0, 7, 3, 6, 1]  # samples in the shards
COUNT = sum(SIZES)
each_ending = pytest.mark.parametrize("ending", ENDINGS)
each_shuffle = pytest.mark.parametrize("shuffle", [0, 1, 4, 100])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_numbered(tmp_path, SIZES)
    return tmp_path


def stream(folder: Path, **arguments: Any) -> TarStream:
    return TarStream(folder / "*.tar*", **({"fields": ("cls",)} | arguments))


def numbers(samples: Any) -> list[int]:
    return [sample[0] for sample in samples]


def outcomes(samples: Any) -> list[Any]:
    """Return what each call of next() gives, errors too."""
    told: list[Any] = []
    iterator = iter(samples)
    while True:
        try:
            told.append(next(iterator)[0])
        except StopIteration:
            return told
        except Exception as error:  # noqa: BLE001  # what is told
            told.append(error)


@each_ending
def test_samples_come_in_order_and_are_those_of_the_archive(tmp_path: Path, ending: str) -> None:
    paths = write_numbered(tmp_path, SIZES, ending)
    samples = list(TarStream(tmp_path / f"shard-{{000..005}}{ending}", decode=False))
    assert samples == [{"__key__": key} | parts for key, parts in numbered(0, COUNT).items()]
    assert len(paths) == len(SIZES)


def test_members_that_no_field_names_are_not_read(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar.gz", {"0": {"cls": b"1", "bin": bytes(5000)}})
    (sample,) = stream(tmp_path).read_shard(0)
    assert {ext: part.data for ext, part in sample.members.items()} == {"cls": b"1", "bin": None}


@each_ending
@each_shuffle
def test_each_sample_comes_once_in_an_order_that_seed_and_epoch_decide(
    tmp_path: Path, ending: str, shuffle: int
) -> None:
    write_numbered(tmp_path, SIZES, ending)
    made = stream(tmp_path, shuffle=shuffle, seed=3)
    first = numbers(made)
    assert sorted(first) == list(range(COUNT))
    assert numbers(made) == numbers(stream(tmp_path, shuffle=shuffle, seed=3)) == first
    made.set_epoch(1)
    second = numbers(made)
    assert sorted(second) == list(range(COUNT))
    assert (first == second) == (first == list(range(COUNT))) == (shuffle == 0)
    assert shuffle == 0 or numbers(stream(tmp_path, shuffle=shuffle, seed=4)) != first


def test_a_buffer_of_one_shuffles_the_shards_alone(folder: Path) -> None:
    found = numbers(stream(folder, shuffle=1, seed=2))
    starts = [
        number for before, number in zip([-2, *found], found, strict=False) if number != before + 1
    ]
    assert len(starts) > 2
    assert set(starts) <= {0, 5, 12, 15, 21}


def test_a_sample_comes_at_most_a_buffer_too_early(tmp_path: Path) -> None:
    write_numbered(tmp_path, [200])
    found = numbers(stream(tmp_path, shuffle=20, seed=1))
    early = [number - place for place, number in enumerate(found)]
    assert max(early) == 19
    assert min(early) < -20


def test_without_a_seed_each_pass_has_another_order(folder: Path) -> None:
    made = stream(folder, shuffle=10)
    orders = [numbers(made) for _ in range(3)]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert len(set(map(tuple, orders))) == 3


def batches(
    made: TarStream, threads: int, epochs: int = 1, **arguments: Any
) -> list[list[list[int]]]:
    options = {"output": "numpy", "threads": threads, "seed": 5} | arguments
    with ThreadLoader(made, 3, **options) as loader:
        return [[np.asarray(cls).tolist() for (cls,) in loader] for _ in range(epochs)]


def flat(epoch: list[list[int]]) -> list[int]:
    return sorted(number for batch in epoch for number in batch)


@pytest.mark.filterwarnings("ignore:replicas of the iterable dataset gave nothing")  # of 8
@each_shuffle
@pytest.mark.parametrize("threads", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("seed", [None, 7])
def test_workers_share_the_shards(
    folder: Path, threads: int, shuffle: int, seed: int | None, spawn: Spawn
) -> None:
    made = stream(folder, shuffle=shuffle, seed=seed)
    epochs = spawn(batches, made, threads, 2).result(PATIENCE)
    assert [flat(epoch) for epoch in epochs] == [list(range(COUNT))] * 2
    if shuffle == 0 or seed is not None:
        assert epochs[0] == epochs[1]
    again = spawn(batches, stream(folder, shuffle=shuffle, seed=seed), threads, 2).result(PATIENCE)
    assert again == epochs


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_without_a_seed_the_loader_s_decides_and_epochs_differ(
    folder: Path, threads: int, persistent: bool, spawn: Spawn
) -> None:
    arguments = {"persistent_workers": persistent and threads > 0}

    def epochs(seed: int) -> Any:
        return batches(stream(folder, shuffle=5), threads, 3, seed=seed, **arguments)

    first = spawn(epochs, 1).result(PATIENCE)
    assert first == spawn(epochs, 1).result(PATIENCE) != spawn(epochs, 2).result(PATIENCE)
    assert len({str(epoch) for epoch in first}) == 3


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_is_seen_by_workers(folder: Path, persistent: bool, spawn: Spawn) -> None:
    def told() -> list[Any]:
        made = stream(folder, shuffle=5, seed=1)
        options = {"output": "numpy", "threads": 2, "persistent_workers": persistent}
        found = []
        with ThreadLoader(made, 3, **options) as loader:
            for epoch in (0, 1, 0):
                made.set_epoch(epoch)
                found.append([cls.tolist() for (cls,) in loader])
        return found

    first, second, third = spawn(told).result(PATIENCE)
    assert first == third != second


@each_shuffle
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_ranks_share_the_shards(folder: Path, world: int, shuffle: int, seed: int | None) -> None:
    ranks = [
        numbers(stream(folder, shuffle=shuffle, seed=seed, rank=rank, world_size=world))
        for rank in range(world)
    ]
    assert sorted(chain(*ranks)) == list(range(COUNT))


def test_with_a_seed_a_rank_sees_other_shards_in_other_epochs(folder: Path) -> None:
    made = stream(folder, shuffle=1, seed=3, rank=0, world_size=2)
    seen = set()
    for epoch in range(4):
        made.set_epoch(epoch)
        seen.add(tuple(sorted(numbers(made))))
    assert len(seen) > 1


def test_without_a_seed_a_rank_sees_the_same_shards_in_all_epochs(folder: Path) -> None:
    made = stream(folder, shuffle=1, rank=1, world_size=2)
    orders = [numbers(made) for _ in range(40)]  # two shards: all alike once in 2**39
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert len(set(map(tuple, orders))) > 1


def test_rank_and_world_size_come_from_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        found.append(numbers(stream(folder)))
    assert found[0] == [0, 1, 2, 3, 4, *range(5, 12), *range(15, 21)]
    assert found[1] == [12, 13, 14, 21]


@pytest.mark.parametrize(
    "told",
    [{"WORLD_SIZE": "3"}, {"RANK": "1"}, {"RANK": "x", "WORLD_SIZE": "3"}, {"RANK": ""}],
    ids=str,
)
def test_an_environment_that_tells_half_of_it_is_an_error(
    folder: Path, told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE="):
        stream(folder)


def test_rank_and_world_size_come_from_torch_distributed(folder: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "import sys, torch.distributed as dist\n"
        "from threadloader.datasets._shards.tar_stream import TarStream\n"
        "rank = int(sys.argv[2])\n"
        "store = dist.FileStore(sys.argv[3], 2)\n"
        "made = TarStream(sys.argv[1], fields=('cls',))\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
        "print(*[sample[0] for sample in made])\n"
        "dist.barrier()\n"  # who ends while the other one connects would fail it
        "dist.destroy_process_group()"
    )
    command = [sys.executable, "-c", code, str(folder / "*.tar")]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    found = [list(map(int, output.split())) for output, _ in outputs]
    assert found[1] == [12, 13, 14, 21]
    assert sorted(found[0] + found[1]) == list(range(COUNT))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "give both or neither"),
        ({"world_size": 2}, "give both or neither"),
        ({"rank": 2, "world_size": 2}, "rank=2 is none of world_size=2"),
        ({"shuffle": -1}, "shuffle=-1 is no number"),
        ({"shuffle": True}, "shuffle=True is no number"),
        ({"fields": []}, "fields is empty"),
    ],
)
def test_wrong_arguments_are_refused(folder: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(folder, **arguments)


def test_a_file_that_is_no_archive_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.zip").touch()
    with pytest.raises(ValueError, match=r"a\.zip is no shard"):
        TarStream(tmp_path / "*")


def test_fewer_shards_than_ranks_are_an_error(folder: Path) -> None:
    with pytest.raises(ValueError, match="6 shards for 7 ranks"):
        iter(stream(folder, rank=0, world_size=7))


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
def test_behind_a_damaged_shard_the_next_one_comes(tmp_path: Path, ending: str) -> None:
    paths = write_numbered(tmp_path, [4, 4, 4], ending)
    broken = tar_bytes([(f"0000{number}.cls", b"%d" % number) for number in range(4, 8)])
    broken = broken[:2048] + b"x" + broken[2049:]
    paths[1].write_bytes(compressed(broken, ending))
    told = outcomes(stream(tmp_path))
    assert told[:5] + told[6:] == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert isinstance(told[5], DataError)
    assert (told[5].path, told[5].offset) == (str(paths[1]), 2048)


def test_what_is_secret_in_a_url_is_in_no_error() -> None:
    with pytest.raises(ValueError, match=r"^https://host/a\.zip\?\.\.\. is no shard"):
        TarStream("https://user:word@host/a.zip?token=secret")


def test_a_shard_that_is_gone_is_an_error_and_the_next_one_comes(folder: Path) -> None:
    made = stream(folder)
    (folder / "shard-002.tar").unlink()
    told = outcomes(made)
    assert isinstance(told.pop(5), FileNotFoundError)
    assert told == [*range(5), *range(12, 22)]


def test_a_pass_that_was_left_closes_its_shard(folder: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("open files are not told of")
    iterator = iter(stream(folder))
    next(iterator)
    assert _open_files(folder) == 1
    del iterator
    assert _open_files(folder) == 0


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_closed_loader_has_closed_its_shards(tmp_path: Path, threads: int) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("open files are not told of")
    write_numbered(tmp_path, [400, 400])
    options: dict[str, Any] = {"prefetch_factor": 1} if threads else {}
    with ThreadLoader(stream(tmp_path), 2, threads=threads, output="numpy", **options) as loader:
        iterator = iter(loader)
        # Here: what another thread has opened may, without a GIL, be closed only as that one ends.
        next(iterator)
        assert _open_files(tmp_path) > 0
    assert _open_files(tmp_path) == 0  # although the iterator is still referenced
    del iterator


def _open_files(folder: Path) -> int:
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return sum(link.startswith(os.path.realpath(folder)) for link in links)


@pytest.mark.parametrize("shuffle", [0, 6])
def test_after_ctrl_c_the_very_next_sample_comes(folder: Path, shuffle: int) -> None:
    class Interrupted(TarStream):
        left = 3

        def read_shard(self, number: int) -> Iterator[RawSample]:
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


def test_an_epoch_may_be_left(folder: Path, spawn: Spawn) -> None:
    def some() -> list[Any]:
        with ThreadLoader(stream(folder), 2, threads=2, output="numpy") as loader:
            return [cls.tolist() for (cls,) in islice(loader, 2)]

    assert spawn(some).result(PATIENCE) == [[0, 1], [12, 13]]


def test_it_can_be_copied_and_pickled(folder: Path) -> None:
    made = stream(folder, shuffle=4, seed=2)
    made.set_epoch(3)
    twins = [copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    assert [numbers(twin) for twin in twins] == [numbers(made)] * 3
    made.close()
    assert numbers(made) == numbers(twins[0])


def test_it_tells_what_it_is(folder: Path) -> None:
    one = folder / "shard-000.tar"
    assert repr(TarStream(one)) == f"TarStream: 1 shard, {one}"
    assert repr(stream(folder, shuffle=1000)) == (
        f"TarStream: 6 shards, {one} to {folder / 'shard-005.tar'}, shuffle=1,000"
    )
    secret = TarStream("https://user:word@host/a.tar?key=1")
    assert repr(secret) == "TarStream: 1 shard, https://host/a.tar?..."
