"""Runs a program in several processes, the ranks of torch.distributed.

They are forked from one that has imported torch: that takes seconds, and so once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from support.child import running
from support.patience import PATIENCE

__all__ = ["run_ranks"]

_BEGIN = """
import gc, json, os, sys
import torch
import torch.distributed as dist
world_size = int(os.environ["WORLD_SIZE"])
processes = []
for rank in range(world_size):
    processes.append(os.fork())
    if not processes[-1]:
        break
else:
    codes = [os.waitpid(process, 0)[1] for process in processes]
    print(*[rank for rank, code in enumerate(codes) if code])
    sys.exit()
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
os.environ["TOLD"] = f"{os.environ['TOLD']}-{rank}.json"
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
    if not hasattr(os, "fork"):
        pytest.skip("the system has no fork")
    script = folder / "program.py"
    body = textwrap.indent(textwrap.dedent(program), "    ")
    # Which it would import in each rank when it is made.
    dynamo = "import torch._dynamo" * ("DistributedDataParallel" in program)
    code = dynamo + _BEGIN + _GROUP * group + _MAIN + body + _END
    script.write_text(code, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "TOLD": str(folder / "told"),
        "OPENBLAS_NUM_THREADS": "1",  # it would start threads, which a fork does not copy
        **variables,
    }
    with running(sys.executable, script, env=environment, text=True) as process:
        failed, _ = process.communicate(timeout=PATIENCE)
    assert list(map(int, failed.splitlines()[-1].split())) == list(killed)
    told = [folder / f"told-{rank}.json" for rank in range(world_size)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in told]
