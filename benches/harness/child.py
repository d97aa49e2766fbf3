"""A measured process: ``python -m benches.harness.child`` calls functions until its input ends.

Each line of input is a function of benches and its arguments, each line of output what it
returned, or the error; both are JSON, and so are plain values.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any

from benches.harness.compiling import compiled, watch_compilation


def main() -> None:
    """Answer on what was standard output; what packages print goes to the errors."""
    watch_compilation()
    # Only torch.compile needs triton, and (3.7) importing it turns the GIL on for good.
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # as if it were not installed
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        module, _, name = asked["function"].rpartition(".")
        faulthandler.dump_traceback_later(asked["limit"], exit=True)  # it hangs
        reply: dict[str, Any] = {}
        try:
            reply["returned"] = getattr(import_module(module), name)(**asked["arguments"])
        except Exception:  # noqa: BLE001  # whatever a rival raises is its answer
            reply["error"] = traceback.format_exc()[-4000:]
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(reply | {"compiled": compiled}), file=replies)
        compiled.clear()


if __name__ == "__main__":
    main()
