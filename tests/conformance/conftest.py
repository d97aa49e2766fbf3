"""`alike`: whatever can be seen of torch's loader can be seen of ours, with any threads."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from conformance.loading import THREADS, Build, Story, ours, processes, story, torchs


@pytest.fixture(autouse=True)
def no_warning_is_an_error() -> Iterator[None]:
    """Ignore torch's warnings: it gives each once in a process, so that only one loader would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
        yield


@pytest.fixture
def alike(spawn: Spawn) -> Callable[..., Story]:
    """Compare the loaders that ``build`` makes; return the story that all tell."""

    def check(build: Build, epochs: int = 2, *, threads: Any = THREADS) -> Story:
        expected: Story = spawn(story, build, torchs, epochs).result(PATIENCE)
        for number in threads:
            assert spawn(story, build, ours(number), epochs).result(PATIENCE) == expected, number
        return expected

    return check


@pytest.fixture
def alike_workers(spawn: Spawn) -> Callable[..., Any]:
    """Compare what ``run`` returns for torch's loader with worker processes, and for ours."""

    def check(run: Callable[..., Any], *workers: int) -> Any:
        for number in workers:
            expected = run(processes(number))
            assert spawn(run, ours(number)).result(PATIENCE) == expected, number
        return expected

    return check
