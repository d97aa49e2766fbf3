"""A report as SARIF, the format in which code hosts and editors take findings.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import KINDS

if TYPE_CHECKING:
    from threadloader._check.findings import Finding, Line, Report

__all__ = ["as_sarif"]

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_SLOW = {"gil-enabled", "large-dict"}  # which are safe


def as_sarif(report: Report, version: str) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log with one run, JSON-able.

    Args:
        report: What was found.
        version: Of threadloader.
    """
    names = list(KINDS)
    rules = [
        {
            "id": name,
            "shortDescription": {"text": kind.title},
            "help": {"text": kind.advice},
            "defaultConfiguration": {"level": _level(name)},
        }
        for name, kind in KINDS.items()
    ]
    driver = {"name": "threadloader check", "version": version, "rules": rules}
    results = [_result(finding, names.index(finding.kind), report) for finding in report.findings]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "utf16CodeUnits"}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Finding, rule: int, report: Report) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.kind,
        "ruleIndex": rule,
        "level": _level(finding.kind),
        "message": {"text": f"{report.dataset}: {finding.message}\n{finding.advice}"},
    }
    if finding.line is not None:
        result["locations"] = [{"physicalLocation": _place(finding.line)}]
    return result


def _place(line: Line) -> dict[str, Any]:
    path = Path(line.file)
    if path.is_absolute():
        below = path.is_relative_to(Path.cwd())
        uri = path.relative_to(Path.cwd()).as_posix() if below else path.as_uri()
    else:
        uri = path.as_posix()  # "<stdin>", say, or a cell of a notebook
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": max(1, line.line)}}


def _level(kind: str) -> str:
    return "warning" if kind in _SLOW else "error"
