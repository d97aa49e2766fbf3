"""`_torch` has the same names whether torch is installed or not; mypy compares their types."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import threadloader
from threadloader import _torch

FOLDER = Path(threadloader.__file__).parent / "_torch"


def names(face: list[ast.stmt]) -> list[str]:
    """Return the names that each ``from module import *`` of a branch brings, sorted."""
    # Those that are imported when they are used are imported for mypy alone.
    face = [each for node in face for each in (node.body if isinstance(node, ast.If) else [node])]
    modules = [node.module for node in face if isinstance(node, ast.ImportFrom)]
    assert len(modules) == len(face), "a branch consists of star imports"
    found: list[str] = []
    for module in modules:
        assert module is not None
        path = FOLDER / f"{module.rpartition('.')[2]}.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found += ast.literal_eval(node.value)
    return sorted(found)


@pytest.fixture(scope="module")
def branch() -> ast.If:
    body = ast.parse((FOLDER / "__init__.py").read_text(encoding="utf-8")).body
    (found,) = [node for node in body if isinstance(node, ast.If)]
    return found


def test_with_and_without_torch_the_names_are_the_same(branch: ast.If) -> None:
    assert names(branch.body) == names(branch.orelse)


def test_each_name_has_one_module(branch: ast.If) -> None:
    assert len(set(names(branch.body))) == len(names(branch.body)) > 40


def test_here_all_of_them_are_found(branch: ast.If) -> None:
    assert all(hasattr(_torch, name) for name in names(branch.body))


def test_an_unknown_name_is_an_attribute_error_that_says_where() -> None:
    with pytest.raises(AttributeError, match=r"threadloader\._torch.*no_such_name"):
        _torch.no_such_name  # noqa: B018  # the look-up is what is tested
