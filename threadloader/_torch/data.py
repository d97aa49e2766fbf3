"""torch's datasets, samplers and collating, and how its ranks find each other."""

from __future__ import annotations

import os
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Generator, Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)
from torch.utils.data._utils import collate

from threadloader._lifetime import in_forked_child
from threadloader._torch.random_state import draw_base_seed, new_generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "BATCHING",
    "CONTENTS",
    "DRAWING",
    "SEEDED",
    "SEQUENTIAL",
    "DataLoader",
    "Dataset",
    "Generator",
    "IterableDataset",
    "PlainIterable",
    "Tensor",
    "array_of",
    "bytes_of_storage",
    "default_collate",
    "default_convert",
    "dense_nbytes",
    "gives_whole_batches",
    "has_getitem",
    "is_extended",
    "is_pipe",
    "is_subset",
    "is_trained",
    "may_be_trained",
    "open_rank_store",
    "owns_plain_memory",
    "permutations",
    "rank_and_world",
    "stack_into",
    "storage_of",
    "storage_over",
    "tensor_of",
    "tensors_in",
    "view_of_storage",
]

BATCHING: tuple[Any, ...] = (BatchSampler,)  # have a ``sampler``
DRAWING: tuple[Any, ...] = (SubsetRandomSampler, WeightedRandomSampler)  # have a ``generator``
SEEDED: tuple[Any, ...] = (RandomSampler,)  # the same; without one, draw one number for it
SEQUENTIAL: tuple[Any, ...] = (SequentialSampler,)

# The attribute in which two objects of a class and a length may differ.
CONTENTS: Mapping[type, str] = {
    Subset: "indices",
    SubsetRandomSampler: "indices",
    WeightedRandomSampler: "weights",
}


class PlainIterable(IterableDataset[Any]):
    """Stands for an iterable of no class of torch's in DataLoader's checks."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def has_getitem(dataset: object) -> bool:
    """Whether a dataset gives single samples: torch's base class has a method that only raises."""
    method = getattr(type(dataset), "__getitem__", None)
    return method is not None and method is not Dataset.__getitem__


def is_subset(dataset: object) -> bool:
    """Whether ``dataset`` is a `Subset`, exactly: a subclass may return other samples."""
    return type(dataset) is Subset


def tensors_in(dataset: object) -> Sequence[Tensor]:
    """Return the tensors of a `TensorDataset`, exactly; of other datasets, none."""
    return dataset.tensors if type(dataset) is TensorDataset else ()


def gives_whole_batches(dataset: Any) -> bool:
    """Whether calling ``dataset.__getitems__`` is more than a loop over ``__getitem__``.

    `Subset` and `StackDataset` always have the method; it is worth a whole batch in one ticket
    only where a dataset inside them has one of its own.
    """
    kind = type(dataset)
    if kind is Subset:
        return gives_whole_batches(dataset.dataset)
    if kind is StackDataset:
        parts = dataset.datasets
        inner = parts.values() if isinstance(parts, dict) else parts
        return any(map(gives_whole_batches, inner))
    if kind is ConcatDataset and not hasattr(ConcatDataset, "__getitems__"):
        return False
    return bool(getattr(dataset, "__getitems__", None))


def permutations(sampler: RandomSampler) -> Iterator[NDArray[Any] | None]:
    """Yield the indices of a pass over a `RandomSampler`, as one array; at its end, perhaps none.

    It yields None, and draws nothing, where they are not those of one permutation.

    They are those that the sampler would yield, drawn at the same times.
    Source: ``RandomSampler.__iter__`` in torch/utils/data/sampler.py; compared with it by
    tests/conformance/test_array_datasets.py.
    """
    samples, generator = len(sampler.data_source), sampler.generator
    if sampler.replacement or sampler.num_samples > samples:
        yield None
        return
    if generator is None:
        generator = new_generator(draw_base_seed(None))
    yield torch.randperm(samples, generator=generator)[: sampler.num_samples].numpy()
    if sampler.num_samples == samples:  # another one, of which it takes nothing
        yield torch.randperm(samples, generator=generator)[:0].numpy()


# By name, not by a look at the map: it may be extended before threadloader is imported.
_OWN = {
    collate.collate_tensor_fn,
    collate.collate_numpy_array_fn,
    collate.collate_numpy_scalar_fn,
    collate.collate_float_fn,
    collate.collate_int_fn,
    collate.collate_str_fn,
}
# A tensor of so many bytes, or fewer, is copied once more in less time than a look at its dtype
# takes: 45 ns (batches of 64 to 2,048, on 3.11 and 3.13t).
SMALL_NBYTES = 512
_ENTRIES = 7  # str and bytes share a function; a canary test tells when torch has more

tensor_of = torch.from_numpy
_dtype = attrgetter("dtype")


def is_extended() -> bool:
    """Whether ``default_collate_fn_map`` was changed, as torch documents for types of one's own.

    Only torch's function knows then what a batch becomes.  A subclass of `Tensor` that was added
    changes nothing for others, and its own instances are not collated here: MONAI adds one as soon
    as a loader of its own makes a batch.
    """
    functions = collate.default_collate_fn_map
    if len(functions) != _ENTRIES:
        functions = {
            kind: function
            for kind, function in functions.copy().items()
            if not (isinstance(kind, type) and issubclass(kind, Tensor) and kind is not Tensor)
        }
    return len(functions) != _ENTRIES or not _OWN.issuperset(functions.values())


