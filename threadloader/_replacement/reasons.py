"""Why a loader is left to torch: what threads would share, or do differently.

Only the program's own code is looked into.  What it calls of installed packages is trusted to be as
safe in threads as these packages say.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._replacement.objects import open_file_in
from threadloader._replacement.process_wide import process_wide_in

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_drawn_meanwhile", "starts_at_iter", "why_torch"]

# Packages whose samplers do not look at what the program does meanwhile.
_KNOWN = {"accelerate", "builtins", "lightning", "pytorch_lightning", "threadloader", "torch"}
_KNOWN |= {"transformers", "ignite", "monai", "torchdata", "torchvision", "datasets"}


def why_torch(loader: Any, *, overridden: bool) -> str | None:
    """Return why torch must load; None if threads may.

    Args:
        loader: One of torch's.
        overridden: Whether its class makes iterators of its own.
    """
    if overridden:
        return f"{type(loader).__name__} makes iterators of its own"
    context = loader.multiprocessing_context
    if context is not None:
        return f"multiprocessing_context={_method_of(context)!r} asks for processes"
    iterable = isinstance(loader.dataset, _torch.IterableDataset)
    found = _of_workers if loader.num_workers else _of_no_workers
    return (
        found(loader, iterable=iterable)
        or _of_dataset(loader.dataset, iterable=iterable)
        or open_file_in(loader.dataset)
    )


def _of_workers(loader: Any, *, iterable: bool) -> str | None:
    found = process_wide_in(loader.worker_init_fn, asks=iterable)
    return f"worker_init_fn uses {found}, which concerns the whole process" if found else None


def _of_no_workers(loader: Any, *, iterable: bool) -> str | None:
    if iterable:
        return "an iterable dataset without workers is read by the program's own thread"
    found = _drawn_meanwhile(loader.sampler) or _drawn_meanwhile(loader.batch_sampler)
    if found:
        return f"threads would draw from its {type(found).__name__} ahead of the program"
    return None


def _of_dataset(dataset: Any, *, iterable: bool) -> str | None:
    for each in _datasets(dataset):
        for method in ("__iter__",) if iterable else ("__getitem__", "__getitems__"):
            found = process_wide_in(getattr(each, method, None), asks=True)
            if found:
                return f"{type(each).__name__} uses {found}, which concerns the whole process"
    return None


def _method_of(context: Any) -> str:
    method = getattr(context, "get_start_method", None)
    return str(method()) if method else type(context).__name__


def is_drawn_meanwhile(sampler: Any) -> bool:
    """Whether it matters how far ahead a sampler is drawn from; see `_drawn_meanwhile`."""
    return _drawn_meanwhile(sampler) is not None


def _drawn_meanwhile(sampler: Any) -> Any:
    """Return a sampler, or one inside it, that the program may change or look at in a pass.

    That is one of a class of the program's own, or one that draws from a generator of the
    program's more than once a pass.
    """
    for _ in range(10):
        if sampler is None:
            break
        if type(sampler).__module__.partition(".")[0] not in _KNOWN or _draws_often(sampler):
            return sampler
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return None


def _draws_often(sampler: Any) -> bool:
    """Whether it is torch's `RandomSampler`, with a generator that it draws from piece by piece."""
    if not _torch.SEEDED or not isinstance(sampler, _torch.SEEDED) or sampler.generator is None:
        return False
    return bool(sampler.replacement or sampler.num_samples > len(sampler.data_source))


def starts_at_iter(sampler: Any) -> bool:
    """Whether code of the program's runs when a pass over a sampler begins."""
    kind = type(sampler)
    own = kind.__module__.partition(".")[0] not in _KNOWN
    return own and not inspect.isgeneratorfunction(getattr(kind, "__iter__", None))


def _datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets on it and inside of torch's wrappers."""
    waiting = [dataset]
    seen: set[int] = set()
    while waiting and len(seen) < 100:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        for value in getattr(each, "__dict__", {}).values():
            parts = value if isinstance(value, (list, tuple)) and len(value) < 100 else [value]
            waiting += [part for part in parts if _torch.is_dataset(part)]
