"""SPDL's pipeline in one subprocess, which is kept between epochs and sends batches back.

Source: https://facebookresearch.github.io/spdl/latest/getting_started/parallelism.html
"""

from __future__ import annotations

from spdl.pipeline import run_pipeline_in_subprocess

from benches.loaders.catalog import Loader, Setup
from benches.loaders.spdl_threads import make_builder

__all__ = ["Rival"]


class Rival(Loader):
    """Load with a pipeline of ``workers`` threads in another process."""

    def __init__(self, setup: Setup) -> None:
        config = make_builder(setup).get_config()
        self._loader = run_pipeline_in_subprocess(config, num_threads=setup.workers)