def array_of(tensor: Tensor) -> NDArray[Any] | None:
    """Return the tensor's memory as an array; None where NumPy has no such thing."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):  # bfloat16, sparse, another device, requires grad ...
        return None


def stack_into(tensors: Sequence[Tensor], rows: NDArray[Any]) -> bool:
    """Write tensors into an array; return False if they do not fit.

    They are not broadcast.  One that is not dense, or in the memory of a device, or that requires
    grad, does not fit, and neither does one of another dtype, unless torch makes a batch of the
    array's of them.

    Args:
        tensors: At least one.
        rows: The array, ``(len(tensors), *shape)``; some of it may be written in any case.
    """
    first, out = tensors[0], torch.from_numpy(rows)
    # stack() compares the shapes with one another only, and would resize what it writes into.  All
    # else that does not fit it refuses itself (conformance tests), but another dtype.
    if first.dtype != out.dtype or first.shape != out.shape[1:] or not first.is_cpu:
        return False
    try:
        if first.nbytes <= SMALL_NBYTES:
            stacked = torch.stack(tensors)  # type: ignore[arg-type]  # any sequence will do
            if stacked.dtype != out.dtype or stacked.requires_grad or not _is_plain(stacked):
                return False
            out.copy_(stacked)
        elif set(map(_dtype, tensors)) == {out.dtype}:
            torch.stack(tensors, out=out)  # type: ignore[arg-type]  # the same
        else:
            return False
    except RuntimeError:  # also NotImplementedError
        return False
    return True


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided


def dense_nbytes(tensor: Tensor) -> int:
    """Return the bytes of a dense tensor's elements; 0 of a sparse or packed one."""
    return tensor.nbytes if tensor.layout is torch.strided else 0


def owns_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor is a view of strided memory of this process that nobody trains."""
    if tensor.requires_grad or isinstance(tensor, UninitializedTensorMixin):
        return False
    plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__ and _is_plain(tensor)
    if not plain or tensor.is_quantized or tensor.is_nested:
        return False
    return not storage_of(tensor).is_shared()


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Return the memory of which a tensor is a view."""
    return tensor.as_subclass(Tensor).untyped_storage()


def bytes_of_storage(storage: torch.UntypedStorage) -> NDArray[Any]:
    """Return the memory of a storage as an array of bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def storage_over(memory: NDArray[Any]) -> torch.UntypedStorage:
    """Return a storage that is the memory of an array."""
    return torch.from_numpy(memory).untyped_storage()


def view_of_storage(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """Return a tensor of the same class, as the same view of another storage."""
    bare = tensor.as_subclass(Tensor)
    with torch.no_grad():
        twin = torch.empty(0, dtype=bare.dtype, device="cpu")
        twin.set_(storage, bare.storage_offset(), bare.size(), bare.stride())
        if bare.is_conj():
            twin = twin.conj()
        if bare.is_neg():  # the imaginary part of a conjugated view, which nobody can make again
            twin = torch.empty_strided(twin.size(), twin.stride(), dtype=twin.dtype).copy_(-twin)
        if type(tensor) is Parameter:
            return Parameter(twin, requires_grad=False)
        return twin if type(tensor) is Tensor else twin.as_subclass(type(tensor))


def may_be_trained(kind: type) -> bool:
    """Whether objects of a class may be what a loop trains, or trains by."""
    return issubclass(kind, (Module, Optimizer, LRScheduler))


def is_trained(value: object) -> bool:
    """Whether an object of such a class is."""
    return not isinstance(value, Module) or any(it.requires_grad for it in value.parameters())


_inherited: Any = None  # the ranks' store of the process that this one was forked from


@in_forked_child
def _forget() -> None:
    """In a forked child, leave the store to the parent: both would mix up its one connection."""
    global _inherited  # noqa: PLW0603  # of the process, and this is a new one
    _inherited = None if rank_and_world() is None else _default_store()


def _default_store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()  # no public name has it


def rank_and_world() -> tuple[int, int] | None:
    """Return this process's rank and the number of ranks; None if none were set up."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


def open_rank_store() -> Any:
    """Return the store that all ranks of torch.distributed have in common; None for none.

    A child that a rank has forked is no rank: it has none until it sets up a group of its own.

    Through it ranks can agree without a collective, which would need a device with NCCL, and all
    ranks at the same place of a program.  A TCPStore has a connection of its own here: a thread
    that waits in it keeps all others from using that connection, torch's own code, too.
    """
    if rank_and_world() is None:
        return None
    store = _default_store()
    if store is _inherited:
        return None
    distributed: Any = torch.distributed
    prefixed = distributed.distributed_c10d.PrefixStore
    while isinstance(store, prefixed):  # another connection has not this prefix
        store = store.underlying_store
    if isinstance(store, distributed.TCPStore):
        # It answers other connections: else its process has just ended, and no trying again helps.
        soon = timedelta(seconds=30)
        store = distributed.TCPStore(
            store.host, store.port, is_master=False, wait_for_workers=False, timeout=soon
        )
    # torchrun's store may outlive the ranks, and have what those before a restart have set.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return prefixed(f"threadloader/{attempt}", store)


def is_pipe(dataset: object) -> bool:
    """Whether ``dataset`` is an iterable data pipe."""
    return isinstance(dataset, IterDataPipe)
