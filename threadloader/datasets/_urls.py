"""URLs: how they are recognised, and how messages show them without their secrets.

A signed URL is a credential, and so is ``user:password@``; error messages end up in logs.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from contextlib import suppress
from traceback import format_exception
from urllib.parse import quote, unquote, urlsplit

SHORTEST = 4  # characters; a shorter value in a query is no secret: ``part=3``
SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,30}://"
_LINK = re.compile(f"::(?={SCHEME})")
_END_OF_HOST = re.compile(r"[/?#]")
_HOST = re.compile(r"(?:\[[^]]*\]|[^:]*)(?::\d*)?")  # and port
# In a text: the user of a URL, and a query that is not cut yet.
_IN_TEXT = re.compile(r"(?<=://)[^\s/@]*@|(?<=[\w/]\?)(?!\.\.\.)[^\s\'\"]+")
# In a URL's query: signatures, and what only comes with them.  Source: "Authenticating Requests:
# Using Query Parameters" of Amazon S3, versions 4 and 2; "Signed URLs" of Google Cloud Storage and
# of CloudFront; "Create a service SAS" of Azure Storage.
_SIGNATURES = frozenset({"signature", "sig", "x-amz-signature", "x-goog-signature"})
_SIGNED = re.compile(
    "x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|expires|policy|signature|key-pair-id|"
    "s[aeiprstv]|s[pds]r|sig|sip|spr|srt|sdd|sk[etsv]|skoid|sktid|saoid|suoid|scid"
)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a URL."""
    scheme, mark, _ = os.fspath(path).partition("://")
    return bool(mark) and re.fullmatch(r"[A-Za-z][\w+.:-]*", scheme) is not None


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, and a path as it is.

    ``?...`` stands for the query.  In a chain of fsspec's, ``zip://a.csv::https://...``, this holds
    for each link.
    """
    return "::".join(_shown(*_split(part)) for part in _LINK.split(url))


def unsigned(url: str) -> str:
    """Return a URL without its signature, which differs each time that it is signed.

    The rest of the query stays, as it may name the file.
    """
    place, _, query = url.partition("#")[0].partition("?")
    pairs = query.split("&")
    names = [pair.partition("=")[0].lower() for pair in pairs]
    if _SIGNATURES.isdisjoint(names):
        return url
    kept = [pair for pair, name in zip(pairs, names, strict=True) if not _SIGNED.fullmatch(name)]
    return f"{place}?{'&'.join(kept)}"


def pattern_in(url: str) -> bool:
    """Whether the path has wildcards; elsewhere ``?`` begins a query, and ``[`` an IPv6 address."""
    return re.search(r"/.*[*[]", _split(url)[2]) is not None


def is_web(url: str) -> bool:
    """Whether http or https can read a URL: it has a host, and a port if it tells one."""
    with suppress(ValueError):
        place = urlsplit(url)
        return place.scheme in {"http", "https"} and bool(place.hostname) and place.port != 0
    return False


def without_secrets(error: BaseException, url: str) -> BaseException:
    """Return the error, or an `OSError` in its place if its traceback tells a secret.

    Everything in a URL but host and path is a secret: in ``url``, and in each URL that a text has
    (the target of a redirect, say, has a signature of its own).
    """
    secrets, told = _secrets(url), "".join(format_exception(error))
    if not _IN_TEXT.search(told) and not any(secret in told for secret in secrets):
        return error
    text = _IN_TEXT.sub(lambda found: "" if found[0].endswith("@") else "...", str(error))
    if any(secret in text for secret in secrets):
        text = "its message has a part of the URL that is secret"
    return OSError(f"{type(error).__name__}: {text}")


def _split(url: str) -> tuple[str, str, str, str]:
    """Return a URL's scheme with ``://``, user, host with path, and query with fragment.

    Not by `urlsplit`, which fails at some URLs and quotes them in its error.
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


def _secrets(url: str) -> set[str]:
    """Return the secret parts of a URL, quoted and unquoted."""
    found = set()
    for part in _LINK.split(url):
        _, user, _, tail = _split(part)
        found.update(re.split(r"[][:/?#&=@]", f"{user}{tail}"))
        if user:  # as the header `Authorization` has them
            found.add(b64encode(unquote(user).encode()).decode())
    forms = (str, unquote, lambda secret: quote(unquote(secret), safe=""))  # as a client quotes it
    return {form(secret) for secret in found for form in forms if len(secret) >= SHORTEST}
