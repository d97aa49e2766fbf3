"""A check in a process of its own: native code that ends it is a finding, not the end of the check.

It is a new process and no fork: in a fork the threads of OpenMP are gone, and who waits for them
waits for ever.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from threadloader._check.checking import UncheckableError, check
from threadloader._check.findings import Finding, Line, Report
from threadloader._check.whose_code import OURS, USER, whose

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

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
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with TemporaryDirectory() as folder:
        stacks = Path(folder, "stacks")
        arguments = (sender, stacks, make_dataset, {"name": name, **options})
        child = context.Process(target=_tell, args=arguments)
        child.start()
        sender.close()
        try:
            result = receiver.recv()
        except EOFError:
            child.join()
            code = child.exitcode or 0
            if code >= 0:
                msg = f"the dataset ended the process, with exit code {code}"
                raise UncheckableError(msg) from None
            result = _crash(name, -code, stacks.read_text(encoding="utf-8", errors="replace"))
        finally:
            child.kill()
            child.join()
    if isinstance(result, Exception):
        raise result
    report: Report = result
    return report


def _tell(
    sender: Connection, stacks: Path, make_dataset: Callable[[], Any], options: dict[str, Any]
) -> None:
    """Check the dataset, send the report or the error, and end this process."""
    with stacks.open("wb") as file:
        faulthandler.enable(file)
        try:
            sender.send(check(make_dataset(), **options))
        except Exception as error:  # noqa: BLE001  # raised in the parent
            sender.send(error)
        except KeyboardInterrupt:  # the parent has one, too
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)  # threads of samples that hang may run


def _crash(name: str, number: int, stacks: str) -> Report:
    """Return the report on a check that was ended by a signal."""
    message = f"loading in several threads ended the process, by {signal.Signals(number).name}"
    # The thread that ended it comes last.
    before, _, current = stacks.partition("Current thread")
    frames = _FRAME.findall(current) + _FRAME.findall(before)
    lines = [Line(file, int(line)) for file, line in frames if whose(file) != OURS]
    users = [line for line in lines if whose(line.file) == USER]
    return Report(name, (Finding("crash", message, next(iter(users or lines), None)),))
