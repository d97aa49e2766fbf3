"""Objects of libraries that one thread at a time may use, and how each worker gets its own.

A table says of each class one of three things:

- ``SHARED``: its objects lock themselves, or a process must not have two.
- A function that makes such an object anew from what it says of how it was opened, or raises.
- ``NAMED``: there is no way, and the user is told.

Classes are looked up by module and name among those that are imported; nothing is imported here.
"""

from __future__ import annotations

import copy
import io
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from threadloader._fetch.parts import attributes
from threadloader._lifetime import when_dropped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Copy = Callable[[Any], Any]
    Rule = Callable[[Any, Any, Copy], Any]


def SHARED(value: Any, _holder: Any, _copy: Copy) -> Any:  # noqa: N802  # an entry of the table
    """Return the object itself."""
    return value


def NAMED(_value: Any, _holder: Any, _copy: Copy) -> Any:  # noqa: N802  # the same
    """Refuse."""
    _require(False)


def _require(fact: object) -> None:
    """Refuse to make an object anew unless it says all of how it was opened."""
    if not fact:
        raise ValueError


def rule_for(kind: type) -> Rule | None:
    """Return what the table says of a class, or of the nearest of its bases; None for nothing."""
    try:
        return _rules[kind]
    except KeyError:
        rule = _rules[kind] = _find_rule(kind)
        return rule


def is_shared(value: Any) -> bool | None:
    """Whether threads may share an object; None if the table does not know it."""
    rule = rule_for(type(value))
    if rule is None:
        return None
    return rule is SHARED or (rule is _image and _is_read(value))


def has_owner(value: Any) -> bool:
    """Whether one thread at a time may use an object, by the table, as it is now."""
    if is_shared(value) in (True, None) or rule_for(type(value)) in (_event_loop, _deep):
        return False
    at_rest = getattr(value, "closed", False) or is_written(value)
    return isinstance(value, io.BytesIO) or not at_rest


def is_written(value: Any) -> bool:
    """Whether an object is a file that is open for writing: a log, say, in which all write.

    One in memory is where there is nothing to read from where it stands.
    """
    if not isinstance(value, io.IOBase) or value.closed or not value.writable():
        return False
    return not isinstance(value, io.BytesIO) or value.tell() == value.getbuffer().nbytes


# What was found.  Two threads may find the same at once.
_rules: weakref.WeakKeyDictionary[type, Rule | None] = weakref.WeakKeyDictionary()


def _find_rule(kind: type) -> Rule | None:
    for base in kind.__mro__[:-1]:
        library = base.__module__.partition(".")[0]
        if library == "builtins" and getattr(sys.modules["builtins"], base.__name__, None) is base:
            continue
        # C classes of lmdb say that they are builtins.
        for name, rule in TABLE.get(library if library != "builtins" else "lmdb", {}).items():
            if name == "*" or _named(name) is base:
                return rule
    return None


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


def _file(file: Any, _holder: Any, _copy: Copy) -> Any:
    if file.closed or is_written(file):
        return file
    _require(type(file).__module__ == "_io")  # else a class of the user's, with more to it
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


def _in_memory(file: Any, _holder: Any, _copy: Copy) -> Any:
    if file.closed:
        return file
    twin = type(file)(file.getvalue())  # which shares the bytes
    twin.seek(file.tell())
    return twin


def _archive(archive: Any, _holder: Any, copy_part: Copy) -> Any:
    archive.getmembers()  # all of them, or each copy would find them for all
    twin = object.__new__(type(archive))
    twin.__dict__.update(archive.__dict__)
    twin.fileobj = _own(archive.fileobj, copy_part)
    twin.members = list(archive.members)
    return twin


def _opened_by(
    function: str, path: str = "name", *, same: Sequence[str] = (), **options: Any
) -> Rule:
    """Return what opens a file again by a library's function, and goes to the same place.

    Args:
        function: Its name; of a class for what closes itself then.
        path: The attribute that has the path, with dots.
        same: Attributes that are to be the same as before.
        options: Further arguments.
    """

    def make(value: Any, _holder: Any, _copy: Copy) -> Any:
        if getattr(value, "closed", False) or is_written(value):
            return value
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


def _is_read(image: Any) -> bool:
    """Whether an image of Pillow's needs its file no more: one of several frames always does."""
    return getattr(image, "fp", None) is None and not getattr(image, "is_animated", False)


def _image(image: Any, _holder: Any, _copy: Copy) -> Any:
    """Open an image of Pillow's again, or read it, so that it needs no file any more."""
    if _is_read(image):
        return image
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
        image.load()
        return image
    return twin


def _own(part: Any, copy_part: Copy) -> Any:
    """Return a copy of what an object is made of."""
    twin = copy_part(part)
    _require(twin is not part)
    return twin


# Databases


def _connection(connection: Any, _holder: Any, _copy: Copy) -> Any:
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


def _cursor(cursor: Any, _holder: Any, copy_part: Copy) -> Any:
    twin = _own(cursor.connection, copy_part).cursor()
    twin.row_factory, twin.arraysize = cursor.row_factory, cursor.arraysize
    return twin


def _lmdb_transaction(transaction: Any, holder: Any, _copy: Copy) -> Any:
    first = _first_entry(transaction)
    buffers = first is not None and isinstance(first[0], memoryview)
    twin = _only("lmdb.Environment", holder).begin(buffers=buffers)
    _require(_first_entry(twin) == first)  # else of another database in it, say
    return twin


