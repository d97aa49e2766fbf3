"""Shards behind URLs, on a server that drops connections and answers 503."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_shards import COPIES, ENDINGS, compressed, members_of, numbered, tar_bytes
from support.patience import PATIENCE, Spawn
from support.remote_server import Fault, RemoteServer, Request, Status, serving

from threadloader import ThreadLoader
from threadloader.datasets import Retries, TarShards, TarStream
from threadloader.errors import DataError

COUNT = 40
OPTIONS: dict[str, Any] = {"retries": Retries(attempts=40, first=0.001, longest=0.01)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteServer]:
    """Four shards of each kind; every third request fails, at random."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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

    assert sorted(spawn(read).result(PATIENCE)) == list(range(COUNT))


@pytest.mark.parametrize("kept", COPIES)
def test_a_shard_that_was_replaced_since_its_index_was_read_is_an_error(
    server: RemoteServer, kept: Callable[[TarShards], TarShards]
) -> None:
    server.plan = lambda _: None
    server.etags["/0.tar"] = '"1"'
    dataset = TarShards(server.url("/0.tar"), **OPTIONS)
    assert dataset[0]["cls"] == 0
    server.files["/0.tar"], server.etags["/0.tar"] = server.files["/1.tar"], '"2"'
    twin = kept(dataset)
    for _ in range(2):
        with pytest.raises(DataError, match=r"changed .* make its dataset anew"):
            twin[0]
        twin.close()
    assert TarShards(server.url("/0.tar"), **OPTIONS)[0]["cls"] == 10


def transferred(server: RemoteServer) -> int:
    return sum((request.last or 0) - request.first + 1 for request in server.requests)


def test_large_members_are_not_transferred_for_an_index(server: RemoteServer) -> None:
    server.plan = lambda _: None
    samples = {str(key): {"txt": b"text", "bin": bytes(3 << 20)} for key in range(5)}
    server.files["/a.tar"] = tar_bytes(members_of(samples))
    dataset = TarShards(server.url("/a.tar"), fields=("txt",))
    assert transferred(server) < len(server.files["/a.tar"]) / 2
    assert list(dataset) == [("text",)] * 5


def test_small_members_are_not_asked_for_one_by_one_for_an_index(server: RemoteServer) -> None:
    server.plan = lambda _: None
    server.files["/a.tar"] = tar_bytes(members_of(numbered(0, 2000)))
    assert TarShards(server.url("/a.tar")).keys == list(numbered(0, 2000))
    assert len(server.requests) <= len(server.files["/a.tar"]) / (1 << 20) + 3
    assert transferred(server) <= len(server.files["/a.tar"]) + 1


@pytest.mark.parametrize(
    "signed",
    [
        "X-Amz-Date=20260101T00000{}Z&X-Amz-Expires=60&X-Amz-Signature={}ab&x-id=GetObject",
        "AWSAccessKeyId=AKIA&Signature={}%3D&Expires=17{}",
        "Expires=17{}&Signature={}&Key-Pair-Id=K2",
        "sv=2024-11-04&st={}&se={}&sr=b&sp=r&sig={}",
    ],
)
def test_a_url_has_the_same_index_however_it_is_signed(
    server: RemoteServer, tmp_path: Path, signed: str
) -> None:
    server.plan = lambda _: None
    folder = tmp_path / "indexes"
    for turn in (1, 2):
        url = server.url(f"/0.tar?part=3&{signed.replace('{}', str(turn))}")
        assert len(TarShards(url, index_folder=folder, **OPTIONS)) == 10
        assert len(list(folder.iterdir())) == 1


def test_urls_that_differ_in_what_is_no_signature_have_indexes_of_their_own(
    server: RemoteServer, tmp_path: Path
) -> None:
    server.plan = lambda _: None
    folder = tmp_path / "indexes"
    queries = ["part=1", "part=2", "part=1&sig=a", "part=2&sig=a", "se=1", "se=2"]
    TarShards([server.url(f"/0.tar?{query}") for query in queries], index_folder=folder, **OPTIONS)
    assert len(list(folder.iterdir())) == 4  # `se` signs only beside a `sig`


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("threads", [0, 2])
def test_shards_are_streamed(server: RemoteServer, threads: int, ending: str, spawn: Spawn) -> None:
    def read() -> list[int]:
        stream = TarStream(server.url(f"/{{0..3}}{ending}"), fields=("cls",), shuffle=7, **OPTIONS)
        with ThreadLoader(stream, 4, threads=threads, output="numpy", seed=2) as loader:
            found = [number for (cls,) in loader for number in np.asarray(cls).tolist()]
        stream.close()
        return found

    assert sorted(spawn(read).result(PATIENCE)) == list(range(COUNT))
