"""The documentation as a site: `nox -s docs`."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "threadloader"
copyright = "the authors of threadloader"  # noqa: A001  # the name that Sphinx reads
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = project
default_role = "py:obj"  # names between back-quotes in docstrings are links
exclude_patterns = ["_build"]
myst_heading_anchors = 4  # links to headings are GitHub's
napoleon_custom_sections = ["Invariants", "Threads", "Source"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
suppress_warnings = ["misc.highlighting_failure"]  # a block of code may be an excerpt

REPOSITORY = "https://github.com/threadloader/threadloader/blob/main/"
_BESIDE = re.compile(r"\]\(\.\./([^)]*)\)")


def setup(app: Sphinx) -> None:
    """Let links lead out of this folder: on the site to the repository."""

    def changed(_: Any, page: str, source: list[str]) -> None:
        folder = posixpath.dirname(page)
        source[0] = _BESIDE.sub(
            lambda found: f"]({REPOSITORY}{posixpath.join(folder, found[1])})", source[0]
        )

    app.connect("source-read", changed)
