"""A stream that loads a state goes on with the very next sample, in another process too."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_shards import ENDINGS, write_numbered, write_shard
from support.patience import PATIENCE
from support.resuming import as_json

from threadloader import StateError, ThreadLoader
from threadloader.datasets._shards.shuffle_buffer import ShuffleBuffer, replayed
from threadloader.datasets._shards.tar_stream import TarStream

if TYPE_CHECKING:
    from pathlib import Path

    from support.patience import Spawn

SIZES = [5, 0, 7, 3, 6, 1]
COUNT = sum(SIZES)
each_ending = pytest.mark.parametrize("ending", ENDINGS)
each_shuffle = pytest.mark.parametrize("shuffle", [0, 1, 4, 100])


def stream(folder: Path, **arguments: Any) -> TarStream:
    return TarStream(folder / "*.tar*", **({"fields": ("cls",)} | arguments))


@each_ending
@each_shuffle
@pytest.mark.parametrize("seed", [None, 3])
def test_from_every_sample_on_the_rest_is_the_same(
    tmp_path: Path, ending: str, shuffle: int, seed: int | None
) -> None:
    write_numbered(tmp_path, SIZES, ending)
    iterator: Any = iter(stream(tmp_path, shuffle=shuffle, seed=seed))
    states, samples = [as_json(iterator.state_dict())], []
    for sample in iterator:
        samples.append(sample)
        states.append(as_json(iterator.state_dict()))
    for delivered, state in enumerate(states):
        resumed: Any = iter(stream(tmp_path, shuffle=shuffle, seed=seed))
        resumed.load_state_dict(state)
        assert as_json(resumed.state_dict()) == state
        assert list(resumed) == samples[delivered:]
        assert resumed.state_dict() == iterator.state_dict()


def test_a_state_is_small_and_does_not_grow_with_the_buffer(tmp_path: Path) -> None:
    write_numbered(tmp_path, [40] * 10)
    iterator: Any = iter(stream(tmp_path, shuffle=200, seed=1))
    for _ in range(150):
        next(iterator)
    assert len(json.dumps(iterator.state_dict())) < 300


def test_only_shards_that_the_buffer_has_samples_of_are_read_again(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [10] * 10)
    in_order = stream(tmp_path, shuffle=1, seed=1)  # the same order of shards
    order = [number // 10 for (number,) in in_order][::10]
    iterator: Any = iter(stream(tmp_path, shuffle=3, seed=1))
    for _ in range(72):
        next(iterator)
    state = as_json(iterator.state_dict())
    rest = list(iterator)
    for shard in order[:6]:
        paths[shard].write_bytes(b"gone")
    resumed: Any = iter(stream(tmp_path, shuffle=3, seed=1))
    resumed.load_state_dict(state)
    assert list(resumed) == rest


def test_after_an_error_the_rest_is_the_same(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [4, 6, 4])
    data = bytearray(paths[1].read_bytes())
    data[2 * 3 * 1024 + 100] ^= 1  # in the third sample
    paths[1].write_bytes(data)
    bad = stream(tmp_path, shuffle=3, seed=2)

    def told(iterator: Any) -> tuple[list[Any], list[Any]]:
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

    outcomes, states = told(iter(bad))
    assert sum(isinstance(each, str) for each in outcomes) == 1
    for delivered, state in enumerate(states):
        resumed: Any = iter(stream(tmp_path, shuffle=3, seed=2))
        resumed.load_state_dict(state)
        assert told(resumed)[0] == outcomes[delivered:]


def loader(folder: Path, threads: int, **arguments: Any) -> ThreadLoader[Any]:
    options = {"output": "numpy", "threads": threads, "seed": 5, "prefetch": 4} | arguments
    shuffle = {"shuffle": 4} if arguments.get("batch_size", 3) else {}
    return ThreadLoader(stream(folder, **shuffle), 3, **options)


def lists(batches: Any) -> list[Any]:
    return [np.asarray(cls).tolist() for (cls,) in batches]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("steps", [1, 3, 0])
@pytest.mark.filterwarnings("ignore:.*is read again")
def test_a_loader_resumes_from_every_batch(
    tmp_path: Path, threads: int, steps: int, spawn: Spawn
) -> None:
    write_numbered(tmp_path, SIZES)

    def check() -> None:
        with loader(tmp_path, threads, snapshot_every_n_steps=steps) as first:
            iterator = iter(first)
            states, batches = [as_json(first.state_dict())], []
            for (cls,) in iterator:
                batches.append(cls.tolist())
                states.append(as_json(first.state_dict()))
            next_epoch = lists(first)
        for delivered, state in enumerate(states[:-1]):
            with loader(tmp_path, threads, snapshot_every_n_steps=steps) as resumed:
                resumed.load_state_dict(state)
                assert lists(resumed) == batches[delivered:]
                if threads:  # in the calling thread a pass draws its seed from what was drawn
                    assert lists(resumed) == next_epoch

    spawn(check).result(PATIENCE)


PROGRAM = """
import json, sys
from threadloader import ThreadLoader
from threadloader.datasets._shards.tar_stream import TarStream

