"""``loader.plot()``: a figure of what was counted over time."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.acting import Acting
from support.child import run_child

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from support.clock import DrivenClock

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
drawn = pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")

DRAWING = """
import sys
from threadloader import ThreadLoader
with ThreadLoader([1, 2]) as loader:
    print(loader.plot()._repr_png_()[:4], loader.plot().axes[0].get_title())
print("matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.skipif(HAS_MATPLOTLIB, reason="matplotlib is installed")
def test_without_matplotlib_the_error_says_what_to_install() -> None:
    with (
        ThreadLoader([1, 2]) as loader,
        pytest.raises(ModuleNotFoundError, match=r"pip install .*extra: plot"),
    ):
        loader.plot()
    assert "threadloader._report.plot" not in sys.modules


@drawn
def test_rates_and_shares_are_drawn_up_to_the_last_batch(clock: DrivenClock) -> None:
    slow = Acting(8, lambda index: clock.compute(0.5 if index < 4 else 2.0))
    with ThreadLoader(slow, 2, threads=0) as loader:
        for _ in loader:
            clock.idle(1.0)
        clock.idle(100.0)
        rate, waited, threads = loader.plot().axes

    def first(axes: Any) -> tuple[list[float], list[float]]:
        data = axes.patches[0].get_data()
        return list(data.edges), list(data.values)

    # The first batch is at 1 s; then there is a note with each of the other three.
    edges = [0.0, 3.0, 8.0, 13.0]
    assert first(rate) == (edges, [4 / 3, 2 / 5, 2 / 5])
    assert first(waited) == first(threads) == (edges, [2 / 3, 4 / 5, 4 / 5])
    *_, allowed = threads.patches
    assert list(allowed.get_data().values) == [1, 1, 1]


@drawn
def test_a_notebook_gets_a_png_of_a_loader_that_has_loaded_nothing_and_pyplot_is_left_alone() -> (
    None
):
    ended, printed, complaint = run_child(DRAWING)
    assert (ended, printed) == (0, "b'\\x89PNG' too few batches so far\nFalse"), complaint
