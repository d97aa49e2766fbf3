"""The documentation as a site: `nox -s docs`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader.errors import REPOSITORY

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "threadloader"
SUMMARY = "A drop-in for torch.utils.data.DataLoader that loads with threads instead of processes."
copyright = "the authors of threadloader"  # noqa: A001  # the name that Sphinx reads
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = project
html_static_path, html_css_files = ["_static"], ["site.css"]
html_use_index = html_domain_indices = False  # the API is one page, and the site has a search
highlight_language = "none"  # of blocks that name none: errors, screens
default_role = "py:obj"  # names between back-quotes in docstrings are links
exclude_patterns = ["_build"]
myst_heading_anchors = 4  # links to headings are GitHub's
napoleon_custom_sections = ["Invariants", "Threads", "Source"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
suppress_warnings = ["misc.highlighting_failure"]  # a block of code may be an excerpt

_PICTURE = re.compile(
    r'<picture>.+?srcset="([^"]+)".+?alt="([^"]+)"\s+src="([^"]+)".+?</picture>', re.DOTALL
)
_BESIDE = re.compile(r"(?<!!)(\[[^]]*\])\(\.\./([^)]*)\)")  # links, not pictures
_LISTED = re.compile(r"^[A-Z].* <([\w-]+)>$", re.MULTILINE)  # pages, in the index
_BEGIN = re.compile(r"^# ([^\n]+)\n\n(.+?)\n\n", re.MULTILINE | re.DOTALL)  # title, paragraph
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def setup(app: Sphinx) -> None:
    """Adapt links and pictures, which are GitHub's, to the site; and write llms.txt."""

    def changed(_: Any, page: str, source: list[str]) -> None:
        folder = posixpath.dirname(page)
        source[0] = _BESIDE.sub(
            lambda found: f"{found[1]}({REPOSITORY}{posixpath.join(folder, found[2])})", source[0]
        )

    app.connect("source-read", changed)

    def with_pictures(_: Any, __: Path, ___: str, text: list[str]) -> None:
        """Let the site's own switch choose between a light and a dark picture of the README."""
        image = "```{{image}} ../{}\n:alt: {}\n:class: only-{}\n```\n"
        text[0] = _PICTURE.sub(
            lambda found: (
                image.format(found[3], found[2], "light") + image.format(found[1], found[2], "dark")
            ),
            text[0],
        )

    app.connect("include-read", with_pictures)

    def write_llms_txt(*_: Any) -> None:
        """List the pages with their first paragraphs, as llmstxt.org has it."""
        folder = Path(app.srcdir)
        lines = []
        for page in _LISTED.findall((folder / "index.md").read_text("utf-8")):
            ((title, said),) = _BEGIN.findall((folder / f"{page}.md").read_text("utf-8"))[:1]
            said = _LINK.sub(r"\1", " ".join(said.split()))
            lines.append(f"- [{title}]({page}.html): {said}")
        text = "\n".join(["# threadloader", "", f"> {SUMMARY}", "", "## Pages", "", *lines, ""])
        (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8")

    app.connect("build-finished", write_llms_txt)
