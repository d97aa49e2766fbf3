"""Numbers that a seed has decided once are the same for ever, with torch and without.

They are written down here, as no run of this file has both kinds of Python.
"""

from __future__ import annotations

import copy
import importlib.util
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader, sample_rng, sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from typing import Protocol

    class Spawn(Protocol):
        def __call__(self, function: Any, *args: Any) -> Future[Any]: ...


pytestmark = pytest.mark.filterwarnings("ignore:an iterable that is no:UserWarning")

HAS_TORCH = importlib.util.find_spec("torch") is not None
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])

SAMPLES = [  # of two epochs
    [
        [0.8247349679045769, 0.6075467543123361, 0.7404885885899, 662514214037118937],
        [0.34078605855801114, 0.4045961394791351, 0.6736210097676303, 482949348308287124],
        [0.08915275672302914, 0.47056367241033004, 0.9858984908208456, 2279231307620857981],
    ],
    [
        [0.5900686617586314, 0.5189729460025414, 0.45055968879856034, 1225551384958274987],
        [0.6091621539468726, 0.5419329685196016, 0.6047875033091791, 4265321165685023240],
        [0.1751266640127992, 0.44335383179251364, 0.046443556313980006, 7051278349475455854],
    ],
]
BATCHES = [
    [0.9815973331618196, 0.6480729885944304, 0.2570176995354476, 7389937215442125697],
    [0.5664033623857184, 0.6787160698403656, 0.3656947419544948, 2333630881854576451],
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
NUMPYS = [  # of two epochs
    [
        [1, 0.307127671350349, 0.06755328812070982, 0.411114596634957, 8003157008989673522],
        [0, 0.7411279480811015, 0.06893393650733692, 0.6388087248958786, 4798088137837052435],
        [2, 0.81199591628167, 0.1748962553365493, 0.7267203340330235, 5120897855440709531],
    ],
    [
        [0, 0.7798891134599256, 0.2790045230360848, 0.004253376589306579, 6564894766579474017],
        [1, 0.26009095350370226, 0.03255531030951697, 0.8919910232913714, 2825961294968032512],
        [2, 0.6004259470892201, 0.30119659351757166, 0.4022779615096649, 3922127589425867235],
    ],
]
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


# In a run that began with state version 2, each generator of a sample has a key of its own.

SECOND_SAMPLES = [  # of two epochs
    [
        [0.041702297090030704, 0.09063576102105342, 0.1792778292207179, 9159301518227957641],
        [0.6808196780795062, 0.5367273012213389, 0.27473964400824225, 7566311297457101959],
        [0.649568143166348, 0.1540958907265737, 0.4727222271437175, 3603179994994172272],
    ],
    [
        [0.7941565841844181, 0.10472229425215929, 0.8077101543511156, 7191619291335427824],
        [0.2039620779238035, 0.7258506449121914, 0.5797537827221487, 1636221623517964633],
        [0.4992825030672412, 0.49347213971212867, 0.40025745831710247, 7084495445263523737],
    ],
]
SECOND_BATCHES = [
    [0.15345169938141034, 0.27855219157762534, 0.3993858333917103, 6461455674736006021],
    [0.6395898747338621, 0.08837692524178942, 0.6678130412381345, 7324920511453095587],
]
SECOND_NUMPYS = [  # of two epochs
    [
        [1, 0.7285323628981502, 0.6848547911500572, 0.6927983439523827, 7565351751025549017],
        [0, 0.5284351544756217, 0.2619536713229128, 0.1462637688900622, 2618325999351004559],
        [2, 0.15806031984558333, 0.9556830801017454, 0.9835907652390242, 1199395170761386376],
    ],
    [
        [0, 0.7336584113594115, 0.18796964453198062, 0.989061322593242, 8887141813809913896],
        [1, 0.82390169928248, 0.5226972107454558, 0.7614013333422803, 3715830563218395653],
        [2, 0.934807534137557, 0.7345268146817745, 0.019334567820752935, 8194600941717878325],
    ],
]
SECOND: dict[str, tuple[Callable[[int], Any], list[Any]]] = {
    "samples": (lambda threads: make(EpochDraws(), threads), [*SECOND_SAMPLES]),
    "shuffled": (lambda threads: make(EpochDraws(), threads, shuffle=True), [*SECOND_SAMPLES]),
    "collated": (lambda threads: make([0, 1], threads, 1, collate_fn=drawn), [SECOND_BATCHES]),
    "transformed": (
        lambda threads: make(iter(range(3)), threads, transform=drawn),
        [*SECOND_SAMPLES[:1]],
    ),
    "of a generator": (
        lambda threads: make(
            EpochDraws(),
            threads,
            shuffle=True,
            seed=None,
            generator=np.random.default_rng(17),
        ),
        [[row[1:] for row in epoch] for epoch in SECOND_NUMPYS],
    ),
}


def of_second_version(make_loader: Callable[[int], Any], threads: int) -> Any:
    loader = make_loader(threads)
    loader.load_state_dict(copy.deepcopy(loader.state_dict()) | {"threadloader": 2})
    return loader


def draws(told: list[Any]) -> list[Any]:
    return [[row[-4:] for row in epoch] for epoch in told]


@each_number_of_threads
@pytest.mark.parametrize("case", SECOND)
def test_a_state_of_version_2_goes_on_with_what_version_2_drew(
    case: str, threads: int, spawn: Spawn
) -> None:
    make_loader, expected = SECOND[case]
    loader = of_second_version(make_loader, threads)
    assert draws(spawn(epochs, loader, len(expected)).result(PATIENCE)) == expected


@each_number_of_threads
@pytest.mark.parametrize("case", ["samples", "of a generator"])
@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_states_saved_after_one_of_version_2_go_on_so_too(
    case: str, taken: int, threads: int, spawn: Spawn
) -> None:
    make_loader, expected = SECOND[case]

    def again() -> tuple[Any, Any]:
        with of_second_version(make_loader, threads) as loader:
            iterator = iter(loader)
            first = [next(iterator) for _ in range(taken)]
            state = copy.deepcopy(loader.state_dict())
        assert state["threadloader"] == 4
        with make_loader(threads) as loader:
            loader.load_state_dict(state)
            rest = list(loader)
            return [first + rest], [first + rest, list(loader)]

    one, two = spawn(again).result(PATIENCE)
    assert draws(two if taken < 3 else one) == expected[: 2 if taken < 3 else 1]


# By a state of version 1, what a seed decided was drawn by torch or by NumPy.

FIRST_SAMPLES = {  # the rest of epoch 1, and the first of epoch 2
    True: [
        [0.44016682972523147, 0.07224074615023479, 0.8745337495010027, 9154110953728096454],
        [0.848995099283111, 0.2739214176692303, 0.4618926489178454, 4135372183794586112],
        [0.19257407481134248, 0.5190203413796117, 0.39827770124584494, 2516106106813982170],
        [0.5596626433313021, 0.3547329673149703, 0.9062270696056904, 559494646593910837],
        [0.16056502855409582, 0.5318603498301929, 0.468771512728572, 8633400774592073614],
    ],
    False: [
        [0.16050211506243006, 0.47743846417281244, 0.10387085119283823, 8454633978310472934],
        [0.6196305227636727, 0.9351800123512578, 0.8186588896276533, 8508881725593919026],
        [0.6152121498080705, 0.35153513397029157, 0.19864773764928367, 2265048330079450390],
        [0.7171752534815814, 0.9550042213840252, 0.6988403856458736, 5444039710557128803],
        [0.5084772586150444, 0.18218035056269055, 0.5497769742670545, 1216320866685200169],
    ],
}
FIRST_ORDERS = {
    True: {
        True: [0, 5, 1, 2, 2, 0, 4, 5, 1, 3],
        "keyed": [1, 2, 4, 3, 1, 4, 5, 3, 2, 0],
        False: [2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
    },
    False: {
        True: [4, 1, 0, 3, 2, 1, 4, 5, 0, 3],
        "keyed": [1, 5, 0, 2, 0, 4, 3, 1, 2, 5],
        False: [2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
    },
}
each_order = pytest.mark.parametrize("shuffle", [False, True, "keyed"])


def first_version(shuffle: Any, *, begun: bool = True) -> dict[str, Any]:
    """Return a state after a batch of epoch 1, or before it, as version 1 wrote it."""
    library = "torch" if HAS_TORCH else "threadloader"
    sampler = {False: "SequentialSampler", True: "RandomSampler"}.get(shuffle)
    look: dict[str, Any] = {"torch": True} if HAS_TORCH else {}
    look |= {"dataset": "EpochDraws", "batch_size": 2, "seed": 17, "samples": 6}
    look["sampler"] = "threadloader.KeyedSampler" if sampler is None else f"{library}.{sampler}"
    look |= {"batch_sampler": f"{library}.BatchSampler", "batches": 3}
    state: dict[str, Any] = {"threadloader": 1, "loader": look, "epoch": 1, "begun": begun}
    return state | {"draws": {}, "lanes": [{"batches": 1 if begun else 0}]}


def rows(told: list[Any]) -> list[Any]:
    return [row for epoch in told for batch in epoch for row in batch]


def resumed(state: Any, shuffle: Any, threads: int) -> Any:
    loader = make(EpochDraws(6), threads, 2, shuffle=shuffle, collate_fn=list)
    loader.load_state_dict(state)
    return loader


@each_number_of_threads
@each_order
def test_a_state_of_version_1_goes_on_with_what_version_1_drew(
    threads: int, shuffle: Any, spawn: Spawn
) -> None:
    loader = resumed(first_version(shuffle), shuffle, threads)
    told = rows(spawn(epochs, loader).result(PATIENCE))
    assert [row[0] for row in told] == FIRST_ORDERS[HAS_TORCH][shuffle]
    assert [row[1:] for row in told[: len(FIRST_SAMPLES[HAS_TORCH])]] == FIRST_SAMPLES[HAS_TORCH]


@each_number_of_threads
@each_order
@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_states_saved_after_one_of_version_1_go_on_so_too(
    threads: int, shuffle: Any, taken: int, spawn: Spawn
) -> None:
    def again() -> tuple[Any, Any]:
        with resumed(first_version(shuffle), shuffle, threads) as loader:
            rest = list(loader)
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            state = copy.deepcopy(loader.state_dict())
            expected = [list(iterator), list(loader)]
        assert len(rest) == 2
        assert state["threadloader"] == 4
        return expected, epochs(resumed(state, shuffle, threads))

    expected, got = spawn(again).result(PATIENCE)
    assert got == expected


@each_number_of_threads
def test_between_epochs_a_state_of_version_1_goes_on_so_too(threads: int, spawn: Spawn) -> None:
    between = resumed(first_version(False, begun=False), False, threads)
    told = rows(spawn(epochs, between, 1).result(PATIENCE))
    assert [row[1:] for row in told[2:]] == FIRST_SAMPLES[HAS_TORCH][:4]


def test_a_state_of_this_version_takes_the_place_of_one_of_version_1(spawn: Spawn) -> None:
    loader = resumed(first_version(False), False, 0)
    list(loader)
    fresh = make(EpochDraws(6), 0, 2, collate_fn=list)
    loader.load_state_dict(fresh.state_dict())
    assert spawn(epochs, loader).result(PATIENCE) == epochs(fresh)
