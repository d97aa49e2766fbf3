"""What first versions of the rule for workers' objects did wrong: a test for each."""

from __future__ import annotations

import bz2
import collections
import concurrent.futures
import datetime as dt
import enum
import functools
import gc
import gzip
import io
import itertools
import logging
import lzma
import mmap
import multiprocessing as mp
import queue
import random
import re
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np
import pytest
from support.in_workers import ROWS, THREADS, in_workers
from support.patience import PATIENCE, PAUSE, Spawn

from threadloader import ThreadLoader

ALL = list(range(ROWS))


class Plain:
    now: Any = None

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Kind(enum.Enum):
    A = 1


class Row(NamedTuple):
    name: str
    value: Any


def put(value: Any, index: int) -> None:
    value.now = index


def now(value: Any) -> Any:
    return value.now


def address(value: Any) -> int:
    return int(np.asarray(value).__array_interface__["data"][0])


# What is shared


class Marker:
    """Without any state."""


MISSING = Marker()


class Refuses:
    now = 0

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Frame:
    """What other libraries read as a table."""

    __module__ = "library_of_frames"

    def __init__(self) -> None:
        self.columns = {"x": [1, 2, 3]}

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.array(self.columns["x"])

    def __arrow_c_stream__(self, _: Any = None) -> Any:
        raise NotImplementedError


def of_torch(make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip("torch"))


def optimizer(torch: Any) -> Any:
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), 0.1)


default = functools.partial(collections.defaultdict, list)
SHARED: dict[str, Callable[[], Any]] = {
    "2 MiB of an array": lambda: np.zeros(1 << 18),
    "10,001 numbers": lambda: list(range(10_001)),
    "10,001 objects": lambda: [Plain() for _ in range(10_001)],
    "1,001 lists of 10 numbers": lambda: [list(range(10)) for _ in range(1001)],
    "defaultdict of 2,000 short lists": lambda: default({n: [{"n": n}] * 4 for n in range(2000)}),
    "path": lambda: Path("a"),
    "date": lambda: dt.date(2020, 1, 1),
    "4,000 paths and labels": lambda: [(Path(str(n)), n) for n in range(4000)],
    "4,000 dicts of members": lambda: [{"kind": Kind.A, "n": n} for n in range(4000)],
    "1,001 arrays": lambda: [np.zeros(1) for _ in range(1001)],
    "1,000 named tuples of arrays": lambda: [Row("", np.zeros(1)) for _ in range(1000)],
    "2 MiB of bytes": lambda: bytearray(1 << 21),
    "table": Frame,
    "table of pyarrow": lambda: pytest.importorskip("pyarrow").table({"x": [1]}),
    "frame of pandas": lambda: pytest.importorskip("pandas").DataFrame({"x": [1]}),
    "lock": threading.RLock,
    "condition": threading.Condition,
    "event": threading.Event,
    "thread": lambda: threading.Thread(name="test-none"),
    "thread-local": threading.local,
    "queue": queue.Queue,
    "executor": concurrent.futures.ThreadPoolExecutor,
    "logger": lambda: logging.getLogger("own"),
    "loader": lambda: ThreadLoader([1, 2]),
    "mp.Value": lambda: mp.Value("i", 0),
    "mp.RawArray": lambda: mp.RawArray("i", 3),
    "array over mp.RawArray": lambda: np.frombuffer(mp.RawArray("i", 3), np.int32),
    "array that nobody can write": lambda: np.frombuffer(b"12345678", np.uint8),
    "function": lambda: put,
    "module": lambda: np,
    "mp.Lock": mp.Lock,
    "sentinel": lambda: MISSING,
    "member of an enumeration": lambda: Kind.A,
    "object whose class refuses": Refuses,
    "2 MiB of a tensor": of_torch(lambda torch: torch.zeros(1 << 19)),
    "tensor in shared memory": of_torch(lambda torch: torch.zeros(3).share_memory_()),
    "tensor that requires grad": of_torch(lambda torch: torch.zeros(3, requires_grad=True)),
    "sparse tensor": of_torch(lambda torch: torch.eye(3).to_sparse()),
    "nested tensor": of_torch(lambda torch: torch.nested.nested_tensor([torch.zeros(2)])),
    "quantized tensor": of_torch(
        lambda torch: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8)
    ),
    "trained module": of_torch(lambda torch: torch.nn.Linear(2, 1)),
    "optimizer": of_torch(optimizer),
    "scheduler": of_torch(lambda t: t.optim.lr_scheduler.LinearLR(optimizer(t))),
}


