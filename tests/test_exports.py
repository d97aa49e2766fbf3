"""What `import threadloader` promises: few names, found lazily, at no cost until they are used."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from support.child import printed_by

import threadloader
import threadloader.datasets

PROMISED = [
    "ClosedError",
    "DataError",
    "EmptyReplicaWarning",
    "GilWarning",
    "RankError",
    "RemoteError",
    "SampleError",
    "SlowLoadingWarning",
    "StateError",
    "Statistics",
    "ThreadLoader",
    "ThreadLoaderError",
    "ThreadLoaderWarning",
    "TokenBatches",
    "get_worker_info",
    "pack",
    "profile",
    "register",
    "sample_rng",
    "sample_seed",
]
API = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
HEAVY = {
    "PIL",
    "aiohttp",
    "backports.zstd",
    "fsspec",
    "leanjpeg_simple",
    "pyarrow",
    "rich",
    "simplejpeg",
    "torch",
    "urllib3",
}


MOST_MODULES = 80  # that naming the loader imports: what only some need, they import


def _modules_after(code: str) -> set[str]:
    """Return the names of all modules that a fresh interpreter has loaded after running code."""
    return set(printed_by(f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')").split())


def test_the_promised_names_are_these() -> None:
    assert sorted(threadloader.__all__) == PROMISED


each_package = pytest.mark.parametrize(
    "package", [threadloader, threadloader.datasets], ids=lambda package: package.__name__
)


@each_package
def test_every_promised_name_is_found_and_listed(package: Any) -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)
        assert re.search(rf"\b{name}\b", API)


@each_package
def test_an_unknown_name_is_an_attribute_error_that_says_where(package: Any) -> None:
    with pytest.raises(AttributeError, match=rf"{package.__name__}\b.*no_such_name"):
        package.no_such_name  # noqa: B018  # the look-up is what is tested


def _ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "threadloader"}


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = _modules_after("import threadloader")
    assert not HEAVY & loaded
    assert "numpy" not in loaded
    assert _ours(loaded) == {"threadloader", "threadloader._version", "threadloader.errors"}


def test_naming_the_loader_does_not_import_numpys_random_generators() -> None:
    hidden = "import sys; sys.modules['torch'] = None; "  # it may import them
    if "numpy.random" in _modules_after(f"{hidden}import numpy"):
        pytest.skip("this NumPy imports them itself")
    loaded = _modules_after(f"{hidden}from threadloader import ThreadLoader")
    assert "threadloader._loader.loader" in loaded
    assert "numpy.random" not in loaded


def test_importing_the_datasets_imports_nothing_heavy() -> None:
    assert not HEAVY & _modules_after("import threadloader.datasets")


def test_naming_the_loader_imports_what_all_loaders_use_and_torch_where_it_is_installed() -> None:
    loaded = _modules_after("from threadloader import ThreadLoader")
    assert len(_ours(loaded)) <= MOST_MODULES
    assert "threadloader._loader.loader" in loaded
    assert HEAVY & loaded == ({"torch"} if importlib.util.find_spec("torch") else set())
