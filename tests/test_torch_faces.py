"""`_torch` has the same names whether torch is installed or not."""

from __future__ import annotations

import ast
from pathlib import Path

import threadloader
from threadloader import _torch

FOLDER = Path(threadloader.__file__).parent / "_torch"
WITH_TORCH = ("accelerators", "data", "random_state", "threads")


def names(module: str) -> list[str]:
    """Return the names of a module that a star import brings, as far as they are its own."""
    found: list[str] = []
    for node in ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
            case ast.Assign(targets=targets):
                found += [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.append(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name)
    return [name for name in found if name[0] != "_"]


def test_with_and_without_torch_the_names_are_the_same() -> None:
    with_torch = [name for module in WITH_TORCH for name in names(module)]
    assert len({*with_torch}) == len(with_torch) > 40
    assert {*names("absent")} - {"T_co", "WorkerInfo"} == {*with_torch}
    assert all(hasattr(_torch, name) for name in with_torch)
