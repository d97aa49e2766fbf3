"""`threadloader run`: a program as python runs it, and its loaders by threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.child import run_python

from threadloader import _torch
from threadloader.cli import main

TRAINING = Path(__file__).parents[1] / "support" / "training"
RUN = ("-m", "threadloader", "run")
needs_torch = pytest.mark.skipif(not _torch.AVAILABLE, reason="replaces torch's class")

# Two loaders, of which one is made anew in each epoch.
LOOP = """\
import sys
from torch.utils.data import DataLoader

if __name__ == "__main__":
    workers = int(sys.argv[1])
    tests = DataLoader(range(33), 16, num_workers=workers)
    for epoch in range(2):
        for batch in DataLoader(range(70), 16, num_workers=workers):
            print(epoch, batch.tolist())
        print([len(batch) for batch in tests])
"""


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the interpreter away from the checkout, and return what it wrote."""
    given = {"PYTHONSAFEPATH": "", **options.pop("env", {})}
    options = {"cwd": tempfile.gettempdir(), **options}
    return run_python("-W", "ignore", *arguments, env=given, **options)


def written(tmp_path: Path, code: str, name: str = "script.py") -> Path:
    path = tmp_path / name
    path.write_text(code, encoding="utf-8")
    return path


def reported(
    tmp_path: Path, *arguments: object
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run a program by threads, and return what it wrote, and its loaders of the report."""
    done = python(*RUN, "--json", tmp_path / "report.json", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    return done, report["loaders"]


# The program


def test_a_script_is_main_with_its_own_arguments_and_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7", encoding="utf-8")
    script = written(
        tmp_path,
        "import beside, os, sys, __main__\n"
        "print(__name__, __file__ == os.path.abspath(sys.argv[0]), sys.argv[1:], beside.value)\n"
        "print(vars(__main__) is globals(), __spec__, __doc__, __package__)\n",
    )
    arguments = ("one", "--steps", "2", "-m", "three")
    plain = python(script, *arguments)
    done = python(*RUN, script, *arguments)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert "no DataLoader of torch's was iterated over" in done.stderr


@pytest.mark.parametrize("module", ["package", "package.part"])
def test_a_module_is_main(module: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    code = "import sys; print(__name__, __package__, __spec__.name, sys.argv)"
    for name in ("__main__.py", "part.py"):
        written(tmp_path / "package", code, name)
    plain = python("-m", module, "--lr", "1", cwd=tmp_path)
    done = python(*RUN, "-m", module, "--lr", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, plain.stdout)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('some words')",
        "def f():\n    raise ValueError('no')\n\ntry:\n    f()\nexcept ValueError:\n    1 / 0",
        "class Own(Exception): pass\nraise Own from KeyError(1)",
        "this is no python",
        "import sys; sys.excepthook = lambda *_: print('hooked', file=sys.stderr); 1 / 0",
    ],
)
def test_exit_codes_and_errors_are_those_of_python(code: str, tmp_path: Path) -> None:
    script = written(tmp_path, code)
    plain, done = python(script), python(*RUN, script)
    assert done.returncode == plain.returncode
    error, _, table = done.stderr.partition("threadloader run: ")
    exits = plain.stderr if "sys.exit" in code else ""  # which is written last
    assert error + exits == plain.stderr
    assert table.endswith(exits)


def test_a_report_that_has_no_folder_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    script = written(tmp_path, "print('ran')")
    done = python(*RUN, "--json", tmp_path / "none" / "report.json", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such folder" in done.stderr


def test_of_a_script_that_is_missing_nothing_is_reported(tmp_path: Path) -> None:
    done = python(*RUN, tmp_path / "none.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_the_program_imports_torch_and_keeps_its_globals_to_the_end(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        "import atexit, pickle, sys\n"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])\n"
        "class Own: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Own()))) is Own))\n",
    )
    assert python(*RUN, script).stdout == "[]\nTrue\n"


@pytest.mark.parametrize(
    "arguments", [["nowhere.py"], ["-m", "no.such.module"], [], ["--"], ["-m"]]
)
def test_a_program_that_is_missing_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(main(["run", *arguments]))
    assert "threadloader run: error: " in capsys.readouterr().err


# Its loaders


DATASETS = """
import multiprocessing, sqlite3

class Plain(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

class Connected(Plain):
    def __init__(self):
        self.database = sqlite3.connect(":memory:")

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))

if __name__ == "__main__":
    multiprocessing.set_start_method("fork", force=True)  # no other has the connection
