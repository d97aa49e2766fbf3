"""Samples that make no batch: which row does not fit the others, and what to do about it.

For messages only.  The default collate functions say what is wrong, in torch's words.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from threadloader._batch.layout import describe

if TYPE_CHECKING:
    from collections.abc import Callable


MOST_LOOKS = 32  # the most kinds of samples in a batch that are compared for a message
_ENTRIES = re.compile(r" at entry 0 and .* at entry (\d+)")  # in torch's message, and in ours

_SIZES = """images of different sizes make no batch: resize or crop them in the dataset \
(ImageFolder does with size=), or give a collate_fn that pads"""
_SHAPES = """samples of different shapes or lengths make no batch: make them alike in the dataset, \
or give a collate_fn that pads"""
_KEYS = "all samples of a batch must have the same keys"
_NONE = """a sample, or a part of one, is None: does __getitem__ return in all cases?  To leave \
samples out, raise an error for them, with on_error='skip'"""
_PILLOW = """an image of Pillow's is no array: return numpy.asarray(image), or let a transform of \
the dataset make a tensor"""
_OTHERS = "samples of other types need a collate_fn that makes a batch of a list of them"
_ADVICE = (  # the first whose pattern is found in the last line of an error
    (re.compile(r"got \[\d+, \d+, \d+.* at entry "), _SIZES),
    (re.compile(r" at entry | equal size"), _SHAPES),
    (re.compile(r"^KeyError"), _KEYS),
    (re.compile(r"\bNone(Type)?\b"), _NONE),
    (re.compile(r"found <class 'PIL\."), _PILLOW),
    (re.compile(r"; found "), _OTHERS),
)


def odd_row(function: Callable[[Any], Any], samples: Any, error: BaseException) -> int | None:
    """Return the first row that does not fit most others; None if no row can be named.

    Args:
        function: The default collate function.  It is tried with two samples at a time: they may
            look different and still make a batch.
        samples: The samples that it could not collate.
        error: Its error.  The row that its message names comes first.
    """
    if not isinstance(samples, list) or len(samples) == 1:
        return 0 if isinstance(samples, list) else None
    try:
        looks = [describe(sample) for sample in samples]
    except Exception:  # noqa: BLE001  # a property of the user's failed: this is not the error to report
        return None
    rows = Counter(looks)
    usual = looks.index(rows.most_common(1)[0][0])
    named = map(int, _ENTRIES.findall(_line(error)))
    for row in (*named, *map(looks.index, islice(rows, MOST_LOOKS))):
        try:
            function([samples[usual], samples[row]])
        except Exception:  # noqa: BLE001  # they do not fit
            if row != usual:  # else no row fits any
                return row
    return None


def advise(error: BaseException) -> None:
    """Add a note on what to do, if the error is one of the usual mistakes."""
    line = _line(error)
    advice = next((advice for sign, advice in _ADVICE if sign.search(line)), None)
    if advice is not None:
        with suppress(Exception):  # an error that refuses notes
            if advice not in getattr(error, "__notes__", ()):  # of one that is raised again
                error.add_note(advice)


def _line(error: BaseException) -> str:
    """Return an error as the last line of its traceback."""
    return traceback.format_exception_only(error)[-1]
