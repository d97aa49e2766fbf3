"""Without torch there is nothing to collect here; without a GPU all is skipped."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