"""
REASONS = {
    "Plain(), num_workers=1": None,
    "Stream(), num_workers=1": None,
    "Connected()": None,
    "Plain(), multiprocessing_context='fork', num_workers=1": "'fork' asks for processes",
    "Connected(), num_workers=1": "share dataset.database (Connection)",
    "Stream()": "program's own thread",
}
HAS_FORK = hasattr(os, "fork")


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run loaders of all kinds by python, and by threads; one start of torch is enough."""
    folder = tmp_path_factory.mktemp("both")
    code = (TRAINING / "many_loaders.py").read_text(encoding="utf-8")
    if HAS_FORK:
        code += DATASETS + "\n".join(f"    print(list(DataLoader({given})))" for given in REASONS)
    script = written(folder, code)
    return python(script), *reported(folder, script)


@needs_torch
def test_loaders_of_all_kinds_give_the_same_batches_and_leave_the_same_random_state(
    both_ways: Any,
) -> None:
    plain, done, loaders = both_ways
    for expected, got in zip(plain.stdout.splitlines(), done.stdout.splitlines(), strict=True):
        assert got == expected
    assert "made elsewhere: []" in done.stderr
    by = {0: ("threads (default)", "the program's own thread"), 1: ("1 thread",), 2: ("2 threads",)}
    for loader in loaders[: -len(REASONS) if HAS_FORK else None]:
        assert loader["loaded_by"] in by[loader["num_workers"]]
        assert loader["left_alone_because"] is None


@needs_torch
@pytest.mark.skipif(not HAS_FORK, reason="asks for forked processes")
def test_what_is_left_to_torch_is_as_before_and_the_report_says_why(both_ways: Any) -> None:
    _, done, loaders = both_ways
    for (arguments, reason), loader in zip(REASONS.items(), loaders[-len(REASONS) :], strict=True):
        found = loader["left_alone_because"]
        assert found is None if reason is None else reason in found, arguments
        assert loader["loaded_by"].startswith("torch, ") == (reason is not None)
        assert found is None or f"is left to torch: {found}" in done.stderr


OF_A_RANK = """\
from torch.utils.data import DataLoader, IterableDataset
from threadloader import ThreadLoader

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))

def made(data):
    return DataLoader(data)

for _ in range(3):
    list(DataLoader(range(8), 4))
list(ThreadLoader(range(8)))
for data in (range(2), Stream()):
    list(made(data))
list(made(range(3)))
print(len([*DataLoader(range(7)), *DataLoader(range(8)), *DataLoader(range(99))]))
"""


@pytest.fixture(scope="module")
def of_a_rank(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run one rank of several; return what it wrote, and the report, which is its own."""
    folder = tmp_path_factory.mktemp("rank")
    options = ("--steps", "9", "--json", folder / "report.json")
    ranks = {"RANK": "3", "WORLD_SIZE": "4"}
    done = python(*RUN, *options, written(folder, OF_A_RANK), env=ranks)
    return done, json.loads((folder / "report-3.json").read_text(encoding="utf-8"))


@needs_torch
def test_the_report_has_batches_and_waits(of_a_rank: Any) -> None:
    done, report = of_a_rank
    loader = report["loaders"][0]
    assert (loader["passes"], loader["batches"]) == (3, 6)
    assert 0 < loader["first_batch_seconds"] <= loader["wait_seconds"]
    assert "script.py:12" in loader["made_at"]
    assert "threadloader run, rank 3: " in done.stderr


@needs_torch
def test_a_row_is_a_call_of_the_class_for_one_caller_loaded_in_one_way(of_a_rank: Any) -> None:
    _, *loaders = of_a_rank[1]["loaders"]
    rows = [(it["made_at"].rpartition(":")[2], it["loaded_by"], it["batches"]) for it in loaders]
    assert rows == [
        ("9 #1", "threads (default)", 2),
        ("9 #2", "torch, in-process", 4),
        ("9 #3", "threads (default)", 3),
        ("17 #1", "threads (default)", 7),
        ("17 #2", "threads (default)", 8),
        ("17 #3", "threads (default)", 9),
    ]
    assert of_a_rank[0].stdout == "", "the program ends after some steps of one loader"


@needs_torch
def test_a_run_by_torch_ends_after_some_steps_too(tmp_path: Path) -> None:
    options = ("--torch", "--steps", "7")
    done, loaders = reported(tmp_path, *options, written(tmp_path, LOOP), "1")
    assert (loaders[0]["batches"], loaders[0]["loaded_by"]) == (7, "torch, 1 process")
    assert "torch, 1 process" in done.stderr
    assert len(done.stdout.splitlines()) == 7 + 1  # 5 batches, a test, 2 batches
