"""Ranges of objects in S3, Google Cloud Storage and Azure, through obstore.

obstore makes its requests in threads of its own, without the GIL.  A forked child has none of these
threads, and would wait for them for ever.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from threadloader.datasets._remote.requests import FetchedRange, TransferError, Version
from threadloader.datasets._urls import is_web, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
# Options of s3fs that obstore calls otherwise.
S3FS = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "anon": "skip_signature",
}
_PARTS = re.compile(rf"({'|'.join(SCHEMES)})://([^/?#:]+)/([^?#]+)")  # scheme, bucket, name
# Options that name an endpoint; so do variables of the environment, with a prefix.
_ENDPOINT = re.compile("(aws_|azure_(storage_)?)?endpoint(_url)?(_s3)?", re.IGNORECASE)
_STATUS = re.compile(r"status code: (\d{3})")
_NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(0)}  # ours are outside
_processes: dict[str, int] = {}  # the first one that read, in which obstore's threads are


class ObstoreClient:
    """Reads ranges of objects.

    Args:
        options: Of obstore's store: its configuration, and ``client_options`` and
            ``credential_provider``.  The commonest ones of s3fs are understood, too.
        connect_timeout: Seconds until there must be a connection.
        timeout: Seconds after which a request has failed.

    Threads:
        all: shared.
    """

    def __init__(self, options: Mapping[str, Any], connect_timeout: float, timeout: float) -> None:
        self._options = dict(options)
        self._client_options: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=connect_timeout),
            "timeout": timedelta(seconds=timeout),
            **self._options.pop("client_options", {}),
        }
        self._credentials = self._options.pop("credential_provider", None)
        self._stores: dict[str, Any] = {}  # by bucket; setdefault is atomic on both builds
        self.unknown = ""  # what is said of an option that obstore does not know

    def opens(self, url: str) -> bool:
        """Whether obstore reads a URL: it is installed, and knows the store and all options.

        Raises:
            ValueError: A password in the URL, which obstore would not use; or an option's value is
                wrong.
        """
        try:
            from obstore.exceptions import UnknownConfigurationKeyError  # noqa: PLC0415  # optional
        except ModuleNotFoundError:
            return False
        scheme, _, rest = url.partition("://")
        if scheme in SCHEMES and ":" in rest.partition("/")[0].rpartition("@")[0]:
            msg = f"{shown_url(url)}: credentials are not in the URL, but in storage_options="
            raise ValueError(msg)
        if not _PARTS.fullmatch(url):
            return False
        try:
            self._place(url)
        except UnknownConfigurationKeyError as error:
            self.unknown = f"; obstore does not read it: {_told(error)}"
            return False
        except BaseException as error:  # a panic of obstore's is no `Exception`
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            odd = [name for name, value in self._options.items() if type(value) not in {str, bool}]
            told = f"storage_options {odd or list(self._options)}: {_told(error)}"
            raise ValueError(f"{shown_url(url)}: {told}") from None
        return True

    def read(self, url: str, offset: int, nbytes: int) -> FetchedRange:
        """Return ``nbytes`` bytes (at least 1) from ``offset`` on, fewer at the object's end.

        Raises:
            Exception: As `_asking`.
        """
        import obstore  # noqa: PLC0415  # optional
        from obstore.exceptions import BaseError  # noqa: PLC0415  # the same

        store, name = self._place(url)
        with _asking():
            try:
                found = obstore.get(store, name, options={"range": (offset, offset + nbytes)})
            except BaseError as error:
                if _status(error) != 416:  # the object ends before
                    raise
                return FetchedRange(b"", _version(obstore.head(store, name)))
            version, data = _version(found.meta), bytes(found.bytes())
        if len(data) != min(nbytes, version.size - offset):
            raise TransferError(f"{len(data):,} bytes came where {nbytes:,} were to be read")
        return FetchedRange(data, version)

    def find(self, pattern: str) -> list[str]:
        """Return the URLs that a pattern matches."""
        import obstore  # noqa: PLC0415  # optional
        from fsspec.utils import glob_translate  # noqa: PLC0415  # the same

        store, name = self._place(pattern)
        root = pattern.removesuffix(name)
        prefix = re.split(r"[*[]", name, maxsplit=1)[0].rpartition("/")[0]
        matches = re.compile(glob_translate(name)).match
        with _asking():
            lists = list(obstore.list(store, prefix))
        paths = (each["path"] for found in lists for each in found)
        return [root + path for path in paths if matches(path)]

    def _place(self, url: str) -> tuple[Any, str]:
        """Return the store, and the name in it."""
        from obstore.store import from_url  # noqa: PLC0415  # optional

        name = url.partition("://")[2].partition("/")[2]
        root = url.removesuffix(name)
        store = self._stores.get(root)
        if store is None:
            names = S3FS if root.startswith("s3") else {}
            make: Any = from_url  # typed by the kind of the store
            made = make(
                root,
                config={names.get(name, name): value for name, value in self._options.items()},
                client_options={"allow_http": _allows_http(self._options)} | self._client_options,
                retry_config=_NO_RETRIES,
                credential_provider=self._credentials,
            )
            store = self._stores.setdefault(root, made)
        return store, name


@contextmanager
def _asking() -> Iterator[None]:
    """Refuse a forked child whose parent has read; raise obstore's errors as the ones of a client.

    Raises:
        FileNotFoundError: There is no such object, or bucket.
        TransferError: The request failed.
        RuntimeError: The process was forked after its parent had read.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415  # optional

    if _processes.setdefault("first", os.getpid()) != os.getpid():
        msg = "obstore's threads are not in a forked child: start processes by spawn or forkserver"
        raise RuntimeError(msg)
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(_told(error)) from None
    except BaseError as error:
        raise TransferError(_told(error), _status(error)) from None


def _allows_http(options: dict[str, Any]) -> bool:
    """Whether requests may be without TLS: an endpoint is, or the environment says so.

    obstore looks at its options alone, and not at the environment, as soon as it gets client
    options.

    Raises:
        ValueError: An endpoint is no URL, at which obstore would panic.
    """
    around = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "AZURE_"))}
    given = around | options
    endpoints = {name: str(given[name]) for name in given if _ENDPOINT.fullmatch(name)}
    if wrong := [name for name, endpoint in endpoints.items() if not is_web(endpoint)]:
        msg = f"{', '.join(wrong)} must be a URL, like http://host:9000"
        raise ValueError(msg)
    allowed = around.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true", "on", "yes", "y"}
    return allowed or any(endpoint.startswith("http:") for endpoint in endpoints.values())


def _version(meta: Mapping[str, Any]) -> Version:
    return Version(meta["size"], meta["e_tag"] or meta["last_modified"].isoformat())


def _told(error: BaseException) -> str:
    """Return an error's message, without what is for obstore's developers."""
    told = str(error).partition("\n\nDebug source:")[0]
    code, what = (re.search(f"<{tag}>([^<]*)", told) for tag in ("Code", "Message"))
    if code and what:
        told = f"{told.partition('<?xml')[0]}{code[1]}: {what[1]}"
    return " ".join(told.split())


def _status(error: Exception) -> int | None:
    """Return HTTP's status that a message tells."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None
