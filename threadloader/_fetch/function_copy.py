"""A copy of ``collate_fn`` and ``transform`` for each worker, with state of its own.

Each worker process of torch's has its own functions, so users keep state on them: the longest
sample of a batch on ``self``, the padding of a tokenizer.  As with the transforms of a dataset, the
objects are copied and their data is shared.  But a function is often a method or a closure, which
may lead to anything, a trainer and its model say; see `_FunctionCopier`.
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
    ObjectCopier,
    attributes,
    deep_copy,
    is_dataset,
    shallow,
    shared_classes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._fetch.dataset_copy import Copied, DatasetCopy

__all__ = ["copy_function"]

Function = Any  # called with a sample, or with the samples of a batch

# An attribute of a method's object that leads to more objects is no part of it.
# Unmeasured, a choice: a trainer of Lightning's leads to 109 before it has anything to train.
REACHED = 100

_ELSEWHERE = (*MEETING_POINTS, io.IOBase, _torch.DataLoader)  # what leads here is no part, either


def copy_function(function: Function, how: DatasetCopy, copied: Copied) -> Function:
    """Return the function that one worker calls.

    Args:
        function: The user's.
        how: ``"shared"`` is the function itself.  ``"deep"`` is a ``copy.deepcopy`` of a callable
            object.  Otherwise, and for methods and closures, objects are copied; data is shared,
            and so are objects that refuse to be copied.
        copied: What the worker has copies of, its dataset say; gets what is copied now.

    Raises:
        Exception: What ``copy.deepcopy`` raises.
    """
    if how == "shared":
        return function
    if how == "deep" and not isinstance(function, (types.FunctionType, types.MethodType)):
        return deep_copy(function, copied)
    try:
        return _FunctionCopier(copied).copy_called(function)
    except Exception:  # noqa: BLE001  # a class refuses, or a linked list is too deep
        return function


class _FunctionCopier(ObjectCopier):
    """Copies a function and its state.

    - A method: the object that it is bound to is copied, with its attributes.  But an attribute
      that leads back to the object, or to a lock, a thread, an open file or a loader, is no part of
      it, and is shared (a trainer, a writer of logs).
    - A closure, and default values: their objects are copied likewise.  Lists and dicts, where
      users collect results, are shared unless they contain callable objects.
    - A model, that is a module with parameters, is shared.
    """

    def __init__(self, copied: Copied) -> None:
        super().__init__(copied)
        self._owners: dict[int, Any] = {}  # the objects that methods are bound to, by id
        self._cells: dict[int, types.CellType] = {}  # the new cells, by the ids of the old

    def copy_called(self, function: Function) -> Function:
        """Return the copy of the user's function."""
        return self._owner(function) if _is_model(function) else self.copy(function, deep=True)

    def copy(self, value: Any, *, deep: bool) -> Any:
        """Return the copy of ``value``, or ``value`` itself if it is shared."""
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
        """Copy the object that a method is bound to, or that a closure holds."""
        if id(value) in self._done or not hasattr(value, "__dict__") or is_dataset(value):
            return self.copy(value, deep=True)
        if isinstance(value, (*CONTAINERS, *shared_classes(), _torch.DataLoader)):
            return self.copy(value, deep=False)
        self._owners[id(value)] = value
        return self.copy_object(value, deep=True)

    def _twin_of(self, value: Any) -> Any:
        if _is_tokenizer(value):
            return _tokenizer_like(value)
        if _is_module(value):
            # Not by the methods for pickle: Lightning's modules would lose their trainer.
            twin = object.__new__(type(value))
            twin.__dict__.update(value.__dict__)
            return twin
        return shallow(value)

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """Return a function of the same code with the worker's own closure and defaults."""
        self._keep(function, function)  # unless it turns out to need a copy
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
        """Return the cell that a copy of ``function`` has in the place of ``cell``."""
        held = _contents(cell)
        if held is _EMPTY or held is function:
            return cell
        if id(cell) not in self._cells:
            twin = self._held(held)
            self._cells[id(cell)] = cell if twin is held else types.CellType(twin)
        return self._cells[id(cell)]

    def _held(self, value: Any) -> Any:
        """Return the copy of the value of a closure's variable, or of a default."""
        if isinstance(value, CONTAINERS):
            return self.copy(value, deep=False)
        if callable(value) or is_dataset(value) or _is_tokenizer(value):
            return self.copy(value, deep=True)
        # An object without attributes is compared by identity: a marker for a missing value, say.
        return self._owner(value) if getattr(value, "__dict__", None) else value

    def _leads_away(self, value: Any) -> bool:
        """Whether an attribute of a method's object is no part of that object; see the class."""
        seen: dict[int, Any] = {}
        found = [value]
        while found:
            part = found.pop()
            if id(part) in seen or (
                isinstance(part, shared_classes()) and not isinstance(part, _ELSEWHERE)
            ):
                continue
            seen[id(part)] = part
            if id(part) in self._owners or isinstance(part, _ELSEWHERE) or len(seen) > REACHED:
                return True
            found += _parts(part)
        return False


def _is_helper(value: object) -> bool:
    """Whether a value is an object that is neither data nor callable."""
    return not (callable(value) or isinstance(value, (*CONTAINERS, *shared_classes())))


def _parts(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object and the entries of a container.

    A large container is data, and its entries are not looked at.
    """
    if isinstance(value, CONTAINERS) and len(value) <= LARGE:
        yield from list(value.values() if isinstance(value, dict) else value)
    for _, part, _ in attributes(value):
        yield part


_EMPTY: Any = object()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value
        return _EMPTY


def _is_module(value: object) -> bool:
    """Whether ``value`` is a module of torch's without a copy of its own, as those in C++ have."""
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
    return shallow(tokenizer)
