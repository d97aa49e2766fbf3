"""Numbers that a seed has decided once are the same for ever, with torch and without.

They are written down here, as no run of this file has both kinds of Python.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader, sample_rng, sample_seed

pytestmark = pytest.mark.filterwarnings("ignore:an iterable that is no:UserWarning")

HAS_TORCH = importlib.util.find_spec("torch") is not None
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])

SAMPLES = [
    [
        [0.7633253970927816, 0.5297508549840085, 0.3062289694221326, 2605050249829176480],
        [0.8940577262443757, 0.8178113328028749, 0.66544965140448, 7335415877560528792],
        [0.5439278998131181, 0.16419761341712213, 0.9171544666925919, 490163067501960663],
    ],
    [
        [0.8042320930270341, 0.9287659747839234, 0.15821005147570333, 1345539193845292533],
        [0.6060331430403266, 0.2773579247316188, 0.41302637958954747, 3150356650960112860],
        [0.48695120599085817, 0.9149557649803919, 0.8768991599757731, 8365211712517546617],
    ],
]  # of two epochs
BATCHES = [
    [0.41921106618411474, 0.5669964800486392, 0.7570197658671133, 9124178326948561450],
    [0.5830974082803947, 0.42926348048497964, 0.8721077804866634, 5348922741860261895],
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
        [1, 0.4573989835705726, 0.2320734371921943, 0.668060008682066, 676254039320619365],
        [0, 0.1071092456026922, 0.9046163781571896, 0.8449890263508097, 7554495573963637046],
        [2, 0.5214161749356756, 0.8144032220232825, 0.7404335795272836, 394021390769115929],
    ],
    [
        [0, 0.16706158383455272, 0.5915255775956143, 0.38917020069328867, 7164694629542313964],
        [1, 0.8310713054162445, 0.690732547415986, 0.9465574896567995, 7200876468027360789],
        [2, 0.1108874051353469, 0.49261995875693554, 0.8517353008552226, 5606711922154533319],
    ],
]  # of two epochs
SHUFFLED = {
    True: [[1, 7, 3, 4, 6, 5, 8, 9, 0, 2], [7, 1, 3, 8, 6, 5, 9, 0, 2, 4]],  # with torch
    False: [[0, 6, 1, 5, 8, 4, 2, 7, 3, 9], [6, 9, 5, 2, 4, 7, 0, 1, 8, 3]],
}


def drawn(_: Any = None) -> list[Any]:
    legacy = float(np.random.rand())  # noqa: NPY002  # what many datasets draw from
    return [random.random(), legacy, float(sample_rng().random()), sample_seed()]


def drawing(size: int = 3) -> Acting:
    return Acting(size, sample=lambda index: [index, *drawn()])


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
    told = spawn(epochs, make(drawing(), threads)).result(PATIENCE)
    assert without_index(told) == SAMPLES
    shuffled = spawn(epochs, make(drawing(), threads, shuffle=True)).result(PATIENCE)
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
    loader = make(drawing(), threads, shuffle=True, seed=None, generator=generator)
    assert spawn(epochs, loader).result(PATIENCE) == NUMPYS


@each_number_of_threads
def test_shuffled_orders_which_are_torch_s_or_numpy_s(threads: int, spawn: Spawn) -> None:
    loader = make(range(10), threads, shuffle=True)
    assert spawn(epochs, loader).result(PATIENCE) == SHUFFLED[HAS_TORCH]
