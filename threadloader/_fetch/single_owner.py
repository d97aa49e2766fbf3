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

from threadloader._fetch.kinds import attributes
from threadloader._lifetime.dropping import when_dropped

if TYPE_CHECKING:
    from collections.abc import Callable

    Copy = Callable[[Any], Any]
    Rule = Callable[[Any, Any, Copy], Any]

__all__ = ["CannotBeMadeError", "has_owner", "is_shared", "rule_for"]


class CannotBeMadeError(Exception):
    """An object does not say how it was opened."""


def SHARED(value: Any, _holder: Any, _copy: Copy) -> Any:  # noqa: N802  # an entry of the table
    """Return the object itself."""
    return value


def NAMED(value: Any, _holder: Any, _copy: Copy) -> Any:  # noqa: N802  # the same
    """Refuse."""
    raise CannotBeMadeError(value)


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
    rule = rule_for(type(value))
    if rule is _file or rule is _compressed:
        return not (value.closed or value.writable())
    return is_shared(value) is False and rule is not _event_loop and rule is not _deep


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


def _path_of(file: Any) -> str:
    """Return the path of a file that is open for reading, and still has that path."""
    path, status = file.name, os.fstat(file.fileno())
    if not isinstance(path, (str, bytes)) or not stat.S_ISREG(status.st_mode):
        raise CannotBeMadeError(file)
    if not os.path.samestat(status, os.stat(path)):  # noqa: PTH116  # bytes, too
        raise CannotBeMadeError(file)
    return os.fsdecode(path)


def _file(file: Any, _holder: Any = None, _copy: Any = None) -> Any:
    if file.closed:
        return file
    if file.writable():  # a log, say, in which all write
        return file
    if type(file).__module__ != "_io":  # a class of the user's, with more to it
        raise CannotBeMadeError(file)
    path = _path_of(file)
    place = file.tell()
    if isinstance(file, io.TextIOWrapper):
        twin = _text(file, path)
    elif isinstance(file, io.FileIO):
        twin = _closing(io.FileIO)(path)
    else:
        twin = _closing(io.BufferedReader)(_closing(io.FileIO)(path))
    twin.seek(place)
    return twin


def _text(file: Any, path: str) -> Any:
    raw = _closing(io.FileIO)(path)
    if b"\r" in raw.read(1 << 16):  # whether these are line ends, a file does not say
        raise CannotBeMadeError(file)
    raw.seek(0)
    buffer = _closing(io.BufferedReader)(raw)
    return _closing(io.TextIOWrapper)(buffer, encoding=file.encoding, errors=file.errors)


def _in_memory(file: Any, _holder: Any, _copy: Copy) -> Any:
    if file.closed:
        return file
    twin = type(file)(file.getvalue())  # which shares the bytes
    twin.seek(file.tell())
    return twin


def _compressed(file: Any, _holder: Any, _copy: Copy) -> Any:
    path = getattr(file, "name", None)
    if file.closed or file.writable():
        return file
    if not isinstance(path, (str, bytes)):
        raise CannotBeMadeError(file)
    twin = _closing(type(file))(path, "rb")
    if place := file.tell():
        twin.seek(place)
    return twin


def _with_own(name: str) -> Rule:
    """Return what copies an object that has its file in an attribute."""

    def make(value: Any, _holder: Any, copy_part: Copy) -> Any:
        twin = object.__new__(type(value))
        twin.__dict__.update(value.__dict__)
        twin.__dict__[name] = part = copy_part(getattr(value, name))
        if part is getattr(value, name):
            raise CannotBeMadeError(value)
        return twin

    return make


def _archive(archive: Any, holder: Any, copy_part: Copy) -> Any:
    archive.getmembers()  # all of them, or each copy would find them for all
    twin = _with_own("fileobj")(archive, holder, copy_part)
    twin.members = list(archive.members)
    return twin


def _is_read(image: Any) -> bool:
    """Whether an image of Pillow's needs its file no more: one of several frames always does."""
    return getattr(image, "fp", None) is None and not getattr(image, "is_animated", False)


def _image(image: Any, _holder: Any, _copy: Copy) -> Any:
    """Open an image of Pillow's again, or read it, so that it needs no file any more."""
    if _is_read(image):
        return image
    path, frame = getattr(image, "filename", None), image.tell()
    try:
        if not path:
            raise CannotBeMadeError(image)
        twin = _named("PIL.Image.open")(_closing(io.BufferedReader)(_closing(io.FileIO)(path)))
        if type(twin) is not type(image) or twin.size != image.size:
            raise CannotBeMadeError(image)
        twin.filename = path
        if frame:
            twin.seek(frame)
    except Exception as error:
        if getattr(image, "n_frames", 1) > 1:
            raise CannotBeMadeError(image) from error
        image.load()
        return image
    return twin


# Databases


