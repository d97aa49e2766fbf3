"""Shards behind URLs, on a server that drops connections and answers 503."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import PATIENCE
from made_shards import ENDINGS, compressed, members_of, numbered, tar_bytes
from remote_server import Fault, RemoteServer, Request, Status, serving

from threadloader import ThreadLoader
from threadloader.datasets.retries import Retries
from threadloader.datasets.shards import TarShards
from threadloader.datasets.tar_stream import TarStream
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    Spawn = Callable[..., Future[Any]]

COUNT = 40
OPTIONS: dict[str, Any] = {"retries": Retries(attempts=40, first=0.001, longest=0.01)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteServer]:
    """Four shards of each kind; every third request fails, at random."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    rng = random.Random(3)
    faults = [Fault.DROP, Fault.TRUNCATE, Status(503), Status(429)]
    files = {
        f"/{shard}{ending}": compressed(tar_bytes(members_of(numbered(start, start + 10))), ending)
        for ending in ENDINGS
        for shard, start in enumerate(range(0, COUNT, 10))
    }

    def plan(_: Request) -> Any:
        return rng.choice(faults) if rng.random() < 1 / 3 else None

    with serving(files) as server:
        server.plan = plan
        yield server


@pytest.mark.parametrize("threads", [0, 4])
def test_any_sample_is_read_by_its_range(server: RemoteServer, threads: int, spawn: Spawn) -> None:
    def read() -> list[int]:
        dataset = TarShards(server.url("/{0..3}.tar"), fields=("cls",), **OPTIONS)
        options: dict[str, Any] = {"shuffle": True, "seed": 1, "threads": threads}
        with ThreadLoader(dataset, 4, output="numpy", **options) as loader:
            found = [number for (cls,) in loader for number in np.asarray(cls).tolist()]
        dataset.close()
        return found

    assert sorted(spawn(read).result(3 * PATIENCE)) == list(range(COUNT))


def test_the_index_of_a_shard_behind_a_url_is_kept_in_the_cache_folder(
    server: RemoteServer, spawn: Spawn
) -> None:
    def opened() -> int:
        dataset = TarShards(server.url("/{0..3}.tar"), **OPTIONS)
        dataset.close()
        return len(dataset)

    server.plan = lambda _: None
    assert spawn(opened).result(PATIENCE) == COUNT
    server.files = {path: data[:600] for path, data in server.files.items()}
    told = {request.path: request for request in server.requests}
    assert set(told) == {f"/{shard}.tar" for shard in range(4)}
    with pytest.raises(DataError, match=r"/[0-3]\.tar"):  # they changed: the index is not theirs
        spawn(opened).result(PATIENCE)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("threads", [0, 2])
def test_shards_are_streamed(server: RemoteServer, threads: int, ending: str, spawn: Spawn) -> None:
    def read() -> list[int]:
        stream = TarStream(server.url(f"/{{0..3}}{ending}"), fields=("cls",), shuffle=7, **OPTIONS)
        with ThreadLoader(stream, 4, threads=threads, output="numpy", seed=2) as loader:
            found = [number for (cls,) in loader for number in np.asarray(cls).tolist()]
        stream.close()
        return found

    assert sorted(spawn(read).result(3 * PATIENCE)) == list(range(COUNT))
