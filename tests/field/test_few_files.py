"""Where few files may be open: datasets of many shards work, and what fails says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.child import run_child
from support.made_shards import write_numbered

from threadloader.datasets import TarStream

pytest.importorskip("resource")

SHARDS, LIMIT = 60, 40
LIMITED = f"""
import os, resource, sys
sys.modules["torch"] = None  # its import takes seconds
import numpy
from pathlib import Path
from threadloader import ThreadLoader
from threadloader.datasets import TarShards, TarStream
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))

def take_the_rest():
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return taken
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_numbered(tmp_path, [2] * SHARDS)
    return tmp_path


def test_datasets_of_more_shards_than_files_may_be_open_are_read(folder: Path) -> None:
    script = f"""
datasets = [TarShards(r"{folder}/*.tar", fields=("cls",)) for _ in range(3)]
loaders = [ThreadLoader(each, None, shuffle=True, threads=2) for each in datasets]
lengths = [len(list(loader)) for loader in loaders]
for loader in loaders:
    loader.close()  # their threads have ended
print(lengths, len(TarStream(r"{folder}/*.tar").shards))
"""
    assert run_child(LIMITED + script) == (0, f"{[2 * SHARDS] * 3} {SHARDS}", "")


def test_a_url_among_the_paths_leaves_no_local_file_open(folder: Path) -> None:
    script = f"""
from threadloader.datasets._files import open_files
paths = sorted(map(str, Path(r"{folder}").glob("*.tar")))
files = open_files([*paths, "http://127.0.0.1:9/"])
print([len(file.read_at(0, 512)) for file in files[:{SHARDS}]] == [512] * {SHARDS})
"""
    assert run_child(LIMITED + script) == (0, "True", "")


def test_too_many_open_files_are_no_missing_ones(folder: Path) -> None:
    script = f"""
rest = take_the_rest()
for dataset in (TarShards, TarStream):
    for pattern in ("*.tar", "**/*.tar", "../*/*.tar"):
        try:
            dataset(rf"{folder}/{{pattern}}")
        except OSError as error:
            print(str(error).partition(":")[0])
"""
    code, told, _ = run_child(LIMITED + script)
    assert (code, told.splitlines()) == (0, ["[Errno 24] Too many open files"] * 6)


def test_files_of_ours_are_closed_where_others_have_taken_the_rest(folder: Path) -> None:
    script = f"""
dataset = TarShards(r"{folder}/*.tar", fields=("cls",))
assert [dataset[0], dataset[2]]
rest = take_the_rest()
print([dataset[index][0] for index in range(len(dataset))] == list(range(len(dataset))))
"""
    assert run_child(LIMITED + script) == (0, "True", "")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read all")
def test_a_folder_that_may_not_be_read_is_told_as_that(folder: Path) -> None:
    folder.chmod(0)
    try:
        with pytest.raises(PermissionError, match=str(folder)):
            TarStream(f"{folder}/*.tar")
    finally:
        folder.chmod(0o700)
