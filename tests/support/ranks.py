"""Runs a function of a test module in several processes, the ranks of torch.distributed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from support.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_ranks"]

_BEGIN = """
import gc, json, os, sys
import torch
import torch.distributed as dist
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def tell(value):
    with open(os.environ["TOLD"], "w") as file:
        json.dump(value, file)
"""
_GROUP = """
dist.init_process_group("gloo")
"""
_MAIN = """
def main():
"""
# As torch asks: else gloo's threads can drop a tensor while the interpreter ends, which aborts it.
# A DistributedDataParallel that is still referenced keeps the group, and these threads, all the
# same: the program's names are those of a function, which are gone by then.
_END = """
main()
gc.collect()
if dist.is_initialized():
    dist.destroy_process_group()
"""


def run_ranks(
    program: str,
    world_size: int,
    folder: Path,
    *,
    group: bool = True,
    killed: tuple[int, ...] = (),
    **variables: str,
) -> list[Any]:
    """Run a program in ``world_size`` processes; return what each of them gave to ``tell``.

    Args:
        program: Python, the body of a function; has ``torch``, ``dist``, ``rank``,
            ``world_size`` and ``tell``; the group is destroyed after it.
        world_size: Processes.
        folder: For what they tell.
        group: Whether torch.distributed is set up for it, or the program does so.
        killed: Ranks that kill themselves.
        variables: Of their environment.
    """
    script = folder / "program.py"
    body = textwrap.indent(textwrap.dedent(program), "    ")
    script.write_text(_BEGIN + _GROUP * group + _MAIN + body + _END, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = [folder / f"told-{rank}.json" for rank in range(world_size)]
    processes = [
        subprocess.Popen(
            [sys.executable, script],
            env={
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "TOLD": str(told[rank]),
                **variables,
            },
        )
        for rank in range(world_size)
    ]
    try:
        codes = [process.wait(PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [rank for rank, code in enumerate(codes) if code] == list(killed)
    return [json.loads(path.read_text(encoding="utf-8")) for path in told]
