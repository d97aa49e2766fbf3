"""`threadloader run`: a program as python runs it, and its loaders by threads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE

from threadloader import _torch

TRAINING = Path(__file__).parents[1] / "support" / "training"
RUN = ("-m", "threadloader", "run")
needs_torch = pytest.mark.skipif(not _torch.AVAILABLE, reason="replaces torch's class")


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the interpreter away from the checkout, and return what it wrote."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    options = {"cwd": tempfile.gettempdir(), **options}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        env=inherited,
        **options,
    )


def written(tmp_path: Path, code: str, name: str = "script.py") -> Path:
    path = tmp_path / name
    path.write_text(code, encoding="utf-8")
    return path


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


def test_a_module_is_main(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    code = "import sys; print(__name__, __package__, __spec__.name, sys.argv)"
    for name in ("__main__.py", "part.py"):
        written(tmp_path / "package", code, name)
    for module in ("package", "package.part"):
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


def test_what_the_program_leaves_for_its_exit_still_has_its_globals(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        "import atexit, pickle, sys\n"
        "class Own: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Own()))) is Own))\n",
    )
    assert python(*RUN, script).stdout == "True\n"


def test_torch_and_numpy_are_not_imported_before_the_program_imports_them(tmp_path: Path) -> None:
    script = written(
        tmp_path, "import sys; print([n for n in ('torch', 'numpy', 'rich') if n in sys.modules])"
    )
    assert python(*RUN, script).stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments", [["nowhere.py"], ["-m", "no.such.module"], [], ["--"], ["-m"], ["--compare"]]
)
def test_a_program_that_is_missing_exits_with_2(arguments: list[str]) -> None:
    done = python(*RUN, *arguments)
    assert done.returncode == 2
    assert "threadloader run: error: " in done.stderr


# Its loaders


@needs_torch
def test_loaders_of_all_kinds_give_the_same_batches_and_leave_the_same_random_state(
    tmp_path: Path,
) -> None:
    script = TRAINING / "many_loaders.py"
    plain, (done, loaders) = python(script), reported(tmp_path, script)
    for expected, got in zip(plain.stdout.splitlines(), done.stdout.splitlines(), strict=True):
        assert got == expected
    assert "made elsewhere: []" in done.stderr
    by = {0: "threads (default)", 1: "1 thread", 2: "2 threads"}
    for loader in loaders:
        assert loader["loaded_by"] == by[loader["num_workers"]]
        assert loader["left_alone_because"] is None


DATASETS = """\
import functools, multiprocessing, os, signal, sqlite3
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Plain(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

class ByProcess(Plain):
    def __getitem__(self, index):
        return index + self.own() * 0

    def own(self):
        return os.getpid()

class Connected(Plain):
    def __init__(self):
        self.database = sqlite3.connect(":memory:")

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))

class StreamByProcess(IterableDataset):
    def __iter__(self):
        return iter(range(multiprocessing.parent_process() is None, 8, 2))

class Pinned:
    def __call__(self, worker):
        import os as system
        system.nice(0)

def move(worker):
    os.chdir("/")

def ignore(worker):
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def ignore_by_another(worker):
    ignore(worker)

def bind(worker):
    global number
    number = worker

def seed(worker):
    torch.manual_seed(torch.initial_seed() + worker)
    assert os.environ

"""
REASONS = {
    "Plain(), worker_init_fn=seed, num_workers=1": None,
    "Stream(), num_workers=1": None,
    "ByProcess()": None,
    "Connected()": None,
    "Plain(), multiprocessing_context='fork', num_workers=1": "'fork' asks for processes",
    "Plain(), worker_init_fn=functools.partial(move), num_workers=1": "fn uses os.chdir",
    "Plain(), worker_init_fn=ignore_by_another, num_workers=1": "fn uses signal.signal",
    "Plain(), worker_init_fn=bind, num_workers=1": "uses the global number",
    "Plain(), worker_init_fn=Pinned(), num_workers=1": "uses os.nice",
    "ByProcess(), num_workers=1": "ByProcess uses os.getpid",
    "Connected(), num_workers=1": "share dataset.database (Connection)",
    "StreamByProcess(), num_workers=1": "uses multiprocessing.parent_process",
    "Stream()": "program's own thread",
}


@needs_torch
@pytest.mark.skipif(not hasattr(os, "fork"), reason="asks for forked processes")
def test_what_is_left_to_torch_is_as_before_and_the_report_says_why(tmp_path: Path) -> None:
    lines = [f"print(list(DataLoader({arguments})))" for arguments in REASONS]
    script = written(tmp_path, DATASETS + "\n".join(lines))
    plain, (done, loaders) = python(script), reported(tmp_path, script)
    assert done.stdout == plain.stdout
    for (arguments, reason), loader in zip(REASONS.items(), loaders, strict=True):
        found = loader["left_alone_because"]
        assert found is None if reason is None else reason in found, arguments
        assert loader["loaded_by"].startswith("torch, ") == (reason is not None)


@needs_torch
def test_the_report_has_batches_waits_and_the_memory_of_all_processes(tmp_path: Path) -> None:
    holds = "held = b'x' * (128 << 20); print(flush=True); input()"
    script = written(
        tmp_path,
        f"""\
