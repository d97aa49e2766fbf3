"""Objects that one thread at a time may use, and that samples reach by a name: globals, classes.

Copies don't reach them: all workers have the same.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from threadloader._fetch.kinds import attributes
from threadloader._fetch.process_wide import codes_of
from threadloader._fetch.program_code import is_users
from threadloader._fetch.single_owner import has_owner

if TYPE_CHECKING:
    from threadloader._fetch.object_copy import Copied, SharedPart

__all__ = ["shared_by_name"]


def shared_by_name(copied: Copied, dataset: Any, *functions: Any) -> list[SharedPart]:
    """Return the names of such objects that samples use, and their classes.

    Args:
        copied: What was copied for a worker.
        dataset: The user's dataset.
        functions: The user's functions, or None.
    """
    given = (getattr(type(dataset), n, None) for n in ("__getitem__", "__getitems__", "__iter__"))
    makers = (types.MethodType(each, dataset) for each in given if callable(each))
    own = [original for original, _ in list(copied.values())]
    found: dict[str, type] = {}
    for code, names in codes_of(*makers, *functions, *filter(callable, own)):
        for name in code.co_names:
            if name in names and _is_owned(names[name]):
                found[f"the global {name}"] = type(names[name])
    for kind in {base: None for part in (dataset, *own) for base in type(part).__mro__}:
        if is_users(getattr(sys.modules.get(kind.__module__), "__file__", None) or ""):
            for name, part in list(vars(kind).items()):
                if _is_owned(part):
                    found[f"{kind.__qualname__}.{name}"] = type(part)
    return list(found.items())


def _is_owned(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return False
    return has_owner(value) or any(has_owner(part) for _, part, _ in attributes(value))
