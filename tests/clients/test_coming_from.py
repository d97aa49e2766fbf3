"""The pairs of docs/coming-from.md: each loader of somebody else's, and ours, on the same data."""

from __future__ import annotations

import importlib
import io
import re
import tarfile
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAIRS = {text.partition("\n")[0]: CODE.findall(text) for text in SECTIONS}


def load(key: int) -> np.ndarray[Any, Any]:
    return np.full(3, key)


def seed_worker(_: int) -> None:
    """Seed the worker that starts; nothing here draws."""


def jobs(asked: int) -> list[Any]:
    """Samples without end, of which a test takes the first."""
    return [torch.full((3,), key) for key in range(asked)]


def write_shard(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for key in range(10):
            array = io.BytesIO()
            np.save(array, load(key))
            for kind, data in (("npy", array.getvalue()), ("cls", str(key).encode())):
                member = tarfile.TarInfo(f"{key}.{kind}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def plain(batch: Any) -> Any:
    """Return a batch as lists, whatever containers and arrays it is made of."""
    if isinstance(batch, (tuple, list)):
        return [plain(part) for part in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def test_each_section_has_a_pair_but_for_the_last() -> None:
    assert [len(blocks) for blocks in PAIRS.values()] == [*[2] * (len(PAIRS) - 1), 0]


@pytest.mark.parametrize("system", list(PAIRS)[:-1])
def test_both_give_the_same_batches(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    before, after = PAIRS[system]
    for module in re.findall(r"^(?:from|import) ([\w.]+)", before, re.MULTILINE):
        if module not in {"numpy", "torch"}:
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001  # some fail with errors of their own
                pytest.skip(f"{module}: {error}")
    monkeypatch.chdir(tmp_path)
    write_shard(Path("train-000.tar"))
    given = {
        "ThreadLoader": ThreadLoader,
        "dataset": [(load(key), key) for key in range(10)],
        "load": load,
        "next_jobs": jobs,
        "samples": [load(key) for key in range(10)],
        "seed_worker": seed_worker,
    }

    def batches(code: str) -> list[Any]:
        torch.manual_seed(5)
        made: dict[str, Any] = dict(given)
        exec(code, made)  # noqa: S102  # our own page
        loader = made["loader"]
        with getattr(loader, "auto_stop", nullcontext)():  # SPDL's
            return [plain(batch) for batch, _ in zip(loader, range(3), strict=False)]

    ours = spawn(batches, after).result(PATIENCE)
    mine = set(threading.enumerate())
    assert ours == batches(before)
    for thread in set(threading.enumerate()) - mine:
        if hasattr(thread, "stop"):  # tensorpack's never end, and would warn in other tests
            thread.stop()
            thread.join(PATIENCE)
