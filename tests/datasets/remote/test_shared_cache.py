"""Processes of a node that share a cache folder: each byte is requested once."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.reader import ReaderProcess
from support.remote_server import RemoteServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


BLOCK = 1 << 16  # bytes; smaller than by default, so that there are many
BLOCKS = 80
CONTENT = random.Random(17).randbytes(BLOCKS * BLOCK - 1000)

# Reads all blocks in an order that follows from a seed, in some threads, and checks them.
READER = """
import hashlib, random, sys
from concurrent.futures import ThreadPoolExecutor
from threadloader.datasets._remote import remote_file

url, folder, seed, digest, block = sys.argv[1:]
remote_file.RANGE_BYTES = block = int(block)
file = remote_file.RemoteFile(url, cache_folder=folder)
starts = list(range(0, file.size(), block))
random.Random(seed).shuffle(starts)

def read(start):
    return start, file.read_at(start, min(block, file.size() - start))

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(2) as pool:
    found = dict(pool.map(read, starts))
whole = b"".join(found[start] for start in sorted(found))
assert hashlib.sha256(whole).hexdigest() == digest
"""


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": CONTENT}) as server:
        server.etags["/data.bin"] = '"1"'
        yield server


@pytest.mark.parametrize(("processes", "order"), [(4, "the same order"), (2, "other orders")])
def test_processes_that_share_a_folder_request_each_byte_once(
    server: RemoteServer, tmp_path: Path, processes: int, order: str
) -> None:
    url, digest = server.url("/data.bin"), hashlib.sha256(CONTENT).hexdigest()
    seeds = range(processes) if order == "other orders" else [0] * processes
    readers = [ReaderProcess(READER, url, tmp_path, seed, digest, BLOCK) for seed in seeds]
    for reader in readers:
        reader.begin()
    assert [reader.end() for reader in readers] == [0] * processes
    # Asking for the version is one byte.
    fetched = Counter(request.first for request in server.requests if request.last != 0)
    assert fetched == Counter(range(0, len(CONTENT), BLOCK))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kept")) == len(CONTENT)
