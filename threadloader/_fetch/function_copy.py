"""One copy of ``collate_fn`` and ``transform`` for each worker: what they keep is the worker's own.

A worker process of torch's has functions of its own, so people let them keep things: the longest
sample of a batch on ``self``, the padding of a tokenizer.  As of the transforms on a dataset, the
objects are copied and the data in them is shared.  But these often come as a method or a closure,
which may lead to anything, a trainer and its model say; see `_FunctionCopier`.
"""

from __future__ import annotations

import io
import types
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._fetch.dataset_copy import (
    CONTAINERS,
    LARGE,
    MEETING_POINTS,
    SHARED,
    Copier,
    attributes,
    deep_copy,
    is_dataset,
    shallow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._fetch.dataset_copy import Copied, DatasetCopy

__all__ = ["copy_function"]

Function = Any  # what is called with a sample, or with those of a batch

# Objects that one on a method's object may lead to; beyond that they are data, or machinery.
# Unmeasured, a choice: a trainer of Lightning's leads to 109 before it has anything to train.
REACHED = 100

_ELSEWHERE = (*MEETING_POINTS, io.IOBase, _torch.DataLoader)  # where a helper's reach must not end


def copy_function(function: Function, how: DatasetCopy, copied: Copied) -> Function:
    """Return the function that one worker calls.

    Args:
        function: The user's.
        how: ``"shared"`` is the function itself.  ``"deep"`` is a ``copy.deepcopy`` of an object
            that can be called.  Else, and of methods and closures, objects are copied and data is
            shared; what refuses to be copied is shared.
        copied: What the worker has copies of already, as its dataset; is told what is copied now.

    Raises:
        Exception: What ``copy.deepcopy`` raises.
    """
    if how == "shared":
        return function
    if how == "deep" and not isinstance(function, (types.FunctionType, types.MethodType)):
        return deep_copy(function, copied)
    try:
        return _FunctionCopier(copied).copy_called(function)
    except Exception:  # noqa: BLE001  # whatever a class raises to refuse; a linked list is too deep
        return function


class _FunctionCopier(Copier):
    """Copies a function and what it keeps.

    - Of a method the object that it is bound to is copied, and what is on it: but an object there
      that leads back to it, or to a lock, a thread, an open file or a loader, is no part of it,
      and is shared whole (a trainer, a writer of logs).
    - Of a closure, and of default values, the objects are copied likewise.  Lists and dicts are
      shared, where people collect things, unless there are objects to be called in them.
    - Models, that is modules with parameters, are shared as they are.
    """

    def __init__(self, copied: Copied) -> None:
        super().__init__(copied)
        self._owners: dict[int, Any] = {}  # what methods are bound to, by id
        self._cells: dict[int, types.CellType] = {}  # the new ones, by the id of the old

    def copy_called(self, function: Function) -> Function:
        """Return the copy of what a worker calls."""
        return self._owner(function) if _is_model(function) else self.copy(function, deep=True)

    def copy(self, value: Any, *, deep: bool) -> Any:
        """Return the copy of ``value``, or ``value`` itself where it is shared; see `Copier`."""
        if id(value) in self._done:
            return self._done[id(value)][1]
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            return types.MethodType(value.__func__, self._owner(value.__self__))
        if isinstance(value, _torch.DataLoader) or _is_model(value):
            return value
        if deep and self._owners and _is_helper(value) and self._leads_away(value):
            return self._keep(value, value)
        return super().copy(value, deep=deep)

    def _owner(self, value: Any) -> Any:
        """Copy what a method is bound to, or a closure holds."""
        if id(value) in self._done or not hasattr(value, "__dict__") or is_dataset(value):
            return self.copy(value, deep=True)
        if isinstance(value, (*CONTAINERS, *SHARED, _torch.DataLoader)):
            return self.copy(value, deep=False)
        self._owners[id(value)] = value
        return self.copy_object(value, deep=True)

    def _twin_of(self, value: Any) -> Any:
        if _is_tokenizer(value):
            return _tokenizer_like(value)
        if _is_module(value):
            # Past what classes do for pickle: Lightning's modules would lose their trainer.
            twin = object.__new__(type(value))
            twin.__dict__.update(value.__dict__)
            return twin
        return shallow(value)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Return a function of the same code, whose variables from around it are the worker's."""
        self._keep(function, function)  # as long as it is not known to need a copy
        cells = [self._cell(cell, function) for cell in function.__closure__ or ()]
        defaults = tuple(map(self._held, function.__defaults__ or ()))
        keywords = {key: self._held(part) for key, part in (function.__kwdefaults__ or {}).items()}
        before = (*(function.__closure__ or ()), *(function.__defaults__ or ()))
        before += tuple((function.__kwdefaults__ or {}).values())
        after = (*cells, *defaults, *keywords.values())
        if all(old is new for old, new in zip(before, after, strict=True)):
            return function
        for number, cell in enumerate(cells):
            if _contents(cell) is function:  # it calls itself
                cells[number] = types.CellType()
        twin = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, closure=tuple(cells)
        )
        for cell in cells:
            if _contents(cell) is _EMPTY:
                cell.cell_contents = twin
        twin.__defaults__, twin.__kwdefaults__ = defaults or None, keywords or None
        twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
        twin.__doc__ = function.__doc__
        twin.__dict__.update(function.__dict__)
        self._done[id(function)] = function, twin
        return twin

    def _cell(self, cell: types.CellType, function: types.FunctionType) -> types.CellType:
        """Return the variable that a copy of ``function`` has in the place of ``cell``."""
        held = _contents(cell)
        if held is _EMPTY or held is function:
            return cell
        if id(cell) not in self._cells:
            twin = self._held(held)
            self._cells[id(cell)] = cell if twin is held else types.CellType(twin)
        return self._cells[id(cell)]

    def _held(self, value: Any) -> Any:
        """Return the copy of what a variable around a function, or a default, refers to."""
        if isinstance(value, CONTAINERS):
            return self.copy(value, deep=False)
        if callable(value) or is_dataset(value) or _is_tokenizer(value):
            return self.copy(value, deep=True)
        # What has nothing on it is compared by identity: a marker for what is missing, say.
        return self._owner(value) if getattr(value, "__dict__", None) else value

    def _leads_away(self, value: Any) -> bool:
        """Whether an object on a method's object is no part of that; see the class."""
        seen: dict[int, Any] = {}
        found = [value]
        while found:
            part = found.pop()
            if id(part) in seen or (isinstance(part, SHARED) and not isinstance(part, _ELSEWHERE)):
                continue
            seen[id(part)] = part
            if id(part) in self._owners or isinstance(part, _ELSEWHERE) or len(seen) > REACHED:
                return True
            found += _parts(part)
        return False


