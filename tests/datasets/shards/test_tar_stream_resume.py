"""A stream that loads a state goes on with the very next sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.made_shards import ENDINGS, write_numbered, write_shard
from support.patience import PATIENCE
from support.resuming import as_json, check_each_state

from threadloader import StateError, ThreadLoader
from threadloader.datasets import TarStream

if TYPE_CHECKING:
    from pathlib import Path

    from support.patience import Spawn

SIZES = [5, 0, 7, 3, 6, 1]


def stream(folder: Path, **arguments: Any) -> Any:
    return TarStream(folder / "*.tar*", **({"fields": ("cls",)} | arguments))


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
@pytest.mark.parametrize("shuffle", [0, 4, 100])
@pytest.mark.parametrize("options", [{"seed": 3}, {"rank": 1, "world_size": 2}], ids=str)
def test_from_every_sample_on_the_rest_is_the_same(
    tmp_path: Path, ending: str, shuffle: int, options: dict[str, Any]
) -> None:
    write_numbered(tmp_path, SIZES, ending)
    options = {"shuffle": shuffle, **options}
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
        ({"version": 2}, "version 2, and 1 can be read"),
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
    with pytest.raises(StateError, match=r"shard-000\.tar has fewer samples"):
        next(resumed(tmp_path, state, shuffle=4))


def loader(folder: Path, threads: int, **options: Any) -> ThreadLoader[Any]:
    made = stream(folder, shuffle=4, **options)
    return ThreadLoader(made, 3, collate_fn=list, threads=threads, seed=5, prefetch=4)


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
