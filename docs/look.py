"""Opens every page of the built site in a browser: `nox -s docs`, where there is a Chromium.

``python docs/look.py docs/_build /usr/bin/chromium`` fails on a broken picture or link, on an error
in the console, and on a page that scrolls sideways; in light and dark, on a phone and a desk.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from threadloader.errors import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = (400, 1200)  # pixels
LINKS = "Array.from(document.links, link => link.href)"
ANCHORS = "Array.from(document.querySelectorAll('[id]'), element => element.id)"
# `decode` waits for the picture of the colour scheme and fails where there is none.
BROKEN = """Promise.all(Array.from(document.images, image => image.decode()
    .then(() => [], () => [image.currentSrc || image.src]))).then(all => all.flat())"""
# Tables and code may scroll by themselves.
TOO_WIDE = """Array.from(document.querySelectorAll("html, .content"))
    .some(element => element.scrollWidth > element.clientWidth)"""


def main(site: Path, browser: str) -> int:
    """Print what is wrong; return 1 if there is anything."""
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser).new_page()
        faults = list(faults_of(page, sorted(site.resolve().rglob("*.html"))))
    print("\n".join(faults) or "no fault found")
    return int(bool(faults))


def faults_of(page: Page, files: list[Path]) -> Iterator[str]:
    """Yield the faults of all pages, each with its page."""
    told: list[str] = []
    page.on("console", lambda said: told.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("requestfailed", lambda request: told.append(f"not loaded: {request.url}"))
    links, anchors = {}, {}
    for file in files:
        page.goto(file.as_uri())
        links[file], anchors[file.as_uri()] = page.evaluate(LINKS), {"", *page.evaluate(ANCHORS)}
        for scheme, width in itertools.product(("light", "dark"), WIDTHS):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            told += [f"{scheme}: broken picture {url}" for url in page.evaluate(BROKEN)]
            if page.evaluate(TOO_WIDE):
                told.append(f"{scheme}: scrolls sideways at {width} px")
        yield from (f"{file.name}: {fault}" for fault in told)
        told.clear()
    for file in files:
        yield from (
            f"{file.name}: broken link {url}" for url in links[file] if _leads_nowhere(url, anchors)
        )


def _leads_nowhere(url: str, anchors: Mapping[str, set[str]]) -> bool:
    """Whether a link to a page, to another file of the site or to the repository is broken."""
    target, _, anchor = url.partition("#")
    if target in anchors:
        return anchor not in anchors[target]
    if url.startswith(REPOSITORY):
        return not (ROOT / target.removeprefix(REPOSITORY)).exists()
    return url.startswith("file:") and not Path(target.removeprefix("file://")).is_file()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
