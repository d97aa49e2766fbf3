"""URLs in messages: without what is secret in them.

A signed URL is a credential, and so is ``user:password@``; error messages end up in logs.
"""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shown_url", "without_secrets"]

SHORTEST = 4  # characters of a query's value that counts as a secret: ``part=3`` is none
SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,30}://"
_LINK = re.compile(f"::(?={SCHEME})")
_END_OF_HOST = re.compile(r"[/?#]")
_HOST = re.compile(r"(?:\[[^]]*\]|[^:]*)(?::\d*)?")  # and port
# A URL in a text, as far as it goes: to its closing quote, or to the next space.
_URL = re.compile(rf"(?<=\'){SCHEME}[^\s\']*|(?<=\"){SCHEME}[^\s\"]*|{SCHEME}[^\s<>]*")
# The same without scheme and host: urllib3's "url: /a?b", and where a redirect leads to.
_PATH = re.compile(r"/[^\s?\'\"]*\?[^\s\'\"]+")
AFTER = ",:;)]}\"'"  # what may come after a URL and is not its own


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; ``?...`` says that there was one.

    So for each part of a chain of fsspec's, ``zip://a.csv::https://...``.
    """
    return "::".join(_shown(*_split(part)) for part in _LINK.split(url))


def without_secrets(error: BaseException, url: str) -> BaseException:
    """Return an error, or, if it tells what is secret, one that doesn't in its place.

    Secret is what a URL has besides host and path, in ``url`` and in each that is found in a text;
    a redirect's target, say, is signed for itself.  What led to the error is looked at, too: a
    traceback prints the whole chain.
    """
    secrets = sorted(_secrets(url), key=len, reverse=True)
    if all(_cut(text, secrets) == text for text in _texts(error)):
        return error
    return OSError(f"{type(error).__name__}: {_cut(str(error), secrets)}")


def _split(url: str) -> tuple[str, str, str, str]:
    """Return a URL's scheme with ``://``, user, host with path, and query with fragment.

    Not `urlsplit`, which fails at some and quotes them then.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:  # a protocol of fsspec's, in a chain
        return url, "", "", ""
    host = _END_OF_HOST.split(rest, maxsplit=1)[0]
    if "@" not in host and "@" in rest and not _HOST.fullmatch(host):
        return scheme + mark, rest, "...", ""  # a password with a slash: who knows where it ends?
    end = next((at for at, letter in enumerate(rest) if letter in "?#"), len(rest))
    place, query = rest[:end], rest[end:]
    user, _, host = host.rpartition("@")
    return scheme + mark, user, place[len(user) + 1 :] if user else place.removeprefix("@"), query


def _shown(scheme: str, _user: str, place: str, query: str) -> str:
    return f"{scheme}{place}{'?...' if query.startswith('?') else ''}"


def _cut(text: str, secrets: list[str]) -> str:
    """Return a text without ``secrets``, and without what is secret in the URLs that it has."""
    text = _PATH.sub(_cut_query, _URL.sub(_cut_url, text))
    for secret in secrets:
        text = text.replace(secret, "...")
    return text


def _cut_url(found: re.Match[str]) -> str:
    url = found[0].rstrip(AFTER)
    return shown_url(url) + found[0][len(url) :]


def _cut_query(found: re.Match[str]) -> str:
    path = found[0].rstrip(AFTER)
    return f"{path.partition('?')[0]}?...{found[0][len(path) :]}"


def _texts(error: BaseException) -> Iterator[str]:
    """Yield all that a traceback or a log prints of an error and of those that led to it."""
    links, seen = [error], set()
    while links:
        link = links.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        # The last has the notes, and what a class makes its text of, as aiohttp's have the request.
        for what in (link, link.args, vars(link)):
            with suppress(Exception):  # what can't be printed tells nothing
                yield str(what)
        links += [other for other in (link.__cause__, link.__context__) if other is not None]
        links += getattr(link, "exceptions", ())


def _secrets(url: str) -> set[str]:
    """Return the parts of a URL that are not for everybody, quoted and not."""
    found = set()
    for part in _LINK.split(url):
        _, user, place, tail = _split(part)
        query, _, fragment = tail.removeprefix("?").partition("#")
        values = [pair.partition("=")[2] for pair in query.split("&")]
        name, _, password = user.partition(":")
        found |= {query, user, password}
        if user:  # as `Authorization` has them
            found.add(b64encode(unquote(f"{name}:{password}").encode()).decode())
        if place == "...":  # what `urlsplit` takes for the port, and quotes
            found.add(repr(_END_OF_HOST.split(password, maxsplit=1)[0]))
        found.update(value for value in (*values, fragment) if len(value) >= SHORTEST)
    forms = (str, unquote, _quote)
    return {form(secret) for secret in found for form in forms if secret}


def _quote(secret: str) -> str:
    """Return a secret as a client may quote it anew."""
    return quote(unquote(secret), safe="")
