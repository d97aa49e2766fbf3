"""One seam to all image decoders: the same picture from each, what it means, and its errors."""

from __future__ import annotations

import io
import sys
import sysconfig
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.child import run_child

pytest.importorskip("PIL")

from numpy.typing import NDArray
from photographs import encoded, every_format, photograph, png16
from PIL import Image, ImageFile, ImageOps

from threadloader.datasets._images.decode import decode_image, installed_decoders, jpeg_decoder

# Grey levels of 256.  Wheels of all decoders have libjpeg-turbo, and not one level of difference
# was seen between its releases (2.1.5 to 3.2); other libraries may round otherwise.
TOLERANCE = 2

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
ODD = (61, 47)  # no multiple of a JPEG's blocks of 8 or 16

every_decoder = pytest.mark.parametrize("decoder", installed_decoders())
every_picture = pytest.mark.parametrize("name", list(every_format(*ODD)))


def _pillow(data: bytes) -> NDArray[np.uint8]:
    """What Pillow alone says: turned, in RGB."""
    return np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def _difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other).max())


@every_decoder
@pytest.mark.parametrize("shape", [(375, 500), ODD, (1, 200)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_has_the_pixels_that_pillow_sees(
    decoder: str, shape: tuple[int, int], mode: str
) -> None:
    for options in (
        *({"subsampling": kind} for kind in range(3)),
        *({"progressive": True}, {"quality": 100, "optimize": True}),
        {"quality": 20, "restart_marker_rows": 1},
    ):
        data = encoded(Image.fromarray(photograph(*shape)).convert(mode), **options)
        assert _difference(decode_image(data, decoder=decoder), _pillow(data)) <= TOLERANCE, options


@every_decoder
@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_a_turned_picture_is_upright(decoder: str, orientation: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photograph(*ODD), form, exif=exif)
    assert _difference(decode_image(data, decoder=decoder), _pillow(data)) <= TOLERANCE
    small = decode_image(data, decoder=decoder, size=(20, 30))
    upright = decode_image(encoded(_pillow(data), "PNG"), decoder=decoder, size=(20, 30))
    assert _difference(small, upright) <= TOLERANCE


@every_decoder
def test_a_jpeg_that_fast_decoders_refuse_is_pillows_to_judge(decoder: str) -> None:
    data = encoded(photograph(*ODD))
    odd = data[:-2] + b"left over" + data[-2:]  # strict decoders refuse it, and it is whole
    fast = jpeg_decoder(decoder)
    if fast is not None:
        with pytest.raises(ValueError, match="extraneous bytes"):
            fast(odd, "RGB")
    assert _difference(decode_image(odd, decoder=decoder), _pillow(data)) <= TOLERANCE


@every_decoder
def test_a_jpeg_without_its_tables_is_not_decoded_with_those_of_another(decoder: str) -> None:
    data = encoded(photograph(*ODD))
    second = data.index(b"\xff\xdb", data.index(b"\xff\xdb") + 2)  # for colour
    broken = data[:second] + data[second + 2 + int.from_bytes(data[second + 2 : second + 4]) :]
    for _ in range(3):
        decode_image(encoded(photograph(*ODD), quality=30), decoder=decoder)
        with pytest.raises(ValueError, match="no whole image"):
            decode_image(broken, decoder=decoder)


GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(GREY, "PNG"), GREY),
        (encoded(Image.fromarray(GREY).convert("LA"), "PNG"), GREY),
        (encoded(Image.fromarray(GREY > 99), "PNG"), (GREY > 99) * 255),
        (encoded(GREY.astype(np.uint16) * 257, "PNG"), GREY),
        (encoded(GREY.astype(np.uint16) * 256 + 255, "TIFF"), GREY),
        (encoded(Image.fromarray(GREY.astype(np.int32) * 257), "TIFF"), GREY),
        (png16(np.repeat(GREY[..., None].astype(np.uint16), 4, 2) * 256 + 200), GREY),
        (b"P5 16 16 65535\n" + (GREY.astype(">u2") * 257).tobytes(), GREY),
        (b"P2 2 1 1000\n0 1000\n", np.array([[0, 255]])),
    ],
    ids=["L", "LA", "1", "16", "tif 16", "tif 32", "rgba 16", "pgm 16", "pgm text"],
)
def test_grey_becomes_three_equal_channels_of_its_high_byte(
    data: bytes, expected: NDArray[Any]
) -> None:
    image = decode_image(data)
    assert image.shape == (*expected.shape, 3)
    for channel in range(3):
        assert np.array_equal(image[..., channel], expected)


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)),
        Image.fromarray(np.full((4, 4), 1 << 20, dtype=np.int32)),
        Image.fromarray(np.full((4, 4), -1, dtype=np.int32)),
    ],
    ids=["float", "large", "negative"],
)
def test_samples_without_a_scale_are_an_error(image: Image.Image) -> None:
    with pytest.raises(ValueError, match="no scale"):
        decode_image(encoded(image, "TIFF"))


