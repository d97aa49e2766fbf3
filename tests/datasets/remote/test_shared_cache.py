"""Processes of a node that share a cache folder: each byte is requested once, whoever is killed."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.reader import ReaderProcess
from support.remote_server import RemoteServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.remote_server import Request

BLOCK = 1 << 16  # bytes; smaller than by default, so that there are many
BLOCKS = 80
CONTENT = random.Random(17).randbytes(BLOCKS * BLOCK - 1000)

# Reads all blocks in an order that follows from a seed, in some threads, and checks them.
READER = """
import hashlib, random, sys
from concurrent.futures import ThreadPoolExecutor
from threadloader.datasets._remote import remote_file

url, folder, name, seed, threads, digest, block = sys.argv[1:]
remote_file.RANGE_BYTES = block = int(block)
headers = {"X-Reader": name}
file = remote_file.RemoteFile(url, cache_folder=folder, storage_options={"headers": headers})
starts = list(range(0, file.size(), block))
random.Random(seed).shuffle(starts)

def read(start):
    return start, file.read_at(start, min(block, file.size() - start))

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(int(threads)) as pool:
    found = dict(pool.map(read, starts))
whole = b"".join(found[start] for start in sorted(found))
assert hashlib.sha256(whole).hexdigest() == digest
"""


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": CONTENT}) as server:
        server.etags["/data.bin"] = '"1"'
        yield server


class Reader(ReaderProcess):
    """A process that is about to read the server's file through the cache in a folder."""

    def __init__(
        self, server: RemoteServer, folder: Path, name: str, seed: int, threads: int = 2
    ) -> None:
        digest = hashlib.sha256(CONTENT).hexdigest()
        super().__init__(
            READER, server.url("/data.bin"), folder, name, seed, threads, digest, BLOCK
        )


def kept(folder: Path) -> int:
    """Return the bytes of all blocks."""
    return sum(path.stat().st_size for path in folder.rglob("*.kept"))


def blocks_of(requests: list[Request]) -> Counter[int]:
    """Return how often each block was requested; asking for the version is one byte."""
    return Counter(request.first for request in requests if request.last != 0)


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("order", ["the same order", "other orders"])
def test_processes_that_share_a_folder_request_each_byte_once(
    server: RemoteServer, tmp_path: Path, processes: int, order: str
) -> None:
    readers = [
        Reader(server, tmp_path, str(number), 0 if order == "the same order" else number)
        for number in range(processes)
    ]
    for reader in readers:
        reader.begin()
    assert [reader.end() for reader in readers] == [0] * processes
    assert blocks_of(server.requests) == Counter(range(0, len(CONTENT), BLOCK))
    assert kept(tmp_path) == len(CONTENT)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_after_24_kills_all_bytes_are_right_and_only_those_in_flight_came_twice(
    server: RemoteServer, tmp_path: Path
) -> None:
    draw = random.Random(17)
    left: dict[str, int] = {}  # requests until a reader is killed
    pids: dict[str, int] = {}
    killed: set[str] = set()

    def kill(request: Request) -> None:
        name = request.headers["x-reader"]
        if request.last == 0 or name not in left:
            return
        left[name] -= 1
        if left[name] <= 0 and name not in killed:
            killed.add(name)
            os.kill(pids[name], signal.SIGKILL)  # in the middle of a block, with its lock

    server.plan = kill
    threads = 2
    for turn in range(12):
        # Both want the same blocks, so that one waits for what the other does not finish.
        names = f"{turn}-a", f"{turn}-b"
        begun = {name: Reader(server, tmp_path, name, turn, threads) for name in names}
        for name, reader in begun.items():
            left[name], pids[name] = draw.randrange(1, 4), reader.process.pid
        for reader in begun.values():
            reader.begin()
        assert [reader.end() for reader in begun.values()] == [-signal.SIGKILL] * 2
    assert len(killed) == 24
    last = [Reader(server, tmp_path, f"last {number}", number) for number in range(2)]
    for reader in last:
        reader.begin()
    assert [reader.end() for reader in last] == [0, 0]
    fetched = blocks_of(server.requests)
    assert set(fetched) == set(range(0, len(CONTENT), BLOCK))
    assert fetched.total() <= BLOCKS + threads * len(killed)
    assert kept(tmp_path) == len(CONTENT)