def _first_entry(transaction: Any) -> Any:
    cursor = transaction.cursor()
    return cursor.item() if cursor.first() else None


def _lmdb_cursor(_cursor: Any, holder: Any, copy_part: Copy) -> Any:
    return _own(_only("lmdb.Transaction", holder), copy_part).cursor()


def _only(name: str, holder: Any) -> Any:
    """Return the one object of a class that an object has."""
    kind = _named(name)
    found = {id(part): part for _, part, _ in attributes(holder) if isinstance(part, kind)}
    _require(len(found) == 1)
    return found.popitem()[1]


# Images, sound, video, tables


def _cv2(value: Any, _holder: Any, _copy: Copy) -> Any:
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


def _stream(stream: Any, _holder: Any, copy_part: Copy) -> Any:
    return _own(stream.container, copy_part).streams[stream.index]


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
                # Read now: while it is read, nobody else may.
                return iter(list(result)) if isinstance(result, Iterator) else result

        return call


_in_turn: weakref.WeakKeyDictionary[Any, Lock] = weakref.WeakKeyDictionary()


def _parquet(file: Any, _holder: Any, _copy: Copy) -> Any:
    """Let one call at a time read: the file does not say where it is."""
    twin = object.__new__(type(file))
    twin.__dict__.update(file.__dict__)
    if not isinstance(file.reader, _InTurn):
        lock = _in_turn.setdefault(file, Lock())
        twin.reader = _InTurn(file.reader, lock)
    return twin


# The rest


def _tokenizer(tokenizer: Any, _holder: Any, _copy: Copy) -> Any:
    """Return a tokenizer of Hugging Face's with padding and truncation of its own.

    The vocabulary is shared: to copy it takes 0.1 to 1 second (30,000 and 100,000 words).  All of
    the tokenizer is copied if the result would differ from it.
    """
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
    return copy.copy(tokenizer)


def _event_loop(loop: Any, holder: Any, _copy: Copy) -> Any:
    if loop.is_running() or loop.is_closed():  # one that runs serves all threads
        return loop
    twin = type(loop)()
    with suppress(TypeError):  # no weak references; then it warns when it is dropped
        # Not when it is dropped itself, as the collector may have taken its sockets by then.
        when_dropped(holder, twin.close)
    return twin


def _deep(value: Any, _holder: Any, _copy: Copy) -> Any:
    return copy.deepcopy(value)


TABLE: dict[str, dict[str, Rule]] = {
    "_io": {
        "_io.FileIO": _file,
        "_io.BufferedReader": _file,
        "_io.TextIOWrapper": _file,
        "_io.BytesIO": _in_memory,
    },
    "gzip": {"gzip.GzipFile": _opened_by("gzip.GzipFile")},
    "bz2": {"bz2.BZ2File": _opened_by("bz2.BZ2File")},
    "lzma": {"lzma.LZMAFile": _opened_by("lzma.LZMAFile")},
    "tarfile": {"tarfile.TarFile": _archive},
    "zipfile": {"zipfile.ZipFile": SHARED},
    "asyncio": {"asyncio.AbstractEventLoop": _event_loop},
    "sqlite3": {"sqlite3.Connection": _connection, "sqlite3.Cursor": _cursor},
    "_contextvars": {"*": SHARED},
    "logging": {"logging.Logger": SHARED, "logging.LoggerAdapter": SHARED},
    # Both ends of a pipe: who asks gets the answer to another's question.
    "subprocess": {"subprocess.Popen": NAMED},
    "multiprocessing": {"multiprocessing.connection.Connection": NAMED, "*": SHARED},
    "numpy": {"numpy.lib.npyio.NpzFile": SHARED},
    "torch": {"torch.jit.ScriptModule": SHARED, "torch.jit.ScriptFunction": SHARED},
    "PIL": {"PIL.ImageFile.ImageFile": _image},
    "lmdb": {
        "lmdb.Environment": SHARED,
        "lmdb.Transaction": _lmdb_transaction,
        "lmdb.Cursor": _lmdb_cursor,
    },
    # One lock for all files of the process.
    "h5py": {"h5py.File": SHARED, "h5py.Group": SHARED, "h5py.Dataset": SHARED},
    "zarr": {"zarr.Array": SHARED, "zarr.Group": SHARED},
    "netCDF4": {"netCDF4.Dataset": NAMED, "netCDF4.Variable": NAMED},
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
        "pyarrow.NativeFile": NAMED,
        "pyarrow.ipc.RecordBatchFileReader": NAMED,
        "pyarrow.RecordBatchReader": NAMED,
        "*": SHARED,
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
        "duckdb.DuckDBPyConnection": lambda value, _holder, _copy: value.cursor(),
        "duckdb.DuckDBPyRelation": NAMED,
    },
    "tokenizers": {"tokenizers.Tokenizer": _tokenizer, "*": SHARED},
    "requests": {"requests.Session": _deep},
    "aiohttp": {"aiohttp.ClientSession": NAMED},
    "onnxruntime": {"onnxruntime.InferenceSession": SHARED},
    "faiss": {"*": SHARED},
}
TABLE["duckdb"] = TABLE["_duckdb"]
