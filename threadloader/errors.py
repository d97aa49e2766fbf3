"""The exceptions of the package's own, in one tree; for a wrong argument Python's own serve.

ThreadLoaderError
├── ClosedError   (RuntimeError)   the iterator or loader was closed
├── DeviceError   (RuntimeError)   the device failed before; what happened is ``__cause__``
├── SampleError   (RuntimeError)   a sample raised StopIteration, which would end the epoch unseen
└── StateError    (ValueError)     a saved state does not belong to this loader

An error of the user's dataset, sampler or collate function is never wrapped: it arrives as
the object that was raised, with a note that names worker, batch and index.
"""

from __future__ import annotations

__all__ = ["ClosedError", "DeviceError", "SampleError", "StateError", "ThreadLoaderError"]


class ThreadLoaderError(Exception):
    """Base of every error that threadloader raises of its own."""


class ClosedError(ThreadLoaderError, RuntimeError):
    """The iterator was closed; call ``iter(loader)`` for a new one."""


class DeviceError(ThreadLoaderError, RuntimeError):
    """A batch was not copied, as the device had failed before; that error is ``__cause__``."""


class SampleError(ThreadLoaderError, RuntimeError):
    """Loading a sample raised StopIteration; that error is ``__cause__``."""


class StateError(ThreadLoaderError, ValueError):
    """A saved state is no state of this loader; the message says what differs."""
