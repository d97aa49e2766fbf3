"""From a raw sample to the user's: the fields that are asked for, decoded, as a tuple or dict."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from threadloader.datasets._shards.member_decoders import DECODERS, member_decoder
from threadloader.datasets._tar.samples import EVERYTHING
from threadloader.errors import DataError, SampleError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from threadloader.datasets._tar.samples import RawSample, SampleMember

__all__ = ["Fields", "make_sample"]

KEY = "__key__"
_MOST_NAMED = 10  # members of a sample in a message


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
    def wanted(self) -> Container[str]:
        """The extensions of the members that may be needed."""
        if self.places is None:
            return EVERYTHING
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
                msg = f"no {' or '.join(place)} in the sample, which has {_named(members)}"
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
    try:
        return transform(made)
    except StopIteration as error:
        msg = f"the transform of sample {shortened(key)!r} of {path} raised StopIteration"
        raise SampleError(msg) from error
    except Exception as error:
        error.add_note(f"in the transform of sample {shortened(key)!r} of {path}")
        raise


def _decoded(
    extension: str, member: SampleMember, path: str, functions: Mapping[str, Callable[[bytes], Any]]
) -> Any:
    data = member.data
    assert data is not None  # noqa: S101  # for the type checker: a field names this member
    found = member_decoder(functions, extension)
    if found is None:
        return data
    name, function = found
    place = f"{path}, member {shortened(member.name)!r}"
    try:
        return function(data)
    except ImportError:
        raise  # Pillow is not installed, say
    except StopIteration as error:
        msg = f"decoding {place}, raised StopIteration"
        raise SampleError(msg) from error
    except Exception as error:
        # A lack of memory is no fault of the member's.
        if function is not DECODERS.get(name) or isinstance(error, MemoryError):
            error.add_note(f"while decoding {place}, offset {member.offset:,}")
            raise
        msg = f"it can't be decoded: {error}"
        raise DataError(msg, path, member=member.name, offset=member.offset) from error


def _named(members: Mapping[str, SampleMember]) -> str:
    """Return the extensions of the members; of many only the first."""
    told = [repr(shortened(extension, 40)) for extension in islice(members, _MOST_NAMED)]
    if len(members) > _MOST_NAMED:
        told.append(f"{len(members) - _MOST_NAMED:,} more")
    return ", ".join(told)
