"""All that can be seen of a loader: its length, batches, errors, and what random state it used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from support.pictures import picture, told_by
from torch.utils.data import DataLoader

from threadloader import ThreadLoader

THREADS = (0, 3)
SEED = 20

MakeLoader = Callable[..., Any]  # a loader of a dataset and torch's arguments
Build = Callable[[MakeLoader], Any]  # called once a loader, so that samplers are not shared
Outcome = tuple[Any, ...]  # ("batch", its picture) or ("error", type, message)
Story = dict[str, Any]

torchs: MakeLoader = partial(DataLoader, num_workers=0)


def ours(threads: int) -> MakeLoader:
    """Return ThreadLoader with that many threads."""
    return partial(ThreadLoader, threads=threads)


def processes(workers: int) -> MakeLoader:
    """Return torch's loader with that many worker processes."""
    context = "fork" if workers else None
    return partial(DataLoader, num_workers=workers, multiprocessing_context=context)


def story(build: Build, make_loader: MakeLoader, epochs: int = 2) -> Story:
    """Tell what a loader does in some epochs, from a given random state on."""
    torch.manual_seed(SEED)
    try:
        loader = build(make_loader)
    except Exception as error:  # noqa: BLE001  # whatever it is, both loaders have to raise it
        return {"made": _error(error)}
    told = {
        "length": _result(len, loader),
        "epochs": [outcomes(loader) for _ in range(epochs)],
        "next random number": torch.rand(()).item(),
    }
    if isinstance(loader.generator, torch.Generator):
        told["generator's next"] = torch.rand((), generator=loader.generator).item()
    return told


def outcomes(loader: Iterable[Any]) -> list[Outcome]:
    """Return what each call of ``next()`` gives, errors included, up to the end."""
    try:
        told = told_by(loader, lambda batch: ("batch", picture(batch)))
    except Exception as error:  # noqa: BLE001  # of iter(), as above
        return [_error(error)]
    return [_error(each) if isinstance(each, Exception) else each for each in told]


def batches(told: Story) -> list[Any]:
    """Return the pictures of the batches of all epochs."""
    return [rest[0] for epoch in told["epochs"] for what, *rest in epoch if what == "batch"]


def errors(told: Story) -> list[type[Exception]]:
    """Return the types of the errors of all epochs."""
    return [rest[0] for epoch in told["epochs"] for what, *rest in epoch if what == "error"]


def kinds(told: Any) -> Any:
    """Leave out the messages of errors: those of torch's workers hold a traceback."""
    if "made" in told:
        return told["made"][:2]
    epochs = [
        [outcome[:2] if outcome[0] == "error" else outcome for outcome in epoch]
        for epoch in told["epochs"]
    ]
    return told | {"epochs": epochs}


def _result(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except Exception as error:  # noqa: BLE001  # as above
        return _error(error)


def _error(error: Exception) -> Outcome:
    return "error", type(error), str(error)
