"""The modes of torch that belong to a thread, carried from the consumer to the workers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["inherited_modes"]


def inherited_modes() -> Callable[[], AbstractContextManager[None]]:
    """Note the calling thread's grad and inference mode, for another thread to work in.

    A forked worker process inherits them; a new thread starts with torch's defaults.

    Returns:
        Makes the context in which the other thread runs.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @contextmanager
    def modes() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            yield

    return modes
