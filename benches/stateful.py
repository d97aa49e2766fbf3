"""Whether samples mix: datasets that keep what they work on, loaded by threads over and over.

``python -m benches.stateful --seconds 3600``, once with each Python.

A sample puts something on ``self`` in one step, and takes it from there in another; so does the
``collate_fn``.  A handle or a buffer that two workers have is then a wrong sample.  Kinds and
numbers of threads take turns with fresh datasets and loaders, of three short epochs each, so that
most of the work is making copies; half of the datasets open what they keep in their first sample.
All is compared with plain indexing; the exit code is 1 where a sample is wrong, missing or an
error.  ``--copy shared`` copies nothing, which shows what the comparison finds.

Left out is a library that is missing, or that switches the GIL on, unless ``--kinds`` names it.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import io
import mmap
import random
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter, OrderedDict, deque
from importlib import import_module as load
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import RandomState

from benches.harness.command import command_line
from benches.harness.machine import gil_enabled, machine_lines
from benches.harness.tables import align
from benches.harness.usage import measure_pss_mib
from threadloader import ThreadLoader, ThreadLoaderWarning, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS, BATCH, EPOCHS = 64, 4, 3
LIMIT = 300.0  # seconds that a loader may take before it counts as one that hangs
PAUSE = 0.002  # seconds between the steps of a sample, where its loader looks for the number
TEXTS = [b"%08d" % (number * 1_299_709) for number in range(ROWS)]
WIDTH = len(TEXTS[0])
NUMBERS = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) / ROWS / WIDTH
OPENERS = {name: load(name).open for name in ("io", "gzip", "bz2", "lzma")}
QUERY = "select text from texts where number = ?"
# Threads, persistent_workers; the first is all that runs in no time.
LANES = [(8, False), *product((2, 16, None), (False, True)), (8, True), (0, False)]


class Kind(NamedTuple):
    """What a dataset keeps as attributes: how it is opened, put in place and read."""

    open: Callable[[Path], dict[str, Any]]
    put: Callable[[Any, int], object]
    take: Callable[[Any], bytes]
    write: Callable[[Path], object] = str  # its files; most have none


class Rows:
    """A dataset of one kind.

    Args:
        kind: Its name.
        folder: Of the files.
        late: Open in the first sample.
        pause: Between the two steps of a sample, in seconds.
    """

    def __init__(self, kind: str, folder: Path, late: bool = False, pause: float = 0) -> None:
        self.kind, self.folder, self.pause, self.added = kind, folder, pause, 0
        self.is_open = False
        if not late:
            self._open()

    def _open(self) -> None:
        vars(self).update(KINDS[self.kind].open(self.folder), is_open=True)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[int, int]:
        if not self.is_open:
            self._open()
        KINDS[self.kind].put(self, index)
        time.sleep(self.pause)
        return index, zlib.crc32(KINDS[self.kind].take(self)) + self.added


def _window(dataset: Any) -> Iterator[tuple[int, int]]:
    """Yield the rows of a replica of a stream, from a window in which they change places."""
    info = get_worker_info()
    dataset.at, step = (info.id, info.num_workers) if info else (0, 1)
    dataset.window, dataset.random = deque(), random.Random(0)
    while dataset.at < ROWS or dataset.window:
        if dataset.at < ROWS:
            dataset.window.append(dataset[dataset.at])
            dataset.at += step
        if dataset.at >= ROWS or len(dataset.window) > 8:
            dataset.window.rotate(dataset.random.randrange(8))
            yield dataset.window.popleft()


@functools.cache
def _class_of(kind: str) -> Any:
    if kind != "streams":
        return Rows
    bases = (load("torch.utils.data").IterableDataset, Rows)
    return type("Stream", bases, {"__iter__": _window, "__getitem__": Rows.__getitem__})


class Batches:
    """A ``collate_fn`` that gathers samples in a list of its own."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def __call__(self, samples: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the samples."""
        self.rows[:] = samples
        time.sleep(0)
        return list(self.rows)


