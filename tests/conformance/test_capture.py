"""Threads of ours work on while another captures a CUDA graph: a library that is none is asked."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from threadloader._torch import accelerators, threads
from threadloader._torch.threads import ignore_captures

if TYPE_CHECKING:
    from collections.abc import Callable

THREAD_LOCAL = 1


class Library:
    """Has the runtime's function, and notes the modes that it is given."""

    def __init__(self, name: str = "cuda", result: int = 0) -> None:
        self.modes: list[int] = []

        def exchange(pointer: Any) -> int:
            self.modes.append(pointer._obj.value)  # noqa: SLF001
            pointer._obj.value = 0  # the mode that there was  # noqa: SLF001
            return result

        setattr(self, f"{name}ThreadExchangeStreamCaptureMode", exchange)


def give(monkeypatch: pytest.MonkeyPatch, found: Callable[[str], Any], **also: Any) -> None:
    fakes = {"CDLL": found, "byref": ctypes.byref, "c_int": ctypes.c_int}
    monkeypatch.setattr(threads, "ctypes", SimpleNamespace(**fakes, **also))


TORCHS = torch._C.__file__  # noqa: SLF001  # what torch is linked with is reached by it


@pytest.mark.parametrize("place", ["cuda", "hip", "cudart64_12.dll"])
def test_the_mode_of_the_calling_thread_is_thread_local(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library("hip" if place == "hip" else "cuda")
    monkeypatch.setattr(torch.version, "hip", "7.0" if place == "hip" else None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    if place.endswith("dll"):  # on Windows the runtime is found by its name
        libraries = {TORCHS: SimpleNamespace(), place: library}
        give(monkeypatch, libraries.__getitem__, WinDLL=None)
    else:
        give(monkeypatch, {TORCHS: library}.__getitem__)
    ignore_captures()
    assert library.modes == [THREAD_LOCAL]


def test_where_there_is_no_such_function_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> Any:
        raise OSError(path)

    for found in (missing, lambda _: SimpleNamespace(), lambda _: Library(result=3)):
        give(monkeypatch, found)
        ignore_captures()
    monkeypatch.undo()
    ignore_captures()  # of this torch


def test_workers_ignore_captures_where_cuda_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "set_device_index", told.append)
    monkeypatch.setattr(threads, "ignore_captures", lambda: told.append("ignores captures"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    threads.adopted_device()()
    assert told == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    threads.adopted_device()()
    assert told == [1, "ignores captures"]


def test_the_copier_ignores_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", told.append)
    monkeypatch.setattr(torch.cuda, "set_stream", told.append)
    monkeypatch.setattr(accelerators, "ignore_captures", lambda: told.append("ignores captures"))
    accelerators._Cuda(torch.device("cuda", 1)).adopt()  # noqa: SLF001
    assert told == [1, None, "ignores captures"]
