"""Accelerate: its shards, devices and gradient state around a `ThreadLoader`.

`accelerate.Accelerator.prepare` and `accelerate.skip_first_batches` build a plain `DataLoader`
of a loader's attributes, whatever its class, and silently.  The functions here let Accelerate do
that, and then put a `ThreadLoader` with the same dataset and samplers in its place.  Its class is
`ThreadLoader`, also where yours is a subclass.

A prepared loader has ``state_dict()`` and ``load_state_dict()``.  With Accelerate's
``use_stateful_dataloader`` its ``save_state`` and ``load_state`` call them, and torchdata is not
needed.

The Trainer of transformers calls Accelerate's own function when it resumes within an epoch: the
rest of that epoch is loaded by processes, unless ``ignore_data_skip`` is set.
"""

from __future__ import annotations

import inspect
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import accelerate
from accelerate.data_loader import DataLoaderAdapter, DataLoaderDispatcher

from threadloader import _torch
from threadloader._loader.arguments import is_iterable
from threadloader._loader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["prepare", "skip_first_batches"]


def prepare(
    accelerator: accelerate.Accelerator, *objects: Any, device_placement: list[bool] | None = None
) -> Any:
    """Call ``accelerator.prepare``, and keep the threads of every `ThreadLoader` in it.

    Args:
        accelerator: Shards batches over processes and puts them on its device, as it is set up.
        objects: Loaders, models, optimizers and schedulers, as for ``accelerator.prepare``.
        device_placement: For each object, whether it is put on the device.

    Returns:
        The prepared objects in their order, or the only one, as ``accelerator.prepare`` does.

    Raises:
        TypeError: Accelerate wraps loaders in something other than its `DataLoaderAdapter`, or a
            dataset is an iterable other than torch's ``IterableDataset``, which it can't share out.
        ValueError: The accelerator is set up for stateful loaders, and there is a loader of
            another class among the objects.
    """
    with _no_torchdata(accelerator, objects) as stateful:
        prepared = accelerator.prepare(*objects, device_placement=device_placement)
    pairs = zip(objects, prepared if len(objects) > 1 else (prepared,), strict=True)
    for before, after in pairs:
        if isinstance(before, ThreadLoader) and after is not before:
            _exchange(before, after).use_stateful_dataloader = stateful
    return prepared


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """Return a loader of the batches after the first ones, with the threads of ``loader``.

    Args:
        loader: A `ThreadLoader`, prepared or not.
        num_batches: Batches left out of each epoch; those of a map-style dataset are not fetched.

    Returns:
        The loader of ``accelerate.skip_first_batches``, with threads.

    Raises:
        TypeError: ``loader`` has no threads to keep, or Accelerate wraps it in something else.
    """
    threaded = getattr(loader, "base_dataloader", loader)
    if not isinstance(threaded, ThreadLoader):
        msg = f"loader must be a ThreadLoader, prepared or not, but got {type(threaded).__name__}"
        raise TypeError(msg)
    rest = accelerate.skip_first_batches(loader, num_batches)
    if isinstance(rest, DataLoaderAdapter):
        return _exchange(threaded, rest)
    return _rebuild(threaded, rest)


def _exchange(loader: ThreadLoader[Any], adapter: Any) -> Any:
    """Let an adapter of Accelerate's load by a copy of ``loader``; return the adapter.

    The adapter changes batches outside of the loader that it adapts.

    Source: ``DataLoaderAdapter``, ``DataLoaderShard`` and ``DataLoaderDispatcher`` in
    accelerate/data_loader.py: all of them use the public attribute ``base_dataloader``.
    """
    if not isinstance(adapter, DataLoaderAdapter):
        msg = f"a ThreadLoader can't be put into a {type(adapter).__name__} of Accelerate"
        raise TypeError(msg)
    adapter.base_dataloader = threaded = _rebuild(loader, adapter.base_dataloader)
    adapter.dl_state_dict = threaded.state_dict()  # as its __init__ does of a stateful loader
    if isinstance(adapter, DataLoaderDispatcher):
        whole = adapter.split_batches or adapter.submesh_tp
        at_once = 1 if whole else adapter.state.num_processes
        keep = partial(_step_back, adapter, deque(maxlen=at_once))
        adapter.adjust_state_dict_for_prefetch = keep
    return adapter


def _step_back(adapter: Any, states: deque[dict[str, Any]]) -> None:
    """Let the state of a dispatcher be that of the batches that it has yielded.

    It draws a batch for each process, one round ahead of the batches that it yields, and reads the
    state before each: the first state of a round counts.  It corrects numbers in states of
    torchdata's; ours have none of the keys that it knows.

    Args:
        adapter: The dispatcher, which has just read a state.
        states: The last states that it read.

    Source: ``DataLoaderAdapter.adjust_state_dict_for_prefetch``, made to be overridden.
    """
    states.append(adapter.dl_state_dict)
    if adapter.end_of_dataloader:
        states.clear()
    else:
        adapter.dl_state_dict = states[0]


@contextmanager
def _no_torchdata(accelerator: accelerate.Accelerator, objects: Sequence[Any]) -> Iterator[bool]:
    """Yield whether loaders are to be stateful; Accelerate makes none of torchdata's meanwhile.

    It would ask torchdata's for their states at once, which starts processes and draws an order.
    """
    fresh = [
        each
        for each in objects
        if isinstance(each, _torch.DataLoader) and not isinstance(each, DataLoaderAdapter)
    ]
    ours = [each for each in fresh if isinstance(each, ThreadLoader)]
    configuration = accelerator.dataloader_config
    stateful = configuration.use_stateful_dataloader
    if not (stateful and ours):
        yield False
        return
    if len(ours) < len(fresh):
        msg = (
            "use_stateful_dataloader=True makes a loader of torchdata's of each loader but a "
            "ThreadLoader: prepare them in a call of their own"
        )
        raise ValueError(msg)
    configuration.use_stateful_dataloader = False
    try:
        yield True
    finally:
        configuration.use_stateful_dataloader = stateful


def _rebuild(loader: ThreadLoader[Any], plain: Any) -> ThreadLoader[Any]:
    """Return a loader of the samples of ``plain``, with all other arguments of ``loader``.

    A subclass may take other arguments than its parent, so the class is not kept.

    Raises:
        ValueError: A state was loaded that no iterator has begun from.
    """
    if loader._session.run.loaded is not None:  # noqa: SLF001  # nobody else has to know
        msg = "load the state into what Accelerate returns: it has other samplers than this loader"
        raise ValueError(msg)
    arguments = {
        name: getattr(loader, name)
        for name in inspect.signature(ThreadLoader).parameters
        if hasattr(loader, name)
    }
    changed = ["batch_size", "sampler", "batch_sampler", "drop_last"]
    if loader._fixed.tunes_threads:  # noqa: SLF001  # the same
        changed += ["threads", "num_workers"]
    for name in changed:
        arguments.pop(name, None)
    arguments["dataset"] = plain.dataset
    if isinstance(plain.dataset, _torch.IterableDataset):
        arguments |= {"batch_size": plain.batch_size, "drop_last": plain.drop_last}
    elif is_iterable(plain.dataset):
        kind = type(plain.dataset).__name__
        msg = f"Accelerate shares out no iterable but torch's IterableDataset, and got {kind}"
        raise TypeError(msg)
    elif plain.batch_sampler is not None:
        arguments["batch_sampler"] = plain.batch_sampler
    else:
        arguments |= {"batch_size": None, "sampler": plain.sampler}
    return ThreadLoader(**arguments)
