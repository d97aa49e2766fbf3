"""``threadloader doctor``: what a loader would run on here, and what would make it faster."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from threadloader.cli.terminal import paragraph

if TYPE_CHECKING:
    import argparse


INDENT = 11  # columns
HELP = "print Python build, cores, versions and advice"
DESCRIPTION = """\
Print the Python build, whether the GIL is on, the cores that this process may use, versions, image
decoders, and advice.
"""
PACKAGES = (
    *("numpy", "torch", "torchvision", "pillow", "leanjpeg-simple", "simplejpeg"),
    *("fsspec", "zstandard", "backports.zstd", "lightning", "accelerate", "transformers"),
    *("datasets", "webdataset", "h5py", "lmdb", "opencv-python-headless", "opencv-python"),
)
VARIABLES = (
    *("PYTHON_GIL", "PYTHONDONTWRITEBYTECODE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"),
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    found = examine()
    texts = advice(found)
    if arguments.json:
        print(json.dumps({**found, "advice": texts}, indent=2))
        return 0
    for name, value in found.items():
        if text := _told(value):
            print(paragraph(text, f"{name.title():<{INDENT}}", " " * INDENT))
    if texts:
        print("\n".join(["", *map(paragraph, texts)]))
    return 0


def examine() -> dict[str, Any]:
    """Return what there is, JSON-able.

    Ask after all imports that matter: one of them may switch the GIL on.
    """
    decoders: list[str] = []
    if find_spec("PIL") is not None:  # first: importing decoders may do so, too
        from threadloader.datasets._images.decode import installed_decoders

        decoders = [*installed_decoders()]
    from threadloader import _torch
    from threadloader._threads import gil_switch
    from threadloader._threads.machine import cpu_quota, default_threads, usable_cores
    from threadloader._threads.tuner import gil_is_enabled
    from threadloader._version import __version__

    switch, free = gil_switch.what_switched_the_gil_on(), gil_switch.is_free_threaded()
    installed = [*distributions()]
    versions = {str(each.name).lower(): each.version for each in installed}
    # Extension modules that are for builds with a GIL alone.
    files = (str(it) for each in installed * free for it in each.files or ())
    wrong = sorted({file for file in files if file.endswith(".abi3.so")})
    return {
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "free_threaded": free,
            "platform": platform.platform(),
            "executable": sys.executable,
        },
        "gil": {
            "enabled": gil_is_enabled(),
            "requested_by": switch.replace(gil_switch.AN_IMPORT, ""),
        },
        "cores": {
            "machine": os.cpu_count(),
            "quota": cpu_quota(),
            "usable": usable_cores(),
            "threads_by_default": default_threads(),
        },
        "versions": {"threadloader": __version__}
        | {name: versions[name] for name in PACKAGES if name in versions},
        "torch": _torch.AVAILABLE,
        "decoders": decoders,
        "wrong_builds": wrong,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def advice(found: dict[str, Any]) -> list[str]:
    """Return what would make loading faster here, the most important first.

    Args:
        found: What `examine` has returned.
    """
    gil, python, cores = found["gil"], found["python"], found["cores"]
    free, decoders = python["free_threaded"], found["decoders"]
    # As the extra has it: from 3.15 on there are no wheels of either yet.
    faster = "leanjpeg-simple" if sys.version_info >= (3, 13) else "simplejpeg"
    on, requested = gil["enabled"], gil["requested_by"]
    no_pyc = "PYTHONDONTWRITEBYTECODE"
    texts = {
        f"The GIL is on because of {requested}: unset it.": on and requested,
        "The GIL was switched on by an extension module, which CPython's RuntimeWarning names: use "
        "another version of that package, or set PYTHON_GIL=0 if it is known to be safe.": on
        and not requested
        and free,
        "With the GIL, threads take turns in Python code: for samples in pure Python, use a "
        "free-threaded build.": on and not requested and not free,
        f"Modules that are not for this build: {', '.join(found['wrong_builds'])}. Install their "
        "packages anew, with this Python's pip.": found["wrong_builds"],
        f"Unset {no_pyc}: without .pyc files, threads of this build share constants, and can be "
        "slower than one.": free and found["variables"].get(no_pyc),
        f"Install a fast JPEG decoder: pip install {faster} (extra: images).": decoders
        and set(decoders) <= {"pillow", "pillow-simd"}
        and sys.version_info < (3, 15),
        f"This process may use {cores['usable']} of {cores['machine']} cores: more threads gain "
        "only where samples wait.": cores["usable"] < (cores["machine"] or 1),
    }
    return [text for text, holds in texts.items() if holds]


def _told(value: Any) -> str:
    """Return a part of what `examine` has found, in words."""
    if isinstance(value, dict):
        pairs = ((name.replace("_", " "), _told(part)) for name, part in value.items())
        return ", ".join(f"{name} {text}" for name, text in pairs if text)
    if isinstance(value, list):
        return ", ".join(value)
    return {"None": "", "True": "yes", "False": "no"}.get(str(value), str(value))
