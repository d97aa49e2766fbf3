"""Arrays of one length as a dataset: its batches are gathered, not collated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from threadloader._authors import Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence


class ArrayDataset(Dataset[Any]):
    """Rows of arrays: sample ``i`` is row ``i`` of each.

    A `ThreadLoader` writes the rows of a batch straight into the batch's memory, with one call for
    each array.  It treats arrays, tensors, torch's ``TensorDataset`` and a ``Subset`` of any of
    them in the same way, but no subclass of them.

    Args:
        arrays: NumPy arrays, memory-maps or tensors, ``(samples, *shape)``.  With one array a
            sample is a row; with several it is a tuple of rows; with one dict of arrays, a dict.

    Raises:
        TypeError: An argument is no array.
        ValueError: There is no array, or they differ in length.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(self, *arrays: Any) -> None:
        one = arrays[0] if len(arrays) == 1 else None
        named = dict(one) if isinstance(one, Mapping) else dict(enumerate(arrays))
        self._keys = tuple(named) if isinstance(one, Mapping) else None
        self._single = one is not None and self._keys is None
        parts: Sequence[Any] = tuple(named.values())
        if not parts:
            msg = "ArrayDataset needs at least one array"
            raise ValueError(msg)
        for name, part in named.items():
            if not getattr(part, "shape", None):
                kind = f"a {type(part).__name__} without a first dimension"
                msg = f"array {name!r} is {kind}: np.asarray makes an array of a list"
                raise TypeError(msg)
        lengths = [len(part) for part in parts]
        if len(set(lengths)) > 1:
            msg = f"arrays must have one length, but have {lengths}"
            raise ValueError(msg)
        self._arrays = parts
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        shapes = [f"{array.dtype} {tuple(array.shape)}" for array in self._arrays]
        if self._keys is not None:
            shapes = [f"{key!r}: {shape}" for key, shape in zip(self._keys, shapes, strict=True)]
        return f"ArrayDataset({', '.join(shapes)})"

    def __getitem__(self, index: int) -> Any:
        if self._single:
            return self._arrays[0][index]
        rows = [array[index] for array in self._arrays]
        return tuple(rows) if self._keys is None else dict(zip(self._keys, rows, strict=True))

    def gathered_arrays(self) -> Sequence[Any]:
        """Return the arrays, one for each leaf of a sample; see `_batch.array_rows`."""
        return self._arrays