import pathlib, subprocess, sys
from torch.utils.data import DataLoader
from threadloader import ThreadLoader

pipes = {{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}}
with subprocess.Popen([sys.executable, "-c", {holds!r}], **pipes) as child:
    child.stdout.readline()
    for _ in range(3):
        list(DataLoader(range(8), 4))
    list(ThreadLoader(range(8)))
    rollup = pathlib.Path("/proc/self/smaps_rollup")
    if rollup.exists():
        print(*(line.split()[1] for line in rollup.open() if line.startswith("Pss:")))
""",
    )
    done, [loader] = reported(tmp_path, script)
    assert (loader["passes"], loader["batches"]) == (3, 6)
    assert 0 < loader["first_batch_seconds"] <= loader["wait_seconds"]
    assert f"{script.name}:9" in loader["made_at"]
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["peak_memory_kind"].startswith("PSS" if done.stdout else "RSS")
    own = int(done.stdout or 0) << 10
    assert report["peak_memory_bytes"] > (own + (100 << 20) if own else 0)


def reported(
    tmp_path: Path, *arguments: object
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run a program by threads, and return what it wrote, and its loaders of the report."""
    done = python(*RUN, "--json", tmp_path / "report.json", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    return done, report["loaders"]


@needs_torch
@pytest.mark.parametrize("workers", ["0", "2"])
def test_two_processes_that_train_together_have_the_same_batches_and_losses(workers: str) -> None:
    script = TRAINING / "two_ranks.py"
    expected, got = ranks(script, workers=workers), ranks(*RUN, script, workers=workers)
    for rank in (0, 1):
        assert got[rank][0] == expected[rank][0]
        assert f"threadloader run, rank {rank}: " in got[rank][1]
        assert "thread" in got[rank][1].splitlines()[-1]


def ranks(*arguments: object, workers: str) -> list[tuple[str, str]]:
    """Run a program in two processes as torchrun does; return what each wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    cluster = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    environment = os.environ | cluster | {"WORKERS": workers}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *map(str, arguments)],
            env=environment | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        written = [process.communicate(timeout=2 * PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], written
    return written


@needs_torch
def test_compare_runs_both_ways_and_says_whether_batches_are_the_same(tmp_path: Path) -> None:
    script = TRAINING / "plain_loop.py"
    done = python(
        *RUN, "--compare", "--steps", "7", "--json", tmp_path / "both.json", script, "--workers=1"
    )
    assert done.returncode == 0, done.stderr
    assert "threadloader run --compare: 7 steps each way" in done.stderr
    assert "the first 7 batches are the same" in done.stderr
    both = json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))
    for way, by in (("torch", "torch, 1 process"), ("threads", "1 thread")):
        training = both[way]["loaders"][0]
        assert (training["batches"], training["loaded_by"]) == (7, by)
    assert len(done.stdout.splitlines()) == 2 * (7 + 1)  # 5 batches, a test, 2 batches, twice


@needs_torch
def test_compare_ends_with_the_exit_code_of_a_program_that_fails(tmp_path: Path) -> None:
    done = python(*RUN, "--compare", written(tmp_path, "import sys; sys.exit(5)"))
    assert done.returncode == 5
    assert "failed with threads, with exit code 5" in done.stderr


@needs_torch
def test_with_torch_nothing_is_replaced(tmp_path: Path) -> None:
    _, loaders = reported(tmp_path, "--torch", TRAINING / "plain_loop.py", "--workers", "2")
    assert [loader["loaded_by"] for loader in loaders] == ["torch, 2 processes"] * 2
