"""The machine that figures were measured on: processor, cores, Python build, packages."""

from __future__ import annotations

import functools
import os
import platform
import sys
import sysconfig
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader._threads.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["describe", "gil_enabled", "machine_lines", "python_label", "usable_cores"]

PACKAGES = (
    *("numpy", "pillow", "pillow-simd", "simplejpeg", "leanjpeg-simple", "torch", "torchvision"),
    *("torchdata", "spdl", "grain", "monai", "webdataset", "dataloader-rs", "turboloader"),
    "threadloader",
)
MODULES = (
    *("PIL", "torch", "torchvision", "threadloader", "skimage", "sklearn"),
    *("torchdata", "spdl", "grain", "monai", "webdataset", "dataloader_rs", "turboloader"),
)


def gil_enabled() -> bool:
    """Whether the GIL is on now; an extension module may have turned it on."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def python_label() -> str:
    """Return the version as one writes it, ``3.13t`` for a free-threaded build."""
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return f"{sys.version_info[0]}.{sys.version_info[1]}{'t' if free_threaded else ''}"


def describe() -> dict[str, Any]:
    """Return the machine, the interpreter and the packages as plain values."""
    now = {
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gil_enabled": gil_enabled(),
    }
    return _lasting() | now


@functools.cache  # looking for packages takes as long as a short measurement
def _lasting() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": usable_cores(),
        "python": python_label(),
        "python_version": platform.python_version(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "compiler": platform.python_compiler(),
        "optimised": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "packages": {name: _version(name) for name in PACKAGES},
        # torch may be importable without metadata, and threadloader from a checkout.
        "importable": {name: util.find_spec(name) is not None for name in MODULES},
    }


def machine_lines(builds: Mapping[str, dict[str, Any]] | None = None) -> str:
    """Return what a run is on: the machine once, then a line for each interpreter.

    Args:
        builds: What `describe` says in each, by its label; this one by default.
    """
    builds = builds or {python_label(): describe()}
    first = next(iter(builds.values()))
    hardware = f"{first['processor']}, {first['cores']} cores, {first['architecture']}"
    lines = [f"{hardware}, {first['system']}, load {first['load']}"]
    for label, told in builds.items():
        packages = told["packages"]
        versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        gil = "GIL on" if told["gil_enabled"] else "GIL off"
        lines.append(f"{label}: {told['python_version']}, {gil}; {versions}")
    return "\n".join(lines)


def _processor() -> str:
    """Return the processor's name as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line for line in lines if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def _version(package: str) -> str | None:
    """Return the installed version of ``package``, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
