"""What only a real GPU shows: ends, errors, graphs, memory.  The rest is the fake device's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.child import run_python

from threadloader import ThreadLoader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

MIB = 1 << 20

HEAD = """
import os, sys, time
import numpy as np
import torch
from threadloader import ThreadLoader

class Data:
    block = np.arange(1 << 18, dtype=np.uint8)

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if slow:
            time.sleep(0.002)
        return self.block, index

slow = False
make = lambda: ThreadLoader(Data(), 8, threads=4, device="cuda", timeout=60)
"""


def run(script: str) -> tuple[int, str]:
    """Run a child to its end; return its exit code, and its output with its errors."""
    done = run_python("-X", "faulthandler", "-c", HEAD + script)
    return done.returncode, done.stdout + done.stderr


def loader(dataset: Any, rows: int, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(
        dataset, rows, **{"threads": 2, "device": "cuda", "timeout": 120, **options}
    )


def rows_of(nbytes: int, count: int) -> list[Any]:
    return [np.full(nbytes, number % 251, np.uint8) for number in range(count)]


LOOPS = {  # each drops its batch at another moment
    "enumerate": "for number, (images, _) in enumerate(make()):",
    "own counter": "for images, _ in make():\n    number += 1",
    "generator": "for number, images in (pair for pair in enumerate(make())):",
}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_in_a_kernel_is_told_by_python_and_not_by_an_abort(loop: str, slow: bool) -> None:
    code, told = run(f"""
slow, number = {slow}, 0
{LOOPS[loop]}
    if number == 20:
        torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]
        torch.cuda.synchronize()
""")
    assert "Traceback" in told
    assert "terminate called" not in told
    assert code == 1


def test_a_forked_child_drops_the_parents_slots_without_an_abort() -> None:
    code, told = run("""
ours = make()
for number, _ in enumerate(ours):
    if number == 50:
        break
ours.close()
child = os.fork()
if child == 0:
    ours = None
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert code == 0, told


def test_a_loader_is_made_before_a_fork_and_used_after_it() -> None:
    code, told = run("""
ours = make()
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    next(iter(ours))
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert code == 0, told


def test_the_interpreter_exits_cleanly_with_a_device_that_is_seconds_behind() -> None:
    code, told = run("""
iterator = iter(make())
for _ in range(4):
    next(iterator)
    torch.cuda._sleep(int(4e9))
""")
    assert (code, told) == (0, "")


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_graph_is_captured_in_any_mode_while_batches_are_copied(mode: str) -> None:
    code, told = run(f"""
iterator = iter(make())
static = next(iterator)[0].float()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode={mode!r}):
    for _ in range(200):
        static = static * 1.0001
        time.sleep(0.0005)  # the copier and the workers go on
for _ in range(50):
    next(iterator)
graph.replay()
torch.cuda.synchronize()
""")
    assert code == 0, told


def test_tensors_that_a_dataset_made_on_the_device_are_right() -> None:
    class Slow:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            with torch.cuda.stream(torch.cuda.Stream()) as _:
                torch.cuda._sleep(int(1e6))  # noqa: SLF001
                made = torch.full((1 << 16,), index, device="cuda")
                torch.cuda.current_stream().synchronize()
            torch.cuda._sleep(int(1e6))  # the worker's own stream is late  # noqa: SLF001
            return made.clone()

    with torch.cuda.stream(torch.cuda.Stream()):  # which does not wait for the workers' by itself
        for number, batch in enumerate(loader(Slow(), 4)):
            assert batch[:, 0].tolist() == [4 * number + row for row in range(4)]
            assert bool((batch == batch[:, :1]).all())


@pytest.mark.parametrize("numbers", [1, 1000])
def test_a_tensor_on_the_device_among_others_is_refused_as_by_torch(numbers: int) -> None:
    rows = [torch.ones(numbers)] * 3 + [torch.ones(numbers, device="cuda")]
    with pytest.raises(RuntimeError) as expected:
        torch.utils.data.default_collate(rows)
    with pytest.raises(RuntimeError) as raised:
        list(ThreadLoader(rows, 4, threads=1))  # type: ignore[arg-type]  # a list will do
    assert str(raised.value) == str(expected.value)


def test_a_full_device_fails_no_batch_that_there_will_be_memory_for() -> None:
    nbytes = 64 * MIB
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved() + 6 * (nbytes + 4 * MIB)
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        for number, batch in enumerate(loader(rows_of(nbytes // 8, 16) * 20, 8)):
            assert int(batch[0, 0]) == 8 * number % 16
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
