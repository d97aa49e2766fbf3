"""Writes the figures of the README and the documentation, and the pictures, from the results.

``python -m benches.figures`` fills every block between ``<!-- figures: NAME -->`` and
``<!-- end of figures -->`` in the Markdown files, and draws the pictures in ``benches/results``.
``--check`` only says which of them differ from the results; a test does that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.blocks import BLOCKS, Source
from benches.harness.results import Results
from benches.pictures import builds_picture, rivals_picture, threads_picture

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["differing", "main"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benches" / "results"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def main() -> int:
    """Write, or check; return 1 if something differs that was to be checked."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.figures", description=(__doc__ or "").partition("\n")[0]
    )
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
    source = _source()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        filled = BLOCK.sub(lambda found: _fill(found, source), text)
        if filled != text:
            yield page, filled
    for name, drawn in _pictures(source).items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            yield path, drawn


def _source() -> Source:
    """Read the results."""
    bench, builds = (FOLDER / name for name in ("bench.json", "gil_vs_nogil.json"))
    names = (
        *("self_driving", "interference", "token_batches", "resuming"),
        *("libraries", "gpu", "symptoms"),
    )
    others = [_read(name) for name in names]
    return Source(Results.load(bench), Results.load(builds), *others)


def _read(name: str) -> dict[str, Any]:
    """Read the results of a bench that writes them as they are; empty where it never ran."""
    path = FOLDER / f"{name}.json"
    told: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return told


def _fill(found: re.Match[str], source: Source) -> str:
    """Return the block with the figures of now.

    Raises:
        KeyError: There are no figures of that name.
    """
    text = BLOCKS[found[2]](source)
    return f"{found[1]}\n{text.strip()}\n\n{found[4]}"


def _pictures(source: Source) -> dict[str, str]:
    """Draw all of which there are results."""
    drawn = {}
    if source.bench.contests:
        drawn["rivals.svg"] = rivals_picture(source.bench)
    if source.builds.contests:
        drawn["gil_vs_nogil.svg"] = builds_picture(source.builds)
    if source.self_driving:
        drawn["threads.svg"] = threads_picture(source.self_driving)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
