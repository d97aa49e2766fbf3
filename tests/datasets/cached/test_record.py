"""What is kept of a sample: it comes back as it was, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from threadloader.datasets import Cached

# The whole of Unicode takes hypothesis seconds to sort, in each process.
texts = some.text("aé\u0301€\U0001f600\0\n")
plain = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.floats(allow_nan=False),
    texts,
    some.binary(),
    some.floats(allow_nan=False, width=32).map(np.float32),
    some.text("ab").map(np.str_),
)
keys = some.one_of(texts, some.integers(), some.tuples(some.booleans(), texts))
samples = some.recursive(
    plain,
    lambda part: some.one_of(
        some.lists(part),
        some.lists(part).map(tuple),
        some.dictionaries(keys, part),
    ),
    max_leaves=12,
)


def kept(sample: Any, folder: Path) -> Any:
    """Return a sample as it is found in a folder, by a dataset that has another."""
    Cached([sample], folder, key="a")[0]
    return Cached(["another"], folder, key="a", checks=0)[0]


def kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: (type(key), kinds(part)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [kinds(part) for part in value]
    return type(value)


@settings(max_examples=15)
@given(sample=samples)
def test_a_sample_comes_back_equal_and_of_the_same_types(
    tmp_path_factory: pytest.TempPathFactory, sample: Any
) -> None:
    found = kept(sample, tmp_path_factory.mktemp("kept"))
    assert found == sample
    assert kinds(found) == kinds(sample)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i2").reshape(2, 3).T,
        np.zeros((0, 3), np.uint8),
        np.array(7, np.int64),
        np.array(["2026-11-23"], "M8[D]"),
        np.array([["a", "bcd"]]),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_an_array_comes_back_and_may_be_written(
    array: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    first, second = kept((array, array.copy()), tmp_path)
    for found in (first, second):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)
    first[...] = np.zeros((), array.dtype)
    np.testing.assert_array_equal(second, array)


def test_tensors_come_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.float64).reshape(2, 3).t()
    found = kept({"x": tensor}, tmp_path)["x"]
    assert type(found) is torch.Tensor
    assert torch.equal(found, tensor)
    found += 1
    with pytest.raises(TypeError, match=r"the sample\['x'\]\[1\] is a torch.Tensor"):
        Cached([{"x": [0, torch.zeros(2, dtype=torch.bfloat16)]}], tmp_path, key="b")[0]


@pytest.mark.parametrize("mode", ["1", "RGB", "F", "I;16"])
def test_images_of_pillow_come_back(mode: str, tmp_path: Path) -> None:
    image_of_pillow = pytest.importorskip("PIL.Image")
    image = image_of_pillow.new(mode, (5, 3))
    image.putpixel((2, 1), (1, 2, 3, 4)[: len(image.getbands())] if mode[0] == "R" else 1)
    found = kept(image, tmp_path)
    assert (found.mode, found.size) == (mode, (5, 3))
    assert found.tobytes() == image.tobytes()


class Point(tuple[int, ...]):
    __slots__ = ()


@pytest.mark.parametrize(
    "part",
    [{1, 2}, Point((1, 2)), np.array([object()]), np.zeros(2, "i4,f4"), 1j],
    ids=["set", "subclass", "objects", "structured", "complex"],
)
def test_what_can_not_be_kept_is_an_error_that_says_where(part: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the sample\['a'\]\[0\] is a .* can't be kept"):
        Cached([{"a": (part,)}], tmp_path, key="a")[0]
