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
from urllib.parse import quote, unquote

_URL = re.compile(
    r"hf://((?:datasets/|spaces/)?[^/@]+/[^/@]+)"  # the repository
    r"(?:@(refs/(?:convert/\w+|pr/\d+)|[^/]+))?/([^*\[]+)"  # its revision, and the file
)


def resolved(url: str) -> str | None:
    """Return where http reads a URL of a file in a repository; None if it is no such URL."""
    found = _URL.fullmatch(url)
    if found is None:
        return None
    repository, revision, file = found.groups()
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    revision = quote(unquote(revision or "main"), safe="")  # in URLs of fsspec it is quoted
    return f"{host}/{repository}/resolve/{revision}/{quote(file)}"


def login(token: str | bool | None) -> dict[str, str]:
    """Return the headers that log in.

    Args:
        token: Of an account; None or True for that of the environment, or of ``hf auth login``;
            False for none.
    """
    token = _kept_token() if token in (None, True) else token
    return {"Authorization": f"Bearer {token}"} if token else {}


def _kept_token() -> str:
    """Return the token of the environment, or of the login; nothing if there is none."""
    token = os.environ.get("HF_TOKEN", "")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    if not token:
        with suppress(OSError):
            path = Path(os.environ.get("HF_TOKEN_PATH", f"{home}/token"))
            token = path.expanduser().read_text(encoding="ascii")
    return token.strip()
