"""Which client reads a URL, with which credentials, and what of both may be seen."""

from __future__ import annotations

import importlib.util
import logging
import random
import ssl
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.patience import PATIENCE
from support.remote_server import Fault, RemoteServer, Request, Status, serving

from threadloader.datasets import RemoteFile, Retries, TarStream, list_remote
from threadloader.errors import DataError, RemoteError

fsspec = pytest.importorskip("fsspec")


CERTIFICATE = Path(__file__).with_name("loopback.pem")  # of 127.0.0.1, with its key; for 100 years
CONTENT = random.Random(17).randbytes(50_000)
QUICK = Retries(attempts=3, first=0.001)
BY_FSSPEC = {"read_bufsize": 1 << 16}  # an option that our own client does not know

with_aiohttp = pytest.mark.skipif(
    importlib.util.find_spec("aiohttp") is None, reason="aiohttp is not installed"
)


@pytest.fixture(scope="module", autouse=True)
def _threads_of_fsspec() -> None:
    """Start what fsspec has for all file systems and never ends: its loop, and a thread for it."""
    from fsspec.asyn import get_loop  # noqa: PLC0415

    loop, one = get_loop(), ThreadPoolExecutor(1)  # which asks for the addresses of hosts
    one.submit(int).result()
    loop.call_soon_threadsafe(loop.set_default_executor, one)


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with serving({"/data.bin": CONTENT}) as server:
        yield server


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_files_of_other_file_systems_take_the_same_path(
    memory: Any, tmp_path: Path, scheme: str
) -> None:
    url = "memory://shards/a.tar" if scheme == "memory" else (tmp_path / "a.tar").as_uri()

    def write(content: bytes) -> None:
        memory.pipe("/shards/a.tar", content)
        (tmp_path / "a.tar").write_bytes(content)

    write(CONTENT)
    file = RemoteFile(url, cache_folder=tmp_path / "cache")
    assert file.size() == len(CONTENT)
    assert file.read_at(100, 1000) == CONTENT[100:1100]
    with file.open() as stream:
        assert stream.read() == CONTENT
    with pytest.raises(DataError, match="ends at 50,000"):
        file.read_at(49_999, 2)
    before = file.stamp()
    other = RemoteFile(url, cache_folder=tmp_path / "other")
    assert other.stamp() == before
    write(CONTENT[::-1] + b"more")
    with pytest.raises(DataError, match="changed"):
        other.read_at(0, 10)  # a block that would be kept
    assert not list((tmp_path / "other").rglob("*.kept"))
    file = RemoteFile(url)
    assert file.stamp() != before
    assert file.read_at(0, 10) == CONTENT[::-1][:10]


class Listed(fsspec.AbstractFileSystem):
    """A file system that keeps its listings, as those of object stores do."""

    protocol = "listed"
    files: ClassVar[dict[str, bytes]] = {}

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        found = self._ls_from_cache(path)
        if found is None:
            found = self.dircache[path] = [
                {"name": name, "size": len(data), "type": "file", "ETag": data[:1].hex()}
                for name, data in self.files.items()
            ]
        return found if detail else [entry["name"] for entry in found]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        return self.files[self._strip_protocol(path)][start:end]


def test_a_version_is_not_looked_up_in_an_old_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("listed", Listed, clobber=True)
    monkeypatch.setitem(Listed.files, "b/a.bin", b"A" * 100)
    url = "listed://b/a.bin"
    assert fsspec.filesystem("listed").ls("b", detail=False) == ["b/a.bin"]
    file = RemoteFile(url)
    assert (file.size(), file.read_at(0, 3)) == (100, b"AAA")
    Listed.files["b/a.bin"] = b"B" * 60
    file = RemoteFile(url)
    assert (file.size(), file.read_at(0, 60)) == (60, b"B" * 60)
    Listed.files["b/a.bin"] = b"C" * 60
    assert RemoteFile(url).stamp() == "60-43"


class ClientsOwnError(Exception):
    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        vars(self).update(values)


SIGNED = "https://other/b?X-Sig=SECRET"  # where a redirect led to, say
NOTED, LINKED = ValueError("clean"), ValueError("clean")
NOTED.add_note(SIGNED)
LINKED.__cause__ = ValueError("clean")
LINKED.__cause__.__context__ = ValueError(SIGNED)


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        *((ClientsOwnError(code=503), 3), (ClientsOwnError(), 3), (OSError(5, "I/O"), 3)),
        *((EOFError(), 3), (ClientsOwnError(status=403), 1), (PermissionError(), 1)),
        (ClientsOwnError(response={"ResponseMetadata": {"HTTPStatusCode": 404}}), 1),  # botocore's
        (ModuleNotFoundError("see https://host/a?..., or (https://b/c)."), 1),
        *((NOTED, 1), (LINKED, 1), (FileNotFoundError(2, "clean", SIGNED), 1)),
        (ValueError("403, url='https://other/b?X-Sig=SECRET', x"), 1),
        (ValueError('URL("https://u:it\'sSECRET@other/b")'), 1),
        (ValueError("exceeded with url: /b?sig=SECRET (no)"), 1),
    ],
)
def test_an_error_of_a_store_is_tried_again_if_it_may_pass_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    asked: list[Any] = []

    def fail(*arguments: Any, **_: Any) -> None:
        asked.append(arguments)
        raise error

    clean = "SECRET" not in "".join(traceback.format_exception(error))
    fsspec.register_implementation("listed", Listed, clobber=True)
    monkeypatch.setitem(Listed.files, "b/a.bin", b"A" * 100)
    monkeypatch.setattr(Listed, "cat_file", fail)
    with pytest.raises(RemoteError) as raised:
        RemoteFile("listed://b/a.bin", retries=QUICK).read_at(3, 1)
    assert (raised.value.offset, len(asked)) == (3, tries)
    assert (raised.value.__cause__ is error) == clean
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))


