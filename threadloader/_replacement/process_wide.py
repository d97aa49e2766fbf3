"""What a function uses that concerns the whole process, by its bytecode: `os.chdir`, a global.

Only the program's own code is looked into, also where the function calls it by a name.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import TYPE_CHECKING, Any

from threadloader._replacement.places import is_users

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["process_wide_in"]

# Names of modules, and of what they have that concerns the whole process.
_OF_THE_PROCESS = {
    "os": frozenset(
        {"chdir", "chroot", "dup2", "environ", "fchdir", "fork", "kill", "nice", "putenv", "setgid"}
        | {"sched_setaffinity", "sched_setscheduler", "setpriority", "setsid", "setuid", "umask"}
        | {"unsetenv", "_exit"}
    ),
    "signal": frozenset({"alarm", "pthread_sigmask", "setitimer", "signal"}),
    "resource": frozenset({"setrlimit"}),
    "socket": frozenset({"setdefaulttimeout"}),
    "locale": frozenset({"setlocale"}),
    "setproctitle": frozenset({"setproctitle"}),
}
_ASKS_FOR_THE_PROCESS = {
    "os": frozenset({"getpid", "register_at_fork"}),
    "multiprocessing": frozenset({"current_process", "parent_process"}),
}
_WRITES = {"STORE_SUBSCR", "DELETE_SUBSCR"}
_CHANGES = {"update", "setdefault", "pop", "clear", "popitem"}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}


def process_wide_in(function: Any, *, asks: bool) -> str | None:
    """Return the first name in a function that concerns the whole process.

    Args:
        function: Anything that can be called, or None.
        asks: Whether it also counts that the function asks which process it runs in.
    """
    for code, names in _codes(function):
        found = _found_in(code, names, asks=asks)
        if found:
            return found
    return None


def _codes(function: Any) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Yield the program's code that a function runs, with its globals, calls by name included."""
    waiting: list[tuple[Any, type | None]] = [(function, None)]
    seen: set[int] = set()
    while waiting and len(seen) < 200:
        each, owner = waiting.pop()
        each, owner = _plain(each, owner)
        if not isinstance(each, types.FunctionType) or id(each.__code__) in seen:
            continue
        code, names = each.__code__, each.__globals__
        seen.add(id(code))
        if not is_users(code.co_filename):
            continue
        for part in _nested(code):
            yield part, names
            for name in part.co_names:
                waiting.append((names.get(name), None))
                if owner is not None:
                    waiting.append((getattr(owner, name, None), owner))


def _plain(function: Any, owner: type | None) -> tuple[Any, type | None]:
    """Return the function behind a partial, a method or an object that can be called."""
    for _ in range(10):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            owner = type(function.__self__)
            function = function.__func__
        elif isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type)):
            break
        elif isinstance(getattr(type(function), "__call__", None), types.FunctionType):  # noqa: B004
            owner, function = type(function), type(function).__call__
        else:
            break
    return function, owner


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _found_in(code: types.CodeType, names: dict[str, Any], *, asks: bool) -> str | None:
    """Return what a piece of code uses that concerns the whole process."""
    local: dict[str, str] = {}  # names of modules that it imports itself
    imported = module = ""
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        kind, name, found = step.opname, step.argval, None
        if kind == "STORE_GLOBAL":
            return f"the global {name}"
        if kind == "IMPORT_NAME":
            imported = name
        elif kind == "STORE_FAST":
            local[name], imported = imported.partition(".")[0], ""
        elif kind in _LOADS:
            module = _module_named(name, names, local)
            found = _listed(*_builtin_named(name, names), asks=asks)
        elif kind in _ATTRIBUTES and _is_used(name, steps[place + 1 : place + 4]):
            found = _listed(imported or module, name, asks=asks)
        if found:
            return found
    return None


def _module_named(name: Any, names: dict[str, Any], local: dict[str, str]) -> str:
    value = names.get(name) if isinstance(name, str) else None
    if isinstance(value, types.ModuleType):
        return value.__name__
    return local.get(name, "") if isinstance(name, str) else ""


def _builtin_named(name: Any, names: dict[str, Any]) -> tuple[str, str]:
    """Return module and name of a function that was imported by its name."""
    value = names.get(name) if isinstance(name, str) else None
    if not callable(value) or isinstance(value, type):
        return "", ""
    module = str(getattr(value, "__module__", "") or "")
    module = {"posix": "os", "nt": "os", "_signal": "signal"}.get(module, module)
    return module.removesuffix(".process"), str(getattr(value, "__name__", ""))


def _listed(module: str, name: str, *, asks: bool) -> str | None:
    tables = (_OF_THE_PROCESS, _ASKS_FOR_THE_PROCESS) if asks else (_OF_THE_PROCESS,)
    if any(name in table.get(module, ()) for table in tables):
        return f"{module}.{name}"
    return None


def _is_used(name: str, then: list[dis.Instruction]) -> bool:
    """Whether a name counts: ``os.environ`` only if the instructions after it write to it."""
    writes = (step.opname in _WRITES or step.argval in _CHANGES for step in then)
    return name != "environ" or any(writes)
