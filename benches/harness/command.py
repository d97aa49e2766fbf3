"""The command line of a bench, and the files that keep what it finds."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["command_line", "kept_in", "write"]


def command_line(
    bench: str, purpose: str | None, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Return a parser of a bench's options.

    Args:
        bench: The module's name.
        purpose: Its docstring.
        epilog: What help ends with.
    """
    about = (purpose or "").partition("\n")[0]
    return argparse.ArgumentParser(f"python -m benches.{bench}", description=about, epilog=epilog)


def kept_in(path: Path) -> dict[str, Any]:
    """Return what runs with other Pythons have found."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
