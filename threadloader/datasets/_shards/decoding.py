"""From a raw sample to the user's: the fields that are asked for, decoded, as a tuple or dict.

Members that can run code are decoded only by a function of the user's: pickles, and files of
`torch.save`, stay bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader.errors import DataError, SampleError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from numpy.typing import NDArray

    from threadloader.datasets._tar import RawSample, SampleMember


KEY = "__key__"
_UNPACKED_IN_PIECES = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # bz2 and lzma: all at once
_LARGEST_NPZ = 1 << 30  # bytes of its arrays together, unpacked


@dataclass(frozen=True, slots=True)
class Fields:
    """The members that a sample consists of: alternatives for each place; None for all members."""

    places: tuple[tuple[str, ...], ...] | None

    @classmethod
    def of(cls, fields: Iterable[str] | None) -> Fields:
        """Return the fields for an argument of the user's.

        Args:
            fields: ``("jpg;png", "cls")`` takes the first of the alternatives that a sample has;
                ``"__key__"`` is its key.  A dot before an extension, and spaces, are ignored.

        Raises:
            TypeError: The argument is one string.
            ValueError: There are no fields, or one is empty.
        """
        if fields is None:
            return cls(None)
        if isinstance(fields, str):
            msg = f"fields={fields!r} is one string: write a tuple, ({fields!r},)"
            raise TypeError(msg)
        places = tuple(
            tuple(extension.strip().lower().removeprefix(".") for extension in place.split(";"))
            for place in fields
        )
        if not places or not all(map(all, places)):
            what = "a place in fields" if places else "fields"
            msg = f"{what} is empty: name an extension each, or fields=None for all members"
            raise ValueError(msg)
        return cls(places)

    @property
    def wanted(self) -> Container[str] | None:
        """The extensions of the members that may be needed; None for all."""
        if self.places is None:
            return None
        return frozenset(extension for place in self.places for extension in place)

    def chosen(self, key: str, members: Mapping[str, SampleMember], path: str) -> list[str]:
        """Return the extension for each place, or `KEY`.

        Args:
            key: Of the sample.
            members: Of the sample.
            path: The shard, for errors.

        Raises:
            DataError: The sample lacks a field.
        """
        if self.places is None:
            return list(members)
        found = []
        for place in self.places:
            for extension in place:
                if extension in members or extension == KEY:
                    found.append(extension)
                    break
            else:
                told = ", ".join(map(repr, members))
                msg = f"no {' or '.join(place)} in the sample, which has {told}"
                first = next(iter(members.values()))
                raise DataError(msg, path, member=key, offset=first.offset)
        return found


def make_sample(
    sample: RawSample,
    path: str,
    fields: Fields,
    functions: Mapping[str, Callable[[bytes], Any]],
    transform: Callable[[Any], Any] | None,
) -> Any:
    """Return a sample for the user: a dict with its key, or a tuple if fields are named.

    Args:
        sample: The members, with the data of those that fields name.
        path: The shard, for errors.
        fields: The members to take.
        functions: Decode members, by extension.
        transform: Applied to the sample.

    Raises:
        DataError: A field is missing, or a member can't be decoded.
        Exception: From the user's functions, with a note on the place.
    """
    key, members = sample
    chosen = fields.chosen(key, members, path)
    values = [
        key if extension == KEY else _decoded(extension, members[extension], path, functions)
        for extension in chosen
    ]
    made: Any = tuple(values)
    if fields.places is None:
        made = {KEY: key, **dict(zip(chosen, values, strict=True))}
    if transform is None:
        return made
    return called(transform, made, f"transforming sample {shortened(key)!r}", path)


def _decoded(
    extension: str, member: SampleMember, path: str, functions: Mapping[str, Callable[[bytes], Any]]
) -> Any:
    found = _decoder(functions, extension)
    if found is None:
        return member.data
    name, function = found
    place = {"member": member.name, "offset": member.offset}
    what = "it can't be decoded" if function is DECODERS.get(name) else ""
    return called(function, member.data, f"decoding {shortened(member.name)!r}", path, what, place)


def called(
    function: Callable[[Any], Any],
    value: Any,
    doing: str,
    path: str,
    damage: str = "",
    place: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return ``function(value)``; an error is the user's with a note, or says that data is damaged.

    Args:
        function: Of the user's, or of ours.
        value: Its argument.
        doing: What this is, in words.
        path: Of the file that the value is from, or what it is from, in words.
        damage: What an error of our function means; empty for a function of the user's.
        place: Of the value in the file: ``member`` and ``offset``.

    Raises:
        DataError: Our function raised an error.
        SampleError: The function raised `StopIteration`, which would end a stream.
        Exception: From the user's function.
    """
    try:
        return function(value)
    except StopIteration as error:
        msg = f"{doing} of {path} raised StopIteration"
        raise SampleError(msg) from error
    except Exception as error:
        # Pillow may not be installed, and a lack of memory is no fault of the data.
        if damage and not isinstance(error, (ImportError, MemoryError)):
            raise DataError(f"{damage}: {error}", path, **place) from error
        at = f", offset {place['offset']:,}" if "offset" in place else ""
        error.add_note(f"while {doing} of {path}{at}")
        raise


def decoders(decode: bool | Mapping[str, Callable[[bytes], Any]]) -> dict[str, Any]:
    """Return a function for each extension that has one.

    Args:
        decode: True for `DECODERS`, False for none; a dict of functions is added to `DECODERS`.

    Raises:
        TypeError: It is neither a bool nor a dict of functions.
    """
    if isinstance(decode, bool):
        return dict(DECODERS) if decode else {}
    given: Any = decode
    if not isinstance(given, Mapping) or not all(map(callable, given.values())):
        msg = f"decode={decode!r} is no True, False or dict of functions by extension"
        raise TypeError(msg)
    own = {extension.lower().lstrip("."): function for extension, function in decode.items()}
    return {**DECODERS, **own}


def _decoder(
    functions: Mapping[str, Callable[[bytes], Any]], extension: str
) -> tuple[str, Callable[[bytes], Any]] | None:
    """Return the function for an extension, after the name that it was found by; or None.

    For ``left.seg.png`` this looks for a function of ``left.seg.png``, then of ``seg.png``, then of
    ``png``.
    """
    name = extension
    while name not in functions:
        name = name.partition(".")[2]
        if not name:
            return None
    return name, functions[name]


def _image(data: bytes) -> NDArray[np.uint8]:
    """Return an image, uint8 (height, width, 3)."""
    from threadloader.datasets._images.decode import decode_image  # noqa: PLC0415  # loads a decoder

    return decode_image(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> NDArray[Any]:
    """Return the array of a ``.npy`` file."""
    try:
        array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (MemoryError, RecursionError):  # its size or its depth is none that there could be
        raise ValueError("its header declares no array that is there") from None
    return array


def _npz(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a ``.npz`` file by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if not _UNPACKED_IN_PIECES.issuperset(entry.compress_type for entry in archive.infolist()):
            msg = "an array is compressed by something else than deflate, which NumPy never does"
            raise ValueError(msg)
        told = sum(entry.file_size for entry in archive.infolist())
        if told > _LARGEST_NPZ:
            msg = f"its arrays have {told:,} bytes unpacked, more than {_LARGEST_NPZ:,}"
            raise ValueError(msg)
        # At most the declared size, and then the CRC is checked; `ZipFile.read` unpacks up to 2 GiB
        # before it cuts off.
        return {
            entry.filename.removesuffix(".npy"): _array(archive.open(entry).read(entry.file_size))
            for entry in archive.infolist()
        }


DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), _image),
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    "npy": _array,
    "npz": _npz,
}
