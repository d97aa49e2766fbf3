"""zstd, by a library that does not switch on the GIL of this build of Python.

`compression.zstd` is part of Python from 3.14 on, and `backports.zstd` is the same for older ones.
The package `zstandard` comes last, and is never used on a free-threaded build, where importing it
may switch the GIL on for the whole process.
"""

from __future__ import annotations

import importlib
import sysconfig
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["open_zstd"]


def open_zstd(stream: BinaryIO) -> tuple[BinaryIO, type[Exception]]:
    """Return a reader of a stream's unpacked bytes, and the error that it raises for damage.

    All of these libraries refuse a frame whose window is over 128 MiB, so a frame takes no more
    memory than that, whatever it declares.

    Args:
        stream: Of zstd frames; the caller closes it.

    Raises:
        ModuleNotFoundError: No library is installed.
    """
    module = _library()
    if module.__name__ == "zstandard":
        unpacker = module.ZstdDecompressor()
        reader = unpacker.stream_reader(stream, read_across_frames=True, closefd=False)
        return cast("BinaryIO", reader), module.ZstdError
    return cast("BinaryIO", module.ZstdFile(stream)), module.ZstdError


def _library() -> ModuleType | Any:
    names = ["compression.zstd", "backports.zstd"]
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        names.append("zstandard")
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    msg = "zstd needs Python 3.14, or: pip install backports.zstd (extra: zstd)"
    raise ModuleNotFoundError(msg, name="backports.zstd")
