"""The call when torch's module is imported: once, by the import that succeeds."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from threadloader.cli import torch_import

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

NAME = "module_in_place_of_torchs"


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """Return the modules that the function was called with; the first import fails."""
    lines = "import sys", "sys.imports_of_it.append(1)", "if len(sys.imports_of_it) < 2:"
    (tmp_path / f"{NAME}.py").write_text("\n".join((*lines, "    raise ImportError('no CUDA')")))
    monkeypatch.setattr(sys, "imports_of_it", [], raising=False)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_import, "MODULE", NAME)
    modules: list[ModuleType] = []
    torch_import.when_imported(modules.append)
    yield modules
    sys.modules.pop(NAME, None)


def test_an_import_that_fails_is_not_the_one(called: list[ModuleType]) -> None:
    with pytest.raises(ImportError, match="no CUDA"):
        importlib.import_module(NAME)
    assert not called
    module = importlib.import_module(NAME)
    assert called == [module]
    importlib.reload(module)
    assert called == [module]


def test_looking_for_the_module_does_not_import_it(called: list[ModuleType]) -> None:
    assert importlib.util.find_spec(NAME) is not None
    assert not called
    with pytest.raises(ImportError, match="no CUDA"):
        importlib.import_module(NAME)
    module = importlib.import_module(NAME)
    assert called == [module]
