"""Jupyter: a loader as a cell's value is HTML."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from conftest import PATIENCE

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

LOADER = """
    import numpy as np
    from threadloader import ThreadLoader
    loader = ThreadLoader(np.arange(1000), batch_size=10)
    batches = len(list(loader))
    loader
"""


def outputs(*cells: str) -> list[list[Any]]:
    """Return what each cell shows."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(dedent(cell)) for cell in cells]
    nbclient.NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_loader_is_shown_as_html() -> None:
    ((page,),) = outputs(LOADER)
    assert "100 batches · 1,000 samples" in page.data["text/html"]
    assert "ThreadLoader" in page.data["text/plain"]
