"""Lines of text files: any of them by number, with an index that is built once."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_shards import HAS_ZSTD, zstd_bytes
from support.remote_server import RemoteServer, serving

from threadloader import ThreadLoader
from threadloader.datasets import Lines, LineStream, _lines
from threadloader.errors import DataError

CONTENTS = {
    "newlines": b"a\nbc\n\nd\n",
    "no newline at the end": b"a\nbc\n\nd",
    "carriage returns": b"a\r\nbc\r\n\r\nd\r\n",
    "both": b"a\r\nbc\n\nd",
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "_BLOCK", 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in range(3):
        rows = [{"y": 100 * file + row, "text": "é" * row} for row in range(100 * file % 150)]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("kind", CONTENTS)
def test_lines_end_as_they_do_elsewhere(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.txt").write_bytes(CONTENTS[kind])
    found = Lines(tmp_path / "a.txt", parse=bytes.decode)
    assert [found[row] for row in range(len(found))] == ["a", "bc", "", "d"]
    assert found[-1] == "d"
    for index in (4, -5):
        with pytest.raises(IndexError):
            found[index]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no such file")
def test_a_file_that_says_that_it_is_empty_is_read() -> None:
    lines = list(LineStream("/proc/self/status", parse=bytes.decode))
    assert lines[0].startswith("Name:")


def test_files_may_be_empty(tmp_path: Path) -> None:
    for name, content in enumerate([b"", b"1\n2", b"", b"3"]):
        (tmp_path / f"{name}.jsonl").write_bytes(content)
    found = Lines(tmp_path / "*.jsonl")
    assert [found[row] for row in range(len(found))] == [1, 2, 3]
    assert len(Lines(tmp_path / "0.jsonl")) == 0


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_batches_follow_from_the_seed_and_go_on_where_they_were(folder: Path, threads: int) -> None:
    def load(threads: int) -> ThreadLoader[Any]:
        return ThreadLoader(Lines(folder / "*.jsonl"), 8, shuffle=True, seed=1, threads=threads)

    whole = [np.asarray(batch["y"]).tolist() for batch in load(0)]
    assert sorted(itertools.chain(*whole)) == list(range(100, 250))
    stopped, resumed = load(threads), load(threads)
    iterator = iter(stopped)
    begun = [np.asarray(next(iterator)["y"]).tolist() for _ in range(3)]
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert begun + [np.asarray(batch["y"]).tolist() for batch in resumed] == whole


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteServer]:
    pytest.importorskip("urllib3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(_lines, "_BLOCK", 4096)  # each is a request
    with serving({f"/{n}.jsonl": (folder / f"{n}.jsonl").read_bytes() for n in range(3)}) as server:
        yield server


def test_the_index_is_built_once_for_each_version(folder: Path, server: RemoteServer) -> None:
    for pattern in (folder / "1.jsonl", server.url("/1.jsonl?x-amz-signature=secret")):
        reads = []
        for _ in range(2):
            before = len(server.requests)
            found = Lines(pattern)
            assert len(found) == 100
            reads.append(len(server.requests) - before)
            found.close()
    assert reads[1] == 1 < reads[0]  # which asks for the version
    assert (folder / "1.jsonl.tlindex").exists()
    assert len(list((folder / "cache").rglob("*.tlindex"))) == 1
    dataset, stream = Lines(folder / "1.jsonl"), iter(LineStream(folder / "1.jsonl"))
    assert dataset[0] == next(stream)
    (folder / "1.jsonl").write_text("1\n2\n")  # in place
    with pytest.raises(DataError, match=r"1\.jsonl.*changed"):
        dataset[0]
    with pytest.raises(DataError, match=r"1\.jsonl.*changed"):
        list(stream)
    assert len(Lines(folder / "1.jsonl")) == 2


@pytest.mark.parametrize("kind", [Lines, LineStream])
def test_what_is_compressed_in_another_way_and_odd_limits_are_refused(
    tmp_path: Path, kind: Any
) -> None:
    (tmp_path / "a.jsonl.bz2").write_bytes(b"BZh9")
    with pytest.raises(ValueError, match=r"a\.jsonl\.bz2: .* \.gz and \.zst are read"):
        kind(tmp_path / "*.bz2")
    with pytest.raises(ValueError, match="limit must be at least 1, but got -1"):
        kind(tmp_path / "*.bz2", limit=-1)


def test_a_bad_line_is_an_error_that_names_file_and_offset(
    folder: Path, server: RemoteServer
) -> None:
    server.files["/bad.jsonl"] = b'{"a": 1}\n{"a": \n[]\n'
    url = server.url("/bad.jsonl?signature=secret")
    with pytest.raises(
        DataError, match=r"bad\.jsonl\?\.\.\., offset 9: the line is no JSON"
    ) as one:
        Lines(url)[1]
    with pytest.raises(DataError, match=r"bad\.jsonl\?\.\.\., offset 0: .* more than 8 b") as two:
        Lines(url, limit=8)
    assert "secret" not in f"{one.value}{two.value}"
    with pytest.raises(KeyError) as own:
        Lines(folder / "1.jsonl", parse={}.__getitem__)[0]
    assert "1.jsonl, offset 0" in own.value.__notes__[0]


ZIPPED = ["", ".gz", *([".zst"] if HAS_ZSTD else [])]


@pytest.fixture(params=ZIPPED)
def packed(folder: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder of the same files, compressed."""
    for path in folder.glob("*.jsonl"):
        data = path.read_bytes()
        path.unlink()
        zipped = {"": bytes, ".gz": gzip.compress, ".zst": zstd_bytes}[request.param](data)
        Path(f"{path}{request.param}").write_bytes(zipped)
    return folder


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_stream_has_each_line_once_and_goes_on_where_it_was(packed: Path, threads: int) -> None:
    def load(rank: int = 0, world: int = 1) -> ThreadLoader[Any]:
        stream = LineStream(packed / "*.jsonl*", parse=bytes, shuffle=20, seed=1)
        share: Any = {"shard": (rank, world), "uneven": "short"}
        options: Any = {"transform": json.loads, "threads": threads, "collate_fn": list}
        return ThreadLoader(stream, 8, **options, **share)

    whole = list(load())
    assert sorted(row["y"] for batch in whole for row in batch) == list(range(100, 250))
    assert whole[0] != sorted(whole[0], key=lambda row: row["y"])
    stopped, resumed = load(), load()
    begun = list(itertools.islice(stopped, 3))
    resumed.load_state_dict(stopped.state_dict())
    stopped.close()
    assert begun + list(resumed) == whole
    ranks = [row["y"] for rank in range(2) for batch in load(rank, 2) for row in batch]
    assert sorted(ranks) == list(range(100, 250))


def test_a_stream_names_file_and_offset_and_goes_on_behind(packed: Path) -> None:
    first = next(packed.glob("1.*"))
    if first.suffix != ".jsonl":
        first.write_bytes(first.read_bytes()[:-9])
        damage = "can't be unpacked"
    else:
        first.write_text('"' + "a" * 5000 + "\n")
        damage = "more than 4,096 bytes"
    (packed / "0.jsonl").write_text('{"y": 1}\n{\n{"y": 2}\n')
    found, errors = [], []
    stream = iter(LineStream(packed / "*.jsonl*", limit=4096))
    while True:
        try:
            found.append(next(stream)["y"])
        except StopIteration:
            break
        except DataError as error:
            errors.append(str(error))
    assert found[:2] == [1, 2]
    assert found[-50:] == list(range(200, 250))
    assert "0.jsonl, offset 9: the line is no JSON" in errors[0]
    assert first.name in errors[1]
    assert damage in errors[1]
