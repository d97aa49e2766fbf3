"""Damaged image files: a picture of the right shape or a DataError, and nothing else ever.

``THREADLOADER_FUZZ_SEED`` (0) makes another choice of them.  Many more in one go:
``python tests/datasets/images/image_fuzz.py``, see there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PIL")

from threadloader.datasets._images.jpeg_decoders import installed_decoders

COUNT = 1000  # for each decoder
SEED = os.environ.get("THREADLOADER_FUZZ_SEED", "0")

every_decoder = pytest.mark.parametrize(
    "decoder", [decoder.name for decoder in installed_decoders()]
)


@every_decoder
def test_a_damaged_image_is_a_picture_or_an_error_with_its_path(
    tmp_path: Path, decoder: str
) -> None:
    found = _fuzz(decoder, COUNT, tmp_path)
    assert found["errors"] + found["pictures"] == COUNT
    assert found["errors"] > COUNT / 2
    assert found["pictures"] > COUNT / 10
    assert found.get("trailers", 0) < COUNT / 100


@every_decoder
def test_pillows_switch_for_truncated_images_changes_nothing(tmp_path: Path, decoder: str) -> None:
    strict = _fuzz(decoder, 200, tmp_path / "strict")
    lenient = _fuzz(decoder, 200, tmp_path / "lenient", "--lenient")
    assert lenient == strict


def _fuzz(decoder: str, count: int, folder: Path, *options: str) -> dict[str, int]:
    """Run the script, which a crash, a hang or a wrong picture ends with an error."""
    script = Path(__file__).with_name("image_fuzz.py")
    done = subprocess.run(
        [sys.executable, script, decoder, str(count), SEED, folder, *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
