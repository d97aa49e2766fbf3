"""JPEG decoders: which packages there are, which are installed, and which one is used.

The fast ones are wrappers of libjpeg-turbo with one API.  leanjpeg-simple is a fork of simplejpeg
for Python 3.13 and later that runs without the GIL.  simplejpeg would switch the GIL back on for
the whole process, so a free-threaded build never imports it.

Source: https://github.com/jfolz/simplejpeg, https://github.com/vxlk/leanjpeg
"""

from __future__ import annotations

import functools
import importlib
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from threadloader.datasets._images import pillow

if TYPE_CHECKING:
    from collections.abc import Callable


# Distribution and module, the fastest first.
FAST = (("leanjpeg-simple", "leanjpeg_simple"), ("simplejpeg", "simplejpeg"))
NEEDS_GIL = {"simplejpeg"}


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder of images.

    Args:
        name: Of the distribution: ``"leanjpeg-simple"``, ``"simplejpeg"``, ``"pillow-simd"`` or
            ``"pillow"``.
        decode_jpeg: Decodes plain JPEGs: takes the bytes, ``"RGB"``, and ``min_height=`` and
            ``min_width=``, at the smallest of libjpeg-turbo's scales that reaches them.  None if
            Pillow decodes them as it does everything else.

    Threads:
        all: shared.
    """

    name: str
    decode_jpeg: Callable[..., Any] | None = None


@functools.cache
def find_decoder(name: str = "auto") -> Decoder:
    """Return the decoder of a name, or the fastest that is installed.

    Raises:
        ModuleNotFoundError: The decoder is not installed.
        ValueError: There is no such decoder, or it would switch the GIL back on.
    """
    if name == "auto":
        return installed_decoders()[0]
    if name in {"pillow", "pillow-simd"}:
        if name != pillow.NAME:
            msg = f"decoder={name!r} is not installed: PIL is {pillow.NAME}"
            raise ModuleNotFoundError(msg, name="PIL")
        return Decoder(name)
    modules = dict(FAST)
    if name not in modules:
        names = ", ".join(map(repr, ("auto", *modules, "pillow-simd", "pillow")))
        raise ValueError(f"decoder={name!r} is none of {names}")
    if name in NEEDS_GIL and sysconfig.get_config_var("Py_GIL_DISABLED"):
        msg = f"decoder={name!r} would switch the GIL back on: use leanjpeg-simple"
        raise ValueError(msg)
    try:
        module = importlib.import_module(modules[name])
    except ModuleNotFoundError as error:
        error.add_note(f"decoder={name!r}: pip install {name}")
        raise
    if hasattr(module, "set_handle_pool_size"):
        # leanjpeg-simple 0.1.0 keeps the tables of the last image in a handle that it uses again.
        # A damaged image without tables would be decoded with them, to a wrong picture.
        module.set_handle_pool_size(0)
    return Decoder(name, module.decode_jpeg)


def installed_decoders() -> tuple[Decoder, ...]:
    """Return the decoders that this interpreter can use, the fastest first."""
    found = []
    for name, _ in FAST:
        try:
            found.append(find_decoder(name))
        except (ImportError, ValueError):  # missing, broken, or not for this build
            continue
    return (*found, Decoder(pillow.NAME))
