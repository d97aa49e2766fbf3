"""`alike`: whatever can be seen of torch's loader can be seen of ours, with any threads."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

pytest.register_assert_rewrite("conformance.loading")

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from conformance.loading import THREADS, ours, story, torchs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from conformance.loading import Build, Story


@pytest.fixture(autouse=True)
def no_warning_is_an_error() -> Iterator[None]:
    """Ignore torch's warnings: it gives each once in a process, so that only one loader would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.fixture(params=[0, 1, 3], ids=lambda threads: f"threads={threads}")
def alike(request: pytest.FixtureRequest, spawn: Callable[..., Future[Any]]) -> Callable[..., Any]:
    """Compare the loaders that ``build`` makes; return the story that both tell."""
    assert request.param in THREADS

    def check(build: Build) -> Story:
        expected: Story = spawn(story, build, torchs).result(PATIENCE)
        assert spawn(story, build, ours(request.param)).result(PATIENCE) == expected
        return expected

    return check
