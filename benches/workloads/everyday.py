"""What people write without another library, on small data: where a loader's own costs show."""

from __future__ import annotations

from functools import partial
from hashlib import md5
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.workloads.other_libraries import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["EVERYDAY"]

SIZE = 4000


class Rows:
    """Sample ``i`` is row ``i`` of each of some arrays or tensors.

    Args:
        parts: The arrays.
        change: Is called with a sample of one part; None for nothing.
    """

    def __init__(self, *parts: Any, change: Callable[[Any], Any] | None = None) -> None:
        self.parts = parts
        self.change = change

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: int) -> Any:
        if self.change is not None:
            return self.change(self.parts[0][index])
        return tuple(part[index] for part in self.parts)


class Noise(Rows):
    """Rows with noise of a generator that the dataset has."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.parts[0][index] + self.rng.normal(size=16)


def _texts() -> Rows:
    import torch

    lengths = np.random.default_rng(0).integers(20, 200, SIZE).tolist()
    return Rows([list(range(length)) for length in lengths], change=torch.tensor)


def _padded(samples: list[Any], *, share: float) -> Any:
    import torch

    batch = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return batch.masked_fill(torch.rand(batch.shape) < share, 1) if share else batch


def _joined(samples: list[Any]) -> Any:
    import torch

    nodes, edges = zip(*samples, strict=True)
    return torch.cat(nodes), torch.cat([each + 10 * n for n, each in enumerate(edges)], 1)


def _cropped(image: Any) -> Any:
    import torch

    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    top, left = torch.randint(9, (2,)).tolist()
    image = padded[:, top : top + 32, left : left + 32]
    return image.flip(2) if torch.rand(()) < 0.5 else image


def _digest(pair: Any) -> Any:
    path, label = pair
    return np.frombuffer(md5(bytes(path), usedforsecurity=False).digest(), np.uint8), label


def labelled_paths(folder: Path) -> Workload:
    pairs = [(folder / f"{n}.jpg", n % 10) for n in range(SIZE)]
    return Workload(Rows(pairs, change=_digest), {"batch_size": 64, "shuffle": True})


def padding_collate(_: Path) -> Workload:
    arguments = {"batch_size": 32, "shuffle": True, "collate_fn": partial(_padded, share=0.0)}
    return Workload(_texts(), arguments)


def masking_collate(_: Path) -> Workload:
    arguments = {"batch_size": 32, "shuffle": True, "collate_fn": partial(_padded, share=0.15)}
    return Workload(_texts(), arguments)


def joining_collate(_: Path) -> Workload:
    import torch

    graphs = Rows(torch.rand(SIZE, 10, 8), torch.randint(10, (SIZE, 2, 20)))
    return Workload(graphs, {"batch_size": 16, "shuffle": True, "collate_fn": _joined})


def crops_by_torch(_: Path) -> Workload:
    import torch

    images = Rows(torch.rand(1000, 3, 32, 32), change=_cropped)
    return Workload(images, {"batch_size": 64, "shuffle": True})


def rows_of_an_array(_: Path) -> Workload:
    rows = Rows(np.zeros((SIZE, 16), np.float32), np.arange(SIZE))
    return Workload(rows, {"batch_size": 64, "shuffle": True})


def rows_of_a_tensor(_: Path) -> Workload:
    import torch

    rows = Rows(torch.zeros(SIZE, 16), torch.arange(SIZE))
    return Workload(rows, {"batch_size": 64, "shuffle": True})


def own_generator(_: Path) -> Workload:
    return Workload(Noise(np.zeros((SIZE, 16))), {"batch_size": 64, "shuffle": True})


def four_batches_an_epoch(_: Path) -> Workload:
    return Workload(range(16), {"batch_size": 4})


EVERYDAY: dict[str, Callable[[Path], Workload]] = {
    made.__name__.replace("_", " "): made
    for made in (
        padding_collate,
        masking_collate,
        joining_collate,
        crops_by_torch,
        rows_of_an_array,
        rows_of_a_tensor,
        own_generator,
        labelled_paths,
        four_batches_an_epoch,
    )
}
