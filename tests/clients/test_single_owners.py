"""Objects of other libraries that are opened in ``__init__``: each worker has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.worker_copies import THREADS, Meeting

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE = 32


class Opened:
    """A dataset over what ``open_`` returns."""

    def __init__(self, handle: Any, read: Callable[[Any, int], Any]) -> None:
        self.handle = handle
        self.read = read

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.read(self.handle, index)


def loaded(dataset: Any, threads: int) -> list[Any]:
    with ThreadLoader(
        dataset, batch_size=None, threads=threads, collate_fn=lambda sample: sample
    ) as loader:
        return [sample for _ in range(3) for sample in loader]


def assert_own(handle: Any, read: Callable[[Any, int], Any], *, differ: bool = True) -> None:
    """Check that workers have objects of their own, which do what the user's does."""
    expected = loaded(Opened(handle, read), 0)
    for one, other in zip(loaded(Opened(handle, read), THREADS), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    seen: list[Any] = []
    meeting = Meeting()

    def look(handle: Any, index: int) -> int:
        seen.append(handle)
        meeting.wait()
        return index

    rows = list(range(THREADS))
    list(ThreadLoader(Opened(handle, look), batch_sampler=[[0], rows], threads=THREADS))
    assert (len({id(each) for each in seen}) == THREADS) is differ


def test_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    images = np.random.default_rng(0).integers(256, size=(SIZE, 96, 96), dtype=np.uint8)
    clahe = cv2.createCLAHE(3.0, (4, 4))
    assert_own(clahe, lambda clahe, index: clahe.apply(images[index]))
    orb = cv2.ORB_create(50, fastThreshold=9)
    assert_own(orb, lambda orb, index: orb.detectAndCompute(images[index], None)[1])


def test_opencv_capture(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = str(tmp_path / "it.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 25, (64, 48))
    for number in range(SIZE):
        writer.write(np.full((48, 64, 3), 4 * number, np.uint8))
    writer.release()
    dataset = Opened(cv2.VideoCapture(path), lambda _, index: index)
    with pytest.warns(UserWarning, match=r"share dataset\.handle \(cv2\.VideoCapture\)"):
        assert len(loaded(dataset, 2)) == 3 * SIZE


def test_pyarrow(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "it.parquet"
    table = pyarrow.table({"x": np.arange(100 * SIZE), "s": [f"{n}" for n in range(100 * SIZE)]})
    parquet.write_table(table, path, row_group_size=100)

    def read(file: Any, index: int) -> Any:
        (batch,) = file.iter_batches(1000, row_groups=[index])
        assert file.read_row_group(index)["x"].to_pylist() == batch["x"].to_pylist()
        return batch["x"].to_numpy()

    with parquet.ParquetFile(path) as file:
        assert_own(file, read)
    with parquet.ParquetFile(path, memory_map=True) as file:
        assert_own(file, read)
    assert_own(table, lambda table, index: table["x"][index].as_py(), differ=False)


def _lmdb(tmp_path: Path) -> Any:
    lmdb = pytest.importorskip("lmdb")
    environment = lmdb.open(str(tmp_path / "it.lmdb"), map_size=1 << 24)
    with environment.begin(write=True) as transaction:
        for number in range(SIZE):
            transaction.put(b"%03d" % number, b"%d" % number * 99)
    return environment


@pytest.mark.parametrize("buffers", [False, True])
def test_lmdb(tmp_path: Path, buffers: bool) -> None:
    def get(environment: Any, index: int) -> bytes:
        with environment.begin(buffers=buffers) as transaction:
            return bytes(transaction.get(b"%03d" % index))

    with _lmdb(tmp_path) as environment:
        assert_own(environment, get, differ=False)


class Transacts(Opened):
    def __init__(self, environment: Any, read: Any, *, buffers: bool) -> None:
        super().__init__(None, read)
        self.environment = environment
        self.transaction = environment.begin(buffers=buffers)
        self.handle = self.transaction.cursor()


@pytest.mark.parametrize("buffers", [False, True])
def test_lmdb_cursor(tmp_path: Path, buffers: bool) -> None:
    def read(cursor: Any, index: int) -> bytes:
        assert cursor.set_key(b"%03d" % index)
        assert type(cursor.value()) is (memoryview if buffers else bytes)
        return bytes(cursor.value())

    with _lmdb(tmp_path) as environment:
        dataset = Transacts(environment, read, buffers=buffers)
        assert loaded(dataset, THREADS) == loaded(dataset, 0)
        dataset.handle = dataset.transaction = None  # type: ignore[assignment]


@pytest.mark.parametrize("threads", [1, THREADS, None])
@pytest.mark.parametrize("keeps", [False, True])
def test_lmdb_on_first_use(tmp_path: Path, threads: int | None, keeps: bool) -> None:
    lmdb = pytest.importorskip("lmdb")
    _lmdb(tmp_path).close()

    class Lazy:
        environment: Any = None

        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, index: int) -> int:
            if self.environment is None:
                self.environment = lmdb.open(str(tmp_path / "it.lmdb"), readonly=True, lock=False)
                self.transaction = self.environment.begin() if keeps else None
            transaction = self.transaction or self.environment.begin()
            return len(transaction.get(b"%03d" % index))

    arguments: dict[str, Any] = {} if threads is None else {"threads": threads}
    with ThreadLoader(Lazy(), batch_size=4, **arguments) as loader:
        for _ in range(4):
            assert sum(len(batch) for batch in loader) == SIZE


def test_h5py(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "it.h5", "w") as file:
        file["x"] = np.arange(10 * SIZE).reshape(SIZE, 10)
    with h5py.File(tmp_path / "it.h5") as file:
        assert_own(file, lambda file, index: file["x"][index], differ=False)
        assert_own(file["x"], lambda rows, index: rows[index], differ=False)


def test_av(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = str(tmp_path / "it.avi")
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = 64, 48
        for number in range(SIZE):
            image = np.full((48, 64, 3), 4 * number, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(image)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)

    def read(container: Any, index: int) -> Any:
        container.seek(0)
        frames = container.decode(video=0)
        for _ in range(index % 5):
            next(frames)
        return next(frames).to_ndarray(format="rgb24").mean()

    with av.open(path) as container:
        assert_own(container, read)
        assert_own(container.streams.video[0], lambda stream, _: stream.width)


def test_rasterio(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    pixels = np.random.default_rng(0).integers(256, size=(1, 64, 64), dtype=np.uint8)
    profile = {"width": 64, "height": 64, "count": 1, "dtype": "uint8"}
    with rasterio.open(tmp_path / "it.tif", "w", driver="GTiff", **profile) as file:
        file.write(pixels)

    def read(file: Any, index: int) -> Any:
        return file.read(1, window=((index, index + 8), (0, 64)))

    with rasterio.open(tmp_path / "it.tif") as file:
        assert_own(file, read)


def test_tifffile(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(0).integers(256, size=(SIZE, 64, 64), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "it.tif", pixels)
    with tifffile.TiffFile(tmp_path / "it.tif") as file:
        assert_own(file, lambda file, index: file.asarray(key=index))


def test_soundfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = np.random.default_rng(0).uniform(-1, 1, 100 * SIZE)
    soundfile.write(tmp_path / "it.wav", samples, 8000)

    def read(file: Any, index: int) -> Any:
        file.seek(100 * index)
        return file.read(100)

    with soundfile.SoundFile(str(tmp_path / "it.wav")) as file:
        assert_own(file, read)


def test_duckdb() -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect(":memory:")
    connection.execute("CREATE TABLE rows AS SELECT range AS value FROM range(100)")

    def read(connection: Any, index: int) -> Any:
        return connection.execute("SELECT value FROM rows WHERE value = ?", [index]).fetchone()

    assert_own(connection, read)
    connection.close()


def test_tokenizers() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, **{f"w{number}": number + 1 for number in range(SIZE)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()

    def read(tokenizer: Any, index: int) -> Any:
        tokenizer.enable_truncation(1 + index % 3)
        return tokenizer.encode(" ".join(f"w{number}" for number in range(index + 1))).ids

    assert_own(tokenizer, read)


def test_requests() -> None:
    requests = pytest.importorskip("requests")
    session = requests.Session()
    session.headers["x"] = "y"
    assert_own(session, lambda session, index: index if session.headers["x"] == "y" else -1)
    session.close()
