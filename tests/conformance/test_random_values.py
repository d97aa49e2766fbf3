"""A sample draws from torch what one generator of torch's draws, however its draws are made."""

from __future__ import annotations

import copy
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from threadloader._rng.isolation import isolated
from threadloader._rng.sample_stream import SampleStream
from threadloader._rng.streams import WorkerStream, enter_sample_streams, leave_streams
from threadloader._torch import random_state, random_values
from threadloader._torch.random_ops import PACKETS
from threadloader._torch.random_values import WRITING, writes_as_torch_does

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Given = dict[str, Any]  # ``{"generator": one}``, or nothing in a sample
    Draw = Callable[[Given], Any]

SEED = 5


@pytest.fixture
def in_sample() -> Iterator[Callable[[int], None]]:
    """Have this thread load sample 0; what is given goes to another one."""
    stream = WorkerStream(3, 0)
    with isolated(stream):
        enter_sample_streams(SEED, 0, ())
        yield lambda position: enter_sample_streams(SEED, position, ())
        leave_streams()


def generator_of(position: int) -> Any:
    """Return the generator of a sample, as if the sample had asked for it first."""
    stream = SampleStream()
    stream.move(SEED, b"sample", position, ())
    return stream.torch_generator


DRAWS: dict[str, Draw] = {
    "rand()": lambda g: torch.rand((), **g),
    "rand(1)": lambda g: torch.rand(1, **g),
    "rand(2)": lambda g: torch.rand(2, **g),
    "rand(2, 2)": lambda g: torch.rand(2, 2, **g),
    "rand(5)": lambda g: torch.rand(5, **g),
    "rand(0)": lambda g: torch.rand(0, **g),
    "rand(1000)": lambda g: torch.rand(1000, **g),
    "rand double": lambda g: torch.rand(1, dtype=torch.float64, **g),
    "rand half": lambda g: torch.rand(3, dtype=torch.float16, **g),
    "rand complex": lambda g: torch.rand(2, dtype=torch.complex64, **g),
    "rand complex of 128 bits": lambda g: torch.rand(11, dtype=torch.complex128, **g),
    "rand complex, few": lambda g: torch.rand(2, dtype=torch.complex128, **g),
    "randint(9)": lambda g: torch.randint(9, (1,), **g),
    "randint(-5, 9)": lambda g: torch.randint(-5, 9, (2,), **g),
    "randint(1 << 28)": lambda g: torch.randint(1 << 28, (2,), **g),
    "randint(1 << 40)": lambda g: torch.randint(1 << 40, (3,), **g),
    "randint of 32 bits": lambda g: torch.randint(9, (2,), dtype=torch.int32, **g),
    "randint of all": lambda g: torch.randint(-(1 << 63), (1 << 63) - 1, (1,), **g),
    "randn(1)": lambda g: torch.randn(1, **g),
    "randn(6)": lambda g: torch.randn(6, **g),
    "randn(15)": lambda g: torch.randn(15, **g),
    "randn(16)": lambda g: torch.randn(16, **g),
    "randn(700)": lambda g: torch.randn(700, **g),
    "randn double": lambda g: torch.randn(5, dtype=torch.float64, **g),
    "randn complex": lambda g: torch.randn(5, dtype=torch.complex128, **g),
    "randperm(1)": lambda g: torch.randperm(1, **g),
    "randperm(10)": lambda g: torch.randperm(10, **g),
    "randperm(900)": lambda g: torch.randperm(900, **g),
    "uniform_(2, 5)": lambda g: torch.empty(1).uniform_(2, 5, **g),
    "uniform_ in columns": lambda g: torch.zeros(2, 4)[:, 1].uniform_(**g),
    "random_()": lambda g: torch.empty(2).random_(**g),
    "random_(7)": lambda g: torch.empty(2, dtype=torch.int64).random_(7, **g),
    "random_(3, None)": lambda g: torch.empty(1, dtype=torch.int64).random_(3, None, **g),
    "bernoulli_": lambda g: torch.empty(3).bernoulli_(0.5, **g),
    "bernoulli_ of a tensor": lambda g: torch.empty(3).bernoulli_(torch.rand(3, **g), **g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((5,), 0.5), **g),
    "exponential_": lambda g: torch.empty(2).exponential_(**g),
    "geometric_": lambda g: torch.empty(2).geometric_(0.1, **g),
    "cauchy_": lambda g: torch.empty(2).cauchy_(**g),
    "log_normal_": lambda g: torch.empty(2).log_normal_(**g),
    "log_normal_(9)": lambda g: torch.empty(9).log_normal_(**g),
    "multinomial": lambda g: torch.multinomial(torch.ones(9), 3, **g),
    "poisson": lambda g: torch.poisson(torch.full((3,), 50.0), **g),
    "normal": lambda g: torch.normal(0.0, 1.0, (3,), **g),
}
names = st.sampled_from(sorted(DRAWS))


