"""ImageFolder: torchvision's layout and order, arrays in its place of PIL images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from photographs import every_format

from threadloader.datasets import ImageFolder
from threadloader.errors import DataError

TREE = (
    "ant/b.PNG",
    "ant/a.jpg",
    "ant/a/z.jpeg",
    "ant/a-b/y.bmp",
    "ant/a.b/x.ppm",
    "ant/notes.txt",
    "ant/.hidden.jpg",
    "Bee/one.tif",
    "Bee/two.TIFF",
    "Bee/deep/deeper/three.webp",
    "Bee/four.gif",
    "cat 2/1.pgm",
    "cat 10/10.jpg",
    "stray.jpg",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files that are never decoded."""
    root = tmp_path / "tree"
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Thirty images in two classes, in all formats."""
    root = tmp_path / "photos"
    for name in ("left", "right"):
        (root / name).mkdir(parents=True)
    for number, (name, data) in enumerate(every_format(40, 50).items()):
        (root / ("left", "right")[number % 2] / name).write_bytes(data)
    return root


def test_files_are_found_and_ordered_as_torchvision_does(tree: Path) -> None:
    folder = ImageFolder(tree)
    assert folder.classes == ["Bee", "ant", "cat 10", "cat 2"]
    assert folder.class_to_idx == {"Bee": 0, "ant": 1, "cat 10": 2, "cat 2": 3}
    names = [
        *("Bee/one.tif", "Bee/two.TIFF", "Bee/deep/deeper/three.webp"),
        *("ant/.hidden.jpg", "ant/a.jpg", "ant/b.PNG"),
        *("ant/a/z.jpeg", "ant/a-b/y.bmp", "ant/a.b/x.ppm"),
        *("cat 10/10.jpg", "cat 2/1.pgm"),
    ]
    assert [Path(path).relative_to(tree).as_posix() for path, _ in folder.samples] == names
    assert folder.targets == [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 3]
    assert folder.targets == [target for _, target in folder.samples]
    assert len(folder) == 11
    told = f"ImageFolder({str(tree)!r}): 11 images of 4 classes, decoded by {folder.decoder}"
    assert repr(folder) == told


def test_attributes_are_those_of_torchvision(tree: Path) -> None:
    torchvision = pytest.importorskip("torchvision.datasets")
    (tree / "ant" / "link").symlink_to(tree / "Bee", target_is_directory=True)
    (tree / "dog").symlink_to(tree / "cat 10", target_is_directory=True)
    ours, theirs = ImageFolder(tree), torchvision.ImageFolder(tree)
    for name in ("classes", "class_to_idx", "samples", "targets"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert os.fspath(ours.root) == os.fspath(theirs.root)
    (tree / "empty").mkdir()
    for kind in (ImageFolder, torchvision.ImageFolder):
        with pytest.raises(FileNotFoundError):
            kind(tree)
        with pytest.raises(FileNotFoundError, match="No such file"):
            kind(tree / "nowhere")
        with pytest.raises(NotADirectoryError):
            kind(ours.samples[0][0])


def test_links_to_folders_are_followed(tree: Path) -> None:
    try:
        (tree / "dog").symlink_to(tree / "ant", target_is_directory=True)
        (tree / "Bee" / "more").symlink_to(tree / "cat 2", target_is_directory=True)
    except OSError:
        pytest.skip("this user may not make links")
    folder = ImageFolder(tree)
    assert folder.targets.count(folder.class_to_idx["dog"]) == 6
    assert os.path.join(tree, "Bee", "more", "1.pgm") in dict(folder.samples)  # noqa: PTH118


def test_a_folder_that_can_not_be_is_an_error_that_says_why(tree: Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images in '.*empty'"):
        ImageFolder(tree)
    with pytest.raises(FileNotFoundError, match="one folder for each class"):
        ImageFolder(tree / "empty")
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*nowhere'"):
        ImageFolder(tree / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"stray\.jpg"):
        ImageFolder(tree / "stray.jpg")


def test_a_sample_is_an_array_and_the_number_of_its_class(photos: Path) -> None:
    folder = ImageFolder(photos)
    for index, (path, target) in enumerate(folder.samples):
        image, label = folder[index]
        assert image.dtype == np.uint8
        assert image.shape == ((50, 40, 3) if "turned" in path else (40, 50, 3))
        assert type(label) is int
        assert label == target
    with pytest.raises(IndexError):
        folder[len(folder)]
    for size, shape in ((16, (3, 16, 16)), ([20, 24], (3, 20, 24))):
        options: dict[str, Any] = {"size": size, "layout": "CHW", "transform": np.shape}
        sized = ImageFolder(photos, target_transform=lambda target: target * 10 + 1, **options)
        assert set(sized) == {(shape, 1), (shape, 11)}


def test_a_broken_file_is_an_error_with_its_path(photos: Path) -> None:
    path = photos / "left" / "444.jpg"
    path.write_bytes(path.read_bytes()[:-20])
    folder = ImageFolder(photos)
    index = [name for name, _ in folder.samples].index(str(path))
    with pytest.raises(DataError, match="no whole image") as caught:
        folder[index]
    assert caught.value.path == str(path)
    assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(DataError, match=r"left.*: no whole image: 50 x 40 pixels are more than"):
        ImageFolder(photos, max_pixels=100)[0]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"444\.jpg"):
        folder[index]