def test_transparency_is_dropped_whatever_its_kind() -> None:
    pixels = photograph(*ODD)
    image = Image.fromarray(pixels)
    clear = image.copy()
    clear.putalpha(0)
    assert np.array_equal(decode_image(encoded(clear, "PNG")), pixels)
    palette = image.quantize(64)
    colours = np.array(palette.convert("RGB"))
    for transparency in (3, bytes(64)):
        assert np.array_equal(
            decode_image(encoded(palette, "PNG", transparency=transparency)), colours
        )
    assert np.array_equal(decode_image(encoded(palette, "GIF", transparency=3)), colours)
    assert np.array_equal(decode_image(encoded(image, "PNG", transparency=(1, 2, 3))), pixels)


def test_of_an_animation_the_first_picture_is_taken() -> None:
    first, second = (Image.fromarray(photograph(*ODD, seed)).quantize(64) for seed in (1, 2))
    data = encoded(first, "GIF", save_all=True, append_images=[second])
    assert np.array_equal(decode_image(data), np.array(first.convert("RGB")))


@every_decoder
@pytest.mark.parametrize("size", [(224, 224), (50, 200), (300, 20), (700, 600), (1, 1)])
def test_a_size_is_covered_and_cropped_at_the_centre(decoder: str, size: tuple[int, int]) -> None:
    pixels = photograph(375, 500)
    image = decode_image(encoded(pixels, "PNG"), size=size, decoder=decoder)
    fitted = ImageOps.fit(Image.fromarray(pixels), size[::-1], Image.Resampling.BILINEAR)
    assert _difference(image, np.array(fitted)) <= 1


@every_decoder
@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_large_jpeg_is_made_smaller_while_it_is_decoded(decoder: str, scale: int) -> None:
    data = encoded(photograph(61 * scale, 83 * scale), quality=95, progressive=scale == 4)
    small = decode_image(data, size=(30, 30), decoder=decoder)
    assert _difference(small, decode_image(data, size=(30, 30), decoder="pillow")) <= TOLERANCE
    full = decode_image(encoded(decode_image(data), "PNG"), size=(30, 30))
    assert np.abs(small.astype(int) - full).mean() < 1.5


@pytest.mark.skipif(installed_decoders() == ("pillow",), reason="Pillow's memory is unseen")
def test_a_large_jpeg_never_takes_the_memory_of_all_its_pixels() -> None:
    data = encoded(photograph(600, 800))
    decode_image(data, size=(64, 64))
    tracemalloc.start()
    try:
        decode_image(data, size=(64, 64))
        assert tracemalloc.get_traced_memory()[1] < 600 * 800 * 3 / 4
    finally:
        tracemalloc.stop()