def test_a_chain_of_file_systems_is_read(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/shards/a.tar", CONTENT)
    options = {"filecache": {"cache_storage": str(tmp_path)}}
    file = RemoteFile("filecache::memory://shards/a.tar", storage_options=options)
    assert file.read_at(100, 1000) == CONTENT[100:1100]
    with pytest.raises(ValueError, match="nowhere"):
        RemoteFile("simplecache::nowhere://a.tar")
    with pytest.raises(RemoteError, match=r"memory://nothing\.tar, offset 7: FileNotFoundError"):
        RemoteFile("memory://nothing.tar").read_at(7, 1)


def test_a_pattern_gives_urls_that_can_be_read(memory: Any) -> None:
    for number in (2, 0, 1):
        memory.pipe(f"/shards/{number}.tar", bytes([number]))
    memory.pipe("/shards/read.me", b"")
    urls = list_remote("memory://shards/*.tar")
    assert [RemoteFile(url).read_at(0, 1) for url in urls] == [b"\0", b"\1", b"\2"]
    with pytest.raises(FileNotFoundError, match=r"memory://none/\*\.tar"):
        list_remote("memory://none/*.tar")


@pytest.mark.parametrize("without", ["fsspec", "s3fs", "urllib3"])
def test_what_is_missing_is_named(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, without, None)
    if without == "urllib3":
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'threadloader\[remote\]'"):
            RemoteFile("https://host/a.tar")
        return
    with pytest.raises(ModuleNotFoundError, match=f"s3://bucket/a.tar.*{without}"):
        RemoteFile("s3://bucket/a.tar?versionId=1")
    RemoteFile("https://host/a.tar")  # needs neither


@with_aiohttp
@pytest.mark.parametrize("fault", [None, Fault.STALL, Fault.SHORT_RANGE, Status(503)], ids=str)
def test_fsspec_reads_http_where_its_options_ask_for_it(
    server: RemoteServer, fault: Fault | Status | None
) -> None:
    ranges = count()

    def plan(request: Request) -> Fault | Status | None:
        # One range in two fails, from the first on; before it is tried again the size may be asked.
        return fault if request.last and not next(ranges) % 2 else None

    server.plan = plan
    seconds = 0.2 if fault is Fault.STALL else PATIENCE  # only a limit on time notices it
    options: dict[str, Any] = {"storage_options": {"client_kwargs": BY_FSSPEC}}
    options |= {"connect_timeout": seconds, "read_timeout": seconds}
    file = RemoteFile(server.url("/data.bin"), retries=Retries(40, 0.001), **options)
    for offset in (0, 1000, 49_000):
        assert file.read_at(offset, 1000) == CONTENT[offset : offset + 1000]
    assert "aiohttp" in server.requests[-1].headers["user-agent"]


@pytest.fixture
def secure() -> Iterator[RemoteServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with serving({"/data.bin": CONTENT}, context) as server:
        yield server


def test_https_is_read_from_who_has_the_right_certificate(
    secure: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    secure.plan = lambda request: Fault.SILENT_CLOSE if request.first == 10 else None
    file = RemoteFile(secure.url("/data.bin"), retries=Retries(attempts=1))
    for offset in (0, 10, 20, 30):
        assert file.read_at(offset, 1000) == CONTENT[offset : offset + 1000]
        if offset == 10:
            secure.wait_for(lambda: not secure.open)
    assert secure.connections == 2
    file.close()
    secure.wait_for(lambda: not secure.open)


def test_who_has_another_certificate_is_not_asked(secure: RemoteServer) -> None:
    with pytest.raises(RemoteError, match="certificate verify failed") as raised:
        RemoteFile(secure.url("/data.bin"), retries=QUICK).read_at(0, 1)
    assert isinstance(raised.value.__cause__, ssl.SSLCertVerificationError)
    assert not secure.requests


def test_credentials_are_sent(server: RemoteServer) -> None:
    url = server.url("/data.bin")
    given: list[tuple[str, dict[str, Any]]] = [
        (url, {"headers": {"Authorization": "Bearer t0ken"}}),
        (url.replace("//", "//anna:s%33cret@"), {}),
    ]
    for address, options in given:
        assert RemoteFile(address, storage_options=options).read_at(0, 5) == CONTENT[:5]
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer t0ken", "Basic YW5uYTpzM2NyZXQ="]


def test_a_redirect_is_followed_once_and_then_gone_to_directly(server: RemoteServer) -> None:
    to = (("Location", "/data.bin?signature=1"),)
    server.plan = lambda request: Status(302, to) if request.path == "/latest" else None
    file = RemoteFile(server.url("/latest"), storage_options={"headers": {"X-Key": "k"}})
    for offset in (0, 10, 20):
        assert file.read_at(offset, 10) == CONTENT[offset : offset + 10]
    paths = [request.path for request in server.requests]
    assert paths == ["/latest", "/data.bin", "/data.bin", "/data.bin"]
    assert server.requests[1].headers["x-key"] == "k"  # the same host


def test_where_a_redirect_led_to_may_expire_and_redirects_end(server: RemoteServer) -> None:
    signature = "1"

    def plan(request: Any) -> Status | None:
        if request.path == "/latest":
            return Status(307, (("Location", f"/data.bin?signature={signature}"),))
        return None if request.query == f"signature={signature}" else Status(403)

    server.plan = plan
    file = RemoteFile(server.url("/latest"))
    assert file.read_at(0, 10) == CONTENT[:10]
    signature = "2"
    assert file.read_at(10, 10) == CONTENT[10:20]
    server.plan = lambda request: Status(302, (("Location", request.path + "x"),))
    with pytest.raises(RemoteError, match="10 redirects"):
        RemoteFile(server.url("/a"), retries=QUICK).read_at(0, 1)


def test_a_file_of_the_hub_is_read_where_it_is_and_the_hub_is_asked_once(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("hf_login\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving({"/data.bin": CONTENT}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url(""))
        found = Status(302, (("Location", server.url("/data.bin?signature=1")),))
        hub.plan = lambda request: Status(429) if request.number == 0 else found
        file = RemoteFile("hf://datasets/me/photos@refs/convert/parquet/a b.tar", retries=QUICK)
        with file.open() as stream:
            assert stream.read() == CONTENT
        quoted = "hf://datasets/me/photos@refs%2Fconvert%2Fparquet/a b.tar"
        assert RemoteFile(quoted, retries=QUICK).read_at(0, 10) == CONTENT[:10]
        path = "/datasets/me/photos/resolve/refs%2Fconvert%2Fparquet/a%20b.tar"
        assert [request.path for request in hub.requests] == [path] * 3
        assert hub.requests[0].headers["authorization"] == "Bearer hf_login"
        assert "authorization" not in server.requests[0].headers
        given: dict[str, Any] = {"token": False}
        assert RemoteFile("hf://me/model/a.bin", storage_options=given).read_at(0, 2) == CONTENT[:2]
        assert hub.requests[-1].path == "/me/model/resolve/main/a.bin"
        assert "authorization" not in hub.requests[-1].headers


def test_another_host_gets_no_credentials(server: RemoteServer) -> None:
    with serving({"/data.bin": CONTENT}) as other:
        to = (("Location", other.url("/data.bin")),)
        server.plan = lambda _: Status(302, to)
        url = server.url("/data.bin").replace("//", "//anna:s3cret@")
        file = RemoteFile(url, storage_options={"headers": {"X-Key": "k"}})
        assert file.read_at(0, 10) == CONTENT[:10]
        assert server.requests[0].headers["x-key"] == "k"
        assert not {"x-key", "authorization"} & other.requests[0].headers.keys()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@host:81/a.tar?k=v#f", "https://host:81/a.tar?..."),
        ("https://[::1]:81/a@b.tar", "https://[::1]:81/a@b.tar"),
        ("https://h/f?sig=ab::SECRET", "https://h/f?..."),
        ("filecache::memory://u:p@a/b?k=v", "filecache::memory://a/b?..."),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert RemoteFile(url).path == shown


@pytest.mark.parametrize("user", ["anna:[s3cret]", "anna:s3cret\u2100", "anna:pa/s3cret"])
def test_the_password_of_a_url_that_can_not_be_read_is_not_shown(user: str) -> None:
    url = f"https://{user}@host/a.tar"
    TarStream(url)
    with pytest.raises(RemoteError) as raised:
        RemoteFile(url, retries=1).read_at(0, 1)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"client_kwargs": BY_FSSPEC}, marks=with_aiohttp)],
    ids=["ours", "fsspec"],
)
@pytest.mark.parametrize("fault", [Status(403), Status(503), Fault.DROP], ids=str)
def test_messages_show_no_secrets(
    server: RemoteServer,
    fault: Fault | Status,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server.plan = lambda _: fault
    url = server.url("/data.bin?X-Sig=c2lnbmF0dXJl%3D").replace("//", "//anna:s3cret@")
    with pytest.raises(RemoteError) as raised:
        RemoteFile(url, retries=QUICK, storage_options=options).read_at(9, 1)
    told = "".join(traceback.format_exception(raised.value)) + caplog.text
    assert f"{server.url('/data.bin')}?..., offset 9" in told
    assert not any(secret in told for secret in ("s3cret", "c2lnbmF0dXJl"))
