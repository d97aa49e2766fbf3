"""One call for each sample of a ticket, in a loop of C, until the epoch is cancelled.

A loop in Python costs more than an empty ``__getitem__``, above all on a free-threaded build: there
each of its lines counts references to objects of other threads (CPython 3.13 without GIL: 145 ns a
call, and 70 in C).
"""

from __future__ import annotations

from functools import partial
from operator import getitem
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol

from threadloader._lifetime.dropping import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RunningEpoch", "call_each", "getitem_of"]


class RunningEpoch(Protocol):
    """An epoch, as far as it ends the fetching of samples."""

    def fetching(self, left: list[Any], samples: list[Any]) -> None:
        """Empty a list as soon as the epoch is cancelled, until `fetched`; see the samples grow."""

    def fetched(self, left: list[Any]) -> None:
        """Leave a list alone."""


def call_each(
    function: Callable[[Any], Any],
    arguments: list[Any],
    results: list[Any],
    epoch: RunningEpoch,
) -> None:
    """Call a function with each argument, and add the results to a list.

    Args:
        function: The user's.
        arguments: Emptied if the epoch is cancelled: no further call is made.
        results: Empty; grows with each call, and has the results before an error.
        epoch: Of the samples.
    """
    calls, left = len(arguments), iter(arguments)
    try:
        epoch.fetching(arguments, results)  # a list that is emptied ends the loop over it
        results.extend(map(function, left))
        if len(results) < calls and (argument := arguments[len(results) :][:1]):
            # A call raised StopIteration, which ended the loop, too, and is lost.  To call again
            # brings it back with its traceback; where it does not, the sample failed all the same.
            function(*argument)
            raise StopIteration
    finally:
        epoch.fetched(arguments)
        # An error keeps this frame.
        function = arguments = results = epoch = argument = left = DROPPED


def getitem_of(dataset: Any) -> Callable[[Any], Any]:
    """Return a function that does ``dataset[index]``, but looks up ``__getitem__`` only now."""
    for kind in type(dataset).__mro__:
        method = vars(kind).get("__getitem__")
        if type(method) is FunctionType:
            return MethodType(method, dataset)
        if "__getitem__" in vars(kind):
            break
    return partial(getitem, dataset)
