"""Objects of libraries that one thread at a time may use, and how each worker gets its own.

A table says of each class one of two things:

- ``SHARED``: its objects lock themselves, or a process must not have two.
- A function that makes such an object anew from what it says of how it was opened, or raises.

Classes are looked up by module and name among those that are imported; nothing is imported here.
What is in no table and can't be rebuilt by the protocol of `pickle` is shared, and named.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._batch.parts import attributes
from threadloader._lifetime import DROPPED, when_dropped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._worker.own_copy import Copier, Rule


def SHARED(value: Any, copier: Copier) -> Any:  # noqa: N802  # an entry of the table
    """Return the object itself."""
    return copier.data(value)


def _require(fact: object) -> None:
    """Refuse to make an object anew unless it says all of how it was opened."""
    if not fact:
        raise ValueError


def register(kind: Any, open_again: Callable[[Any], Any] | None) -> None:
    """Say how each worker gets its own object of a class, and of the classes derived from it.

    For handles of libraries that threadloader does not know: an object that can be used by one
    thread at a time, and that no copy of its attributes can stand for.

    Args:
        kind: The class.
        open_again: Called with the dataset's object, once for each worker, never for two at a time;
            returns one like it, opened again.  If it raises, the workers share the object, and a
            warning names it.  None: all workers share the object, as threads may use it at once.

    Raises:
        TypeError: ``kind`` is no class.

    Example:
        ``register(Reader, lambda reader: Reader(reader.path))``
    """
    if not isinstance(kind, type):
        msg = f"kind must be a class, but got {kind!r}"
        raise TypeError(msg)
    rule = SHARED if open_again is None else lambda value, _: open_again(value)
    _registered[kind] = rule
    _rules.clear()


_registered: weakref.WeakKeyDictionary[type, Rule] = weakref.WeakKeyDictionary()


def handle_rule(kind: type) -> Rule | None:
    """Return what the tables say of a class, or of the nearest of its bases; None for nothing."""
    try:
        return _rules[kind]
    except KeyError:
        rule = _rules[kind] = _find_rule(kind)
        return rule


# What was found.  Two threads may find the same at once.
_rules: weakref.WeakKeyDictionary[type, Rule | None] = weakref.WeakKeyDictionary()


def _find_rule(kind: type) -> Rule | None:
    for base in kind.__mro__[:-1]:
        if (rule := _registered.get(base)) is not None:
            return rule
        library = str(base.__module__).partition(".")[0]
        if library == "builtins" and getattr(sys.modules["builtins"], base.__name__, None) is base:
            continue
        # C classes of lmdb say that they are builtins.
        for name, rule in TABLE.get(library if library != "builtins" else "lmdb", {}).items():
            if name == "*" or _named(name) is base:
                return rule
    return None


def _is_written(value: Any) -> bool:
    """Whether an object is a file in which all write: the process's own, or for writing alone."""
    if any(value is each for each in (sys.stdout, sys.stderr)):
        return True
    is_open = isinstance(value, io.IOBase) and not value.closed
    return is_open and value.writable() and not value.readable()


