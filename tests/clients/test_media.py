"""The recipes of docs/images.md, as they stand there: clips of videos, crops of sounds."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader

PAGE = Path(__file__).parents[2] / "docs" / "images.md"
VIDEOS, FRAMES, RATE = 6, 40, 8000


def recipe(heading: str, **names: Any) -> dict[str, Any]:
    """Run the block below a heading of the page; return its names."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102  # our own page
    return names


def video(number: int) -> io.BytesIO:
    """Make one whose frames tell their number by their brightness."""
    av = pytest.importorskip("av")
    made = io.BytesIO()
    with av.open(made, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=25)  # without loss
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for frame in range(FRAMES if number else 10):
            pixels = np.full((48, 64, 3), 6 * (frame % 40) + 10, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return io.BytesIO(made.getvalue())


def test_clips_are_frames_in_a_row_and_the_same_for_any_number_of_threads() -> None:
    data = [video(number).getvalue() for number in range(VIDEOS)]
    trained: list[Any] = []

    def run(threads: int) -> np.ndarray[Any, Any]:
        class Files(list[bytes]):
            def __getitem__(self, index: Any) -> Any:
                return io.BytesIO(super().__getitem__(index))

        given = {"videos": Files(data), "train_step": trained.append}
        clips = recipe("Clips of videos", **given)["Clips"](Files(data))
        loader = ThreadLoader(clips, 2, shuffle=True, seed=3, threads=threads, output="numpy")
        return np.concatenate([batch for _ in range(2) for batch in loader])

    wanted = run(0)
    assert sum(map(len, trained)) == VIDEOS
    assert wanted.shape == (2 * VIDEOS, 16, 48, 64, 3)
    numbers = ((wanted.mean(axis=(2, 3, 4)) - 10) / 6).round()
    steps = np.diff(numbers, axis=1)
    assert ((steps == 1) | (steps == 0)).all()  # 0: the short video's last frame
    assert (steps.sum(axis=1) >= 9).all()
    for threads in (1, 4):
        np.testing.assert_array_equal(run(threads), wanted)


def test_sounds_of_shards_are_cropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.chdir(tmp_path)
    with tarfile.open("sounds-0.tar", "w") as archive:
        for number, kind in enumerate(("flac", "wav", "mp3", "flac")):
            made = io.BytesIO()
            tone = np.sin(np.arange(2 * RATE) / (number + 5)).astype(np.float32)
            soundfile.write(made, tone if number else tone[: RATE // 2], RATE, format=kind)
            for name, content in ((kind, made.getvalue()), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    loader = recipe("Crops of sounds", ThreadLoader=ThreadLoader)["loader"]
    for _ in range(2):
        ((sounds, labels),) = loader
        assert sounds.shape == (4, RATE, 1)
        silent = np.asarray(sounds)[list(labels).index(0), RATE // 2 :]
        assert not silent.any()  # what the short one lacks
