"""threadloader: batches by threads, as a drop-in for torch.utils.data.DataLoader.

Importing the package alone loads neither torch nor Pillow; naming `ThreadLoader` loads what it
needs (PEP 562), torch where it is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader.errors import ClosedError, SampleError, ThreadLoaderError

if TYPE_CHECKING:
    from threadloader.loader import Statistics, ThreadLoader

__all__ = ["ClosedError", "SampleError", "Statistics", "ThreadLoader", "ThreadLoaderError"]

__version__ = "0.1.0"

_LAZY = frozenset({"Statistics", "ThreadLoader"})


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from threadloader import loader

    globals().update({lazy: getattr(loader, lazy) for lazy in _LAZY})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
