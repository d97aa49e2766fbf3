"""Without a number of threads a loader gives what ``DataLoader(dataset)`` gives, in-process."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader
from threadloader.errors import InProcessWarning

SLOW = 0.002  # seconds: samples that threads load, where they can


def load(dataset: Any, **given: Any) -> list[Any]:
    given.setdefault("batch_size", 8)
    return [sample for batch in ThreadLoader(dataset, collate_fn=list, **given) for sample in batch]


class Slow:
    """Samples that tell which thread has made them."""

    length = 64

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        return index, self.value(index), threading.current_thread() is threading.main_thread()

    def value(self, index: int) -> Any:
        return index


# What samples and loops set.


class Counting(Slow):
    seen = 0

    def value(self, index: int) -> int:  # noqa: ARG002
        self.seen += 1
        return self.seen


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_what_samples_count_goes_on_from_epoch_to_epoch(batch_size: int) -> None:
    dataset = Counting()
    loader = ThreadLoader(dataset, batch_size, collate_fn=list)
    with pytest.warns(InProcessWarning, match="samples set 'seen' again and again") as told:
        values = [value for _ in range(3) for batch in loader for _, value, _ in batch]
    assert values == list(range(1, 3 * 64 + 1))
    assert dataset.seen == 3 * 64
    assert len(told) == 1


class Warming:
    """A transform whose strength grows with each sample."""

    step = 0

    def __call__(self, index: int) -> int:
        self.step += 1
        return index * 0 + self.step


class Transformed(Slow):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def value(self, index: int) -> Any:
        return self.transform(index)


class Drawing:
    """A transform that keeps what it has drawn for this sample."""

    angle = 0

    def __call__(self, index: int) -> int:
        self.angle = 37 * index * index % 64
        time.sleep(SLOW)
        return self.angle


class Level(Slow):
    level = 0

    def value(self, index: int) -> int:  # noqa: ARG002
        return self.level


@pytest.mark.parametrize("first", [0, 1, 5])
def test_what_the_loop_sets_is_seen_by_the_next_batch(first: int) -> None:
    dataset = Level()

    def levels_of_a_loop() -> Iterator[set[int]]:
        for step, batch in enumerate(ThreadLoader(dataset, 4, collate_fn=list)):
            yield {value for _, value, _ in batch}
            if step >= first:
                dataset.level = step + 1

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        levels = list(levels_of_a_loop())
    assert levels == [{step if step > first else 0} for step in range(16)]
    # None where threads were found to be slower before, on a busy machine.
    assert [str(each.message).partition(" ")[0] for each in told] in ([], ["'level'"])


class Curriculum:
    """A sampler that follows the loop."""

    def __init__(self) -> None:
        self.level = [0]

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(12):
            yield [self.level[0]] * 4


@pytest.mark.parametrize("slow", [True, False])
def test_a_sampler_of_the_users_is_drawn_when_its_batch_is_asked_for(*, slow: bool) -> None:
    sampler = Curriculum()
    drawn = []
    dataset: Any = Slow() if slow else [(n, n) for n in range(64)]
    for batch in ThreadLoader(dataset, batch_sampler=sampler, collate_fn=list):
        drawn.append(batch[0][1])
        sampler.level[0] += 1  # in place: nobody can see that
    assert drawn == list(range(12))


# What fails.


class Broken(Slow):
    def value(self, index: int) -> int:
        if index in (20, 40):
            msg = f"sample {index}"
            raise ValueError(msg)
        return index


def test_what_fails_in_the_calling_thread_too_is_the_users_error() -> None:
    with pytest.raises(ValueError, match="sample 20"):
        load(Broken())


# What the first samples load and open.


class LoadsData(Slow):
    data: Any = None
    loads = 0

    def value(self, index: int) -> int:
        if self.data is None:
            type(self).loads += 1
            self.data = np.arange(64)
        return int(self.data[index])


@pytest.mark.parametrize(
    ("given", "most"),
    [({}, 1), ({"threads": 8}, 4), ({"threads": 8, "persistent_workers": True}, 1)],
    ids=str,
)
def test_data_that_is_loaded_on_first_use_is_loaded_once(
    given: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The calling thread, where it is tried for a number that was chosen, has a copy of its own.
    monkeypatch.setattr("threadloader._tuning.tuner.WINDOW_SECONDS", PATIENCE)
    LoadsData.loads = 0
    with ThreadLoader(LoadsData(), 8, collate_fn=list, **given) as loader:
        for _ in range(4):
            samples = [sample for batch in loader for sample in batch]
            assert [value for _, value, _ in samples] == list(range(64))
        again = loader.statistics().epoch.first_use_seconds > 0
    assert LoadsData.loads <= most
    assert again == (most == 4)  # the verdict says so


class OpensFile(Slow):
    file: Any = None
    opened = 0

    def __init__(self, path: Path) -> None:
        self.path = path

    def value(self, index: int) -> int:
        if self.file is None:
            type(self).opened += 1
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(index)
        time.sleep(SLOW / 10)
        return int(self.file.read(1)[0])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # as users leave files to the collector
def test_threads_that_open_something_each_are_at_most_two_a_core(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 4)
    OpensFile.opened = 0

    class Many(OpensFile):
        length = 1024

    assert [value for _, value, _ in load(Many(path))] == [n % 256 for n in range(1024)]
    assert Many.opened <= 2 * (os.cpu_count() or 1) + 1  # and the calling thread


# Objects of which workers can't have copies


class Read(Slow):
    """Reads its number, four bytes, where another thread may move the place meanwhile."""

    def file(self) -> Any:
        raise NotImplementedError

    def value(self, index: int) -> int:
        file = self.file()
        file.seek(4 * index)
        time.sleep(SLOW / 4)
        return int(file.read(4))


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(b"%04d" % n for n in range(Slow.length)))
    with path.open("r+b") as file:
        yield file


@pytest.mark.parametrize("place", ["dataset.kept", "OnClass.kept", "the global KEPT"])
def test_the_calling_thread_stays_where_workers_would_share(place: str, numbers: Any) -> None:
    class Held(Read):
        def __init__(self) -> None:
            self.kept = numbers

        def file(self) -> Any:
            return self.kept

    class OnClass(Read):
        kept: Any = None

        def file(self) -> Any:
            if OnClass.kept is None:  # as it is opened on first use
                type(self).kept = Path(numbers.name).open("rb", buffering=0)  # noqa: SIM115
            return self.kept

    class Named(Read):
        def file(self) -> Any:
            return KEPT

    global KEPT
    with Path(numbers.name).open("rb", buffering=0) as KEPT:
        dataset = {"d": Held, "O": OnClass, "t": Named}[place[0]]()
        with pytest.warns(InProcessWarning, match=place):
            samples = load(dataset)
        loader = ThreadLoader(dataset, threads=2)
        with pytest.warns(UserWarning, match=place):
            iter(loader)
        loader.close()
    if OnClass.kept is not None:
        OnClass.kept.close()
    assert samples == [(n, n, True) for n in range(Slow.length)]


KEPT: Any = None


# Iterable datasets


def test_an_iterable_of_torchs_is_read_by_the_calling_thread() -> None:
    class Epochs(pytest.importorskip("torch.utils.data").IterableDataset):  # type: ignore[misc]
        """Counts its epochs, and follows what the loop sets."""

        epoch = level = 0

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            for _ in range(8):
                yield self.epoch, self.level

    stream = Epochs()
    loader = ThreadLoader(stream, 2, collate_fn=list)
    for epoch in (1, 2):
        for step, batch in enumerate(loader):
            assert batch == [(epoch, step)] * 2
            stream.level = step + 1
        stream.level = 0
    assert ThreadLoader(stream, 2, timeout=120).num_workers == 1
    assert ThreadLoader(iter(stream), 2).num_workers == 1


# Where threads take over, and where the calling thread stays.


class Fills:
    """Has scratch memory that is made in `__init__`."""

    def __init__(self, scratch: Any) -> None:
        self.scratch = scratch

    def __call__(self, index: int) -> int:
        for place in range(8):
            self.scratch[place] = index + 1
        time.sleep(SLOW / 4)
        return int(self.scratch[0]) - 1


class Shows(Transformed):
    def __init__(self, transform: Fills) -> None:
        self.own = transform.scratch
        super().__init__(transform.__call__)


class Timed(Slow):
    def value(self, index: int) -> int:
        before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, before)
        return index


class Reads(Slow):
    def __init__(self) -> None:
        self.data = np.arange(Slow.length)

    def value(self, index: int) -> int:
        return int(self.data[index])


class Measured(Slow):
    size = mean = 0.0

    def value(self, index: int) -> float:
        self.size, self.mean = len("size") * 1000, 0.5 * 2
        return index * self.mean


class Flaky(Slow):
    def __init__(self) -> None:
        self.failed: list[int] = []

    def value(self, index: int) -> int:
        if index == 40 and not self.failed:
            self.failed.append(index)
            raise ConnectionError
        return index


class Last(Slow):
    index = -1

    def value(self, index: int) -> int:
        if index > 32:
            self.index = index
        return index


class System(Slow):
    def __init__(self) -> None:
        self.rng = random.SystemRandom()

    def value(self, index: int) -> int:
        return index + (self.rng.random() >= 1)


def tensor() -> Any:
    return pytest.importorskip("torch").zeros(8)


TAKEN: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "leaves objects as they are": (Slow, {}),
    "keeps what it has drawn for a sample": (lambda: Transformed(Drawing()), {}),
    "reads an array": (Reads, {}),
    "sets the same value again": (Measured, {}),
    "fails once": (Flaky, {}),
    "sets attributes of a dataset that is shared": (Last, {"dataset_copy": "shared"}),
    "has a generator without a state": (System, {}),
}
STAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "counts": (lambda: Transformed(Warming()), "'step'"),
    "writes an array": (lambda: Transformed(Fills(np.zeros(8))), "samples write into 'scratch'"),
    "writes bytes": (lambda: Shows(Fills(bytearray(8))), "samples write into '(scratch|own)'"),
    "writes a tensor": (lambda: Shows(Fills(tensor())), "samples write into '(scratch|own)'"),
    "writes a tensor of its transform": (lambda: Transformed(Fills(tensor())), "into 'scratch'"),
}
if hasattr(signal, "setitimer"):
    STAYS["fails in threads alone"] = (Timed, "and not in the calling one.*main thread")


@pytest.mark.parametrize("case", TAKEN)
def test_threads_take_over_from_what(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow they are on a busy machine.
    monkeypatch.setattr("threadloader._tuning.tuner.WINDOW_SECONDS", PATIENCE)
    make, given = TAKEN[case]
    values = [37 * n * n % 64 for n in range(64)] if "drawn" in case else list(range(64))
    samples = load(make(), **given)
    assert [(index, value) for index, value, _ in samples] == list(enumerate(values))
    assert samples[0][2]
    assert not all(made_here for _, _, made_here in samples)


@pytest.mark.parametrize("case", STAYS)
def test_the_calling_thread_stays_where_a_sample(case: str) -> None:
    make, message = STAYS[case]
    with pytest.warns(InProcessWarning, match=message) as told:
        samples = load(make())
    assert samples == [(n, n + (case == "counts"), True) for n in range(Slow.length)]
    assert len(told) == 1


# A sampler that gives one object again and again.


@pytest.mark.parametrize("threads", [0, 2, None])
@pytest.mark.parametrize("form", ["itself", "in a tuple", "in a dict"])
@pytest.mark.parametrize("kind", ["numpy", "array"])
def test_an_array_that_a_sampler_refills_is_copied(
    threads: int | None, form: str, kind: str
) -> None:
    class Refills:
        def __iter__(self) -> Iterator[Any]:
            indices: Any = np.zeros(2, int) if kind == "numpy" else array("l", [0, 0])
            forms = {"itself": indices, "in a tuple": (indices, 1), "in a dict": {0: indices}}
            for n in range(20):
                indices[0], indices[1] = n, n + 1
                yield forms[form]

    class Rows:
        def __getitem__(self, indices: Any) -> list[int]:
            time.sleep(SLOW)
            return [int(n) for n in (indices[0] if isinstance(indices, (tuple, dict)) else indices)]

    loader: Any = ThreadLoader(
        Rows(), None, sampler=Refills(), threads=threads, prefetch=4, output="numpy"
    )
    assert list(loader) == [[n, n + 1] for n in range(20)]


# What is a worker's own all the same.


class Scratch(Slow):
    """Something that is made on first use, and written by each sample."""

    length = 200
    scratch: Any = None

    def __init__(self, make: Any, write: Any) -> None:
        self.make, self.write = make, write

    def value(self, index: int) -> int:
        if self.scratch is None:
            self.scratch = self.make()
        return int(self.write(self.scratch, index))


class Turning:
    """A transform that keeps what it was called with."""

    def __call__(self, index: int) -> int:
        self.square = index * index
        time.sleep(SLOW)
        return self.square


def written(scratch: Any, index: int) -> int:
    scratch[0] = index
    time.sleep(SLOW)
    return int(scratch[0])


@pytest.mark.parametrize("given", [{}, {"threads": 4}, {"batch_size": 1}], ids=str)
@pytest.mark.parametrize(
    ("make", "write"),
    [
        (lambda: np.zeros(4), written),
        (lambda: [0], written),
        (dict, written),
        (Turning, lambda turning, index: turning(index) ** 0.5),
    ],
    ids=["array", "list", "dict", "transform"],
)
def test_what_each_sample_writes_is_each_threads_own(
    make: Any, write: Any, given: dict[str, Any]
) -> None:
    samples = load(Scratch(make, write), **given)
    assert [value for _, value, _ in samples] == list(range(200))


def test_samples_that_meet_at_an_object_of_the_dataset_begin_at_once(spawn: Spawn) -> None:
    class Meeting(Slow):
        def __init__(self) -> None:
            self.together = threading.Barrier(2)

        def value(self, index: int) -> int:
            self.together.wait(PATIENCE)
            return index

    given = {"batch_size": 1, "threads": 2, "timeout": PATIENCE}
    loaded = spawn(lambda: load(Meeting(), **given)).result(PATIENCE)
    assert [value for _, value, _ in loaded] == list(range(64))
