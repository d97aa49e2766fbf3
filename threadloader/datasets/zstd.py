"""zstd by whichever library this build of Python can use without getting its GIL back.

`compression.zstd` is in Python from 3.14 on, `backports.zstd` is the same for older ones.  The
package `zstandard` comes last, and never on a free-threaded build, where importing it may switch
the GIL on for the whole process.
"""

from __future__ import annotations

import importlib
import sysconfig
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["open_zstd"]


def open_zstd(stream: BinaryIO) -> tuple[BinaryIO, type[Exception]]:
    """Return what reads the unpacked bytes of a stream, and what it raises where that is damaged.

    A frame whose window is over 128 MiB is refused by all of these libraries, so what a frame
    declares takes no memory beyond that.

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
    msg = "zstd needs Python 3.14, or backports.zstd: pip install threadloader[zstd]"
    raise ModuleNotFoundError(msg, name="backports.zstd")