def _connection(connection: Any, _holder: Any, _copy: Copy) -> Any:
    sqlite3 = sys.modules["sqlite3"]
    [(_, name, path), *others] = _rows(connection, "PRAGMA database_list")
    if others or name != "main" or not path or connection.in_transaction:
        raise CannotBeMadeError(connection)
    if _columns_to_convert(connection):  # it does not say whether it converts them
        raise CannotBeMadeError(connection)
    # The worker that has it is another thread than this one.
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    twin = _closing(type(connection))(uri, uri=True, check_same_thread=False)
    if _functions(connection) - _functions(twin):
        raise CannotBeMadeError(connection)
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


def _functions(connection: Any) -> set[Any]:
    """Return the names of the functions that can be called in SQL."""
    return set(_rows(connection, "SELECT name FROM pragma_function_list"))


def _rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """Return what is found as tuples, whatever the connection makes of rows."""
    cursor = connection.cursor()
    cursor.row_factory = None
    rows: list[tuple[Any, ...]] = cursor.execute(query).fetchall()
    return rows


def _cursor(cursor: Any, _holder: Any, copy_part: Copy) -> Any:
    twin = copy_part(cursor.connection)
    if twin is cursor.connection:
        raise CannotBeMadeError(cursor)
    twin = twin.cursor()
    twin.row_factory, twin.arraysize = cursor.row_factory, cursor.arraysize
    return twin


def _lmdb_transaction(transaction: Any, holder: Any, _copy: Copy) -> Any:
    environment_class = _named("lmdb.Environment")
    found = {id(part): part for _, part, _ in attributes(holder)}.values()
    environments = [part for part in found if isinstance(part, environment_class)]
    if len(environments) != 1:
        raise CannotBeMadeError(transaction)
    first = _first_entry(transaction)
    buffers = first is not None and isinstance(first[0], memoryview)
    twin = environments[0].begin(buffers=buffers)
    if _first_entry(twin) != first:  # of another database in it, say
        raise CannotBeMadeError(transaction)
    return twin


def _first_entry(transaction: Any) -> Any:
    cursor = transaction.cursor()
    return cursor.item() if cursor.first() else None


def _lmdb_cursor(cursor: Any, holder: Any, copy_part: Copy) -> Any:
    transaction_class = _named("lmdb.Transaction")
    found = {id(part): part for _, part, _ in attributes(holder)}.values()
    transactions = [part for part in found if isinstance(part, transaction_class)]
    if len(transactions) != 1 or (twin := copy_part(transactions[0])) is transactions[0]:
        raise CannotBeMadeError(cursor)
    return twin.cursor()


# Images, sound, video, tables


def _cv2(value: Any, _holder: Any, _copy: Copy) -> Any:
    """Make an algorithm of OpenCV's whose parameters can be read and set."""
    cv2, kind = sys.modules["cv2"], type(value)
    make = getattr(kind, "create", None) or getattr(cv2, f"create{kind.__name__}", None)
    names = [name[3:] for name in dir(kind) if name.startswith("get")]
    settable = [name for name in names if hasattr(kind, f"set{name}")]
    if make is None or not settable:  # a classifier has been trained, a capture has a place
        raise CannotBeMadeError(value)
    twin = make()
    for name in settable:
        getattr(twin, f"set{name}")(getattr(value, f"get{name}")())
    if any(getattr(twin, f"get{name}")() != getattr(value, f"get{name}")() for name in names):
        raise CannotBeMadeError(value)
    return twin


def _opened_by(function: str, attribute: str = "name", **options: Any) -> Rule:
    """Return what opens a file again by a library's function.

    Args:
        function: Its name.
        attribute: That has the path, with dots.
        options: Further arguments.
    """

    def make(value: Any, _holder: Any, _copy: Copy) -> Any:
        path = value
        for name in attribute.split("."):
            path = getattr(path, name)
        path = path() if callable(path) else path
        if not isinstance(path, str) or getattr(value, "closed", False):
            raise CannotBeMadeError(value)
        opens = _named(function)
        return (_closing(opens) if isinstance(opens, type) else opens)(path, **options)

    return make


def _sound(sound: Any, _holder: Any, _copy: Copy) -> Any:
    if sound.closed or sound.mode != "r" or not isinstance(sound.name, str):
        raise CannotBeMadeError(sound)
    twin = type(sound)(sound.name)
    if (twin.samplerate, twin.channels, twin.frames) != (
        *(sound.samplerate, sound.channels, sound.frames),
    ):
        raise CannotBeMadeError(sound)
    if place := sound.tell():
        twin.seek(place)
    return twin


def _stream(stream: Any, _holder: Any, copy_part: Copy) -> Any:
    twin = copy_part(stream.container)
    if twin is stream.container:
        raise CannotBeMadeError(stream)
    return twin.streams[stream.index]


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
    "gzip": {"gzip.GzipFile": _compressed},
    "bz2": {"bz2.BZ2File": _compressed},
    "lzma": {"lzma.LZMAFile": _compressed},
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
    "soundfile": {"soundfile.SoundFile": _sound},
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
