"""What the first sample of all has loaded is for all workers; what it has opened each one opens."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Event
from typing import Any

import numpy as np
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader, get_worker_info

ALONE = 2  # samples that run alone where the first one loads data


def told(dataset: Any, spawn: Spawn, **options: Any) -> list[Any]:
    with ThreadLoader(dataset, None, threads=2, collate_fn=tuple, **options) as loader:
        return spawn(list, loader).result(2 * PATIENCE)


def test_data_is_loaded_once_and_what_is_opened_beside_it_by_each(
    tmp_path: Path, spawn: Spawn
) -> None:
    loads: list[int] = []
    path, meet = tmp_path / "file", Barrier(2)
    path.touch()

    class Opens:
        data: Any = None

        def __len__(self) -> int:
            return ALONE + 6

        def __getitem__(self, index: int) -> Any:
            if self.data is None:
                loads.append(index)
                self.data, self.file, self.rows = np.ones(1 << 18), path.open("rb"), 3
            if index >= ALONE:
                meet.wait(PATIENCE)
            return self.data, self.file, self.rows

    samples = told(Opens(), spawn)
    assert loads == [0]
    assert len({id(data) for data, _, _ in samples}) == 1
    assert len({file for _, file, _ in samples}) == 2
    assert {rows for _, _, rows in samples} == {3}
    for _, file, _ in samples:
        file.close()


def test_what_a_worker_has_set_for_itself_is_left_to_it(spawn: Spawn) -> None:
    loaded, meet = Event(), Barrier(2)

    class Loads:
        data: Any = None

        def __len__(self) -> int:
            return ALONE + 6

        def __getitem__(self, index: int) -> Any:
            if self.data is None:
                self.data = np.ones(3)
                loaded.set()
            if index >= ALONE:
                meet.wait(PATIENCE)
            return get_worker_info().id, float(self.data[0])

    def set_up(number: int) -> None:
        if number:
            assert loaded.wait(PATIENCE)
            dataset: Any = get_worker_info().dataset
            dataset.data = np.zeros(3)

    assert set(told(Loads(), spawn, worker_init_fn=set_up)) == {(0, 1.0), (1, 0.0)}
