"""Functions of `random` and `numpy.random` are redirected while there are workers, no longer."""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import pickle
import random
import sys
import threading
import traceback
import warnings
from contextlib import contextmanager
from itertools import islice
from random import choice, expovariate, randrange
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.acting import Acting
from support.child import printed_by
from support.patience import PATIENCE, PAUSE
from support.workers import join_workers

from threadloader import ThreadLoader, _lifetime, get_worker_info
from threadloader._worker import redirect
from threadloader._worker.streams import sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

legacy = np.random  # its old functions are what is tested
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])
RANDOM = ("random", "getrandbits", "seed", "getstate", "setstate", "randint", "gauss")
NUMPY = ("rand", "randn", "randint", "seed", "sample", "ranf", "random_sample", "shuffle")


def functions() -> list[Any]:
    """Return all that is replaced while there are workers, and the class of what is not."""
    names = [getattr(random, name) for name in RANDOM] + [getattr(legacy, name) for name in NUMPY]
    return [*names, legacy.mtrand._rand, type(random._inst)]  # noqa: SLF001


PLAIN = functions()


def plain() -> bool:
    """Whether the functions are those of the import, the very same objects or equal methods."""
    return functions() == PLAIN and legacy.rand is PLAIN[len(RANDOM)]


def make(what: Callable[[int], Any], threads: int = 2, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": 2, "seed": 1, "output": "numpy", "collate_fn": list}
    return ThreadLoader(Acting(12, sample=what), threads=threads, **(defaults | arguments))


def epoch(loader: Any) -> list[Any]:
    return [row for batch in loader for row in batch]


@contextmanager
def redirected(spawn: Spawn) -> Iterator[None]:
    """Have workers in the middle of an epoch."""
    with make(sample) as loader:
        iterator = iter(loader)
        spawn(next, iterator).result(PATIENCE)
        assert not plain()
        yield


@pytest.fixture(autouse=True)
def functions_are_plain_again() -> Iterator[None]:
    assert plain()
    yield
    join_workers()
    assert plain()


@pytest.mark.parametrize("end", ["whole", "a break", "an error"])
@each_number_of_threads
def test_functions_are_redirected_in_samples_and_plain_however_the_epoch_ends(
    end: str, threads: int, spawn: Spawn
) -> None:
    def what(index: int) -> bool:
        if index == 4 and end == "an error":
            raise LookupError(index)
        return plain()

    kept: list[LookupError] = []  # and with it what its frames refer to

    def told() -> list[Any]:
        got: list[Any] = []
        try:
            with make(what, threads) as loader:
                for batch in loader:
                    got += batch
                    if end == "a break":
                        break
        except LookupError as error:
            kept.append(error)
        return got

    assert spawn(told).result(PATIENCE) == [False] * {"whole": 12, "a break": 2, "an error": 4}[end]
    join_workers()
    assert plain()
    assert len(kept) == (end == "an error")


def sample(_: int) -> list[float]:
    return [random.random(), float(legacy.rand()), randrange(1 << 30)]


def test_functions_imported_while_redirected_go_on_to_work(spawn: Spawn) -> None:
    with redirected(spawn):
        from random import getrandbits, getstate, random, seed, setstate  # noqa: PLC0415

        rand, seed_numpy = legacy.rand, legacy.seed
        kept = legacy.mtrand._rand  # noqa: SLF001
    assert plain()
    seed(3)
    state = getstate()
    got = [random(), getrandbits(30), expovariate(1)]
    setstate(state)
    module = sys.modules["random"]
    assert got == [module.random(), module.getrandbits(30), module.expovariate(1)]
    module.seed(3)
    assert got[0] == module.random()
    seed_numpy(3)
    got = [rand(), kept.rand(), kept.normal()]
    legacy.seed(3)
    assert got == [legacy.rand(), legacy.rand(), legacy.normal()]
    # In a later epoch they follow the sample's stream again.
    draws = spawn(epoch, make(lambda _: [random(), rand()])).result(PATIENCE)
    assert draws == epoch(make(lambda _: [random(), rand()], 0))


def test_what_somebody_else_replaces_during_an_epoch_stays_replaced(spawn: Spawn) -> None:
    def half() -> float:
        return 0.5

    try:
        with redirected(spawn):
            before = random.random, legacy.rand
            random.random = legacy.rand = half
        assert random.random is legacy.rand is half
        random.random, legacy.rand = before  # as whoever replaced them would, in the end
        assert random.random() != 0.5 != legacy.rand()
    finally:
        random.random, legacy.rand = PLAIN[0], PLAIN[len(RANDOM)]


def picklable() -> list[Any]:
    """Return what users pickle."""
    functions = [random.random, random.randint, random.choice, random.getstate, random.seed]
    functions += [legacy.rand, legacy.seed, legacy.ranf, legacy.get_state, choice, *PLAIN[:-1]]
    return [*functions, legacy.mtrand._rand, random._inst]  # noqa: SLF001


def test_what_is_pickled_or_copied_while_redirected_is_the_original_and_has_nothing_of_ours(
    spawn: Spawn,
) -> None:
    def pickles(_: int = 0) -> list[bytes]:
        return list(map(pickle.dumps, picklable()))

    random.seed(3)
    legacy.seed(3)
    with redirected(spawn):
        taken = picklable()
        dumped = pickles()
        dumped += [each for row in spawn(epoch, make(pickles)).result(PATIENCE) for each in row]
        draw, rand = (pickle.loads(pickle.dumps(each)) for each in (random.random, legacy.rand))
        inst, legacy_inst = map(copy.deepcopy, (random._inst, legacy.mtrand._rand))  # noqa: SLF001
        assert type(inst) is random.Random
        assert type(legacy_inst) is legacy.RandomState
        assert random.random() == draw() == inst.random()
        assert legacy.rand() == rand() == legacy_inst.rand()
    join_workers()
    dumped += map(pickle.dumps, taken)
    assert not any(b"threadloader" in each for each in dumped)
    assert all(map(pickle.loads, dumped))


def in_child(check: Callable[[], bool]) -> int:
    """Return the exit status of a forked process: 0 if ``check`` holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 2
        except BaseException:  # noqa: BLE001  # no test may go on in two processes
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def draws_plainly() -> bool:
    random.seed(1)
    legacy.seed(1)
    good = plain()
    good &= random.random() == random.Random(1).random()
    good &= legacy.rand() == legacy.RandomState(1).rand()
    with make(sample, 2) as loader:
        iterator = iter(loader)
        good &= epoch(make(sample, 0)) == epoch(iterator)
    return good and plain()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")


@needs_fork
def test_a_forked_child_of_the_consumer_has_plain_functions(spawn: Spawn) -> None:
    with redirected(spawn):
        assert spawn(in_child, draws_plainly).result(PATIENCE) == 0
        assert not plain()


@needs_fork
@each_number_of_threads
def test_a_forked_child_of_a_worker_has_plain_functions(threads: int, spawn: Spawn) -> None:
    def fork(index: int) -> int:
        return in_child(draws_plainly) if index == 3 else 0

    assert spawn(epoch, make(fork, threads)).result(PATIENCE) == [0] * 12


@needs_fork
def test_a_child_forked_beside_workers_that_end_does_not_hang(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CPython 3.13t it hung if it was forked while another thread exchanged a class."""
    monkeypatch.setattr(_lifetime, "FORK_SECONDS", PATIENCE)  # on a busy machine, too
    ended = threading.Event()

    def begin_and_end() -> None:
        holder = object()
        while not ended.is_set():
            redirect.hooks.hold(holder)
            redirect.hooks.release(holder)

    def collects() -> bool:
        gc.freeze()  # what the tests before this one have left
        gc.collect()
        return draws_plainly()

    workers = [spawn(begin_and_end) for _ in range(2)]
    try:
        for _ in range(3):
            assert spawn(in_child, collects).result(PATIENCE) == 0
    finally:
        ended.set()
    for worker in workers:
        worker.result(PATIENCE)


@each_number_of_threads
def test_without_isolation_nothing_is_replaced_and_draws_come_from_the_global_state(
    threads: int, spawn: Spawn
) -> None:
    def sample(_: int) -> Any:
        return plain(), random.random(), legacy.rand()

    random.seed(6)
    legacy.seed(6)
    got = spawn(epoch, make(sample, threads, isolate_rng=False)).result(PATIENCE)
    random.seed(6)
    legacy.seed(6)
    expected = [(True, random.random(), legacy.rand()) for _ in range(12)]
    assert sorted(draw for _, draw, _ in got) == sorted(draw for _, draw, _ in expected)
    assert sorted(draw for *_, draw in got) == sorted(draw for *_, draw in expected)
    assert all(was_plain for was_plain, *_ in got)


def test_a_worker_info_has_the_generators_of_the_sample(spawn: Spawn) -> None:
    def drawn(_: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return (
            info.rng.random_generator.random(),
            random.random(),
            info.rng.numpy_generator.random(),
        )

    got = spawn(epoch, make(drawn, 1)).result(PATIENCE)
    assert got == spawn(epoch, make(drawn, 3)).result(PATIENCE)
    assert len({value for row in got for value in row}) == 36


def test_threads_outside_of_loading_draw_valid_numbers_while_epochs_come_and_go(
    spawn: Spawn,
) -> None:
    ended = threading.Event()

    def draw() -> bool:
        good = True
        while not ended.wait(PAUSE):
            numbers = [random.random(), legacy.rand(), legacy.random_sample()]
            good &= all(0 <= number < 1 for number in numbers)
            good &= -30 < random.gauss(0, 1) + legacy.normal() < 30
            good &= 0 <= randrange(10) < 10 and random.getrandbits(8) < 256
            good &= sample_seed() >= 0
        return good

    drawing = [spawn(draw) for _ in range(4)]
    try:
        expected = epoch(make(sample, 0))
        for n in range(24):
            assert spawn(epoch, make(sample, n % 4)).result(PATIENCE) == expected
            assert len(list(islice(make(sample, 2), n % 3))) == n % 3
    finally:
        ended.set()
    assert all(future.result(PATIENCE) for future in drawing)


# The first epoch of a process

FIRST_EPOCH = """
import random, torch
import numpy as np
from threadloader import ThreadLoader
class Draws:
    def __len__(self): return 6
    def __getitem__(self, index): return float(np.random.rand() + random.random())
torch.set_default_dtype(torch.float64)
torch.set_default_device("cpu")
torch.manual_seed(3)
state = torch.get_rng_state()
with torch.inference_mode():
    list(ThreadLoader(Draws(), 2, seed=1, threads=0))
from threadloader._worker import redirect
from threadloader._torch.random_state import OperatorsByKey
print(torch.equal(torch.get_rng_state(), state), type(redirect.operators) is OperatorsByKey)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_first_epoch_leaves_the_process_random_state_alone() -> None:
    assert printed_by(FIRST_EPOCH) == "True True"
