"""The command line: the demo's table, its images, its measuring, and how each failure ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("PIL", reason="the demo decodes images with Pillow")
pytest.importorskip("rich", reason="the demo draws with rich")

from PIL import Image
from support.patience import PATIENCE

from threadloader import _torch
from threadloader.cli import machine, main, photos
from threadloader.cli.contenders import BareLoop, Processes, Threads
from threadloader.cli.errors import CommandError, printable
from threadloader.cli.folder import ImageFiles, find_images
from threadloader.cli.race import ROUNDS, Round, TimedSampler, race, steady_rate, summarise
from threadloader.datasets import ImageFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

# Each image of `folder` is in the first batch, which is read whatever time that takes.
TINY = ["--seconds", "0.05", "--batch-size", "6", "--size", "8", "--threads", "2"]

needs_torch = pytest.mark.skipif(not _torch.AVAILABLE, reason="compares with torch")
posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and signals of POSIX")
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two folders of images in several formats and modes, one of them hidden."""
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    for number, name in enumerate(
        ["cats/0.jpg", "cats/1.JPEG", "cats/2.png", "dogs/3.webp", "dogs/old/4.bmp"]
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)
    Image.new("L", (16, 16)).save(root / "dogs/grey.png")
    (root / "cats/._0.jpg").write_bytes(b"resource fork")
    (root / "cats/notes.txt").write_text("not an image")
    return root


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the system that is this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Run a command that fails; return its exit code and the one line that it printed."""
    code = main([str(argument) for argument in arguments])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return code, lines[0]


# The command


def test_the_demo_has_a_row_for_each_loader(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", str(folder), *TINY]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" ms")]
    expected = ["bare loop", "torch DataLoader, 2 workers", "ThreadLoader, 2 threads"]
    if not _torch.AVAILABLE:
        del expected[1]
    assert [row[:28].strip() for row in rows] == expected
    assert " 1.00x " in rows[0]


def test_the_demo_tells_what_it_runs_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", str(folder), *TINY])
    out = capsys.readouterr().out
    assert machine.python_build() in out
    assert f"GIL {'on' if machine.gil_is_enabled() else 'off'}" in out
    assert f"Pillow {Image.__version__}" in out  # type: ignore[attr-defined]
    assert ("torch is not installed" in out) == (not _torch.AVAILABLE)


def test_the_demo_loads_with_image_folder_and_the_fastest_decoder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["demo", str(folder), *TINY])
    out = capsys.readouterr().out
    assert "ImageFolder(..., size=8)" in out
    (folder / "cats/._0.jpg").unlink()  # no image, for all its name
    theirs, ours = ImageFolder(folder, size=8), ImageFiles(find_images(folder), 8)
    assert theirs.decoder in out.lower()
    for (path, _), (image, _) in zip(theirs.samples, theirs, strict=True):
        index = [str(path) for path in ours.paths].index(path)
        np.testing.assert_array_equal(ours[index][0], image)


def test_output_that_is_piped_has_no_control_characters_and_fits_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    main(["demo", folder.name, *TINY])
    captured = capsys.readouterr()
    assert captured.err == ""
    for line in captured.out.splitlines():
        assert line.isprintable()
        assert len(line) <= 80
        assert line == line.rstrip()


def test_without_threads_everything_runs_in_the_calling_thread(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", str(folder), *TINY[:-1], "0"]) == 0
    assert "ThreadLoader, 0 threads" in capsys.readouterr().out


def test_without_a_folder_photos_are_made_and_used_again(
    temporary: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photos, "PHOTOS", 3)
    assert main(["demo", *TINY]) == 0
    made = {path: path.stat().st_mtime_ns for path in temporary.rglob("*.jpg")}
    assert len(made) == 3
    assert main(["demo", *TINY]) == 0
    assert made == {path: path.stat().st_mtime_ns for path in temporary.rglob("*.jpg")}
    assert "Images   3, " in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "demonstrate",
        "demo --threads -1",
        "demo --batch-size 0",
        "demo --size 1.5",
        "demo --seconds 0",
        "demo --seconds nan",
        "demo --seconds soon",
    ],
)
def test_wrong_arguments_exit_with_2_and_are_named(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments.split())
    assert exited.value.code == 2
    named = arguments.split()[1] if arguments.startswith("demo -") else "COMMAND"
    assert named in capsys.readouterr().err.splitlines()[-1]


# Failures


def test_a_missing_folder_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failure(capsys, "demo", tmp_path / "nowhere")
    assert code == 2
    assert line == f"threadloader demo: error: {tmp_path / 'nowhere'} does not exist"


def test_a_folder_without_images_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "readme.txt").touch()
    code, line = failure(capsys, "demo", tmp_path)
    assert code == 2
    assert f"no images in {tmp_path}" in line


def test_a_file_for_a_folder_exits_with_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failure(capsys, "demo", folder / "cats/0.jpg")
    assert code == 2
    assert line.endswith("0.jpg is not a folder")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _replace(path: Path) -> None:
    path.write_bytes(b"GIF89a, or so it says")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [_truncate, _replace, _empty])
@pytest.mark.parametrize("name", ["cats/1.JPEG", "cats/2.png", "dogs/3.webp"])
def test_a_broken_image_exits_with_1_and_is_named(
    harm: Callable[[Path], None], name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(folder / name)
    code, line = failure(capsys, "demo", folder, *TINY)
    assert code == 1
    assert f"error: cannot read {folder / name}: " in line


def test_an_image_that_goes_away_is_named(folder: Path) -> None:
    dataset = ImageFiles(find_images(folder), 8)
    (folder / "cats/0.jpg").unlink()
    with pytest.raises(CommandError, match=r"0\.jpg: No such file"):
        dataset[0]


@pytest.mark.parametrize(("module", "name"), [("PIL", "Pillow"), ("rich", "rich")])
def test_a_missing_requirement_is_one_line_with_the_pip_command(
    module: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as the import system marks what is absent
    code, line = failure(capsys, "demo")
    assert code == 1
    assert f"{name} not installed" in line
    assert f"pip install {name.lower()} (extra: demo)" in line


def test_an_interrupt_exits_with_130(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageFiles, "__getitem__", interrupted)
    assert main(["demo", str(folder), *TINY]) == 130
    assert capsys.readouterr().err == "threadloader demo: interrupted\n"


@posix
def test_ctrl_c_in_the_terminal_ends_every_process_without_a_traceback(folder: Path) -> None:
    program = "import sys; from threadloader.cli import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", program, "demo", str(folder), "--threads", "2", "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own: a terminal interrupts the whole group
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Images"):  # from here on loaders run
                    break
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    # Both are 130 for a shell.  If Ctrl-C comes up in an ``eval`` of a string (a namedtuple is made
    # by one as a module is imported), CPython ends the process by SIGINT after its own exit, also
    # where the program has caught it.  Source: ``unhandled_keyboard_interrupt`` in pythonrun.c.
    assert process.returncode in (130, -signal.SIGINT)
    assert err == "threadloader demo: interrupted\n"


def test_a_path_is_shown_on_one_line_in_any_encoding() -> None:
    assert printable("photos/caf\u00e9.jpg") == "photos/caf\u00e9.jpg"
    assert printable("a\nb") == r"'a\nb'"
    printable(os.fsdecode(b"\xff.jpg")).encode("ascii")


# Images


def test_images_are_found_below_the_folder_and_hidden_files_are_not(folder: Path) -> None:
    names = [path.relative_to(folder).as_posix() for path in find_images(folder)]
    assert names == [
        "cats/0.jpg",
        "cats/1.JPEG",
        "cats/2.png",
        "dogs/3.webp",
        "dogs/grey.png",
        "dogs/old/4.bmp",
    ]


def test_every_image_is_a_square_rgb_array_with_its_folders_number(folder: Path) -> None:
    dataset = ImageFiles(find_images(folder), 12)
    samples = [dataset[index] for index in range(len(dataset))]
    assert {(image.shape, image.dtype.name) for image, _ in samples} == {((12, 12, 3), "uint8")}
    assert [label for _, label in samples] == [0, 0, 0, 1, 1, 2]


def test_photos_have_the_size_of_photos(tmp_path: Path) -> None:
    for path in photos.make_photos(tmp_path, 6):
        assert 40_000 < path.stat().st_size < 80_000
        with Image.open(path) as image:
            assert (image.size, image.mode) == ((500, 375), "RGB")


def test_a_photo_is_made_from_its_number_alone() -> None:
    first, second = photos.Studio(), photos.Studio()
    second.photo(0)
    assert first.photo(1).tobytes() == second.photo(1).tobytes()
    assert first.photo(1).tobytes() != first.photo(2).tobytes()


def test_only_missing_photos_are_made_and_no_partial_file_stays(tmp_path: Path) -> None:
    whole = [path.read_bytes() for path in photos.make_photos(tmp_path, 2)]
    (tmp_path / "0001.jpg").unlink()
    (tmp_path / "0000.jpg").write_bytes(b"kept")
    again = [path.read_bytes() for path in photos.make_photos(tmp_path, 2)]
    assert again == [b"kept", whole[1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000.jpg", "0001.jpg"]


@posix
def test_a_photo_folder_that_others_may_write_to_is_refused(temporary: Path) -> None:
    root = photos.photo_folder().parent
    assert root.parent == temporary
    root.chmod(0o777)
    with pytest.raises(CommandError, match="only you can write to"):
        photos.photo_folder()


@posix
def test_a_link_in_place_of_the_photo_folder_is_refused(temporary: Path) -> None:
    root = photos.photo_folder().parent
    root.rename(temporary / "elsewhere")
    root.symlink_to(temporary / "elsewhere")
    with pytest.raises(CommandError, match="only you can write to"):
        photos.photo_folder()


# Measuring


@forks
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        (Threads, 0),
        (Threads, 2),
        pytest.param(Processes, 0, marks=needs_torch),
        pytest.param(Processes, 2, marks=needs_torch),
    ],
)
def test_every_loader_gets_the_same_images(kind: Any, workers: int, folder: Path) -> None:
    dataset = ImageFiles(find_images(folder), 8)
    loaded = []
    for loader in (BareLoop(), kind(workers)):
        sampler = TimedSampler(len(dataset), batch_size=4, least=3)
        sampler.stop_at = 0.0
        columns = zip(*loader.batches(dataset, sampler), strict=True)
        loaded.append([np.concatenate([np.asarray(part) for part in column]) for column in columns])
    (images, labels), (its_images, its_labels) = loaded
    assert images.shape == (12, 8, 8, 3)
    np.testing.assert_array_equal(its_images, images)
    np.testing.assert_array_equal(its_labels, labels)


@needs_torch
@posix
@forks
def test_the_cpu_time_of_worker_processes_is_counted(folder: Path) -> None:
    loader = Processes(2)
    dataset = ImageFiles(find_images(folder), 8)
    sampler = TimedSampler(len(dataset), batch_size=4, least=3)
    sampler.stop_at = 0.0
    assert loader.child_seconds() == 0.0
    for _ in loader.batches(dataset, sampler):
        pass
    assert loader.child_seconds() > 0.0


def test_the_sampler_ends_after_whole_batches_once_its_time_is_reached() -> None:
    sampler = TimedSampler(3, batch_size=4, least=1)
    indices = iter(sampler)
    drawn = [next(indices) for _ in range(5)]
    sampler.stop_at = 0.0
    drawn += indices
    assert drawn == [0, 1, 2, 0, 1, 2, 0, 1]


def test_the_rate_of_bursts_is_taken_over_whole_turns() -> None:
    bursts = [float(second) for second in range(1, 9) for _ in range(4)]  # 4 workers: 4 batches/s
    assert steady_rate(bursts, stop_at=5.5, turn=4) == 4.0
    assert steady_rate(bursts, stop_at=5.0, turn=4) == 4.0


def test_the_rate_leaves_out_what_was_loaded_ahead() -> None:
    assert steady_rate([1.0, 2.0, 3.0, 3.0, 3.0], stop_at=2.5, turn=1) == 1.0


def test_the_rate_of_a_loader_slower_than_its_time_is_that_of_one_turn() -> None:
    assert steady_rate([10.0, 12.0, 14.0], stop_at=11.0, turn=2) == 0.5


class Fake:
    """A loader that delivers indices, or raises."""

    turn = 1

    def __init__(self, name: str, error: Exception | None = None, *, foreign: bool = False) -> None:
        self.name = name
        self.error = error
        self.foreign = foreign

    def batches(self, _: object, sampler: TimedSampler) -> Generator[object, None, None]:
        if self.error is not None:
            raise self.error
        yield from sampler

    def child_seconds(self) -> float:
        return 0.0


def _run(*loaders: Fake) -> list[tuple[str, type]]:
    outcomes = race(loaders, range(5), 1, 0.003, lambda *_: None)
    return [(loader.name, type(outcome)) for loader, outcome in outcomes]


def test_loaders_take_turns_and_each_round_begins_with_another() -> None:
    names = "".join(name for name, _ in _run(Fake("a"), Fake("b"), Fake("c")))
    assert names == "abcbcacab"
    assert len(names) == 3 * ROUNDS


def test_a_foreign_loader_that_fails_is_left_out_and_the_rest_goes_on() -> None:
    outcomes = _run(Fake("ours"), Fake("theirs", OSError("no shared memory"), foreign=True))
    assert outcomes == [("ours", Round), ("theirs", OSError), *[("ours", Round)] * (ROUNDS - 1)]


def test_the_error_of_any_other_loader_ends_the_race() -> None:
    with pytest.raises(ValueError, match="broken"):
        _run(Fake("ours", ValueError("broken")))


def test_a_result_is_the_median_of_the_rounds() -> None:
    rounds = [Round(rate, first, cpu) for rate, first, cpu in [(9, 3, 2), (10, 1, 1), (14, 2, 9)]]
    result = summarise(Fake("loader"), rounds)
    assert (result.rate, result.first, result.cpu, result.spread) == (10, 2, 2, 0.5)
