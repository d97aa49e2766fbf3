"""All of torch's arguments: what torch takes is taken, what it refuses is refused in its words."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.patience import PATIENCE, Spawn
from torch.utils.data import DataLoader, IterableDataset

from conformance.loading import THREADS, ours, outcomes, torchs
from threadloader import ThreadLoader

SIZE = 7  # samples
SEED = 11


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


def told(kind: Any, dataset: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Return the batches of a loader, or at which step it is refused, and how."""
    step = "init"
    try:
        torch.manual_seed(SEED)
        loader = kind(dataset, **({"num_workers": 0} | arguments))
        step = "iter"
        iterator = iter(loader)
        return "batches", [batch.tolist() for batch in iterator]
    except Exception as error:  # noqa: BLE001  # both loaders have to raise the same
        return step, type(error), str(error)


def as_torch_says(refused: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Whether two refusals are the same; before 2.8 torch asserts some things without a word."""
    return refused == expected if expected[-1] else refused[:-1] == expected[:-1]


REFUSED: dict[str, tuple[dict[str, Any], ...]] = {  # of a map-style dataset, and of a stream
    "num_workers": ({"num_workers": -1}, {"num_workers": "2"}),
    "timeout": ({"num_workers": 1, "timeout": -1}, {"timeout": 1}),
    "prefetch_factor": (
        {"prefetch_factor": 2},
        *({"num_workers": 1, "prefetch_factor": value} for value in (-1, 0, 1.5, "a")),
    ),
    "persistent_workers": ({"persistent_workers": True},),
    "multiprocessing_context": (
        {"multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
        {"num_workers": 1, "multiprocessing_context": 7},
    ),
    "two orders": (
        {"shuffle": True, "sampler": [0]},
        {"shuffle": True, "batch_sampler": [[0]]},
        {"sampler": [0], "batch_sampler": [[0]]},
        {"sampler": [], "batch_sampler": [[0]]},
    ),
    "batches twice": (
        {"batch_size": 2, "batch_sampler": [[0]]},
        {"batch_size": None, "batch_sampler": [[0]]},
        {"drop_last": True, "batch_sampler": [[0]]},
    ),
    "drop_last": (
        {"drop_last": True, "batch_size": None},
        {"drop_last": "yes"},
        {"drop_last": None},
    ),
    "batch_size": ({"batch_size": 0}, {"batch_size": -1}, {"batch_size": 2.5}),
    "several": ({"num_workers": 0, "timeout": -1, "persistent_workers": True},),
}
REFUSED_OF_STREAMS: list[dict[str, Any]] = [
    *({"shuffle": value} for value in (True, "yes")),
    *({"sampler": value} for value in ([0], 3)),
    *({"batch_sampler": value} for value in ([[0]], 3)),
    *({"batch_size": 0}, {"drop_last": "yes", "batch_size": 2}),
]
TAKEN: list[dict[str, Any]] = [  # of either
    *({"num_workers": True}, {"num_workers": False}),
    *({"num_workers": True, "persistent_workers": True}, {"worker_init_fn": 3}),
    {"num_workers": 1, "persistent_workers": "a"},
]


def check_refused(dataset: Any, arguments: dict[str, Any], spawn: Spawn) -> None:
    expected = told(DataLoader, dataset, arguments)
    assert expected[0] != "batches"
    refused = spawn(told, ThreadLoader, dataset, arguments).result(PATIENCE)
    assert as_torch_says(refused, expected), arguments


# A loader of torch's that it refused so is not quite made.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_refuses_is_refused_at_its_step_and_in_its_words(
    case: str, spawn: Spawn
) -> None:
    for arguments in REFUSED[case]:
        check_refused(range(SIZE), arguments, spawn)


def test_what_torch_refuses_of_streams_is_refused_in_its_words(spawn: Spawn) -> None:
    for arguments in REFUSED_OF_STREAMS:
        check_refused(Stream(), arguments, spawn)
    check_refused([], {"shuffle": True}, spawn)


@pytest.mark.parametrize("arguments", TAKEN, ids=str)
def test_values_of_a_wrong_kind_that_torch_takes_are_taken(
    arguments: dict[str, Any], spawn: Spawn
) -> None:
    forked = {"multiprocessing_context": "fork"} if arguments.get("num_workers") else {}
    for dataset in (range(SIZE), Stream()):
        expected = told(DataLoader, dataset, arguments | forked)
        assert expected[0] == "batches"
        assert spawn(told, ThreadLoader, dataset, arguments).result(PATIENCE) == expected


PROTECTED = {
    "batch_size": 3,
    "batch_sampler": [[0]],
    "sampler": [0],
    "drop_last": True,
    "dataset": [0],
    "persistent_workers": True,
}


@pytest.mark.parametrize("name", PROTECTED)
def test_what_torch_protects_is_protected_and_the_message_names_the_class(name: str) -> None:
    loader = ThreadLoader(range(SIZE), num_workers=1)
    with pytest.raises(ValueError, match=name) as theirs:
        setattr(DataLoader(range(SIZE)), name, PROTECTED[name])
    with pytest.raises(ValueError, match=name) as ours:
        setattr(loader, name, PROTECTED[name])
    assert str(ours.value) == str(theirs.value).replace("DataLoader", "ThreadLoader")


def test_it_is_a_data_loader_and_generic_as_that_is() -> None:
    assert issubclass(ThreadLoader, DataLoader)
    assert isinstance(ThreadLoader(range(SIZE), num_workers=0), DataLoader)
    assert ThreadLoader[int].__origin__ is ThreadLoader
    loader = ThreadLoader[int](range(SIZE), 4, num_workers=1)
    assert [len(batch) for batch in loader] == [4, 3]


def test_torch_s_parameters_come_first_with_its_kinds_and_defaults_but_of_workers() -> None:
    theirs = list(inspect.signature(DataLoader).parameters.values())
    ours = list(inspect.signature(ThreadLoader).parameters.values())
    assert [(p.name, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.kind) for p in theirs]
    assert {p.kind for p in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}
    pairs = zip(ours, theirs, strict=False)
    differing = {p.name for p, other in pairs if p.default != other.default}
    assert differing - {"worker_method"} == {"num_workers"}  # not each torch has the second


@pytest.mark.parametrize("method", ["thread", "multiprocessing"])
def test_threads_load_whatever_the_worker_method(method: Any, spawn: Spawn) -> None:
    loader = ThreadLoader(range(SIZE), num_workers=1, worker_method=method)
    assert loader.worker_method == method
    caller = threading.get_ident()
    loader.collate_fn = lambda samples: (threading.get_ident() != caller, os.getpid(), samples)
    assert spawn(list, loader).result(PATIENCE) == [(True, os.getpid(), [i]) for i in range(SIZE)]
    with pytest.raises(ValueError, match="worker_method must be one of thread, multiprocessing"):
        ThreadLoader(range(SIZE), worker_method="fibre")  # type: ignore[arg-type]


@pytest.mark.skipif(
    "worker_method" not in inspect.signature(DataLoader).parameters,
    reason="this torch has no thread workers",
)
@pytest.mark.parametrize("dataset", [range(SIZE), Stream()], ids=["map-style", "iterable"])
def test_batches_are_those_of_torch_s_thread_workers(dataset: Any, spawn: Spawn) -> None:
    arguments = {"batch_size": 2, "num_workers": 2, "worker_method": "thread"}
    expected = told(DataLoader, dataset, arguments)
    assert expected[0] == "batches"
    assert spawn(told, ThreadLoader, dataset, arguments).result(PATIENCE) == expected


def _public(loader: Any) -> dict[str, Any]:
    names = {name for name in vars(loader) if not name.startswith("_")}
    for kind in type(loader).__mro__:
        names |= {n for n, v in vars(kind).items() if isinstance(v, property) and n[0] != "_"}
    return {name: getattr(loader, name) for name in names}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 3, "drop_last": True, "shuffle": True},
        {"batch_size": None, "sampler": [2, 1]},
        {"batch_sampler": [[1], [2, 3]], "collate_fn": str},
        {"num_workers": 0},
        {"timeout": PATIENCE, "prefetch_factor": 3, "multiprocessing_context": "spawn"},
    ],
)
def test_a_loader_can_be_built_again_of_its_public_attributes(
    arguments: dict[str, Any], spawn: Spawn
) -> None:
    # Lightning and others do so, to give it another sampler.
    loader = ThreadLoader(range(SIZE), **{"num_workers": 2, **arguments})
    public = _public(loader)
    assert set(public) <= set(inspect.signature(ThreadLoader).parameters)
    if public["batch_sampler"] is not None:
        for excluded in ("batch_size", "sampler", "drop_last"):
            del public[excluded]
    again = ThreadLoader(**public)
    both = []
    for each in (loader, again):
        torch.manual_seed(SEED)
        both.append(spawn(lambda each=each: list(outcomes(each))).result(PATIENCE))
    assert both[0] == both[1]


def line() -> int:
    """Return the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("device", ["", "cuda"])
def test_without_an_accelerator_pinning_warns_as_torch_does_at_the_loop(device: str) -> None:
    if device and torch.__version__ < "2.8":
        pytest.skip("this torch asks for the driver of the device")
    expected = None
    for make in (torchs, *map(ours, THREADS)):
        loader = make(range(2), pin_memory=True, pin_memory_device=device)
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loop = line() + 1
                assert [batch.item() for batch in loader] == [0, 1]
            got = [(warning.category, str(warning.message)) for warning in caught]
            expected = expected or got
            assert got == expected != []
            places = {(warning.filename, warning.lineno) for warning in caught}
            assert make is torchs or places == {(__file__, loop)}