def values(drawn: Any) -> Any:
    return torch.view_as_real(drawn).tolist() if drawn.is_complex() else drawn.tolist()


def compare(order: list[str], position: int) -> None:
    given_one = {"generator": generator_of(position)}
    expected = [values(DRAWS[name](given_one)) for name in order]
    with isolated(WorkerStream(3, 0)):
        enter_sample_streams(SEED, position, ())
        try:
            assert [values(DRAWS[name]({})) for name in order] == expected
        finally:
            leave_streams()


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_one_kind_are_those_of_one_generator(name: str) -> None:
    compare([name] * 40, 3)


@settings(max_examples=150)
@given(order=st.lists(names, max_size=40), position=st.integers(0, 1000))
def test_draws_in_any_order_are_those_of_one_generator(order: list[str], position: int) -> None:
    compare(order, position)


@pytest.mark.usefixtures("in_sample")
@pytest.mark.parametrize("before", [0, 1, 24, 25])
def test_a_seed_gives_torch_s_own_numbers(before: int) -> None:
    for _ in range(before):
        torch.rand(1)
    for seed in (5, 6, 5):
        torch.manual_seed(seed)
        own = torch.Generator().manual_seed(seed)
        assert torch.initial_seed() == seed
        for size in (1, 2, 1, 700, 1, 4):
            assert torch.equal(torch.rand(size), torch.rand(size, generator=own))
        assert torch.equal(torch.randint(9, (2,)), torch.randint(9, (2,), generator=own))
        assert torch.equal(torch.get_rng_state(), own.get_state())


@pytest.mark.parametrize("before", [0, 1, 23, 24, 25])
def test_to_ask_for_the_state_draws_nothing(before: int, in_sample: Callable[[int], None]) -> None:
    def draws(*, ask: bool) -> list[Any]:
        told = [torch.rand(1).tolist() for _ in range(before)]
        state = torch.get_rng_state() if ask else None
        rest = [torch.rand(n).tolist() for n in (1, 2, 30, 1, 800)]
        if state is not None:
            torch.set_rng_state(state)
            assert [torch.rand(n).tolist() for n in (1, 2, 30, 1, 800)] == rest
        return told + rest

    expected = draws(ask=False)
    in_sample(0)
    assert draws(ask=True) == expected


def test_fork_rng_leaves_what_follows_as_it_was(in_sample: Callable[[int], None]) -> None:
    expected = [torch.rand(2).tolist(), torch.rand(2).tolist()]
    in_sample(0)
    first = torch.rand(2).tolist()
    with torch.random.fork_rng(devices=[]):
        torch.rand(100)
    assert [first, torch.rand(2).tolist()] == expected


@pytest.mark.usefixtures("in_sample")
def test_a_leaf_that_requires_a_gradient_is_refused_as_by_torch() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    for tensor in (leaf, leaf[:]):
        with pytest.raises(RuntimeError, match="requires grad"):
            tensor.uniform_()
    with torch.no_grad():
        leaf[:].uniform_()
    nn.init.uniform_(nn.Parameter(torch.zeros(1)))


@pytest.mark.usefixtures("in_sample")
def test_a_change_of_what_a_gradient_needs_is_noticed() -> None:
    factor, value = torch.ones(1, requires_grad=True), torch.zeros(1)
    product = factor * value
    value.uniform_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.usefixtures("in_sample")
def test_a_script_s_tensor_that_requires_a_gradient_loses_it() -> None:
    @torch.jit.script
    def replaced(factor: torch.Tensor) -> torch.Tensor:
        product = factor * 2
        product.uniform_()
        return product + factor

    for _ in range(3):  # before and after torch has optimized it
        factor = torch.ones(1, requires_grad=True)
        replaced(factor).sum().backward()
        assert factor.grad is not None
        assert factor.grad.item() == 1


@pytest.mark.usefixtures("in_sample")
def test_only_tensors_that_somebody_has_are_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def address(tensor: torch.Tensor) -> int:
        asked.append(tensor)
        return 0

    monkeypatch.setattr(random_values, "_address", address)
    for _ in range(3):
        torch.rand(1)
        torch.rand_like(torch.ones(2))
        torch.randint(9, (2,))
    assert not asked
    mine, integers = torch.zeros(1), [torch.zeros(1, dtype=torch.int64)]
    mine.uniform_()
    torch.empty(1).uniform_()
    integers[0].random_(0, 9)
    assert len(asked) == 3


