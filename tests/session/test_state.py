"""A state is small, JSON-able and independent; that of another loader is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn
from support.resuming import after, state_after

from threadloader import ClosedError, StateError, ThreadLoader, ThreadLoaderError

each_number_of_threads = pytest.mark.parametrize("threads", [0, 2])


class Lengthless(list[int]):
    """Has no length, so that only drawing tells."""

    __len__ = None  # type: ignore[assignment]


def make(dataset: Any = None, threads: int = 2, **arguments: Any) -> ThreadLoader[Any]:
    defaults: dict[str, Any] = {"batch_size": 3, "output": "numpy", "collate_fn": list, "seed": 7}
    dataset = range(10) if dataset is None else dataset
    return ThreadLoader(dataset, threads=threads, **(defaults | arguments))


def test_a_state_with_the_seed_0_is_not_one_without_a_seed() -> None:
    state = state_after(make(seed=0, shuffle=True), 1)
    with pytest.raises(StateError, match="seed"):
        make(seed=None, shuffle=True).load_state_dict(state)
    left = list(make(seed=0, shuffle=True))[1:]
    assert after(make(seed=0, shuffle=True), state) == [left]


def shuffled(threads: int = 2, **arguments: Any) -> ThreadLoader[Any]:
    return make(threads=threads, shuffle=True, **arguments)


def epochs(loader: ThreadLoader[Any], number: int) -> list[Any]:
    with loader:
        return [list(loader) for _ in range(number)]


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.SFC64])
def test_a_numpy_generator_of_any_kind_goes_through_json(bits: Any, spawn: Spawn) -> None:
    def made() -> ThreadLoader[Any]:
        return shuffled(seed=None, generator=np.random.Generator(bits(3)))

    expected = spawn(epochs, made(), 2).result(PATIENCE)
    state = spawn(state_after, made(), 2).result(PATIENCE)
    got = spawn(after, made(), state, 2).result(PATIENCE)
    assert got == [expected[0][2:], expected[1]]


def test_a_numpy_generator_of_another_kind_is_refused() -> None:
    state = state_after(shuffled(seed=None, generator=np.random.default_rng(3)), 1)
    other = shuffled(seed=None, generator=np.random.Generator(np.random.MT19937(3)))
    with pytest.raises(StateError, match=r"another kind of generator.*MT19937"), other:
        after(other, state)


OTHERS: list[tuple[str, Any]] = [
    ("dataset was 'range' and is 'list'", lambda: make(list(range(10)))),
    ("samples was 10 and is 11", lambda: make(range(11))),
    ("batch_size was 3 and is 2", lambda: make(batch_size=2)),
    ("batch_size was 3 and is None", lambda: make(batch_size=None)),
    ("isolate_rng was True and is False", lambda: make(isolate_rng=False)),
    ("drop_last was False and is True", lambda: make(drop_last=True)),
    ("seed was 7 and is 8", lambda: make(seed=8)),
    ("seed was 7 and is None", lambda: make(seed=None)),
    ("sampler was '.*SequentialSampler' and is '.*RandomSampler'", lambda: make(shuffle=True)),
    ("is 'threadloader.KeyedSampler'", lambda: make(shuffle="keyed")),
    ("sampler was .* and is 'list'", lambda: make(sampler=[1, 2])),
    ("batches was 4 and is 3", lambda: make(drop_last=True)),
    ("batch_sampler was '.*BatchSampler'", lambda: make(batch_size=1, batch_sampler=[[0]])),
    ("dataset was 'range' and is 'generator'", lambda: make((i for i in range(10)), 1)),
    (
        "generator was None and is 'numpy.Generator'",
        lambda: make(seed=None, generator=np.random.default_rng(0)),
    ),
]


@pytest.mark.parametrize(("named", "other"), OTHERS, ids=[named for named, _ in OTHERS])
def test_the_state_of_another_loader_is_refused_and_the_difference_named(
    named: str, other: Callable[[], ThreadLoader[Any]]
) -> None:
    state = state_after(make(), 1)
    with pytest.raises(StateError, match=named) as caught:
        other().load_state_dict(state)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ThreadLoaderError)


def without(state: Any, without: str) -> Any:
    return {name: value for name, value in state.items() if name != without}


FOREIGN: list[tuple[str, Any]] = [
    ("no state of a ThreadLoader", lambda _: {"_num_yielded": 3, "_snapshot": {}}),
    ("no state of a ThreadLoader", lambda state: [state]),
    ("no state of a ThreadLoader", json.dumps),
    ("no state of a ThreadLoader", lambda state: state | {"threadloader": "1"}),
    ("no state of a ThreadLoader", lambda state: state | {"threadloader": True}),
    ("no state of a ThreadLoader", lambda state: without(state, "threadloader")),
    ("version 4, saved by another release", lambda state: state | {"threadloader": 4}),
    ("version 6, saved by another release", lambda state: state | {"threadloader": 6}),
    *(
        ("incomplete or changed: it had", lambda state, name=name: without(state, name))
        for name in ("epoch", "loader", "lanes", "draws", "begun")
    ),
    ("incomplete or changed: it had None", lambda state: without(state, "entries")),
    *(
        ("incomplete or changed: it had", lambda state, other=other: state | other)
        for other in ({"loader": None}, {"lanes": None}, {"lanes": [{}]})
    ),
]


@pytest.mark.parametrize("number", range(len(FOREIGN)))
def test_what_is_no_state_is_refused_and_the_loader_goes_on(number: int, spawn: Spawn) -> None:
    named, spoil = FOREIGN[number]
    expected = list(make(threads=0))
    state = state_after(make(), 1)
    with make() as loader:
        iterator = iter(loader)
        got = [spawn(next, iterator).result(PATIENCE)]
        before = loader.state_dict()
        with pytest.raises(StateError, match=named) as caught:
            loader.load_state_dict(spoil(state))
        assert str(caught.value)
        assert loader.state_dict() == before
        assert got + spawn(list, iterator).result(PATIENCE) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_after_a_refusal_by_iter_another_state_can_be_loaded(
    persistent: bool, spawn: Spawn
) -> None:
    arguments = {"persistent_workers": persistent}
    good = spawn(state_after, make(sampler=Lengthless(range(9)), **arguments), 1)
    (lane,) = good.result(PATIENCE)["lanes"]
    bad = good.result() | {"lanes": [lane | {"batches": 7, "check": [7, 5]}]}
    with make(sampler=Lengthless(range(9)), **arguments) as loader:
        loader.load_state_dict(bad)
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(StateError):
                next(iterator)
        loader.load_state_dict(good.result())
        assert spawn(list, loader).result(PATIENCE) == [[3, 4, 5], [6, 7, 8]]
        loader.load_state_dict({})
        assert len(spawn(list, loader).result(PATIENCE)) == 3


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_goes_on_from_the_state_that_was_loaded(
    copied: Callable[[Any], Any], spawn: Spawn
) -> None:
    batches = spawn(epochs, shuffled(), 2).result(PATIENCE)
    loader = shuffled()
    loader.load_state_dict(spawn(state_after, shuffled(), 2).result(PATIENCE))
    for one in (copied(loader), loader):
        assert spawn(epochs, one, 2).result(PATIENCE) == [batches[0][2:], batches[1]]


@each_number_of_threads
def test_after_close_the_state_is_that_of_the_last_iterator(threads: int, spawn: Spawn) -> None:
    with shuffled(threads) as loader:
        iterator = iter(loader)
        spawn(next, iterator).result(PATIENCE)
        before = loader.state_dict()
    loader.close()
    assert loader.state_dict() == before
    (rest,) = spawn(after, shuffled(threads), before).result(PATIENCE)
    assert len(rest) == 3


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_iterator_that_is_alive_ends_when_a_state_is_loaded(
    threads: int, persistent: bool, spawn: Spawn
) -> None:
    arguments = {"persistent_workers": persistent and threads > 0, "prefetch": 1}
    expected = list(shuffled(0))
    state = spawn(state_after, shuffled(threads, **arguments), 3).result(PATIENCE)
    with shuffled(threads, **arguments) as loader:
        old = iter(loader)
        assert spawn(next, old).result(PATIENCE) == expected[0]
        loader.load_state_dict(state)
        with pytest.raises(ClosedError):
            spawn(next, old).result(PATIENCE)
        assert loader.state_dict() == state
        assert spawn(list, loader).result(PATIENCE) == expected[3:]