def _named(name: str) -> Any:
    """Return the class of that name, if its module is imported."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)


def _closing(kind: Any) -> Any:
    """Return a class whose objects close themselves when they are dropped, without a warning."""
    if kind not in _closing_classes:
        # By that name, as it stands in messages.
        names = {"__del__": kind.close, "__module__": kind.__module__}
        _closing_classes[kind] = type(kind.__name__, (kind,), names)
    return _closing_classes[kind]


# What was made.  Two threads may make the same at once.
_closing_classes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


# Files


def _file(file: Any, copier: Copier) -> Any:
    if file.closed or _is_written(file):
        return copier.keep(file, file)
    _require(not file.writable())  # what is read there is what others may write
    innermost = file
    while (inner := getattr(innermost, "buffer", getattr(innermost, "raw", None))) is not None:
        innermost = inner
    # Else a class of the user's, with more to it, or what reads a compressed file.
    _require(type(file).__module__ == "_io" and isinstance(innermost, io.FileIO))
    path, status = file.name, os.fstat(file.fileno())
    _require(isinstance(path, (str, bytes)) and stat.S_ISREG(status.st_mode))
    _require(os.path.samestat(status, os.stat(path)))  # noqa: PTH116  # bytes, too
    place = file.tell()
    twin = _closing(io.FileIO)(path)
    if not isinstance(file, io.FileIO):
        twin = _closing(io.BufferedReader)(twin)
    if isinstance(file, io.TextIOWrapper):
        # Whether these are line ends, a file does not say.
        _require(b"\r" not in twin.read(1 << 16))
        twin.seek(0)
        twin = _closing(io.TextIOWrapper)(twin, encoding=file.encoding, errors=file.errors)
    twin.seek(place)
    return twin


def _archive(archive: Any, copier: Copier) -> Any:
    archive.getmembers()  # all of them, or each copy would find them for all
    twin = copier.keep(archive, object.__new__(type(archive)))
    twin.__dict__.update(archive.__dict__)
    twin.fileobj = yield "fileobj", archive.fileobj
    _require(twin.fileobj is not archive.fileobj)
    twin.members = list(archive.members)
    copier.copied.silence(twin)
    return twin


def _map(memory: mmap.mmap, copier: Copier) -> Any:
    """Map the same part of the same file once more: a map has a place at which it is read."""
    path, access, offset = _mapped_at(memory)
    if not path or path.startswith("/dev/"):  # memory that processes share
        return copier.data(memory)
    with open(path, "r+b" if access == mmap.ACCESS_WRITE else "rb") as file:  # noqa: PTH123
        twin = mmap.mmap(file.fileno(), len(memory), access=access, offset=offset)
    _require(_mapped_at(twin) == (path, access, offset))
    twin.seek(memory.tell())
    return twin


def _mapped_at(memory: mmap.mmap) -> tuple[str, int, int]:
    """Return the path of the file that is mapped, the access, and where in the file it begins.

    The path is empty where no file is mapped, and as the system has it, with "(deleted)" say.

    Raises:
        OSError: The system does not tell.
        ValueError: It is closed.
    """
    start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, offset, _, _, *path = line.split(maxsplit=5)
        first, last = (int(each, 16) for each in span.split("-"))
        if first <= start < last:
            written = mmap.ACCESS_WRITE if rights[3] == "s" else mmap.ACCESS_COPY
            access = written if rights[1] == "w" else mmap.ACCESS_READ
            return "".join(path), access, int(offset, 16) + start - first
    raise ValueError(start)


def _opened_by(
    function: str, path: str = "name", own: str = "", *, same: Sequence[str] = (), **options: Any
) -> Rule:
    """Return what opens a file again by a library's function, and goes to the same place.

    Args:
        function: Its name; of a class for what closes itself then.
        path: The attribute that has the path, with dots.
        own: An attribute that is true of a file that was opened by its path; around another file
            it may begin anywhere.
        same: Attributes that are to be the same as before.
        options: Further arguments.
    """

    def make(value: Any, copier: Copier) -> Any:
        if getattr(value, "closed", False) or _is_written(value):
            return copier.keep(value, value)
        _require(not own or getattr(value, own))
        found = value
        for name in path.split("."):
            found = getattr(found, name)
        found = found() if callable(found) else found
        _require(isinstance(found, (str, bytes)))
        opens = _named(function)
        twin = (_closing(opens) if isinstance(opens, type) else opens)(found, **options)
        _require(all(getattr(twin, name) == getattr(value, name) for name in same))
        if hasattr(value, "tell") and (place := value.tell()):
            twin.seek(place)
        return twin

    return make


def _image(image: Any, copier: Copier) -> Any:
    """Open an image of Pillow's again that was not read yet; copy one in memory."""
    # One of several frames always needs its file.
    if getattr(image, "fp", None) is None and not getattr(image, "is_animated", False):
        nbytes = image.width * image.height * len(image.getbands())
        return image.copy() if copier.affords(nbytes) else copier.data(image)
    frame = image.tell()
    try:
        _require(path := getattr(image, "filename", None))
        twin = _named("PIL.Image.open")(_closing(io.BufferedReader)(_closing(io.FileIO)(path)))
        _require(type(twin) is type(image) and twin.size == image.size)
        twin.filename = path
        if frame:
            twin.seek(frame)
    except Exception:  # noqa: BLE001  # whatever Pillow raises
        _require(getattr(image, "n_frames", 1) == 1)
        return image.copy()  # which reads it
    return twin


# Databases


def _connection(connection: Any, _copier: Copier) -> Any:
    sqlite3 = sys.modules["sqlite3"]
    [(_, name, path), *others] = _rows(connection, "PRAGMA database_list")
    _require(path and name == "main" and not others and not connection.in_transaction)
    _require(not _columns_to_convert(connection))  # it does not say whether it converts them
    # The worker that has it is another thread than this one.
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    twin = _closing(type(connection))(uri, uri=True, check_same_thread=False)
    query = "SELECT name FROM pragma_function_list"
    _require(set(_rows(connection, query)) <= set(_rows(twin, query)))
    for name in ("isolation_level", "row_factory", "text_factory"):
        setattr(twin, name, getattr(connection, name))
    if getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None) is not None:
        twin.autocommit = connection.autocommit
    return twin


