"""``threadloader doctor``: what a loader would run on here, and what would make it faster."""

from __future__ import annotations

import importlib
import json
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from threadloader.cli.errors import CommandError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["add_to"]

WIDTH = 79
INDENT = 10  # columns
DESCRIPTION = """\
Print the Python build, whether the GIL is on and which import switched it on, the cores that this
process may use, versions, image decoders, and advice.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's."""
    parser = commands.add_parser(
        "doctor", help="print what loaders run on here, and advice", description=DESCRIPTION
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that your program imports, again for more: does it switch the GIL on?",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: A module can't be imported.
    """
    here = os.getcwd()  # noqa: PTH109  # a text, as the others are
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    from threadloader._threads.gil_switch import modules_that_need_the_gil

    with modules_that_need_the_gil() as modules:
        for name in arguments.imports:
            try:
                importlib.import_module(name)
            except Exception as error:
                message = f"can't import {name}: {type(error).__name__}: {error}"
                raise CommandError(message, code=2) from error
        from threadloader.cli.environment import advice, examine

        found = examine()
    found["gil"]["switched_on_by"] += modules
    texts = advice(found)
    if arguments.json:
        print(json.dumps({**found, "advice": texts}, indent=2))
    else:
        _show(found, texts)
    return 0


def _show(found: dict[str, Any], texts: Sequence[str]) -> None:
    for name, value in _facts(found):
        print(_paragraph(value, f"{name:<{INDENT}}", " " * INDENT))
    if texts:
        print()
    for text in texts:
        print(_paragraph(text, "* ", "  "))


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    python, cores = found["python"], found["cores"]
    build = "free-threaded" if python["free_threaded"] else "with the GIL"
    affinity = "" if cores["affinity"] is None else f", {cores['affinity']} by affinity"
    quota = "" if cores["quota"] is None else f", {cores['quota']:g} by the cgroup's quota"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    facts = [
        ("Python", f"{python['implementation']} {python['version']}, {build}"),
        ("", python["executable"]),
        ("System", python["platform"]),
        ("GIL", _gil(found["gil"])),
        ("Cores", f"{cores['usable']} usable ({cores['machine']} in all{affinity}{quota})"),
        ("Threads", f"{cores['threads_by_default']} to begin with, unless you choose a number"),
        ("Versions", versions + ("" if found["torch"] else "; torch is not installed")),
        ("Decoders", ", ".join(found["decoders"]) or "none: Pillow is not installed"),
    ]
    if found["variables"]:
        pairs = (f"{name}={value}" for name, value in found["variables"].items())
        facts.append(("Set", ", ".join(pairs)))
    return facts


def _gil(gil: dict[str, Any]) -> str:
    if not gil["enabled"]:
        return "off"
    if gil["requested_by"]:
        return f"on, by {gil['requested_by']}"
    if gil["switched_on_by"]:
        return f"on, switched on by {', '.join(gil['switched_on_by'])}"
    return "on"


def _paragraph(text: str, first: str, others: str) -> str:
    """Return lines with a hanging indent; a word, say a path, is never broken."""
    return textwrap.fill(
        text,
        width=WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
