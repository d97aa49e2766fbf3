"""The packages as they are: offline, and free to warn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# Read when the packages are imported, by this process or by one that a test starts.
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

with suppress(ImportError):
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # no thread that outlives the test


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Ignore what the packages warn about when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (yield)


@pytest.fixture(autouse=True)
def packages_may_warn() -> Iterator[None]:
    """Ignore what the packages warn about when they are used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(autouse=True)
def the_environment_is_put_back() -> Iterator[None]:
    """Forget the ranks, addresses and ports that frameworks leave in the environment."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def files_go_to_a_folder_of_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let packages write beside the test, and nowhere else."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def vision() -> Iterator[None]:
    """Import torchvision, whose operators a CPU build of torch may lack."""
    torch = pytest.importorskip("torch")
    register = torch.library.register_fake

    def lenient(*given: Any, **named: Any) -> Any:
        decorate = register(*given, **named)

        def or_not(function: Any) -> Any:
            try:
                return decorate(function)
            except RuntimeError:  # there is no operator of this name
                return function

        return or_not

    torch.library.register_fake = lenient
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip("torchvision.transforms", exc_type=ImportError)
            yield
    finally:
        torch.library.register_fake = register
