"""A check in a child process: native code that ends it is a finding, not the end of the check."""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import signal
import sys
import traceback
import warnings
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from threadloader._check.checking import check
from threadloader._check.findings import Finding, Line, Report
from threadloader._check.whose_code import OURS, USER, whose

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_in_child"]

_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')


def check_in_child(dataset: Any, name: str, **options: Any) -> Report:
    """Check a dataset as `check` does, in a child where this system can fork.

    Args:
        dataset: The dataset.
        name: For the report.
        options: See `check`.

    Raises:
        Exception: What `check` raises.
    """
    if not hasattr(os, "fork"):
        return check(dataset, name=name, **options)
    with TemporaryFile() as told, TemporaryFile() as stacks:
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fork where there are threads: it runs none yet
            child = os.fork()
        if not child:
            _tell(told, stacks, dataset, {"name": name, **options})
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (told, stacks):
            file.seek(0)
        if code >= 0:
            result = pickle.load(told)  # noqa: S301  # of our own child
            if isinstance(result, Exception):
                raise result
            report: Report = result
            return report
        return _crash(name, -code, stacks.read().decode(errors="replace"))


def _tell(told: IO[bytes], stacks: IO[bytes], dataset: Any, options: dict[str, Any]) -> None:
    """Check the dataset, write the report or the error, and end this process."""
    try:
        faulthandler.enable(stacks)
        try:
            result: Any = check(dataset, **options)
        except Exception as error:  # noqa: BLE001  # raised in the parent
            pickle.dumps(error)
            result = error
        else:
            result = replace(result, findings=tuple(map(_plain, result.findings)))
        pickle.dump(result, told)
        told.flush()
    except BaseException:  # noqa: BLE001  # Ctrl-C, say
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)  # threads of samples that hang may run


def _plain(finding: Finding) -> Finding:
    """Return a finding that can be pickled, whatever the index is."""
    index = finding.index
    return finding if isinstance(index, int | str | None) else replace(finding, index=repr(index))


def _crash(name: str, number: int, stacks: str) -> Report:
    """Return the report on a check that was ended by a signal."""
    message = f"loading in several threads ended the process, by {signal.Signals(number).name}"
    lines = list(_lines(stacks))
    users = [line for line in lines if whose(line.file) == USER]
    return Report(name, (Finding("crash", message, next(iter(users or lines), None)),), (), 0, 0)


def _lines(stacks: str) -> Iterator[Line]:
    """Yield lines that are not the package's, those of the thread that ended it first."""
    before, _, current = stacks.partition("Current thread")
    for file, line in _FRAME.findall(current) + _FRAME.findall(before):
        if whose(file) != OURS:
            yield Line(file, int(line))
