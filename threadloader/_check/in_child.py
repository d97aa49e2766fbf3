"""A check in a process of its own: native code that ends it is a finding, not the end of the check.

It is a new process and no fork: in a fork the threads of OpenMP are gone, and who waits for them
waits for ever.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import re
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from threadloader._check.checking import UncheckableError, check
from threadloader._check.findings import Finding, Line, Report
from threadloader._check.whose_code import OURS, USER, whose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["check_in_child"]

_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')


def check_in_child(make_dataset: Callable[[], Any], name: str, **options: Any) -> Report:
    """Check a dataset as `check` does, in a process that ends with this call.

    Args:
        make_dataset: Returns the dataset, there; is pickled.
        name: For the report.
        options: See `check`; are pickled.

    Raises:
        Exception: What ``make_dataset`` or `check` raises.
        UncheckableError: The dataset ended the process, and not by a signal.
    """
    with TemporaryDirectory() as folder:
        told, stacks = Path(folder, "told"), Path(folder, "stacks")
        child = multiprocessing.get_context("spawn").Process(
            target=_tell, args=(told, stacks, make_dataset, {"name": name, **options})
        )
        child.start()
        try:
            child.join()
        finally:
            child.kill()
            child.join()
        if told.exists():
            result = pickle.loads(told.read_bytes())  # noqa: S301  # of our own child
            if isinstance(result, Exception):
                raise result
            report: Report = result
            return report
        code = child.exitcode or 0
        if code >= 0:
            raise UncheckableError(f"the dataset ended the process, with exit code {code}")
        return _crash(name, -code, stacks.read_text(encoding="utf-8", errors="replace"))


def _tell(
    told: Path, stacks: Path, make_dataset: Callable[[], Any], options: dict[str, Any]
) -> None:
    """Check the dataset, write the report or the error, and end this process."""
    Thread(target=_end_with_parent, name="tlcheck-parent", daemon=True).start()
    with stacks.open("wb") as file:
        faulthandler.enable(file)
        try:
            report = check(make_dataset(), **options)
            result: Any = replace(report, findings=tuple(map(_plain, report.findings)))
        except Exception as error:  # noqa: BLE001  # raised in the parent
            result = error
        except KeyboardInterrupt:  # the parent has one, too
            os._exit(1)
        except BaseException:  # noqa: BLE001  # SystemExit, say
            traceback.print_exc()
            os._exit(1)
        unfinished = told.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(result))
        unfinished.rename(told)
        sys.stdout.flush()
        os._exit(0)  # threads of samples that hang may run


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