def _columns_to_convert(connection: Any) -> bool:
    """Whether a table has columns of types for which there are converters."""
    query = "SELECT c.type FROM sqlite_master AS t, pragma_table_info(t.name) AS c"
    kinds = (kind for (kind,) in _rows(connection, query))
    types = {kind.partition("(")[0].partition(" ")[0].upper() for kind in kinds}
    return not types.isdisjoint(sys.modules["sqlite3"].converters)


def _rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """Return what is found as tuples, whatever the connection makes of rows."""
    cursor = connection.cursor()
    cursor.row_factory = None
    rows: list[tuple[Any, ...]] = cursor.execute(query).fetchall()
    return rows


def _cursor(cursor: Any, _copier: Copier) -> Any:
    connection = yield "connection", cursor.connection
    _require(connection is not cursor.connection)
    twin = connection.cursor()
    twin.row_factory, twin.arraysize = cursor.row_factory, cursor.arraysize
    return twin


def _lmdb_transaction(transaction: Any, copier: Copier) -> Any:
    first = _first_entry(transaction)
    buffers = first is not None and isinstance(first[0], memoryview)
    twin = _only("lmdb.Environment", copier.holder).begin(buffers=buffers)
    _require(_first_entry(twin) == first)  # else of another database in it, say
    return twin


def _first_entry(transaction: Any) -> Any:
    cursor = transaction.cursor()
    return cursor.item() if cursor.first() else None


def _lmdb_cursor(_cursor: Any, copier: Copier) -> Any:
    transaction = _only("lmdb.Transaction", copier.holder)
    twin = yield "transaction", transaction
    _require(twin is not transaction)
    return twin.cursor()


def _only(name: str, holder: Any) -> Any:
    """Return the one object of a class that an object has."""
    kind = _named(name)
    found = {id(part): part for _, part in attributes(holder) if isinstance(part, kind)}
    _require(len(found) == 1)
    return found.popitem()[1]


# Images, sound, video, tables


def _cv2(value: Any, _copier: Copier) -> Any:
    """Make an algorithm of OpenCV's whose parameters can be read and set."""
    cv2, kind = sys.modules["cv2"], type(value)
    make: Any = getattr(kind, "create", None) or getattr(cv2, f"create{kind.__name__}", None)
    names = [name[3:] for name in dir(kind) if name.startswith("get")]
    settable = [name for name in names if hasattr(kind, f"set{name}")]
    _require(make and settable)  # a classifier has been trained, a capture has a place
    twin = make()
    for name in settable:
        getattr(twin, f"set{name}")(getattr(value, f"get{name}")())
    _require(all(getattr(twin, f"get{n}")() == getattr(value, f"get{n}")() for n in names))
    return twin


def _stream(stream: Any, _copier: Copier) -> Any:
    container = yield "container", stream.container
    _require(container is not stream.container)
    return container.streams[stream.index]