def _is_helper(value: object) -> bool:
    """Whether a value is an object of some class, neither data nor something to be called."""
    return not (callable(value) or isinstance(value, (*CONTAINERS, *SHARED)))


def _parts(value: Any) -> Iterator[Any]:
    """Yield what an object refers to by its attributes, or a container by its entries.

    Of a large container nothing, since it is data and shared.
    """
    if isinstance(value, CONTAINERS) and len(value) <= LARGE:
        yield from list(value.values() if isinstance(value, dict) else value)
    for _, part, _ in attributes(value):
        yield part


_EMPTY: Any = object()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value, or no longer
        return _EMPTY


def _is_module(value: object) -> bool:
    """Whether ``value`` is a module of torch's, and not one in C++ that says how to copy itself."""
    kind = type(value)
    return _torch.is_module(value) and not hasattr(kind, "__copy__")


def _is_model(value: object) -> bool:
    """Whether ``value`` is a module of torch's that has parameters."""
    if not _torch.is_module(value):
        return False
    return next(iter(value.parameters()), None) is not None  # type: ignore[attr-defined]


def _is_tokenizer(value: object) -> bool:
    kind = type(value)
    return kind.__name__ == "Tokenizer" and kind.__module__ == "tokenizers"


def _tokenizer_like(tokenizer: Any) -> Any:
    """Return a tokenizer of Hugging Face's with padding and truncation of its own.

    The vocabulary is shared.  To copy that, too, takes 0.1 to 1 second (30,000 and 100,000 words).
    Where the result would be another tokenizer, all of it is copied.
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
    return shallow(tokenizer)
