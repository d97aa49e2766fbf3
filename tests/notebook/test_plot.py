"""``loader.plot()``: a figure of what was counted over time."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from threadloader import ThreadLoader

if importlib.util.find_spec("matplotlib") is None:

    def test_without_matplotlib_the_error_says_what_to_install() -> None:
        with (
            ThreadLoader([1, 2]) as loader,
            pytest.raises(ModuleNotFoundError, match=r"pip install .*extra: plot"),
        ):
            loader.plot()
        assert "threadloader._notebook.plot" not in sys.modules

else:
    from threadloader._notebook.plot import plot
    from threadloader._work.snapshot import Snapshot

    DRAWING = """
import sys
from threadloader import ThreadLoader
with ThreadLoader([1, 2]) as loader:
    loader.plot()
print("matplotlib.pyplot" in sys.modules)
"""

    def snapshot(at: float, **counted: float) -> Snapshot:
        """Return one that has counted nothing else."""
        return Snapshot._make([0] * len(Snapshot._fields))._replace(at=at, **counted)

    HISTORY = (
        snapshot(10.0),
        snapshot(
            12.0, samples=80, fetch_seconds=4.0, write_seconds=2.0, wait_seconds=0.5, running=3
        ),
        snapshot(
            13.0,
            samples=90,
            fetch_seconds=4.0,
            write_seconds=2.0,
            wait_seconds=0.5,
            inline_seconds=0.25,
            running=4,
        ),
    )

    def drawn_in(figure: Any) -> list[tuple[list[float], list[float]]]:
        """Return edges and values of the first stairs of each part."""
        data = [axes.patches[0].get_data() for axes in figure.axes]
        return [(list(each.edges), list(each.values)) for each in data]

    def test_rates_and_shares_are_those_between_two_snapshots() -> None:
        edges = [0.0, 2.0, 3.0]
        assert drawn_in(plot(HISTORY)) == [
            (edges, [40.0, 10.0]),
            (edges, [0.25, 0.25]),
            (edges, [3.0, 0.0]),
        ]

    def test_the_threads_that_may_run_are_a_line() -> None:
        *_, allowed = plot(HISTORY).axes[2].patches
        assert list(allowed.get_data().values) == [3, 4]

    def test_the_time_after_the_last_batch_is_not_drawn() -> None:
        assert drawn_in(plot(HISTORY, 12.5))[0] == ([0.0, 2.0, 2.5], [40.0, 20.0])
        assert drawn_in(plot(HISTORY, 12.0))[0] == ([0.0, 2.0], [40.0])

    def test_an_epoch_is_drawn() -> None:
        with ThreadLoader(list(range(100)), 10, threads=1) as loader:
            list(loader)
            (edges, values), *_ = drawn_in(loader.plot())
        assert len(edges) == len(values) + 1 == 2
        assert values[0] == pytest.approx(100 / edges[1])

    def test_a_loader_that_has_loaded_nothing_is_drawn_too() -> None:
        with ThreadLoader([1, 2]) as loader:
            assert "too few" in loader.plot().axes[0].get_title()

    def test_a_notebook_gets_a_png() -> None:
        with ThreadLoader([1, 2]) as loader:
            assert loader.plot()._repr_png_().startswith(b"\x89PNG")

    def test_drawing_leaves_pyplot_alone() -> None:
        done = subprocess.run(
            [sys.executable, "-c", DRAWING], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("False\n", "")