@every_decoder
@pytest.mark.parametrize("size", [None, (20, 30)])
def test_both_layouts_are_new_whole_arrays(decoder: str, size: tuple[int, int] | None) -> None:
    data = every_format(*ODD)["turned.jpg"]
    rows = decode_image(data, size=size, decoder=decoder)
    planes = decode_image(data, size=size, layout="CHW", decoder=decoder)
    assert np.array_equal(planes, rows.transpose(2, 0, 1))
    for array in (rows, planes):
        assert array.dtype == np.uint8
        assert array.flags.c_contiguous
        assert array.flags.writeable


@every_decoder
@every_picture
def test_a_truncated_file_is_never_another_picture(decoder: str, name: str) -> None:
    data = every_format(*ODD)[name]
    whole, pictures = decode_image(data, decoder=decoder), 0
    for stop in [*range(0, len(data) - 12, 37), *range(len(data) - 12, len(data))]:
        try:
            image = decode_image(data[:stop], decoder=decoder)
        except ValueError:
            continue
        pictures += 1
        assert np.array_equal(image, whole), stop
    # Behind the picture there may be a trailer: a check sum, tags.
    assert pictures == 0 if name.endswith(".jpg") else pictures <= 12


@every_decoder
@pytest.mark.parametrize(
    "name", [name for name in every_format(*ODD) if name.endswith((".jpg", ".png"))]
)
def test_a_truncated_file_is_read_as_far_as_it_goes_where_pillow_s_switch_is_on(
    monkeypatch: pytest.MonkeyPatch, decoder: str, name: str
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = every_format(*ODD)[name]
    assert (
        decode_image(data[:-40], decoder=decoder).shape == decode_image(data, decoder=decoder).shape
    )


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        *((data, "no image that|no whole") for data in (b"", b"\xff\xd8", b"GIF89a", b"x" * 99)),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no image that Pillow"),
        (encoded(photograph(120, 160))[:-1000] + bytes(1000), "before its end marker"),
        (flipped(encoded(photograph(*ODD), "PNG")), "no whole image"),
    ],
    ids=["empty", "start", "gif", "text", "program", "zeros", "flipped bit"],
)
def test_what_is_no_whole_image_is_an_error(data: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decode_image(data)


def test_a_decoder_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="decoder='opencv' is none of 'auto', 'leanjpeg-simple'"):
        decode_image(b"", decoder="opencv")
    _, told, complaint = run_child(
        "import sys; sys.modules['simplejpeg'] = sys.modules['leanjpeg_simple'] = None\n"
        "from threadloader.datasets._images.decode import decode_image, installed_decoders\n"
        "print(*installed_decoders())\n"
        "decode_image(b'', decoder='leanjpeg-simple')"
    )
    assert told == "pillow"
    assert "pip install leanjpeg-simple" in complaint


@pytest.mark.skipif(not FREE_THREADED, reason="on a build without a GIL")
def test_a_free_threaded_build_never_imports_what_switches_the_gil_on() -> None:
    with pytest.raises(ValueError, match="would switch the GIL back on: use leanjpeg-simple"):
        decode_image(b"", decoder="simplejpeg")
    assert "simplejpeg" not in sys.modules
    assert not sys._is_gil_enabled()


def test_without_pillow_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['PIL'] = None; import threadloader.datasets\n"
    assert run_child(code)[0] == 0
    _, _, complaint = run_child(f"{code}import threadloader.datasets._images.decode")
    assert "ModuleNotFoundError" in complaint
    assert "pip install pillow (extra: images)" in complaint


@every_decoder
def test_threads_decode_as_one_does(decoder: str) -> None:
    files = [*every_format(*ODD).values()] * 8
    broken = encoded(photograph(*ODD))[:-40]

    def both(data: bytes) -> NDArray[np.uint8]:
        with pytest.raises(ValueError, match="no whole image"):
            decode_image(broken, decoder=decoder)
        return decode_image(data, decoder=decoder)

    expected = [decode_image(data, decoder=decoder) for data in files]
    with ThreadPoolExecutor(4) as pool:
        for image, one in zip(pool.map(both, files), expected, strict=True):
            assert np.array_equal(image, one)