@pytest.mark.usefixtures("in_sample")
def test_tensors_of_torch_func_draw_as_it_asks() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty_like(x).uniform_()

    zeros = torch.zeros(3)
    different = torch.func.vmap(noisy, randomness="different")(zeros)
    assert len(set(different.tolist())) == 3
    same = torch.func.vmap(noisy, randomness="same")(zeros)
    assert len(set(same.tolist())) == 1
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda _: torch.rand(()))(zeros)


@pytest.mark.parametrize("draw", ["uniform_", "normal_"])
def test_tensors_that_stand_for_many_draw_no_words_of_other_samples(
    in_sample: Callable[[int], None], draw: str
) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return getattr(x.clone(), draw)()

    noise = torch.func.vmap(noisy, randomness="different")
    drawn = []
    for position in (0, 1):
        in_sample(position)
        drawn.append(set(noise(torch.zeros(100, dtype=torch.float64)).tolist()))
    assert len(drawn[0]) == len(drawn[1]) == 100
    assert not drawn[0] & drawn[1]


@pytest.mark.usefixtures("in_sample")
def test_what_torch_refuses_or_follows_is_left_to_torch() -> None:
    with torch.inference_mode():
        inference, opposite = torch.zeros(1), torch.zeros(1, dtype=torch.complex64).conj().imag
        assert 0 < opposite.uniform_().item() < 1
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        inference.uniform_()
    outer = torch.zeros(1)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda x: x + outer.uniform_())(torch.zeros(2))


# torch imports Triton there, which turns the lock on.
@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="free-threaded")
@pytest.mark.usefixtures("in_sample")
def test_functions_without_side_effects_draw() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty_like(x).uniform_()

    assert torch.func.functionalize(noisy)(torch.zeros(1)).item() > 0
    assert torch.func.grad(lambda x: (x * torch.rand(())).sum())(torch.ones(())).item() > 0


@pytest.mark.usefixtures("in_sample")
def test_tensors_of_other_kinds_are_written_right() -> None:
    with torch.inference_mode():
        assert 0 < torch.rand(1).item() < 1
    opposite = torch.zeros(1, dtype=torch.complex64).conj().imag
    assert opposite.is_neg()
    assert 0 < opposite.uniform_().item() < 1
    assert torch.empty(3, device="meta").uniform_().is_meta
    assert 0 < torch.zeros(1).as_subclass(Special).uniform_().item() < 1
    with torch.device("meta"):
        assert torch.rand(1).is_meta
    assert 0 < np.asarray(torch.from_numpy(np.zeros(1, np.float32)).uniform_())[0] < 1
    copied = copy.copy(torch.ones(1))
    lazy = torch.ones(1).expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        lazy.uniform_()
    assert copied.item() == 1


class Special(torch.Tensor):
    pass


@pytest.mark.usefixtures("in_sample")
@pytest.mark.parametrize("bounds", [(3, 3), (4, 3), (-(1 << 70), 0)])
def test_wrong_bounds_are_torch_s_own_error(bounds: tuple[int, int]) -> None:
    with pytest.raises((RuntimeError, OverflowError, TypeError, ValueError)):
        torch.randint(*bounds, (1,))


def test_all_operators_that_take_a_generator_are_known() -> None:
    found = set()
    for full in torch._C._dispatch_get_all_op_names():  # noqa: SLF001  # what is compared
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if namespace == "aten":
            schema = torch._C._get_schema(f"aten::{packet}", overload)  # noqa: SLF001
            if any(argument.name == "generator" for argument in schema.arguments):
                found.add(packet)
    assert found <= set(PACKETS)


def test_other_numbers_of_torch_s_are_noticed() -> None:
    words: Any = np.array([1, 2, 3, 4], np.uint32)
    assert not writes_as_torch_does(lambda: torch.Generator().manual_seed(1), memoryview(words))
    assert set(WRITING) == {"uniform_", "random_.from"}


@pytest.mark.skipif(sys.byteorder != "little", reason="written for the usual machines")
def test_a_first_epoch_in_inference_mode_keeps_the_fast_kernels() -> None:
    known, drawn = random_state._generator_of_known_words, random_state._DRAWN  # noqa: SLF001
    with torch.inference_mode():
        assert writes_as_torch_does(known, drawn)


@pytest.mark.skipif(sys.byteorder != "little", reason="written for the usual machines")
def test_values_are_written_here(in_sample: Callable[[int], None]) -> None:
    stream = SampleStream()
    stream.move(SEED, b"sample", 4, ())
    in_sample(4)
    at = stream.take_torch_words(3)
    first, *rest = stream.torch_words[at : at + 3]
    assert torch.rand(1).item() == (first & 0xFFFFFF) / (1 << 24)
    assert torch.randint(10, 1000, (2,)).tolist() == [word % 990 + 10 for word in rest]
