"""What a thread has of its own is in workers as it is where the loop runs."""

from __future__ import annotations

import contextvars
import decimal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.acting import Acting

from threadloader import ThreadLoader

level: contextvars.ContextVar[str] = contextvars.ContextVar("level", default="unset")


def raises() -> str:
    try:
        return str(np.float64(1.0) / np.zeros(1)[0])
    except FloatingPointError:
        return "raised"


@contextmanager
def precision(digits: int) -> Iterator[None]:
    with decimal.localcontext() as context:
        context.prec = digits
        yield


@contextmanager
def value(digits: int) -> Iterator[None]:
    token = level.set(str(digits))
    yield
    level.reset(token)


@contextmanager
def filtered(digits: int) -> Iterator[None]:
    with warnings.catch_warnings(action="error" if digits == 7 else "ignore"):
        yield


def warns() -> str:
    try:
        warnings.warn("told", UserWarning, stacklevel=1)
    except UserWarning:
        return "raised"
    return "ignored"


KINDS: list[tuple[Callable[[int], Any], Callable[[], str]]] = [
    (precision, lambda: str(len(str(decimal.Decimal(1) / 3)) - 2)),
    (value, level.get),
    (lambda digits: np.errstate(divide="raise" if digits == 7 else "ignore"), raises),
    (filtered, warns),
]


OPTIONS = [{}, {"threads": 0}, {"threads": 3}, {"threads": 2, "persistent_workers": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_each_epoch_has_the_context_of_its_iter(
    kind: str, number: int, options: dict[str, Any]
) -> None:
    enter, look = KINDS[number]

    def stream() -> Iterator[str]:
        for _ in range(16):
            yield look()

    class Stream:
        def __iter__(self) -> Iterator[str]:
            return stream()

    if kind == "iterable" and options.get("threads", 0) > 1:
        options = options | {"threads": 1}
    dataset = Acting(16, sample=lambda _: look()) if kind == "map" else Stream()
    with ThreadLoader(dataset, batch_size=4, collate_fn=list, **options) as loader:
        for digits in (7, 5):
            with enter(digits):
                assert {text for batch in loader for text in batch} == {look()}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mode", ["autocast", "cache", "device", "grad", "inference"])
def test_each_epoch_has_the_torch_modes_of_its_iter(mode: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    enter, look = {
        "autocast": (
            lambda on: torch.autocast("cpu", torch.float16, enabled=on),
            lambda: str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype),
        ),
        "cache": (
            lambda on: torch.autocast("cpu", torch.bfloat16, cache_enabled=on),
            lambda: str(torch.is_autocast_cache_enabled()),
        ),
        "device": (
            lambda on: torch.device("meta" if on else "cpu"),
            lambda: str(torch.empty(1).device),
        ),
        "grad": (torch.set_grad_enabled, lambda: str(torch.is_grad_enabled())),
        "inference": (torch.inference_mode, lambda: str(torch.empty(1).is_inference())),
    }[mode]
    drawn = Acting(16, sample=lambda _: f"{look()} {torch.rand(1, device='cpu').item()}")
    with ThreadLoader(drawn, batch_size=4, collate_fn=list, seed=3, **options) as loader:
        numbers: list[str] = []
        for on in (True, False, True, False):
            with enter(on):
                expected = look()
                texts = [text.split() for batch in loader for text in batch]
            assert {text for text, _ in texts} == {expected}
            numbers += [number for _, number in texts]
        assert len(set(numbers)) == len(numbers)  # each sample has its own random numbers still