@pytest.mark.filterwarnings("ignore:.*quantiz", "ignore:.*nested")
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("where", ["dataset", "collate_fn"])
def test_one_object_is_for_all_workers(name: str, where: str) -> None:
    data = SHARED[name]()
    assert all(each is data for each in in_workers(data, where=where))


def test_a_memory_map_is_not_copied_and_neither_are_views_of_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    whole = np.memmap(tmp_path / "file", np.uint8)
    with (tmp_path / "file").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    for each in (whole, whole[5:], np.asarray(whole), np.frombuffer(mapped, np.uint8)[7:]):
        assert set(in_workers(each, address)) == {address(each)}


# What is each worker's own, and as it was


def test_a_tensor_keeps_its_class_its_bits_and_its_storage() -> None:
    torch = pytest.importorskip("torch")

    class Box(torch.Tensor):  # type: ignore[misc]
        size_of_image: Any

    box = torch.arange(3).as_subclass(Box)
    box.size_of_image = [3, 4]
    waves = torch.tensor([1 + 2j, 3 - 1j])
    whole = torch.arange(6.0)
    views = whole[1:], whole.view(2, 3).T
    for copied in in_workers([box, waves.conj(), waves.conj().imag, whole, *views]):
        box_, conj, negative, whole_, tail, columns = copied
        assert type(box_) is Box
        assert box_.size_of_image == [3, 4]
        assert box_.size_of_image is not box.size_of_image
        assert conj.is_conj()
        assert torch.equal(negative, waves.conj().imag)
        assert torch.equal(conj, waves.conj())
        whole_[1] = 7
        assert tail[0] == columns[1, 0] == 7
        assert columns.stride() == views[1].stride()
    assert whole[1] == 1


ALIVE, TEXT = Plain(), io.StringIO("some text")
TEXT.seek(4)
KEEPS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "length of a deque": (collections.deque([1, 2], 3), lambda it: (list(it), it.maxlen)),
    "place in a text": (TEXT, lambda it: (it.getvalue(), it.tell())),
    "weak set": (weakref.WeakSet([ALIVE]), len),
    "weak set beside": ((ALIVE, weakref.WeakSet([ALIVE])), lambda it: it[0] in it[1]),
    "class of an array": (np.zeros(2).view(np.recarray), type),
}


@pytest.mark.parametrize(("value", "look"), KEEPS.values(), ids=KEEPS)
def test_a_copy_is_as_the_original(value: Any, look: Callable[[Any], Any]) -> None:
    found = in_workers(value, look)
    assert found == [look(value)] * ROWS


