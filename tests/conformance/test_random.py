"""A sample draws torch's numbers from a stream of its own; the consumer's are left as by torch."""

from __future__ import annotations

import os
import random
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.pictures import picture
from torch import nn
from torch.utils.data import get_worker_info

from conformance.loading import THREADS, processes
from threadloader import ThreadLoader
from threadloader._worker.streams import sample_seed

Draw = Callable[[], Any]

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*use of fork:DeprecationWarning", "ignore:.*torch.jit:DeprecationWarning"
)

legacy = np.random  # its old functions are what is tested
each_number_of_threads = pytest.mark.parametrize("threads", THREADS)
HAS_THREAD_SAFE_GENERATOR = hasattr(torch.random, "thread_safe_generator")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.randn([3]) + nn.functional.dropout(x)


def initialised(make: Callable[[torch.Tensor], object]) -> torch.Tensor:
    weight = torch.empty(2, 3)
    make(weight)
    return weight


def differentiated() -> torch.Tensor:
    x = torch.ones(40, requires_grad=True)
    nn.functional.dropout(x).sum().backward()
    assert x.grad is not None
    return x.grad


def seeded() -> torch.Tensor:
    torch.manual_seed(int(torch.randint(1 << 40, ()).item()))
    return torch.rand(2)


def forked() -> list[torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        torch.rand(2)
    state = torch.get_rng_state()
    before = torch.rand(2)
    torch.set_rng_state(state)
    assert torch.equal(before, torch.rand(2))
    return [before]


def of_vmap() -> torch.Tensor:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(())

    return torch.func.vmap(noisy, randomness="different")(torch.zeros(3))


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


DRAWS: dict[str, Draw] = {
    "rand": lambda: torch.rand(2),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(1 << 40, (2,)),
    "randperm": lambda: torch.randperm(20),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "bernoulli": lambda: torch.bernoulli(0.5 * ones(40)),
    "multinomial": lambda: torch.multinomial(ones(1000), 4),
    "poisson": lambda: torch.poisson(1000 * ones(4)),
    "rand_like": lambda: torch.rand_like(ones(2)),
    "normal_": lambda: ones(3).normal_(),
    "random_": lambda: ones(2).long().random_(),
    "bernoulli_": lambda: ones(40).bernoulli_(),
    "exponential_": lambda: ones(2).exponential_(),
    "geometric_": lambda: ones(6).geometric_(0.01),
    "dropout": lambda: nn.functional.dropout(ones(40)),
    "feature dropout": lambda: nn.functional.dropout2d(ones(1, 40, 2, 2)),
    "rrelu": lambda: nn.functional.rrelu(-ones(3), training=True),
    "xavier_uniform_": lambda: initialised(nn.init.xavier_uniform_),
    "trunc_normal_": lambda: initialised(nn.init.trunc_normal_),
    "Linear": lambda: nn.Linear(2, 3).weight.detach() + 0,
    "Beta": lambda: torch.distributions.Beta(1.0, 2.0).sample((2,)),
    "Categorical": lambda: torch.distributions.Categorical(ones(1000)).sample((3,)),
    "scripted": lambda: scripted(ones(3)),
    "given the default": lambda: torch.rand(2, generator=torch.default_generator),
    "seeded": seeded,
    "forked": forked,
    "vmap": of_vmap,
    "initial_seed": lambda: torch.tensor(torch.initial_seed()),
    "seeded by initial_seed": lambda: np.random.default_rng(torch.initial_seed()).random(2),
    "all at once": lambda: [torch.rand(2), random.random(), float(legacy.rand())],
}
# torch 2.12 leaves a Python object in the C++ storage of a thread that ran backward(); on 3.13t the
# interpreter may crash when such a thread ends, with or without this package.
if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    DRAWS["gradient of dropout"] = differentiated
if HAS_THREAD_SAFE_GENERATOR:
    DRAWS["thread_safe_generator"] = lambda: torch.rand(
        2, generator=torch.random.thread_safe_generator()
    )


class EpochDraws:
    """Sample ``i`` is what it draws after ``i % 3`` draws that are thrown away."""

    def __init__(self, draw: Draw, size: int = 22) -> None:
        self.draw = draw
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        for _ in range(index % 3):
            self.draw()
        return self.draw()


class WholeDraws(EpochDraws):
    def __getitems__(self, indices: list[int]) -> Any:
        first = self.draw()
        return [(first, self[index]) for index in indices]


def epoch(dataset: Any, threads: int, seed: int = 5, **arguments: Any) -> list[Any]:
    """Return the pictures of one epoch's batches, as ``torch.manual_seed`` decides them."""
    torch.manual_seed(seed)
    defaults = {"batch_size": 5, "shuffle": isinstance(dataset, EpochDraws)}
    with ThreadLoader(dataset, threads=threads, **(defaults | arguments)) as loader:
        return [picture(batch) for batch in loader]


@pytest.mark.parametrize("case", DRAWS)
def test_whatever_draws_draws_the_same_for_all_numbers_of_threads(case: str, spawn: Spawn) -> None:
    draw = DRAWS[case]

    def in_samples(threads: int, seed: int = 5) -> list[Any]:
        return epoch(EpochDraws(draw), threads, seed)

    def in_whole_batches(threads: int) -> list[Any]:
        return epoch(WholeDraws(draw), threads)

    def in_collate_fn(threads: int) -> list[Any]:
        return epoch(EpochDraws(draw), threads, collate_fn=lambda samples: (samples, draw()))

    def in_transform(threads: int) -> list[Any]:
        return epoch(iter(range(12)), threads, transform=lambda row: (row, draw()))

    for where in (in_samples, in_whole_batches, in_collate_fn, in_transform):
        expected = where(0)
        for threads in (1, 5):
            assert spawn(where, threads).result(PATIENCE) == expected, (where, threads)
    assert spawn(in_samples, 2, 6).result(PATIENCE) != in_samples(0)
    drawn = [str(sample) for sample in epoch(EpochDraws(draw), 0, batch_size=None)]
    assert len(set(drawn)) == len(drawn), "each sample draws numbers of its own"


def seeds(_: int) -> tuple[int, int | None]:
    """Return the seed that torch tells a sample, and its worker's."""
    info = get_worker_info()
    return torch.random.initial_seed(), None if info is None else info.seed


def told(dataset: Any, threads: int, **arguments: Any) -> list[tuple[int, int | None]]:
    torch.manual_seed(5)
    with ThreadLoader(dataset, None, threads=threads, **arguments) as loader:
        return list(loader)


@each_number_of_threads
def test_the_seed_that_torch_tells_a_sample_is_its_own_and_a_worker_s_the_worker_s(
    threads: int, spawn: Spawn
) -> None:
    samples = spawn(told, Acting(12, sample=seeds), threads).result(PATIENCE)
    assert len({seed for seed, _ in samples}) == 12
    assert [seed for seed, _ in samples] == [seed for seed, _ in told(Acting(12, sample=seeds), 0)]
    assert not {seed for seed, _ in samples} & set(told(EpochDraws(sample_seed, 12), 0))
    assert not {seed for seed, _ in samples} & {seed for _, seed in samples}
    torch.manual_seed(5)
    first = int(torch.empty((), dtype=torch.int64).random_().item())
    expected = {first + number for number in range(threads)} or {None}
    assert {seed for _, seed in samples} <= expected


def left_behind(loader: Any, between: Callable[[], Any]) -> list[Any]:
    """Return what a consumer draws itself in two epochs, and its random states in the end."""
    torch.manual_seed(9)
    random.seed(9)
    legacy.seed(9)
    drawn = [[between() for _ in loader] for _ in range(2)]
    kind, words, *rest = legacy.get_state()
    states = [torch.get_rng_state().tolist(), random.getstate(), kind, words.tolist(), rest]
    return [drawn, states, torch.initial_seed()]


def consumed() -> list[Any]:
    dropped = nn.functional.dropout(ones(20)).tolist()
    return [dropped, torch.randn(3).tolist(), random.gauss(0, 1), legacy.normal()]


def test_the_consumer_is_left_as_torchs_worker_processes_leave_it(spawn: Spawn) -> None:
    def meddle() -> torch.Tensor:
        torch.manual_seed(1)
        random.seed(1)
        legacy.seed(1)
        return torch.rand(2)

    for draw, shuffle in (
        (DRAWS["all at once"], False),
        (DRAWS["all at once"], True),
        (meddle, True),
    ):
        dataset = EpochDraws(draw)
        expected = left_behind(processes(2)(dataset, 5, shuffle=shuffle), consumed)
        for threads in THREADS:
            ours = ThreadLoader(dataset, 5, shuffle=shuffle, threads=threads)
            assert spawn(left_behind, ours, consumed).result(PATIENCE) == expected, threads


@each_number_of_threads
def test_without_isolation_draws_and_seeds_are_the_worker_s(threads: int, spawn: Spawn) -> None:
    def rows(threads: int) -> list[float]:
        torch.manual_seed(5)
        dataset = EpochDraws(lambda: torch.rand(()))
        loader = ThreadLoader(dataset, 22, threads=threads, isolate_rng=False)
        return sorted(next(iter(loader)).tolist())

    torch.manual_seed(5)
    iter(processes(0)(range(3)))  # draws a base seed, as every loader does
    expected = sorted(torch.rand(()).item() for _ in range(22 + sum(n % 3 for n in range(22))))
    assert set(spawn(rows, threads).result(PATIENCE)) <= set(expected)
    samples = spawn(lambda: told(Acting(12, sample=seeds), threads, isolate_rng=False)).result(
        PATIENCE
    )
    assert all(seed == (worker or 5) for seed, worker in samples)


def rare(index: int) -> float:
    """Return a sample that is its index; only the first one and the last one draw from torch."""
    return index + (torch.rand(1).item() if index in (0, 11) else 0.0)


def nested(_: int) -> list[float]:
    """Load from a loader without threads, and draw before and behind it."""
    before = torch.rand(1).item()
    samples = Acting(12, sample=rare)
    inner = list(ThreadLoader(samples, 2, threads=0, seed=5, collate_fn=sum))
    return [before, *inner, torch.rand(1).item()]


@each_number_of_threads
def test_loaders_beside_the_main_thread_leave_its_draws_alone(threads: int, spawn: Spawn) -> None:
    def load() -> list[Any]:
        return list(
            ThreadLoader(Acting(12, sample=nested), 2, threads=threads, seed=3, collate_fn=list)
        )

    generator = torch.Generator().manual_seed(7)
    torch.manual_seed(7)
    loading = spawn(load)
    while not loading.done():
        assert torch.equal(torch.rand(3), torch.rand(3, generator=generator))
    expected = list(ThreadLoader(Acting(12, sample=nested), 2, threads=0, seed=3, collate_fn=list))
    assert loading.result(PATIENCE) == expected
    assert torch.equal(torch.rand(3), torch.rand(3, generator=generator))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("threads", [0, 1])
def test_a_child_that_a_sample_forks_draws_what_the_program_would(
    threads: int, tmp_path: Path
) -> None:
    def forking(index: int) -> float:
        drawn = torch.rand(1).item()
        if index == 9:
            child = os.fork()
            if not child:
                (tmp_path / "drawn").write_text(repr(torch.rand(1).item()), encoding="utf-8")
                os._exit(0)
            os.waitpid(child, 0)
        return drawn

    torch.manual_seed(7)
    list(ThreadLoader(Acting(12, sample=forking), 2, threads=threads, seed=3, output="numpy"))
    expected = torch.rand(1, generator=torch.Generator().manual_seed(7)).item()
    assert float((tmp_path / "drawn").read_text(encoding="utf-8")) == expected
