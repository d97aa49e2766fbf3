"""Files of the Hugging Face Hub: ``hf://datasets/owner/name@revision/file``, read over https.

The Hub's "resolve" URL of a file leads to where its bytes are, by a redirect that the http client
remembers: the Hub limits how often it is asked.

Source: https://huggingface.co/docs/huggingface_hub/guides/hf_file_system for the URLs, and
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables for the rest.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from threadloader.datasets._remote.http_client import HttpClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from threadloader.datasets._remote.client import FetchedRange


_URL = re.compile(
    r"hf://((?:datasets/|spaces/)?[^/@]+/[^/@]+)"  # the repository
    r"(?:@(refs/(?:convert/\w+|pr/\d+)|[^/]+))?/([^*\[]+)"  # its revision, and the file
)


class HubClient(HttpClient):
    """Reads ranges of files of the Hub.

    Args:
        options: ``token``: of an account; by default that of the environment, or of the login;
            False for none.
        connect_timeout: See `HttpClient`.
        read_timeout: See there.

    Threads:
        all: shared.
    """

    def __init__(
        self, options: Mapping[str, Any], connect_timeout: float, read_timeout: float
    ) -> None:
        token = options.get("token")
        token = _login() if token in (None, True) else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__({"headers": headers}, connect_timeout, read_timeout)

    @staticmethod
    def opens(url: str, options: Mapping[str, Any]) -> bool:
        """Whether it reads a URL: one of a file in a repository."""
        return _URL.fullmatch(url) is not None and options.keys() <= {"token"}

    def read(self, url: str, offset: int, nbytes: int) -> FetchedRange:
        """See `HttpClient`."""
        return super().read(_resolved(url), offset, nbytes)

    def forget(self, url: str) -> None:
        """See `HttpClient`."""
        super().forget(_resolved(url))


def _resolved(url: str) -> str:
    found = _URL.fullmatch(url)
    if found is None:  # it is the resolved one
        return url
    repository, revision, file = found.groups()
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    revision = quote(unquote(revision or "main"), safe="")  # in URLs of fsspec it is quoted
    return f"{host}/{repository}/resolve/{revision}/{quote(file)}"


def _login() -> str:
    """Return the token of the environment, or of ``hf auth login``; nothing if there is none."""
    token = os.environ.get("HF_TOKEN", "")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    if not token:
        with suppress(OSError):
            path = Path(os.environ.get("HF_TOKEN_PATH", f"{home}/token"))
            token = path.expanduser().read_text(encoding="ascii")
    return token.strip()
