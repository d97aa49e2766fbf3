"""What a loader would run on here: the build, its GIL, the cores, the versions, the decoders."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from threadloader import _torch
from threadloader._threads.cores import cpu_quota, default_threads, usable_cores
from threadloader._threads.gil_switch import (
    AN_IMPORT,
    is_free_threaded,
    what_switched_the_gil_on,
)
from threadloader._tuning.tuner import gil_is_enabled
from threadloader._version import __version__

__all__ = ["advice", "examine"]

PACKAGES = (
    *("numpy", "torch", "torchvision", "pillow", "leanjpeg-simple", "simplejpeg"),
    *("fsspec", "zstandard", "backports.zstd", "lightning", "accelerate", "transformers"),
    *("datasets", "webdataset", "h5py", "lmdb", "opencv-python-headless", "opencv-python"),
)
VARIABLES = (
    *("PYTHON_GIL", "PYTHONDONTWRITEBYTECODE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"),
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)


def examine() -> dict[str, Any]:
    """Return what there is, JSON-able.

    Ask after all imports that matter: one of them may switch the GIL on.
    """
    decoders = _decoders()  # first: importing them may do so, too
    switch = what_switched_the_gil_on()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "python": {
            "implementation": platform.python_implementation(),
            "version": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
            "free_threaded": is_free_threaded(),
        },
        "gil": {
            "enabled": gil_is_enabled(),
            "requested_by": "" if switch == AN_IMPORT else switch,
            "switched_on_by": [],  # for who has watched the imports
        },
        "cores": {
            "machine": os.cpu_count(),
            "affinity": affinity,
            "quota": cpu_quota(),
            "usable": usable_cores(),
            "threads_by_default": default_threads(),
        },
        "versions": {"threadloader": __version__}
        | {name: found for name in PACKAGES if (found := _version(name))},
        "torch": _torch.AVAILABLE,
        "decoders": decoders,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def advice(found: dict[str, Any]) -> list[str]:
    """Return what would make loading faster here, the most important first.

    Args:
        found: What `examine` has returned.
    """
    return [text for text in (_of_gil(found), *_of_rest(found)) if text]


def _of_gil(found: dict[str, Any]) -> str:
    gil, python = found["gil"], found["python"]
    if not gil["enabled"]:
        return ""
    if gil["requested_by"]:
        return f"The GIL is on because of {gil['requested_by']}: unset it."
    if python["free_threaded"]:
        modules = ", ".join(gil["switched_on_by"]) or "an extension module"
        return (
            f"The GIL was switched on by {modules}: use another version of that package, or set "
            "PYTHON_GIL=0 if it is known to be safe."
        )
    return (
        "Python code of several threads takes turns on this build. Where samples are made in pure "
        "Python, use a free-threaded build (3.13t or later)."
    )


def _of_rest(found: dict[str, Any]) -> list[str]:
    cores, decoders, python = found["cores"], found["decoders"], found["python"]
    texts = []
    if python["free_threaded"] and not found["gil"]["enabled"] and find_spec("triton"):
        texts.append(
            "triton is installed, and switches the GIL on when torch imports it (for any "
            "optimizer): set PYTHON_GIL=0, or uninstall it if you do not compile."
        )
    if python["free_threaded"] and found["variables"].get("PYTHONDONTWRITEBYTECODE"):
        texts.append(
            "Unset PYTHONDONTWRITEBYTECODE: without .pyc files, threads of this build share "
            "constants, and can be slower than one."
        )
    if python["free_threaded"] and python["version"].startswith("3.13."):
        texts.append("dict.get on another thread's large dict takes 20 us: use 3.14, or d[key].")
        texts.append(
            "The newest NumPy and others have no wheels for 3.13t, so pip builds them from source: "
            "install with pip's option --only-binary=:all:."
        )
    if decoders and set(decoders) <= {"pillow", "pillow-simd"}:
        name = "leanjpeg-simple" if python["free_threaded"] else "simplejpeg"
        texts.append(f"Install a fast JPEG decoder: pip install {name} (extra: images).")
    if cores["usable"] < (cores["machine"] or 1):
        texts.append(
            f"This process may use {cores['usable']} of {cores['machine']} cores: more threads "
            "gain only where samples wait."
        )
    return texts


def _decoders() -> list[str]:
    """Return the decoders of images, the fastest first; none without Pillow."""
    if find_spec("PIL") is None:
        return []
    from threadloader.datasets._images.jpeg_decoders import (  # noqa: PLC0415  # imports Pillow
        installed_decoders,
    )

    return [decoder.name for decoder in installed_decoders()]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
