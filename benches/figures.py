"""Writes the figures of the README and the documentation, and the pictures, from the results.

``python -m benches.figures`` fills every block between ``<!-- figures: NAME -->`` and
``<!-- end of figures -->`` in the Markdown files, and draws the pictures in ``benches/results``.
``--check`` only says which of them differ from the results; a test does that.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.blocks import BLOCKS
from benches.harness.command import command_line
from benches.harness.results import Results
from benches.pictures import builds_picture, rivals_picture, torch_picture

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["differing", "main"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benches" / "results"
CONTESTS = ("bench", "gil_vs_nogil")  # the files of `Results`
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def main() -> int:
    """Write, or check; return 1 if something differs that was to be checked."""
    parser = command_line("figures", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    changed = list(differing())
    for path, text in changed:
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(ROOT)}")
        if not options.check:
            path.write_text(text, encoding="utf-8")
    if changed and options.check:
        print("run `python -m benches.figures`")
    return int(bool(changed) and options.check)


def differing() -> Iterator[tuple[Path, str]]:
    """Yield the files that are not what the results say, and what they should hold."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        filled = BLOCK.sub(_fill, text)
        if filled != text:
            yield page, filled
    for name, drawn in _pictures().items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            yield path, drawn


@functools.cache
def _read(name: str) -> Any:
    """Read a file of results."""
    path = FOLDER / f"{name}.json"
    return Results.load(path) if name in CONTESTS else json.loads(path.read_text("utf-8"))


def _fill(found: re.Match[str]) -> str:
    """Return the block with the figures of now.

    Raises:
        KeyError: There are no figures of that name.
    """
    name, block = BLOCKS[found[2]]
    return f"{found[1]}\n{block(_read(name)).strip()}\n\n{found[4]}"


def _pictures() -> dict[str, str]:
    """Draw them."""
    return {
        "rivals.svg": rivals_picture(_read("bench")),
        "gil_vs_nogil.svg": builds_picture(_read("gil_vs_nogil")),
        **{
            f"torch-{scheme}.svg": torch_picture(_read("bench"), scheme)
            for scheme in ("light", "dark")
        },
    }


if __name__ == "__main__":
    sys.exit(main())
