"""Objects of other libraries that are opened in ``__init__``: each worker has its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from support.worker_copies import THREADS, Meeting

from threadloader import ThreadLoader

SIZE = 32
PIXELS = np.random.default_rng(0).integers(256, size=(SIZE, 64, 64), dtype=np.uint8)

# An object, how it is read, and how it is closed.
Opened = tuple[Any, "Callable[[Any, int], Any]"]


class Seen(Meeting):
    """What samples were read from; one for all copies, whatever is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Any] = []


class Reads:
    """A dataset over an object of a library."""

    def __init__(self, handle: Any, read: Callable[[Any, int], Any]) -> None:
        self.handle = handle
        self.read = read

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.read(self.handle, index)


def clahe(_: Path) -> Opened:
    cv2 = pytest.importorskip("cv2")
    return cv2.createCLAHE(3.0, (4, 4)), lambda it, index: it.apply(PIXELS[index])


def orb(_: Path) -> Opened:
    cv2 = pytest.importorskip("cv2")
    images = np.repeat(np.repeat(PIXELS, 2, 1), 2, 2)
    made = cv2.ORB_create(50, fastThreshold=9)
    return made, lambda it, index: it.detectAndCompute(images[index], None)[1]


def parquet(folder: Path, **options: Any) -> Opened:
    files, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": np.arange(100 * SIZE)})
    files.write_table(table, folder / "it.parquet", row_group_size=100)

    def read(file: Any, index: int) -> Any:
        batches = file.iter_batches(50, row_groups=[index])
        first = next(batches)["x"].to_pylist()
        group = file.read_row_group(index)["x"]
        assert group.to_pylist() == [*first, *next(batches)["x"].to_pylist()]
        return group.to_numpy()

    return files.ParquetFile(folder / "it.parquet", **options), read


def parquet_mapped(folder: Path) -> Opened:
    return parquet(folder, memory_map=True)


def arrow_table(_: Path) -> Opened:
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({"x": np.arange(SIZE)}), lambda it, index: it["x"][index].as_py()


def lmdb_environment(folder: Path) -> Any:
    environment = pytest.importorskip("lmdb").open(str(folder / "it.lmdb"), map_size=1 << 24)
    with environment.begin(write=True) as transaction:
        for number in range(SIZE):
            transaction.put(b"%03d" % number, b"%d" % number * 99)
    return environment


def lmdb_of_begin(folder: Path) -> Opened:
    def get(environment: Any, index: int) -> bytes:
        with environment.begin(buffers=bool(index % 2)) as transaction:
            return bytes(transaction.get(b"%03d" % index))

    return lmdb_environment(folder), get


def hdf5(folder: Path) -> Opened:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "it.h5", "w") as file:
        file["x"] = PIXELS
    return h5py.File(folder / "it.h5"), lambda it, index: it["x"][index]