class Cache(OrderedDict[int, bytes]):
    """Texts of which few are kept, here and in a cached method."""

    def __init__(self) -> None:
        self.cached = functools.lru_cache(4)(self.load)

    def load(self, number: int) -> bytes:
        """Make a text, by way of an attribute."""
        self.loaded = TEXTS[number]
        time.sleep(0)
        return self.loaded

    def put(self, index: int) -> None:
        """Make one text the newest."""
        self.number = index % 16
        self[self.number] = self.pop(self.number, b"") or self.load(self.number)
        if len(self) > 4:
            self.popitem(last=False)


def _write_files(at: Path) -> None:
    for name, opener in OPENERS.items():
        with opener(at / name, "wb") as file:
            file.write(b"".join(TEXTS))


def _write_archives(at: Path) -> None:
    np.savez_compressed(at / "rows", **{str(n): row for n, row in enumerate(NUMBERS)})
    with zipfile.ZipFile(at / "zip", "w") as made, tarfile.open(at / "tar", "w") as tar:
        for number, text in enumerate(TEXTS):
            made.writestr(str(number), text)
            (at / "text").write_bytes(text)
            tar.add(at / "text", str(number))


def _write_sqlite(at: Path) -> None:
    with sqlite3.connect(at / "sqlite") as db:
        db.execute("create table texts (number integer primary key, text blob)")
        db.executemany("insert into texts values (?, ?)", enumerate(TEXTS))


@functools.cache
def _lmdb(path: Path) -> Any:
    environment = load("lmdb").open(str(path), lock=False)  # once in a process
    with environment.begin(write=True) as transaction:
        for number, text in enumerate(TEXTS):
            transaction.put(b"%d" % number, text)
    return environment


def _write_frames(at: Path) -> None:
    first, *others = (load("PIL.Image").frombytes("L", (WIDTH, 1), text) for text in TEXTS)
    first.save(at / "frames.tif", save_all=True, append_images=others)


def _write_video(at: Path) -> None:
    with load("av").open(str(at / "video.mkv"), "w") as video:
        stream = video.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "gray"
        for number in range(ROWS):
            image = np.full((16, 16), number, np.uint8)
            video.mux(stream.encode(load("av").VideoFrame.from_ndarray(image, "gray")))
        video.mux(stream.encode(None))


def _open_map(at: Path) -> dict[str, Any]:
    with (at / "io").open("rb") as file:
        return {"map": mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)}


def _open_frame(_: Path) -> dict[str, Any]:
    frame = load("pandas").DataFrame(NUMBERS).assign(key=[n % 16 for n in range(ROWS)])
    return {"frame": frame, "keyed": frame.set_index("key"), "groups": frame.groupby("key")}


def _seed(dataset: Any, index: int) -> None:
    dataset.random.seed(index)
    dataset.old.seed(index)
    dataset.rng.bit_generator.state = np.random.PCG64(index).state


def _fill(dataset: Any, index: int) -> None:
    dataset.row[:], dataset.memory[:] = NUMBERS[index], TEXTS[index]
    dataset.file.seek(0)
    dataset.file.write(TEXTS[index])


