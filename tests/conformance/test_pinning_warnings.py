"""pin_memory without an accelerator is warned of at the line of the loop."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from threadloader import ThreadLoader

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")


def line() -> int:
    """Return the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("device", ["", "cuda"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_warnings_point_at_the_loop(device: str, threads: int, epochs: int) -> None:
    loader = ThreadLoader([1, 2], threads=threads, pin_memory=True, pin_memory_device=device)
    for _ in range(epochs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = line()
            for _batch in loader:
                pass
        told = [str(warning.message) for warning in caught]
        assert "no accelerator is found" in told[-1]
        assert len(told) == (2 if device else 1)
        assert {(warning.filename, warning.lineno) for warning in caught} == {
            (__file__, before + 1)
        }
