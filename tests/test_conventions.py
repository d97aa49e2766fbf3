"""House rules that no off-the-shelf linter checks (idea: msgspec tests/unit/test_cpylint.py)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from conftest import PATIENCE, TEST_LIMIT

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "threadloader"
MODULES = sorted(PACKAGE.rglob("*.py"))
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
WAITS = {"wait", "wait_for", "join", "acquire", "sleep"}
# What weak references, the exit, devices and kept memory need.
OF_THE_PROCESS = {
    "_processes",
    "_watched",
    "_running",
    "_streams",
    "_idle",
    "_at_exit",
    "_default_before",
    "_leaving",
    "_listeners",
    "_making",
    "_replaced",
}
MUTABLE = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"}
BOUNDED = {"result", "exception", "wait", "join", "acquire", "poll", "communicate", "run"}
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox"


def every_module(check: Callable[[Path], None]) -> Callable[[], None]:
    """Return a test that checks all modules."""

    def test() -> None:
        assert PACKAGE / "__init__.py" in MODULES
        for path in MODULES:
            try:
                check(path)
            except AssertionError as error:
                error.add_note(str(path))
                raise

    return test


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def _calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(_called(node), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@every_module
def test_a_class_that_owns_a_lock_says_what_it_guards_and_who_calls_what(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(_parse(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        locks = [call for name, call in _calls(node) if name in LOCKS]
        if locks:
            docstring = ast.get_docstring(node) or ""
            assert "Invariants" in docstring, node.name
            assert "Threads:" in docstring, node.name
            assert "guarded by" in (ast.get_source_segment(source, node) or ""), node.name


@every_module
def test_no_argument_is_deleted_where_an_error_may_keep_the_frame(path: Path) -> None:
    # IPython asks each frame of a traceback for its arguments: see `_lifetime.DROPPED`.
    for function in ast.walk(_parse(path)):
        if not isinstance(function, ast.FunctionDef) or "cli" in path.parts:
            continue
        every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        names = {argument.arg for argument in every}
        for node in ast.walk(function):
            if isinstance(node, ast.Delete):
                assert not names & set(map(ast.unparse, node.targets)), f"line {node.lineno}"


@every_module
def test_a_thread_has_a_name(path: Path) -> None:
    for name, call in _calls(_parse(path)):
        if name == "Thread":
            assert "name" in {keyword.arg for keyword in call.keywords}, call.lineno


@every_module
def test_nothing_sleeps_or_polls(path: Path) -> None:
    for name, call in _calls(_parse(path)):
        assert name != "sleep", f"line {call.lineno}: wait on a condition"
        if name in WAITS:
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            limits = [value for value in values if isinstance(value, ast.Constant)]
            assert not any(type(limit.value) in {int, float} for limit in limits), (
                f"line {call.lineno}: a time limit is the user's, or has a name that says why"
            )


@every_module
def test_a_module_keeps_no_mutable_state(path: Path) -> None:
    for node in _parse(path).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        table = name.isupper() and ast.unparse(value) not in {"[]", "{}"}
        if name not in {"__all__", *OF_THE_PROCESS} and not table:
            assert not isinstance(value, ast.List | ast.Dict | ast.Set), f"{name} = [...]"
            assert _called(value) not in MUTABLE, f"{name} = {_called(value)}(...)"


def test_what_blocks_in_a_test_is_waited_for_with_patience() -> None:
    """Seconds that are enough on an idle machine are not on a busy one; a pause may be short."""
    impatient = [
        f"{path.relative_to(ROOT)}, line {call.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name, call in _calls(_parse(path))
        if name in BOUNDED and any(limit >= 1 for limit in _limits(call))
    ]
    assert not impatient, "conftest.PATIENCE bounds what hangs"


def _limits(call: ast.Call) -> list[float]:
    """Return the time limits of a call that are written as numbers."""
    values = [*call.args[:1], *(key.value for key in call.keywords if key.arg == "timeout")]
    numbers = [value.value for value in values if isinstance(value, ast.Constant)]
    return [number for number in numbers if isinstance(number, int | float)]


def test_a_hang_fails_its_test_before_pytest_ends_the_process(
    request: pytest.FixtureRequest,
) -> None:
    assert float(request.config.getini("faulthandler_timeout")) >= TEST_LIMIT + PATIENCE


@pytest.mark.parametrize("name", ["README.md", ".ci/run"])
def test_the_readme_and_ci_run_the_same_command(name: str) -> None:
    assert TEST_COMMAND in (ROOT / name).read_text(encoding="utf-8")