class _InTurn:
    """The reader of a Parquet file, which the objects of all workers use in turn."""

    def __init__(self, reader: Any, lock: Any) -> None:
        self.reader, self.lock = reader, lock

    def __getattr__(self, name: str) -> Any:
        part = getattr(self.reader, name)
        if not callable(part):
            return part

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                result = part(*args, **kwargs)
            return self._each(result) if isinstance(result, Iterator) else result

        return call

    def _each(self, parts: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.lock:
                part = next(parts, DROPPED)
            if part is DROPPED:
                return
            yield part


_in_turn: weakref.WeakKeyDictionary[Any, Lock] = weakref.WeakKeyDictionary()


def _parquet(file: Any, copier: Copier) -> Any:
    """Let one call at a time read: the file does not say where it is."""
    twin = object.__new__(type(file))
    copier.copied.silence(twin)
    twin.__dict__.update(file.__dict__)
    if not isinstance(file.reader, _InTurn):
        lock = _in_turn.setdefault(file, Lock())
        twin.reader = _InTurn(file.reader, lock)
    return twin


IN_TURN = _parquet

# The rest


def _tokenizer(tokenizer: Any, copier: Copier) -> Any:
    """Return a tokenizer of Hugging Face's with padding and truncation of its own.

    The vocabulary is shared: to copy it takes 0.1 to 1 second (30,000 and 100,000 words).  All of
    the tokenizer is copied if the result would differ from it.
    """
    copier.copied.shares_data = True
    try:
        twin = type(tokenizer)(tokenizer.model)
        for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            part = getattr(tokenizer, name)
            if part is not None:
                setattr(twin, name, part)
        twin.encode_special_tokens = tokenizer.encode_special_tokens
        added = tokenizer.get_added_tokens_decoder()
        twin.add_tokens([added[number] for number in sorted(added)])
        if tokenizer.padding is not None:
            twin.enable_padding(**tokenizer.padding)
        if tokenizer.truncation is not None:
            twin.enable_truncation(**tokenizer.truncation)
        if twin.get_added_tokens_decoder() == added:
            return twin
    except Exception:  # noqa: BLE001, S110  # of another version of the library
        pass
    return tokenizer.__copy__()


def _event_loop(loop: Any, copier: Copier) -> Any:
    if loop.is_running() or loop.is_closed():  # one that runs serves all threads
        return copier.keep(loop, loop)
    twin = type(loop)()
    # Not when it is dropped itself, as the collector may have taken its sockets by then.
    when_dropped(copier.copied, twin.close)
    return twin


def _no_way(_value: Any, _copier: Copier) -> Any:
    """Refuse: there is no way."""
    raise TypeError


TABLE: dict[str, dict[str, Rule]] = {
    "_io": {
        "_io.FileIO": _file,
        "_io.BufferedReader": _file,
        "_io.BufferedWriter": _file,
        "_io.TextIOWrapper": _file,
    },
    "gzip": {"gzip.GzipFile": _opened_by("gzip.GzipFile", own="myfileobj")},
    # They say their names from Python 3.13 on.
    "bz2": {"bz2.BZ2File": _opened_by("bz2.BZ2File", "_fp.name", "_closefp")},
    "lzma": {"lzma.LZMAFile": _opened_by("lzma.LZMAFile", "_fp.name", "_closefp")},
    "tarfile": {"tarfile.TarFile": _archive},
    "mmap": {"mmap.mmap": _map},
    "itertools": {"*": _no_way},  # which gives up the protocol of `pickle`
    "asyncio": {"asyncio.AbstractEventLoop": _event_loop},
    "sqlite3": {"sqlite3.Connection": _connection, "sqlite3.Cursor": _cursor},
    "ctypes": {"ctypes.CDLL": SHARED},
    "torch": {"torch.jit.ScriptModule": SHARED, "torch.jit.ScriptFunction": SHARED},
    "PIL": {
        "PIL.Image.Image": _image,
        "PIL.ImageFont.FreeTypeFont": lambda font, _copier: font.font_variant(),
    },
    "lmdb": {
        "lmdb.Environment": SHARED,
        "lmdb.Transaction": _lmdb_transaction,
        "lmdb.Cursor": _lmdb_cursor,
    },
    # One lock for all files of the process.
    "h5py": {"h5py.File": SHARED, "h5py.Group": SHARED, "h5py.Dataset": SHARED},
    "zarr": {"zarr.Array": SHARED, "zarr.Group": SHARED},
    "cv2": {
        "cv2.UMat": SHARED,
        "cv2.KeyPoint": SHARED,
        "cv2.DMatch": SHARED,
        "*": _cv2,
    },
    "av": {
        "av.container.InputContainer": _opened_by("av.open"),
        "av.stream.Stream": _stream,
    },
    "pyarrow": {
        "pyarrow.parquet.ParquetFile": _parquet,
        "pyarrow.RecordBatchReader": _no_way,  # which says that it is a table
    },
    "rasterio": {"rasterio.io.DatasetReader": _opened_by("rasterio.open", sharing=False)},
    "tifffile": {"tifffile.TiffFile": _opened_by("tifffile.TiffFile", "filehandle.path")},
    "soundfile": {
        "soundfile.SoundFile": _opened_by(
            "soundfile.SoundFile", same=("mode", "samplerate", "channels", "frames")
        )
    },
    "osgeo": {"osgeo.gdal.Dataset": _opened_by("osgeo.gdal.Open", "GetDescription")},
    "_duckdb": {
        "duckdb.DuckDBPyConnection": lambda value, _copier: value.cursor(),
        "duckdb.DuckDBPyRelation": _no_way,  # the same
    },
    "tokenizers": {"tokenizers.Tokenizer": _tokenizer, "*": SHARED},
    "sentencepiece": {"*": SHARED},
    "tiktoken": {"*": SHARED},
    "aiohttp": {"aiohttp.ClientSession": _no_way},
    "botocore": {"botocore.client.BaseClient": SHARED},
    "fsspec": {"fsspec.spec.AbstractFileSystem": SHARED},
    "onnxruntime": {"onnxruntime.InferenceSession": SHARED},
    "faiss": {"*": SHARED},
}
TABLE["duckdb"] = TABLE["_duckdb"]
