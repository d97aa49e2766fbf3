"""What is shown of a URL, and what is cut from errors: all that lets its reader in."""

from __future__ import annotations

import traceback

import pytest

from threadloader.datasets._urls import shown_url, without_secrets

URL = "https://anna:p4ssword@host/a.tar?sig=abcdef%2fgh"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a/b.tar", "https://host/a/b.tar"),
        ("https://u:p@host:81/a.tar?k=v#f", "https://host:81/a.tar?..."),
        ("https://[::1]:81/a@b.tar", "https://[::1]:81/a@b.tar"),
        ("ftp://anna@host/a@b.tar", "ftp://host/a@b.tar"),
        ("https://user:pa/SECRET@host/f", "https://..."),
        ("https://h/f?sig=ab::SECRET", "https://h/f?..."),
        ("zip://a.csv::https://u:p@host/f?k=v", "zip://a.csv::https://host/f?..."),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "text",
    ["timed out", "https://host/a.tar, offset 9", "see https://host/a?..., or (https://b/c)."],
)
def test_an_error_without_a_secret_stays_as_it_is(text: str) -> None:
    error = TimeoutError(text)
    error.__cause__ = error  # nobody should, but nothing hangs then
    assert without_secrets(error, URL) is error


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("403, url='https://other/b?X-Sig=SECRET', x", "403, url='https://other/b?...', x"),
        ('URL("https://u:it\'sSECRET@other/b")', 'URL("https://other/b")'),
        ("(ftp://anna:SECRET@other/b#SECRET): no", "(ftp://other/b): no"),
        ("exceeded with url: /b?sig=SECRET (no)", "exceeded with url: /b?... (no)"),
        ("signature abcdef%2Fgh, abcdef/gh", "signature ..., ..."),
        ("Basic YW5uYTpwNHNzd29yZA== of anna:p4ssword", "Basic ... of ..."),
    ],
)
def test_of_urls_in_a_text_only_what_is_no_secret_is_left(text: str, cut: str) -> None:
    assert str(without_secrets(ValueError(text), URL)) == f"ValueError: {cut}"


def linked(place: str) -> Exception:
    """Return an error with a redirect's signed target in one place."""
    target, error = "https://other/b?X-Sig=SECRET", ValueError("clean")
    if place == "note":
        error.add_note(target)
    if place == "arguments":
        return FileNotFoundError(2, "clean", target)
    if place == "context of the cause":
        error.__cause__ = ValueError("clean")
        error.__cause__.__context__ = ValueError(target)
    return error


@pytest.mark.parametrize("place", ["note", "arguments", "context of the cause"])
def test_what_led_to_an_error_is_looked_at(place: str) -> None:
    clean = without_secrets(linked(place), URL)
    assert (type(clean), clean.args[1:], clean.__cause__, clean.__context__) == (
        *(OSError, (), None, None),
    )
    assert "SECRET" not in "".join(traceback.format_exception(clean))