FILES = Kind(
    lambda at: {"files": [opener(at / name, "rb") for name, opener in OPENERS.items()]},
    lambda o, i: [file.seek(i * WIDTH) for file in o.files],
    lambda o: b"".join(file.read(WIDTH) for file in o.files),
    _write_files,
)
OF_PYTHON = {
    "files": FILES,
    "archives": Kind(
        lambda at: {
            "zip": zipfile.ZipFile(at / "zip"),
            "npz": np.load(at / "rows.npz"),
            "tar": tarfile.TarFile(at / "tar"),
        },
        lambda o, i: vars(o).update(name=str(i), member=o.zip.open(str(i))),
        lambda o: o.member.read() + o.npz[o.name].tobytes() + o.tar.extractfile(o.name).read(),
        _write_archives,
    ),
    "mmap": Kind(
        _open_map, lambda o, i: o.map.seek(i * WIDTH), lambda o: o.map.read(WIDTH), _write_files
    ),
    "sqlite3": Kind(
        lambda at: {"cursor": sqlite3.connect(at / "sqlite").cursor()},
        lambda o, i: o.cursor.execute(QUERY, [i]),
        lambda o: o.cursor.fetchone()[0],
        _write_sqlite,
    ),
    "caches": Kind(
        lambda _: {"cache": Cache()},
        lambda o, i: o.cache.put(i),
        lambda o: o.cache[o.cache.number] + o.cache.cached(o.cache.number),
    ),
    "generators": Kind(
        lambda _: {"random": random.Random(), "old": RandomState(), "rng": np.random.default_rng()},
        _seed,
        lambda o: o.random.randbytes(8) + o.old.bytes(8) + o.rng.bytes(8),
    ),
    "buffers": Kind(
        lambda _: {"row": np.zeros(WIDTH), "memory": bytearray(WIDTH), "file": io.BytesIO()},
        _fill,
        lambda o: o.row.tobytes() + o.memory + o.file.getvalue(),
    ),
}
OF_LIBRARIES = {  # by their modules
    "h5py": Kind(
        lambda at: {"rows": load("h5py").File(at / "h5")["rows"], "row": np.zeros(WIDTH, "f4")},
        lambda o, i: o.rows.read_direct(o.row, np.s_[i]),
        lambda o: o.row.tobytes(),
        lambda at: load("h5py").File(at / "h5", "w").create_dataset("rows", data=NUMBERS),
    ),
    "pyarrow": Kind(
        lambda at: {"file": load("pyarrow.parquet").ParquetFile(at / "parquet")},
        lambda o, i: vars(o).update(table=o.file.read_row_group(i // 4), at=i % 4),
        lambda o: o.table["text"][o.at].as_py(),
        lambda at: load("pyarrow.parquet").write_table(
            load("pyarrow").table({"text": TEXTS}), at / "parquet", row_group_size=4
        ),
    ),
    "lmdb": Kind(
        lambda at: {
            "environment": (environment := _lmdb(at / "lmdb")),
            "transaction": (transaction := environment.begin()),
            "cursor": transaction.cursor(),
        },
        lambda o, i: o.cursor.set_key(b"%d" % i),
        lambda o: o.cursor.value(),
    ),
    "PIL": Kind(
        lambda at: {"image": load("PIL.Image").open(at / "frames.tif")},
        lambda o, i: o.image.seek(i),
        lambda o: o.image.tobytes(),
        _write_frames,
    ),
    "av": Kind(
        lambda at: {"video": load("av").open(str(at / "video.mkv"))},
        lambda o, i: vars(o).update(at=i / 25 - 0.02, now=o.video.seek(i * 40_000)),
        lambda o: next(f.to_ndarray() for f in o.video.decode(video=0) if f.time > o.at).tobytes(),
        _write_video,
    ),
    "soundfile": Kind(
        lambda at: {"sound": load("soundfile").SoundFile(at / "sound.flac")},
        lambda o, i: o.sound.seek(i * WIDTH),
        lambda o: o.sound.read(WIDTH).tobytes(),
        lambda at: load("soundfile").write(at / "sound.flac", NUMBERS.ravel(), 8000),
    ),
    "torch": Kind(
        lambda _: {"tensor": load("torch").zeros(WIDTH), "rng": load("torch").Generator()},
        lambda o, i: (o.rng.manual_seed(i), o.tensor.fill_(i)),
        lambda o: (o.tensor + load("torch").rand(WIDTH, generator=o.rng)).numpy().tobytes(),
    ),
    "pandas": Kind(
        _open_frame,
        lambda o, i: vars(o).update(window=o.frame.iloc[i : i + 5], key=i % 16),
        lambda o: b"".join(
            each[[0, 1]].to_numpy().tobytes()
            for each in (o.window, o.groups.get_group(o.key), o.keyed.loc[o.key])
        ),
    ),
    "streams": FILES,
}
KINDS: dict[str, Kind] = OF_PYTHON | OF_LIBRARIES


def main() -> int:
    """Load until the time is over, print the table, return 1 where a sample was wrong."""
    parser = command_line("stateful", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND", help=str([*KINDS]))
    parser.add_argument("--copy", default="auto", choices=["auto", "deep", "shared"])
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    left_out = {} if options.kinds else {name: _why_not(name) for name in OF_LIBRARIES}
    found = {n: Counter[str]() for n in options.kinds or KINDS if not left_out.get(n)}
    total = Counter[str]()
    warnings.simplefilter("error", UserWarning)  # among them that a handle is shared
    warnings.simplefilter("ignore", ThreadLoaderWarning)
    with tempfile.TemporaryDirectory() as made:
        at = Path(made)
        for name in found:
            KINDS[name].write(at)
        right = {name: list(map(Rows(name, at).__getitem__, range(ROWS))) for name in found}
        for turn in count():
            threads, persistent = LANES[turn % len(LANES)]
            late, pause = bool(turn // len(LANES) % 2), PAUSE if threads is None else 0
            given = {"threads": threads, "persistent_workers": persistent}
            for name, counts in found.items():
                faulthandler.dump_traceback_later(2 * LIMIT, exit=True)
                dataset = _class_of(name)(name, at, late, pause)
                _load(dataset, right[name], counts, {**given, "dataset_copy": options.copy})
            total = sum(found.values(), Counter())
            _tell(turn, total)
            if time.monotonic() > end:
                break
    faulthandler.cancel_dump_traceback_later()
    print(machine_lines())
    columns = ["epochs", "samples", "wrong", "errors"]
    lines = {**found, "all": total}
    rows = [[name, *(f"{counts[each]:,}" for each in columns)] for name, counts in lines.items()]
    print(align(["a dataset that keeps", *columns], rows))
    print(*(f"left out is {name}: {why}" for name, why in left_out.items() if why), sep="\n")
    return 1 if total["wrong"] or total["errors"] else 0


def _why_not(name: str) -> str | None:
    """Return why a library is left out, None where it is not."""
    look = "" if gil_enabled() else "sys.exit('the GIL is on then' if sys._is_gil_enabled() else 0)"
    code = f"import sys, {'torch' if name == 'streams' else name}; {look}"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else None


def _load(dataset: Any, right: list[Any], counts: Counter[str], given: dict[str, Any]) -> None:
    """Load some epochs, and count."""
    try:
        with ThreadLoader(
            dataset,
            BATCH,
            shuffle=type(dataset) is Rows,
            collate_fn=Batches(),
            timeout=LIMIT if given["threads"] else 0,
            **given,
        ) as loader:
            for epoch in range(EPOCHS):
                if not given["persistent_workers"]:
                    dataset.added = epoch  # so that there are new copies
                wanted = Counter((index, value + dataset.added) for index, value in right)
                got = Counter(sample for batch in loader for sample in batch)
                wrong = max((got - wanted).total(), (wanted - got).total())
                counts.update(epochs=1, samples=got.total(), wrong=wrong)
                if wrong:
                    print(f"{dataset.kind}, {given}: {wrong} samples are wrong", file=sys.stderr)
    except Exception:  # noqa: BLE001  # of any library
        counts["errors"] += 1
        print(f"{dataset.kind}, {given}:\n{traceback.format_exc()}", file=sys.stderr)


def _tell(turn: int, total: Counter[str]) -> None:
    """Say how far it has come, and what the process has then."""
    gc.collect()  # connections of sqlite3 and containers of PyAV are cycles
    handles = Path("/proc/self/fd")  # on Linux
    files = len(list(handles.iterdir())) if handles.exists() else None
    told = ", ".join(f"{value:,} {name}" for name, value in total.items())
    has = f"{measure_pss_mib() or 0:.0f} MiB, {files} files"
    print(f"  turn {turn}: {told}; {has}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
