"""What functions use that is not their worker's own, by the names in their code: `os.chdir`, say.

Only the program's own code is looked into, also where a function calls it by a name.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

from threadloader._fetch.parts import attributes, closure
from threadloader._fetch.program_code import is_users, short_path
from threadloader._fetch.single_owner import has_owner
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._fetch.object_copy import Copied, SharedPart


# Names of modules, and of what they have that threads share, and processes don't.
_SHARED = {
    "os": "chdir dup2 fchdir putenv setgid setuid umask unsetenv",
    "cv2": "setNumThreads setUseOptimized",
    "gc": "disable enable freeze set_threshold",
    "locale": "setlocale",
    "logging": "basicConfig disable",
    "resource": "setrlimit",
    "socket": "setdefaulttimeout",
    "sys": "setrecursionlimit",
    "torch": "set_default_dtype use_deterministic_algorithms",
    "warnings": "filterwarnings resetwarnings simplefilter",
}
# Methods of objects that can be had in many ways, and are named like no others.
_METHODS = {"cpu_affinity": "the process's affinity", "setLevel": "the level of a logger"}
_BUILT_IN = {"posix": "os", "nt": "os"}  # modules that others take functions from


def warn_of_process_wide(worker_init_fn: Any, *others: Any) -> None:
    """Warn, once of each, of functions that set for the whole process what they take for theirs.

    Args:
        worker_init_fn: The user's, of which globals count, too; None for none.
        others: Functions that make samples, or None.
    """
    for function in (worker_init_fn, *others):
        code = getattr(_plain(function, None)[0], "__code__", None)
        key = code and (code.co_filename, code.co_firstlineno)
        if key is None or key in _looked_into:
            continue
        _looked_into.add(key)
        found = _set_in(function, also_globals=function is worker_init_fn)
        if found is not None:
            warn_user(
                f"{found}, which workers and the training loop share, as workers are threads: set "
                "it once before the loop, or give the sample what it needs as an argument"
            )


_looked_into: set[tuple[str, int]] = set()  # functions, by their files and lines


def _set_in(function: Any, *, also_globals: bool) -> str | None:
    """Return what a function sets for the whole process, and where; None for nothing."""
    for code, names in _codes_of(function):
        found = _named_in(code, names)
        if found is None and also_globals:
            found = _global_set_in(code)
        if found is not None and "catch_warnings" not in code.co_names:
            where = f"{short_path(code.co_filename)}:{code.co_firstlineno}"
            return f"{code.co_name} sets {found} ({where})"
    return None


def shared_by_name(copied: Copied, dataset: Any, *functions: Any) -> list[SharedPart]:
    """Return names and classes of what samples reach by a name, a global or on a class.

    Copies don't reach that, so all workers have the same; these are objects that one thread at a
    time may use.

    Args:
        copied: What was copied for a worker.
        dataset: The user's dataset.
        functions: The user's functions, or None.
    """
    given = (getattr(type(dataset), n, None) for n in ("__getitem__", "__getitems__", "__iter__"))
    makers = (types.MethodType(each, dataset) for each in given if callable(each))
    own = [original for original, _ in list(copied.values())]
    found: dict[str, type] = {}
    for code, names in _codes_of(*makers, *functions, *filter(callable, own)):
        for name in code.co_names:
            if name in names and _is_owned(names[name]):
                found[f"the global {name}"] = type(names[name])
    for kind in {base: None for part in (dataset, *own) for base in type(part).__mro__}:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        if kind.__module__ != "builtins" and is_users(file):
            for name, part in list(vars(kind).items()):
                if _is_owned(part):
                    found[f"{kind.__qualname__}.{name}"] = type(part)
    return list(found.items())


def _is_owned(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return False
    return has_owner(value) or any(has_owner(part) for _, part, _ in attributes(value))


def _codes_of(*functions: Any) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Yield the program's code that functions run, with its globals, calls by name included."""
    waiting: list[tuple[Any, type | None]] = [(function, None) for function in functions]
    seen: set[int] = set()
    while waiting and len(seen) < 200:
        each, owner = _plain(*waiting.pop())
        if isinstance(each, type) and id(each) not in seen:
            seen.add(id(each))
            waiting += ((part, each) for part in vars(each).values())
        if not isinstance(each, types.FunctionType) or id(each.__code__) in seen:
            continue
        code, names = each.__code__, each.__globals__
        seen.add(id(code))
        if not is_users(code.co_filename):
            continue
        waiting += ((part, None) for part in closure(each))
        for part in _nested(code):
            yield part, names
            for name in part.co_names:
                waiting.append((names.get(name), None))
                if owner is not None:
                    waiting.append((getattr(owner, name, None), owner))


def _plain(function: Any, owner: type | None) -> tuple[Any, type | None]:
    """Return the function behind a partial, a method or an object that can be called."""
    for _ in range(10):
        call = getattr(type(function), "__call__", None)  # noqa: B004  # where it is written
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function, owner = function.__func__, type(function.__self__)
        elif isinstance(call, types.FunctionType) and not isinstance(function, type):
            function, owner = call, type(function)
        else:
            break
    return function, owner


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _named_in(code: types.CodeType, names: dict[str, Any]) -> str | None:
    """Return what a piece of code names that concerns the whole process."""
    values = (names.get(name) for name in code.co_names)
    modules = {each.__name__ for each in values if isinstance(each, types.ModuleType)}
    modules.update(code.co_names)  # what it imports itself
    for name in code.co_names:
        if name in _METHODS:
            return _METHODS[name]
        module = str(getattr(names.get(name), "__module__", ""))  # of what was imported by name
        module = _BUILT_IN.get(module, module)
        for each, listed in _SHARED.items():
            if name in listed.split() and (each == module or each in modules):
                return f"{each}.{name}"
    return None


def _global_set_in(code: types.CodeType) -> str | None:
    import dis  # noqa: PLC0415  # few functions need it

    steps = (step for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL")
    return next((f"the global {step.argval}" for step in steps), None)
