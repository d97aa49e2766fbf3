"""From the members of a sample to what the user gets: which of them, decoded, in which shape."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from threadloader.datasets.members import DECODERS, find_decoder
from threadloader.datasets.tar_samples import EVERYTHING
from threadloader.errors import DataError, SampleError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from threadloader.datasets.tar_samples import Part, RawSample

__all__ = ["Fields", "assemble"]

KEY = "__key__"
_MOST_NAMED = 10  # members of a sample in a message


@dataclass(frozen=True, slots=True)
class Fields:
    """Which members a sample consists of: alternatives for each place; None for all."""

    places: tuple[tuple[str, ...], ...] | None

    @classmethod
    def of(cls, fields: Iterable[str] | None) -> Fields:
        """Return them as the user names them.

        Args:
            fields: ``("jpg;png", "cls")``, where the first of the alternatives that a sample has
                is taken; ``"__key__"`` is its key.  A dot before an extension, and spaces, do not
                count.

        Raises:
            TypeError: It is one string.
            ValueError: It, or one of them, is empty.
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
    def wanted(self) -> Container[str]:
        """The extensions of all members that may be needed."""
        if self.places is None:
            return EVERYTHING
        return frozenset(extension for place in self.places for extension in place)

    def chosen(self, key: str, parts: Mapping[str, Part], path: str) -> list[str]:
        """Return the extension for each place, or `KEY`.

        Args:
            key: Of the sample.
            parts: Its members.
            path: The shard, for errors.

        Raises:
            DataError: The sample lacks one.
        """
        if self.places is None:
            return list(parts)
        found = []
        for place in self.places:
            for extension in place:
                if extension in parts or extension == KEY:
                    found.append(extension)
                    break
            else:
                msg = f"no {' or '.join(place)} in the sample, which has {_named(parts)}"
                first = next(iter(parts.values()))
                raise DataError(msg, path, member=key, offset=first.offset)
        return found


def assemble(
    sample: RawSample,
    path: str,
    fields: Fields,
    functions: Mapping[str, Callable[[bytes], Any]],
    transform: Callable[[Any], Any] | None,
) -> Any:
    """Return a sample as the user gets it: a dict with its key, or a tuple where fields are named.

    Args:
        sample: Its members, with the data of those that fields name.
        path: The shard, for errors.
        fields: Which members.
        functions: Decode members, by extension.
        transform: Applied to the sample.

    Raises:
        DataError: A field is missing, or a member can't be decoded.
        Exception: What functions of the user's raise, with a note on where.
    """
    key, parts = sample
    chosen = fields.chosen(key, parts, path)
    values = [
        key if extension == KEY else _decoded(extension, parts[extension], path, functions)
        for extension in chosen
    ]
    made: Any = tuple(values)
    if fields.places is None:
        made = {KEY: key, **dict(zip(chosen, values, strict=True))}
    if transform is None:
        return made
    try:
        return transform(made)
    except StopIteration as error:
        msg = f"the transform of sample {shortened(key)!r} of {path} raised StopIteration"
        raise SampleError(msg) from error
    except Exception as error:
        error.add_note(f"in the transform of sample {shortened(key)!r} of {path}")
        raise


def _decoded(
    extension: str, part: Part, path: str, functions: Mapping[str, Callable[[bytes], Any]]
) -> Any:
    data = part.data
    assert data is not None  # noqa: S101  # for the type checker: it is one that a field names
    found = find_decoder(functions, extension)
    if found is None:
        return data
    name, function = found
    place = f"{path}, member {shortened(part.name)!r}"
    try:
        return function(data)
    except ImportError:
        raise  # Pillow is not installed, say
    except StopIteration as error:
        msg = f"decoding {place}, raised StopIteration"
        raise SampleError(msg) from error
    except Exception as error:
        # What the process lacks is no fault of the member's.
        if function is not DECODERS.get(name) or isinstance(error, MemoryError):
            error.add_note(f"while decoding {place}, offset {part.offset:,}")
            raise
        msg = f"it can't be decoded: {error}"
        raise DataError(msg, path, member=part.name, offset=part.offset) from error


def _named(parts: Mapping[str, Part]) -> str:
    """Return the extensions that there are; the first where there are many."""
    told = [repr(shortened(extension, 40)) for extension in islice(parts, _MOST_NAMED)]
    if len(parts) > _MOST_NAMED:
        told.append(f"{len(parts) - _MOST_NAMED:,} more")
    return ", ".join(told)
