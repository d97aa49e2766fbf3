"""URLs in messages: without what is secret in them.

A signed URL is a credential, and so is ``user:password@``; error messages end up in logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shown_url", "without_secrets"]

SHORTEST = 4  # characters of a query's value that counts as a secret: ``part=3`` is none


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; ``?...`` says that there was one.

    So for each part of a chain of fsspec's, ``zip://a.csv::https://...``.
    """
    if "::" in url:
        return "::".join(map(shown_url, url.split("::")))
    scheme, mark, rest = url.partition("://")
    place, query, _ = rest.partition("#")[0].partition("?")
    host, slash, path = place.partition("/")
    host = host.rpartition("@")[2]
    return f"{scheme}{mark}{host}{slash}{path}{'?...' if query else ''}"


def without_secrets(error: BaseException, url: str) -> BaseException:
    """Return an error, or, if it tells what is secret in ``url``, one that doesn't in its place.

    What led to it is looked at, too: a traceback prints the whole chain.
    """
    secrets = sorted(_secrets(url), key=len, reverse=True)
    if not any(secret in text for text in _texts(error) for secret in secrets):
        return error
    text = str(error)
    for secret in secrets:
        text = text.replace(secret, "...")
    return OSError(f"{type(error).__name__}: {text}")


def _texts(error: BaseException) -> Iterator[str]:
    """Yield all that a traceback prints of an error and of those that led to it."""
    link: BaseException | None = error
    while link is not None:
        yield str(link)
        yield from getattr(link, "__notes__", ())
        link = link.__cause__ or link.__context__


def _secrets(url: str) -> set[str]:
    """Return the parts of a URL that are not for everybody, quoted and not."""
    parts = urlsplit(url)
    values = [pair.partition("=")[2] for pair in parts.query.split("&")]
    user = parts.netloc.rpartition("@")[0]
    found = {parts.query, user, user.partition(":")[2]}
    found.update(value for value in values if len(value) >= SHORTEST)
    return {form for secret in found for form in (secret, unquote(secret)) if form}