state, batches, pattern = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
stream = TarStream(pattern, fields=("cls",), shuffle=6)
with ThreadLoader(stream, 3, threads=3, output="numpy", seed=9) as loader:
    loader.load_state_dict(state)
    iterator = iter(loader)
    found = []
    for (cls,) in iterator:
        found.append(cls.tolist())
        if len(found) == batches:
            break
    print(json.dumps([found, loader.state_dict()]))
"""


def test_a_process_goes_on_where_another_one_ended(tmp_path: Path) -> None:
    ending = ENDINGS[-1]
    write_numbered(tmp_path, SIZES, ending)

    def ran(state: Any, batches: int) -> Any:
        command = [sys.executable, "-c", PROGRAM, json.dumps(state), str(batches)]
        command.append(str(tmp_path / f"*{ending}"))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    whole, _ = ran({}, -1)
    assert sorted(chain(*whole)) == list(range(COUNT))
    found: list[Any] = []
    state: Any = {}
    for batches in (2, 3, -1):
        some, state = ran(state, batches)
        found += some
    assert found == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, and 1 can be read"),
        ({"shuffle": 5}, "of shuffle=5, not 4"),
        ({"shards": 1}, "other shards, or of another rank or worker"),
    ],
    ids=str,
)
def test_a_state_of_something_else_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    write_numbered(tmp_path, SIZES)
    iterator: Any = iter(stream(tmp_path, shuffle=4))
    with pytest.raises(StateError, match=message):
        iterator.load_state_dict(iterator.state_dict() | change)


def test_a_state_of_another_rank_is_refused(tmp_path: Path) -> None:
    write_numbered(tmp_path, SIZES)
    first: Any = iter(stream(tmp_path, rank=0, world_size=2))
    second: Any = iter(stream(tmp_path, rank=1, world_size=2))
    with pytest.raises(StateError, match="another rank"):
        second.load_state_dict(first.state_dict())


def test_a_shard_that_became_shorter_is_refused(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [9])
    iterator: Any = iter(stream(tmp_path))
    for _ in range(6):
        next(iterator)
    state = iterator.state_dict()
    write_shard(path, {"0": {"cls": b"0"}})
    resumed: Any = iter(stream(tmp_path))
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match=r"shard-000\.tar has fewer samples"):
        next(resumed)


@given(
    size=st.integers(1, 12),
    total=st.integers(0, 40),
    drawn=st.integers(0, 40),
    put=st.integers(0, 15),
    seed=st.integers(0, 2**32),
)
def test_a_buffer_is_known_again_from_what_was_put_and_drawn(
    size: int, total: int, drawn: int, put: int, seed: int
) -> None:
    rng = Random(seed)
    buffer: ShuffleBuffer[int] = ShuffleBuffer(size, rng)
    number = 0
    drawn = min(drawn, total)

    def fill(most: int) -> None:
        nonlocal number
        while len(buffer.items) < size and number < total and most:
            buffer.items.append(number)
            number += 1
            most -= 1

    for _ in range(drawn):
        fill(size)
        buffer.draw()
    fill(put)  # perhaps it is not full: an error came while it was filled
    again = Random(seed)
    assert replayed(size, again, number, drawn) == buffer.items
    assert again.random() == rng.random()


def told(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in np.asarray(batch[0])]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("taken", [0, 1, 2, 4])
def test_an_epoch_that_is_not_the_first_goes_on_with_what_is_missing(
    tmp_path: Path, spawn: Spawn, taken: int, seed: int | None, persistent: bool, workers: int
) -> None:
    write_numbered(tmp_path, [8] * 6)

    def make() -> tuple[TarStream, ThreadLoader[Any]]:
        dataset = stream(tmp_path, shuffle=10, seed=seed)
        loader = ThreadLoader(
            dataset, 4, threads=workers, persistent_workers=persistent, seed=1, output="numpy"
        )
        return dataset, loader

    def run() -> None:
        dataset, loader = make()
        with loader:
            whole = told(loader)
            dataset.set_epoch(1)
            iterator = iter(loader)
            first = told(next(iterator) for _ in range(taken))
            state = as_json(loader.state_dict())
        dataset, loader = make()
        dataset.set_epoch(1)
        with loader:
            loader.load_state_dict(state)
            assert sorted(first + told(loader)) == sorted(whole)

    spawn(run).result(PATIENCE)


def test_a_seeded_stream_goes_on_only_in_the_epoch_that_it_is_told(
    tmp_path: Path, spawn: Spawn
) -> None:
    write_numbered(tmp_path, [8] * 6)

    def make(epoch: int, seed: int) -> ThreadLoader[Any]:
        dataset = stream(tmp_path, shuffle=10, seed=seed)
        dataset.set_epoch(epoch)
        return ThreadLoader(dataset, 4, threads=3, output="numpy")

    def run() -> None:
        with make(2, 5) as loader:
            next(iter(loader))
            state = as_json(loader.state_dict())
        for epoch, seed in ((0, 5), (2, 6)):
            with make(epoch, seed) as loader:
                loader.load_state_dict(state)
                with pytest.raises(StateError, match=r"'epoch': 2") as caught:
                    iter(loader)
                assert ("set_epoch()" in str(caught.value)) is (epoch != 2)

    spawn(run).result(PATIENCE)


@pytest.mark.parametrize("threads", [0, 1])
def test_an_epoch_that_follows_a_state_is_the_next_one(
    tmp_path: Path, spawn: Spawn, threads: int
) -> None:
    write_numbered(tmp_path, [8] * 6)

    def make() -> ThreadLoader[Any]:
        dataset = stream(tmp_path, shuffle=10)
        return ThreadLoader(dataset, 4, threads=threads, seed=1, output="numpy")

    def run() -> None:
        with make() as loader:
            first, state, second = told(loader), loader.state_dict(), told(loader)
        assert first != second
        with make() as loader:
            loader.load_state_dict(as_json(state))
            assert told(loader) == second

    spawn(run).result(PATIENCE)


class Lines:
    """A generator over a stream, as users write it."""

    def __init__(self, stream: TarStream) -> None:
        self.stream = stream

    def __iter__(self) -> Any:
        for (number,) in self.stream:
            yield number


@pytest.mark.filterwarnings("ignore:the state holds none")
@pytest.mark.parametrize("threads", [0, 1])
def test_a_generator_over_a_stream_goes_on_in_its_epoch(
    tmp_path: Path, spawn: Spawn, threads: int
) -> None:
    write_numbered(tmp_path, [8] * 6)

    def make() -> ThreadLoader[Any]:
        dataset = Lines(stream(tmp_path, shuffle=10))
        return ThreadLoader(
            dataset, 4, threads=threads, persistent_workers=threads > 0, seed=1, output="numpy"
        )

    def numbers(batches: Any) -> list[int]:
        return [int(number) for batch in batches for number in batch]

    def run() -> None:
        with make() as loader:
            whole = [numbers(loader), numbers(loader)]
            assert whole[0] != whole[1]
        with make() as loader:
            numbers(loader)
            iterator = iter(loader)
            first = numbers(next(iterator) for _ in range(3))
            state = as_json(loader.state_dict())
        with make() as loader:
            loader.load_state_dict(state)
            assert first + numbers(loader) == whole[1]

    spawn(run).result(PATIENCE)


@pytest.mark.parametrize("on_error", ["raise", "skip", lambda *_: "skip"])
def test_a_state_of_other_shards_is_no_bad_sample(
    tmp_path: Path, on_error: Any, spawn: Spawn
) -> None:
    def loader() -> ThreadLoader[Any]:
        options: dict[str, Any] = {"threads": 1, "seed": 1, "on_error": on_error}
        return ThreadLoader(stream(tmp_path, shuffle=4), 3, output="numpy", **options)

    write_numbered(tmp_path, [22])
    with loader() as first:
        iterator = iter(first)
        for _ in range(5):
            spawn(next, iterator).result(PATIENCE)
        state = first.state_dict()
    write_numbered(tmp_path, [7])
    with loader() as second:
        second.load_state_dict(state)
        with pytest.raises(StateError):
            spawn(list, second).result(PATIENCE)
        assert second.statistics().skipped_count == 0