def av_container(folder: Path) -> Opened:
    av = pytest.importorskip("av")
    with av.open(str(folder / "it.avi"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = 64, 48
        for number in range(SIZE):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 4 * number, np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())

    def read(container: Any, index: int) -> Any:
        container.seek(0)
        frames = container.decode(video=0)
        for _ in range(index % 5):
            next(frames)
        return next(frames).to_ndarray(format="rgb24").mean()

    return av.open(str(folder / "it.avi")), read


def geo_tiff(folder: Path) -> Opened:
    rasterio = pytest.importorskip("rasterio")
    profile = {"width": 64, "height": 64, "count": 1, "dtype": "uint8"}
    with rasterio.open(folder / "it.tif", "w", driver="GTiff", **profile) as file:
        file.write(PIXELS[:1])
    made = rasterio.open(folder / "it.tif")
    return made, lambda it, index: it.read(1, window=((index, index + 8), (0, 64)))


def tiff(folder: Path) -> Opened:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(folder / "it.tif", PIXELS)
    return tifffile.TiffFile(folder / "it.tif"), lambda it, index: it.asarray(key=index)


def sound(folder: Path) -> Opened:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(folder / "it.wav", PIXELS.ravel() / 256.0, 8000)
    made = soundfile.SoundFile(str(folder / "it.wav"))
    return made, lambda it, index: (it.seek(100 * index), it.read(100))[1]


def database(_: Path) -> Opened:
    connection = pytest.importorskip("duckdb").connect(":memory:")
    connection.execute("CREATE TABLE rows AS SELECT range AS value FROM range(100)")
    query = "SELECT value FROM rows WHERE value = ?"
    return connection, lambda it, index: it.execute(query, [index]).fetchone()


def tokenizer(_: Path) -> Opened:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, **{f"w{number}": number + 1 for number in range(SIZE)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()

    def read(it: Any, index: int) -> Any:
        it.enable_truncation(1 + index % 3)
        return it.encode(" ".join(f"w{number}" for number in range(index + 1))).ids

    return made, read


def session(_: Path) -> Opened:
    made = pytest.importorskip("requests").Session()
    made.headers["x"] = "y"
    return made, lambda it, index: index if it.headers["x"] == "y" else -1


def test_of_a_parquet_file_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    file, _ = parquet(tmp_path)
    damaged = file.metadata.row_group(1).column(0)
    data = bytearray((tmp_path / "it.parquet").read_bytes())
    data[damaged.data_page_offset : damaged.data_page_offset + 8] = bytes(8)
    (tmp_path / "it.parquet").write_bytes(data)
    reads = Reads(file, lambda file, _: len(next(file.iter_batches(100))))
    assert list(ThreadLoader(reads, None, threads=1)) == [100] * SIZE


SHARED = [arrow_table, lmdb_of_begin, hdf5]  # threads may share them
OWN = [clahe, orb, parquet, parquet_mapped, av_container, geo_tiff, tiff, sound, database]
OWN += [tokenizer, session]


@pytest.mark.parametrize("make", [*OWN, *SHARED], ids=lambda make: make.__name__)
def test_workers_have_objects_of_their_own_unless_threads_may_share_them(
    make: Callable[[Path], Opened], tmp_path: Path
) -> None:
    handle, read = make(tmp_path)
    try:
        expected = [read(handle, index) for index in range(SIZE)]
        with ThreadLoader(
            Reads(handle, read), batch_size=None, threads=THREADS, collate_fn=lambda sample: sample
        ) as loader:
            for _ in range(3):
                for sample, same in zip(loader, expected, strict=True):
                    np.testing.assert_array_equal(sample, same)
        seen = Seen()

        def look(handle: Any, index: int) -> int:
            seen.handles.append(handle)
            seen.wait()
            return index

        rows = list(range(THREADS))
        list(ThreadLoader(Reads(handle, look), batch_sampler=[[0], rows], threads=THREADS))
        assert (len({id(each) for each in seen.handles}) == THREADS) is (make in OWN)
    finally:
        if hasattr(handle, "close"):
            handle.close()


class Watched:
    """The reader of a Parquet file that notes whether two calls read at once."""

    made: list[Watched]  # of all copies

    def __init__(self, table: Any) -> None:
        self.table, self.free, self.mixed = table, Lock(), False
        self.made.append(self)

    def read_row_group(self, *_: object, **__: object) -> Any:
        if not self.free.acquire(blocking=False):
            self.mixed = True
            return self.table
        time.sleep(0.001)
        self.free.release()
        return self.table


class Groups:
    """Opens a Parquet file on first use, and keeps data that it has read."""

    file: Any = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            files = pytest.importorskip("pyarrow.parquet")
            self.file = files.ParquetFile(self.folder / "it.parquet")
            self.file.reader = Watched(self.file.read_row_group(0))
        self.table = self.file.read_row_group(index)
        return index


def test_one_call_at_a_time_reads_a_parquet_file_that_a_sample_opens(tmp_path: Path) -> None:
    parquet(tmp_path)
    Watched.made = []
    list(ThreadLoader(Groups(tmp_path), 1, threads=THREADS))
    assert len(Watched.made) == THREADS
    assert not any(reader.mixed for reader in Watched.made)
