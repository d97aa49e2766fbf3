"""Numbers that a seed has decided once are the same for ever, with torch and without.

They are written down here, as no run of this file has both kinds of Python.
"""

from __future__ import annotations

import importlib.util
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader, sample_rng, sample_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from typing import Protocol

    class Spawn(Protocol):
        def __call__(self, function: Any, *args: Any) -> Future[Any]: ...


pytestmark = pytest.mark.filterwarnings("ignore:an iterable that is no:UserWarning")

HAS_TORCH = importlib.util.find_spec("torch") is not None
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])

SAMPLES = [
    [
        [0.9695936242975239, 0.631402701388225, 0.8817767832323663, 2975746965096205068],
        [0.2632460484794157, 0.8648678135737747, 0.7737933140100524, 5718662003413082125],
        [0.8206161881910828, 0.34474429929024186, 0.5526010953093167, 1410261370884469208],
    ],
    [
        [0.2591767906947695, 0.0353364673568497, 0.2699918489205413, 4371213868314140011],
        [0.9025861331375146, 0.46661375139331573, 0.4274663344938814, 8364298683489901755],
        [0.29971541651702294, 0.9805796499205406, 0.1280270966258612, 3615192188247375323],
    ],
]  # of two epochs
BATCHES = [
    [0.1132130225221406, 0.3343154431386959, 0.971587367879626, 1613046919656445173],
    [0.590733782076999, 0.716035686245066, 0.8757760714506799, 5646437817323178107],
]
REPLICA = [  # in two epochs
    [
        [0.9262294204403227, 0.5848692125292023, 0.9661684328602487],
        [0.9884555252976098, 0.45971891343130356, 0.08158661416832069],
    ],
    [
        [0.9786338732774374, 0.23036002297919245, 0.06967821526171514],
        [0.6345991066197515, 0.6808420665716977, 0.49172766827503456],
    ],
]
KEYED = [[96229, 76320, 169082, 207063, 488622], [477445, 5596, 378394, 940605, 318670]]
NUMPYS = [
    [
        [1, 0.6902019951572285, 0.18090608644391315, 0.6738737641354748, 6440983982985168738],
        [0, 0.8806769120844429, 0.4128719565404747, 0.9933548629717043, 6907546150536514739],
        [2, 0.29041307792712656, 0.7637106106635796, 0.7489824171753503, 223793964267076727],
    ],
    [
        [0, 0.5193828890422802, 0.15254523524296604, 0.08191056188582746, 8559614290461531184],
        [1, 0.07708181189186758, 0.07263426982995469, 0.9085944598700678, 2066911107069915175],
        [2, 0.6638259200829635, 0.9266871755427996, 0.6363392008438883, 8021395717155195318],
    ],
]  # of two epochs
SHUFFLED = {
    True: [[1, 7, 3, 4, 6, 5, 8, 9, 0, 2], [7, 1, 3, 8, 6, 5, 9, 0, 2, 4]],  # with torch
    False: [[0, 6, 1, 5, 8, 4, 2, 7, 3, 9], [6, 9, 5, 2, 4, 7, 0, 1, 8, 3]],
}


def drawn(_: Any = None) -> list[Any]:
    legacy = float(np.random.rand())  # noqa: NPY002  # what many datasets draw from
    return [random.random(), legacy, float(sample_rng().random()), sample_seed()]


class EpochDraws:
    def __init__(self, size: int = 3) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[Any]:
        return [index, *drawn()]


class Rows:
    """Iterable, and draws without a position."""

    def __iter__(self) -> Iterator[Any]:
        return (drawn()[:3] for _ in range(2))


def make(dataset: Any, threads: int, batch_size: int | None = None, **given: Any) -> Any:
    defaults = {"seed": 17, "output": "numpy"}
    return ThreadLoader(dataset, batch_size, threads=threads, **(defaults | given))


def epochs(loader: Any, number: int = 2) -> list[Any]:
    with loader:
        return [list(loader) for _ in range(number)]


def without_index(told: list[Any]) -> list[Any]:
    return [[sample[1:] for sample in epoch] for epoch in told]


@each_number_of_threads
def test_what_samples_draw(threads: int, spawn: Spawn) -> None:
    told = spawn(epochs, make(EpochDraws(), threads)).result(PATIENCE)
    assert without_index(told) == SAMPLES
    shuffled = spawn(epochs, make(EpochDraws(), threads, shuffle=True)).result(PATIENCE)
    assert without_index(shuffled) == SAMPLES


@each_number_of_threads
def test_what_a_transform_draws(threads: int, spawn: Spawn) -> None:
    loader = make(iter(range(3)), threads, transform=drawn)
    assert spawn(epochs, loader, 1).result(PATIENCE) == SAMPLES[:1]


@each_number_of_threads
def test_what_a_collate_function_draws(threads: int, spawn: Spawn) -> None:
    loader = make([0, 1], threads, 1, collate_fn=drawn)
    assert spawn(epochs, loader, 1).result(PATIENCE) == [BATCHES]


@pytest.mark.parametrize("threads", [0, 1])
def test_what_a_replica_draws(threads: int, spawn: Spawn) -> None:
    assert spawn(epochs, make(Rows(), threads)).result(PATIENCE) == REPLICA


@each_number_of_threads
def test_keyed_orders(threads: int, spawn: Spawn) -> None:
    def first() -> list[Any]:
        with make(range(10**6), threads, 5, shuffle="keyed") as loader:
            return [next(iter(loader)).tolist() for _ in range(2)]

    assert spawn(first).result(PATIENCE) == KEYED


@each_number_of_threads
def test_orders_and_draws_of_a_generator_of_numpy_s(threads: int, spawn: Spawn) -> None:
    generator = np.random.default_rng(17)
    loader = make(EpochDraws(), threads, shuffle=True, seed=None, generator=generator)
    assert spawn(epochs, loader).result(PATIENCE) == NUMPYS


@each_number_of_threads
def test_shuffled_orders_which_are_torch_s_or_numpy_s(threads: int, spawn: Spawn) -> None:
    loader = make(range(10), threads, shuffle=True)
    assert spawn(epochs, loader).result(PATIENCE) == SHUFFLED[HAS_TORCH]
