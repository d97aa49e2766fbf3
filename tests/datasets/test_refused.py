"""Arguments of datasets that can't be: each is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_shards import write_numbered

import threadloader
import threadloader.datasets

URL = "http://host/a.tar"
some: Any = threadloader.datasets  # whose types would refuse most of this, too
others: Any = threadloader


def weighted(weights: dict[str, Any], **options: Any) -> None:
    """Set the weights of a stream, which is refused, and then those of a map-style mixture."""
    with pytest.raises(ValueError, match=r"."):
        some.Mixture({"a": ([1], 1), "b": ({1}, 1)}, **options).set_weights(weights, at=1000)
    some.Mixture({"a": ([1], 1), "b": ([1], 1)}, **options).set_weights(weights, at=1000)


VALUES: dict[str, Callable[[], Any]] = {  # by what the error says
    "max_tokens must be positive, and at most 2": lambda: others.TokenBatches([1], 0),
    "one line": lambda: some.RemoteFile(URL, storage_options={"headers": {"X": "\r\n"}}),
    "max_samples must be at least 1": lambda: others.TokenBatches([1], 9, max_samples=0),
    "both must be at least 0": lambda: some.RemoteFile(URL).read_at(-1, 5),
    "'error', 'drop' or 'alone'": lambda: others.TokenBatches([1], 9, too_long="split"),
    "finite, but got nan": lambda: some.Mixture({"a": ([1], float("nan"))}),
    "at least one": some.ArrayDataset,
    r"\[3, 4\]": lambda: some.ArrayDataset(np.zeros(3), np.zeros(4)),
    "key=''": lambda: some.Cached("abc", ".", key=""),
    "cache_bytes must be at least 1": lambda: some.Cached("abc", ".", key="a", cache_bytes=0),
    "folder='.', memory=1": lambda: some.Cached("abc", ".", key="a", memory=1),
    "folder=None, memory=None": lambda: some.Cached("abc"),
    "memory=0": lambda: some.Cached("abc", memory=0),
    "memory='8 apples'": lambda: some.Cached("abc", memory="8 apples"),
    "checks must be at least 0": lambda: some.Cached("abc", ".", key="a", checks=-1),
    "weight of 'a' must be 0 or more": lambda: some.Mixture({"a": ([1], -1)}),
    "all weights are 0": lambda: some.Mixture({"a": ([1], 0)}),
    "'a' has a weight of 1, and no samples": lambda: some.Mixture({"a": ([], 1)}),
    "stop must be one of": lambda: weighted({}, stop="never"),
    "is for stop='repeat'": lambda: weighted({}, length=5),
    "from 1": lambda: weighted({}, length=0, stop="repeat"),
    "at least 0": lambda: weighted({}, seed=-1),
    "use stop='repeat'": lambda: weighted({"a": 1, "b": 1}),
    r"name all sources, .* got \['a'\]": lambda: weighted({"a": 1}, stop="repeat"),
    "0 or more": lambda: weighted({"a": 0, "b": -1}, stop="repeat"),
    "length must be at least 1": lambda: others.pack([[1]], 0),
    "window must be .* but got 0": lambda: others.pack([[1]], 4, window=0),
    "too_long must be": lambda: others.pack([[1]], 4, too_long="alone"),
    "max_tokens must be positive": lambda: others.TokenBatches([1], 10**400),
    "seed must be at least 0": lambda: others.TokenBatches([1], 9, seed=-1),
    "epoch must be at least 0": lambda: others.TokenBatches([1], 9).set_epoch(-1),
    "a place in fields is empty": lambda: some.TarShards("*.tar", fields=("cls", "")),
    "rank=2 is none of": lambda: some.TarStream("*.tar").shard(2, 2, 0),
    "shuffle must be at least 0": lambda: some.TarStream("*.tar", shuffle=-1),
    "fields is empty": lambda: some.TarStream("*.tar", fields=[]),
    "limit must be at least 1": lambda: some.Lines("*.tar", limit=0),
    "compressed: unpack it": lambda: some.Lines("a.jsonl.gz"),
    "attempts must be": lambda: some.Retries(attempts=0),
    "must hold": lambda: some.Retries(first=2.0, longest=1.0),
    "read_timeout=0": lambda: some.RemoteFile(URL, read_timeout=0),
    "connect_timeout=-1": lambda: some.RemoteFile(URL, connect_timeout=-1),
    "cache_bytes": lambda: some.RemoteFile(URL, cache_bytes=1 << 20),
}
TYPES: dict[str, Callable[[], Any]] = {  # the same
    "group_size must be a whole number": lambda: others.TokenBatches([1], 9, group_size=1.5),
    "array 1": lambda: some.ArrayDataset(np.zeros(3), 5),
    "array 'a'": lambda: some.ArrayDataset({"a": None}),
    "array 0 is a list .*np.asarray": lambda: some.ArrayDataset([1, 2, 3]),
    "a length and samples by index": lambda: some.Cached(iter("abc"), ".", key="a"),
    "takes a dict": lambda: some.Mixture({}),
    "but got 'a': ": lambda: some.Mixture({"a": [1, 2, 3]}),
    "but got 1: ": lambda: some.Mixture({1: ([1], 1)}),
    "weight of 'a' must be a number": lambda: some.Mixture({"a": ([1], "1")}),
    "'a' is no dataset": lambda: some.Mixture({"a": (list, 1)}),
    "'a' is an iterator": lambda: some.Mixture({"a": (iter([1]), 1)}),
    "length must be a whole number, .*{'a': 1}": lambda: others.pack([[1]], {"a": 1}),
    "pack needs an iterable, but got int": lambda: others.pack(7, 4),
    "features must be a list": lambda: others.pack([[1]], 4, features="ids"),
    "max_tokens must be a number": lambda: others.TokenBatches([1], "9"),
    "fields='jpg'": lambda: some.TarShards("*.tar", fields="jpg"),
    "transfrm": lambda: some.TarShards("*.tar", transfrm=len),
    "decode": lambda: some.TarShards("*.tar", decode="pil"),
}
IMAGES: dict[str, Any] = {
    "size": (0, (0, 5), (5,), 2.5),
    "layout": ("WHC",),
    "max_pixels": (0,),
    "decoder": ("x",),
}


@pytest.mark.parametrize("told", [*VALUES, *TYPES])
def test_what_can_not_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    pytest.importorskip("urllib3")
    monkeypatch.chdir(tmp_path)
    write_numbered(tmp_path, [1, 1])
    with pytest.raises(ValueError if told in VALUES else TypeError, match=told):
        (VALUES | TYPES)[told]()


@pytest.mark.parametrize("name", IMAGES)
def test_what_an_image_can_not_be_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("PIL")
    for value in IMAGES[name]:
        with pytest.raises(ValueError, match=f"{name}="):
            some.ImageFolder(tmp_path, **{name: value})