class Last:
    """Draws from the last of many parts, of which the others are of a class of C."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = [{"a": Decimal(n), "b": n} for n in range(4000)]
        self.parts.append({"rng": np.random.default_rng(3)})

    def __len__(self) -> int:
        return 40

    def __getitem__(self, _: int) -> float:
        return float(self.parts[-1]["rng"].random())


def test_a_generator_beside_objects_of_c_follows_the_samples(spawn: Spawn) -> None:
    def drawn(threads: int | None) -> list[float]:
        with ThreadLoader(Last(), 8, seed=1, threads=threads, collate_fn=list) as loader:
            return [number for batch in loader for number in batch]

    first, *others = (spawn(drawn, threads).result(PATIENCE) for threads in (0, 1, THREADS, None))
    assert len(set(first)) == 40
    assert others == [first] * 3


@pytest.mark.parametrize("row", [list, tuple, np.array])
def test_rows_of_equal_length_stay_objects(row: Any) -> None:
    rows = np.empty((2, 1), object)
    rows[0, 0], rows[1, 0] = row([1, 2]), row([3, 4])
    for each in in_workers(rows):
        assert each.shape == (2, 1)
        assert [list(part) for part in each[:, 0]] == [[1, 2], [3, 4]]
        assert type(each[0, 0]) is type(rows[0, 0])


def engine_of_a_test() -> Any:
    return type("Sobol", (Plain,), {"__module__": "scipy.stats._qmc"})(now=0)


def engine_of_torch() -> Any:
    return pytest.importorskip("torch").quasirandom.SobolEngine(2)


def engine_of_scipy() -> Any:
    return pytest.importorskip("scipy.stats").qmc.Sobol(2, scramble=False)


@pytest.mark.parametrize("make", [engine_of_a_test, engine_of_torch, engine_of_scipy])
def test_an_engine_of_a_library_for_data_is_no_data(make: Callable[[], Any]) -> None:
    engine = make()
    assert in_workers(engine, now, put) == ALL
    assert getattr(engine, "now", 0) == 0


@pytest.mark.parametrize("name", ["__copy__", "__deepcopy__", "__reduce_ex__", "__getstate__"])
def test_a_class_can_not_refuse_to_be_copied(name: str) -> None:
    def refuse(*_: object) -> None:
        msg = "not to be copied"
        raise TypeError(msg)

    kept = type("Keeps", (Plain,), {name: refuse})()
    assert in_workers(kept, now, put) == ALL


COMPRESSED: dict[str, Any] = {"gzip": gzip, "bz2": bz2, "lzma": lzma}


def opened(path: Path, how: str) -> Any:
    if how == "spooled":
        file = tempfile.SpooledTemporaryFile(1 << 20)  # noqa: SIM115
        file.write(path.read_bytes())
        file.seek(0)
        return file
    if how in COMPRESSED:
        path.with_name(how).write_bytes(COMPRESSED[how].compress(path.read_bytes()))
        return COMPRESSED[how].open(path.with_name(how))
    return path.open("rb", buffering=0) if how == "unbuffered" else path.open(how)


@pytest.mark.parametrize("how", ["rb", "r", "unbuffered", *COMPRESSED, "spooled"])
def test_each_worker_reads_a_file_where_it_has_sought(tmp_path: Path, how: str) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%03d\n" % index for index in ALL))
    with opened(path, how) as file:
        file.read(1)
        put: Any = lambda copy, index: copy.seek(4 * index)  # noqa: E731
        assert in_workers(file, lambda copy: int(copy.read(3)), put) == ALL
        assert file.tell() == 1


class Sized:
    def __new__(cls, size: int, /, *, unit: str) -> Any:
        made = super().__new__(cls)
        made.size = (size, unit)
        return made

    size: Any
    now: Any


class Span(tuple[Any, ...]):  # noqa: SLOT001  # so that it has attributes
    now: Any

    def __new__(cls, start: Any, end: Any) -> Any:
        return super().__new__(cls, (start, end))


class Label(str):  # noqa: SLOT000  # the same
    now: Any

    def __new__(cls, number: int, text: str) -> Any:
        return super().__new__(cls, f"{number}{text}")


@pytest.mark.parametrize("made", [Sized(3, unit="m"), Span([1], 2), Label(1, "a")])
def test_a_class_whose_new_takes_arguments_is_copied_without_it(made: Any) -> None:
    assert in_workers(made, now, put) == ALL
    assert not hasattr(made, "now")
    assert {type(each) for each in in_workers(made)} == {type(made)}


class Proxy:
    """As of wrapt: whatever is asked of it, another object answers."""

    __slots__ = ("__wrapped__",)
    __class__ = property(lambda self: type(self.__wrapped__))  # type: ignore[assignment]

    def __init__(self, wrapped: Any) -> None:
        object.__setattr__(self, "__wrapped__", wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)


def test_an_object_is_copied_by_its_memory_whatever_it_answers() -> None:
    value: Any = Proxy(Plain(now=-1))
    assert in_workers(value, now, put) == ALL
    assert value.now == -1
    assert {type(each) for each in in_workers(value)} == {type(value)}


def change(each: Any, number: int) -> None:
    """Add an entry, and drop an older one."""
    if isinstance(each, Plain):
        each = vars(each)
    if isinstance(each, set):
        each.add(number)
        each.discard(number - 50)
    elif hasattr(each, "keys"):
        each[f"name{number}"] = Plain()
        each.pop(f"name{number - 50}", None)
    else:
        each.append(Plain())
        each[0] = each.pop()


def test_another_thread_may_write_while_copies_are_made() -> None:
    kinds: tuple[Any, ...] = (dict, collections.OrderedDict, list, set, collections.deque)
    kept = [kind((k, Plain()) for k in range(300)) for kind in kinds]
    kept += [Plain(now=Plain()), collections.defaultdict(list), collections.UserDict()]
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count(1000):
            for each in kept:
                change(each, number)
            if number % 20 == 0:
                time.sleep(PAUSE)
            if stop.is_set():
                return

    writer = threading.Thread(target=write, name="test-writer")
    writer.start()
    try:
        for _ in range(8):
            assert len(in_workers(kept, len)) == ROWS
    finally:
        stop.set()
        writer.join()


class Opens:
    """Opens a connection on first use, which sqlite3 ties to the thread that does so."""

    def __init__(self, path: Path) -> None:
        self.path, self.reader = path, None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if self.reader is None:
            self.reader = Plain(connection=sqlite3.connect(self.path))
        query = "SELECT number FROM numbers WHERE number = ?"
        return int(self.reader.connection.execute(query, (index,)).fetchone()[0])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nobody closes them
@pytest.mark.parametrize("threads", [1, THREADS, None])
def test_what_samples_open_they_open_in_each_epoch(tmp_path: Path, threads: int | None) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute("CREATE TABLE numbers (number)")
        database.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in range(64)])
    loader = ThreadLoader(Opens(tmp_path / "a.db"), 4, threads=threads, collate_fn=list)
    for _ in range(3):
        assert [number for batch in loader for number in batch] == list(range(64))
    gc.collect()  # here the warnings are ignored


# What is not named by a warning, and what is


@pytest.mark.parametrize("mode", ["r+", "w+", "r+b"])
@pytest.mark.parametrize("threads", [THREADS, None])
def test_a_file_that_is_read_and_written_is_named(
    tmp_path: Path, threads: int | None, mode: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    with path.open(mode) as file, pytest.warns(UserWarning, match="value"):
        in_workers(Plain(file=file), lambda _: 0, threads=threads)


@pytest.mark.parametrize("make", [itertools.count, lambda: itertools.cycle([0, 1, 2])])
def test_an_iterator_of_itertools_stops_nobody(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drawn = in_workers(make(), next)
    assert set(drawn) <= set(ALL)
    # Pickling them is deprecated, hence they may be handles that nobody knows.
    assert all(re.search(r"value.*(count|cycle)", str(each.message)) for each in told)


def closed_file() -> Any:
    with Path(__file__).open("rb") as file:
        return file


class Bar:
    """A bar of progress, as of tqdm."""

    lock = threading.RLock()

    def __init__(self) -> None:
        self.file, self.seen, self.write_lock = sys.stderr, 0, threading.Lock()


@pytest.mark.parametrize(
    "make",
    [
        lambda: re.compile("a+"),
        lambda: re.match("a", "a"),
        lambda: sys.stderr,
        lambda: sys.__stdout__,
        closed_file,
        lambda: memoryview(b"abc"),
        lambda: np.dtype("f4"),
        Bar,
        lambda: pytest.importorskip("PIL.Image").new("RGB", (4, 4)),
        lambda: random.Random(1),
        lambda: np.random.default_rng(1),
        lambda: pytest.importorskip("torch").Generator(),
    ],
    ids="pattern match stderr stdout closed view dtype bar image random numpy torch".split(),  # noqa: SIM905
)
@pytest.mark.parametrize("threads", [THREADS, None])
def test_a_warning_names_no_object_without_a_handle(
    make: Callable[[], Any], threads: int | None
) -> None:
    in_workers(Plain(now=make()), threads=threads)  # a warning is an error


def test_a_handle_that_nobody_knows_is_shared_and_named_once_by_attribute_and_class() -> None:
    parser = expat.ParserCreate()
    with pytest.warns(UserWarning, match=r"value[^\n]*xmlparser") as told:
        assert all(each.now[0] is parser for each in in_workers(Plain(now=[parser, parser])))
    assert len(told) == 1
    with pytest.warns(UserWarning, match="xmlparser"):
        threads = set(in_workers(parser, lambda _: threading.get_ident(), threads=None))
    assert len(threads) == 1


# What becomes of copies


class Owner:
    ended: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.parts = [1]

    def __del__(self) -> None:
        self.ended.append(self.parts)


@pytest.mark.filterwarnings("ignore::UserWarning")  # a file to write to may be shared
def test_the_end_of_a_copy_ends_nothing_of_the_users() -> None:
    owner = Owner()
    memory = SharedMemory(create=True, size=16)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"kept")
        file.flush()
        in_workers(Plain(now=[owner, memory, file]), get=lambda value: len(value.now))
        gc.collect()
        assert not Owner.ended
        assert Path(file.name).read_bytes() == b"kept"
        assert file.tell() == 4
    again = SharedMemory(memory.name)
    again.buf[0] = 7
    assert memory.buf[0] == 7
    again.close()
    memory.close()
    memory.unlink()
    del owner
    gc.collect()
    assert Owner.ended.pop() == [1]


class Clips:
    def __len__(self) -> int:
        return 16

    @functools.cache  # noqa: B019  # as people do
    def audio(self, index: int) -> Any:
        return np.full(3, index)

    def __getitem__(self, index: int) -> Any:
        return self.audio(index)


@pytest.mark.parametrize("threads", [1, 2, None])
def test_a_cached_method_does_not_grow_from_epoch_to_epoch(threads: int | None) -> None:
    Clips.audio.cache_clear()
    with ThreadLoader(Clips(), 4, threads=threads, output="numpy") as loader:
        misses = []
        for _ in range(12):
            assert len(list(loader)) == 4
            gc.collect()
            misses.append(Clips.audio.cache_info().misses)
    assert Clips.audio.cache_info().currsize <= 3 * 16
    # The calling thread is a worker, too, where it is tried: it has a cache of its own.
    assert misses[-1] <= 3 * 16, "later epochs found nothing in the cache"


class Spawns:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return 48

    def __getitem__(self, _: int) -> float:
        return float(np.random.default_rng(self.rng.spawn(1)[0]).normal())


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.SeedSequence])
@pytest.mark.parametrize("threads", [0, 1, 3, None])
def test_children_of_a_generator_never_repeat_in_silence(make: Any, threads: int | None) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with ThreadLoader(Spawns(make(7)), 4, threads=threads, seed=1, output="numpy") as loader:
            drawn = [value for batch in loader for value in batch.tolist()]
    assert len(set(drawn)) == 48 or told


class Signals:
    loud = True

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if Signals.loud:
            signal.raise_signal(signal.SIGUSR1)
        return index


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
@pytest.mark.parametrize("threads", [0, 2, None])
def test_a_handler_of_signals_may_ask_for_the_state(
    threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "threads": threads, "output": "numpy"}
    with ThreadLoader(Signals(), 4, **options) as loader:
        before = signal.signal(signal.SIGUSR1, lambda *_: states.append(loader.state_dict()))
        try:
            order = [batch.tolist() for batch in loader]
        finally:
            signal.signal(signal.SIGUSR1, before)
    monkeypatch.setattr(Signals, "loud", False)
    assert states
    for state in states[:: max(1, len(states) // 6)]:
        with ThreadLoader(Signals(), 4, **options) as again:
            again.load_state_dict(state)
            assert [batch.tolist() for batch in again] in [order[begun:] for begun in range(7)]


class Scratch:
    """A dataset, and a function, without any attribute until it is used."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> bool:
        return self(index)

    def __call__(self, given: Any) -> bool:
        self.given = given
        return self is not SCRATCH


SCRATCH = Scratch()  # a module names it, as a script names its dataset
NAMED: dict[str, dict[str, Any]] = {
    "dataset": {"dataset": SCRATCH},
    "part": {"dataset": [SCRATCH] * 32, "collate_fn": lambda batch: [each(0) for each in batch]},
    "collate_fn": {"dataset": range(64), "collate_fn": SCRATCH},
    "transform": {"dataset": iter(range(64)), "transform": SCRATCH},
}


@pytest.mark.parametrize("how", NAMED)
def test_what_a_module_names_is_each_workers_own_if_it_has_methods(how: str, spawn: Spawn) -> None:
    loader = ThreadLoader(batch_size=2, threads=2, output="numpy", **NAMED[how])
    assert all(np.all(batch) for batch in spawn(list, loader).result(PATIENCE))
    assert vars(SCRATCH) == {}
