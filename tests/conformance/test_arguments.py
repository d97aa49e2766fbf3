"""All of torch's arguments: what torch takes is taken, what it refuses is refused in its words."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE
from support.pictures import picture
from torch.utils.data import DataLoader, IterableDataset

from conformance.loading import outcomes
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

SIZE = 7  # samples
SEED = 11


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


class Blocked:
    """Sample ``i`` is ``i``; the first one waits for the gate."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.gate = Event()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index == 0:
            assert self.gate.wait(PATIENCE)
        return index


def refusal(kind: Any, dataset: Any, arguments: dict[str, Any]) -> tuple[str, type, str] | None:
    """Return at which step a loader is refused, and how."""
    step = "init"
    try:
        loader = kind(dataset, **arguments)
        step = "iter"
        iter(loader)
    except Exception as error:  # noqa: BLE001  # both loaders have to raise the same
        return step, type(error), str(error)
    return None


def as_torch_says(refused: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Whether two refusals are the same; before 2.8 torch asserts some things without a word."""
    return refused == expected if expected[-1] else refused[:-1] == expected[:-1]


STREAM = Stream()
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "negative num_workers": (range(SIZE), {"num_workers": -1}),
    "negative timeout": (range(SIZE), {"num_workers": 1, "timeout": -1}),
    "timeout without workers": (range(SIZE), {"num_workers": 0, "timeout": 1}),
    "prefetch_factor without workers": (range(SIZE), {"num_workers": 0, "prefetch_factor": 2}),
    "negative prefetch_factor": (range(SIZE), {"num_workers": 1, "prefetch_factor": -1}),
    "prefetch_factor 0": (range(SIZE), {"num_workers": 1, "prefetch_factor": 0}),
    "persistent without workers": (range(SIZE), {"num_workers": 0, "persistent_workers": True}),
    "context of no name": (range(SIZE), {"num_workers": 1, "multiprocessing_context": "thread"}),
    "context of a wrong type": (range(SIZE), {"num_workers": 1, "multiprocessing_context": 7}),
    "context without workers": (
        range(SIZE),
        {"num_workers": 0, "multiprocessing_context": "spawn"},
    ),
    "shuffle and sampler": (range(SIZE), {"shuffle": True, "sampler": [0]}),
    "shuffle and batch_sampler": (range(SIZE), {"shuffle": True, "batch_sampler": [[0]]}),
    "two samplers": (range(SIZE), {"sampler": [0], "batch_sampler": [[0]]}),
    "batch_size and batch_sampler": (range(SIZE), {"batch_size": 2, "batch_sampler": [[0]]}),
    "no batch_size and batch_sampler": (range(SIZE), {"batch_size": None, "batch_sampler": [[0]]}),
    "drop_last and batch_sampler": (range(SIZE), {"drop_last": True, "batch_sampler": [[0]]}),
    "drop_last without batches": (range(SIZE), {"drop_last": True, "batch_size": None}),
    "stream and shuffle": (STREAM, {"shuffle": True}),
    "stream and sampler": (STREAM, {"sampler": [0]}),
    "stream and batch_sampler": (STREAM, {"batch_sampler": [[0]]}),
    "batch_size 0": (range(SIZE), {"batch_size": 0}),
    "negative batch_size": (range(SIZE), {"batch_size": -1}),
    "broken batch_size": (range(SIZE), {"batch_size": 2.5}),
    "batch_size of a stream": (STREAM, {"batch_size": 0}),
    "nothing to shuffle": ([], {"shuffle": True}),
    "several at once": (range(SIZE), {"num_workers": 0, "timeout": -1, "persistent_workers": True}),
}


# A loader of torch's that it refused so is not quite made.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_refuses_is_refused_in_its_words(case: str) -> None:
    dataset, given_arguments = REFUSED[case]
    arguments = {"num_workers": 0, **given_arguments}
    expected = refusal(DataLoader, dataset, arguments)
    assert expected is not None
    refused = refusal(ThreadLoader, dataset, arguments)
    assert refused is not None
    assert as_torch_says(refused, expected)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ignore(_: int) -> None: ...


ARGUMENTS = st.fixed_dictionaries(
    {"num_workers": st.integers(0, 2)},
    optional={
        "batch_size": st.sampled_from([None, 0, 1, 2, 3, 10]),
        "shuffle": st.sampled_from([None, False, True]),
        "sampler": st.sampled_from([None, [], [3, 1, 2], range(0, SIZE, 2)]),
        "batch_sampler": st.sampled_from([None, [], [[4], [1, 2]]]),
        "collate_fn": st.sampled_from([None, str]),
        "pin_memory": st.booleans(),
        "drop_last": st.booleans(),
        "timeout": st.sampled_from([-1, 0, PATIENCE]),
        "worker_init_fn": st.sampled_from([None, _ignore]),
        "multiprocessing_context": st.sampled_from([None, "spawn", "thread"]),
        "generator": st.sampled_from([None, partial(_generator, 3)]),
        "prefetch_factor": st.sampled_from([None, -1, 0, 1, 3]),
        "persistent_workers": st.booleans(),
        "pin_memory_device": st.sampled_from(["", "cuda"]),
        "in_order": st.booleans(),
    },
)
FOR_WORKERS = {"timeout", "prefetch_factor", "persistent_workers", "in_order"} | {
    "multiprocessing_context"
}


def _made(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of which no two loaders share a generator."""
    made = dict(arguments)
    if made.get("generator") is not None:
        made["generator"] = made["generator"]()
    return made


def _expected(size: int, arguments: dict[str, Any]) -> Any:
    """Return what torch's loader does; its batches are made without processes."""
    try:
        DataLoader(range(size), **_made(arguments))
    except Exception as error:  # noqa: BLE001  # both loaders have to raise the same
        return type(error), str(error)
    if arguments["num_workers"]:
        if arguments.get("prefetch_factor") == 0:
            name = "MultiProcessingDataLoaderIter"
            return AssertionError, f"prefetch_factor must be greater than 0 for {name}"
        arguments = {
            name: value for name, value in arguments.items() if name not in FOR_WORKERS
        } | {"num_workers": 0}
    return _told(DataLoader, size, arguments)


def _told(kind: Any, size: int, arguments: dict[str, Any]) -> Any:
    torch.manual_seed(SEED)
    try:
        loader = kind(range(size), **_made(arguments))
        return [[picture(batch) for batch in loader] for _ in range(2)], torch.rand(()).item()
    except Exception as error:  # noqa: BLE001  # as above
        return type(error), str(error)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(size=st.sampled_from([0, 1, SIZE]), arguments=ARGUMENTS)
def test_all_arguments_together_give_torch_s_batches_or_its_error(
    spawn: Spawn, size: int, arguments: dict[str, Any]
) -> None:
    expected = _expected(size, arguments)
    told = spawn(_told, ThreadLoader, size, arguments).result(PATIENCE)
    persistent = arguments.get("persistent_workers", False) and arguments["num_workers"]
    if isinstance(expected[0], type) or isinstance(told[0], type):
        assert as_torch_says(told, expected)
    elif arguments.get("in_order", True) or not arguments["num_workers"]:
        # torch seeds persistent workers once, and later epochs draw less: see test_workers.
        assert (told[0][0] == expected[0][0]) if persistent else (told == expected)
    else:
        assert sorted(told[0][0], key=repr) == sorted(expected[0][0], key=repr)


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


def test_torch_s_parameters_come_first_in_its_order_and_are_of_its_kinds() -> None:
    theirs = list(inspect.signature(DataLoader).parameters.values())
    ours = list(inspect.signature(ThreadLoader).parameters.values())
    assert [(p.name, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.kind) for p in theirs]
    assert {p.kind for p in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


def test_torch_s_defaults_are_kept_but_for_the_number_of_workers() -> None:
    ours = inspect.signature(ThreadLoader).parameters
    theirs = inspect.signature(DataLoader).parameters
    assert {name for name in theirs if ours[name].default != theirs[name].default} == {
        "num_workers"
    }


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
    told = []
    for each in (loader, again):
        torch.manual_seed(SEED)
        told.append(spawn(lambda each=each: list(outcomes(each))).result(PATIENCE))
    assert told[0] == told[1]


def test_num_workers_and_threads_are_one_setting_and_automatic_if_neither_is_given() -> None:
    automatic = ThreadLoader(range(SIZE)).num_workers
    assert type(automatic) is int
    assert automatic >= 1
    assert ThreadLoader(range(SIZE), threads=2, num_workers=2).num_workers == 2
    with pytest.raises(ValueError, match="one setting, but got 1 and 2"):
        ThreadLoader(range(SIZE), threads=1, num_workers=2)


def test_a_timeout_is_torch_s_error_and_the_batch_is_not_lost(spawn: Spawn) -> None:
    dataset = Blocked(3)
    loader = ThreadLoader(dataset, num_workers=1, timeout=0.05)
    batches = iter(loader)
    with pytest.raises(RuntimeError) as caught:
        spawn(next, batches).result(PATIENCE)
    assert str(caught.value).startswith("DataLoader timed out after 0.05 seconds")
    dataset.gate.set()

    def patiently() -> Iterator[Any]:
        while True:  # a busy machine may need more than one go
            try:
                yield next(batches).item()
            except StopIteration:
                return
            except RuntimeError as error:
                assert "timed out" in str(error)  # noqa: PT017  # all others are failures

    assert spawn(list, patiently()).result(PATIENCE) == [0, 1, 2]


def test_out_of_order_a_ready_batch_does_not_wait_and_none_is_lost(spawn: Spawn) -> None:
    dataset = Blocked(5)
    loader = ThreadLoader(dataset, num_workers=2, in_order=False)
    batches = iter(loader)
    early = [spawn(next, batches).result(PATIENCE).item() for _ in range(2)]
    assert 0 not in early
    dataset.gate.set()
    late = [batch.item() for batch in spawn(list, batches).result(PATIENCE)]
    assert sorted(early + late) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_worker_is_initialised_once(workers: int, spawn: Spawn) -> None:
    called: list[int] = []
    loader = ThreadLoader(range(SIZE), num_workers=workers, worker_init_fn=called.append)
    spawn(list, loader).result(PATIENCE)
    assert sorted(called) == list(range(workers))


def test_an_error_of_worker_init_fn_reaches_the_consumer(spawn: Spawn) -> None:
    def fail(number: int) -> None:
        raise LookupError(number)

    loader = ThreadLoader(range(SIZE), num_workers=2, worker_init_fn=fail)
    with loader, pytest.raises(LookupError):
        spawn(list, loader).result(PATIENCE)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("device", ["", "cuda"])
def test_without_an_accelerator_pinning_warns_as_torch_does(device: str) -> None:
    if device and torch.__version__ < "2.8":
        pytest.skip("this torch asks for the driver of the device")
    told = []
    for kind in (DataLoader, ThreadLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = kind(range(2), num_workers=0, pin_memory=True, pin_memory_device=device)
            assert [batch.item() for batch in loader] == [0, 1]
        told.append([(warning.category, str(warning.message)) for warning in caught])
    assert told[0]
    assert told[1] == told[0]


class Owner:
    """Sample ``i`` is ``i``; has something that no other process can be given."""

    def __init__(self, owned: Any) -> None:
        self.owned = owned

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


def _local() -> Any:
    class Local(Owner):
        pass

    return Local(None)


def _arguments(case: str) -> tuple[Any, dict[str, Any]]:
    match case:
        case "collate_fn":
            return range(SIZE), {
                "collate_fn": lambda samples: samples[0] + torch.zeros(1, dtype=int)
            }
        case "worker_init_fn":
            return range(SIZE), {"worker_init_fn": lambda _: None}
        case "local class":
            return _local(), {}
        case "lock":
            return Owner(Lock()), {}
        case "handle":
            return Owner(Path(__file__).open(encoding="utf-8")), {}
    return Owner(lambda: None), {}


@pytest.mark.parametrize(
    "case", ["collate_fn", "worker_init_fn", "local class", "lock", "handle", "lambda"]
)
def test_what_can_not_be_sent_to_a_process_works_with_threads(case: str, spawn: Spawn) -> None:
    dataset, arguments = _arguments(case)
    arguments |= {"num_workers": 1, "multiprocessing_context": "spawn"}
    try:
        with pytest.raises(Exception, match=r"pickle|local object"):
            iter(DataLoader(dataset, **arguments))
        loader = ThreadLoader(dataset, **arguments)
        batches = spawn(list, loader).result(PATIENCE)
        assert [batch.item() for batch in batches] == list(range(SIZE))
    finally:
        if case == "handle":
            dataset.owned.close()
