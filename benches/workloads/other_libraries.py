"""Datasets of the libraries that people load with, made small, and their loaders' arguments.

Each makes its data when it is asked for: some hundred samples.  One whose library is not installed
raises `ImportError`.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["PACKAGES", "WORKLOADS", "Workload"]

PACKAGES = (
    *("pillow", "torchvision", "opencv-python-headless", "albumentations", "monai", "h5py", "lmdb"),
    *("pyarrow", "pandas", "duckdb", "soundfile", "tifffile", "rasterio", "av", "tokenizers"),
    *("transformers", "datasets", "torch-geometric", "tensordict", "timm", "kornia", "librosa"),
    *("torchaudio", "nibabel", "zarr", "polars", "speechbrain"),
)
SIZE = 400
PIXELS = np.random.default_rng(0).integers(256, size=(8, 32, 32, 3), dtype=np.uint8)


class Workload(NamedTuple):
    """What a loader is given."""

    dataset: Any
    arguments: dict[str, Any]


class Samples:
    """Sample ``i`` is what ``make`` returns for it."""

    def __init__(self, make: Callable[[int], Any], size: int = SIZE) -> None:
        self.make = make
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index % SIZE)


def _loaded(make: Callable[[int], Any], **arguments: Any) -> Workload:
    return Workload(Samples(make), {"batch_size": 16, "shuffle": True} | arguments)


def _jpegs(size: int) -> list[bytes]:
    """Return photos of some ``size`` by ``size`` pixels, as JPEG."""
    from PIL import Image

    photos = []
    for pixels in PIXELS:
        stream = io.BytesIO()
        Image.fromarray(pixels).resize((size, size)).save(stream, "JPEG", quality=90)
        photos.append(stream.getvalue())
    return photos


def pillow_torchvision_v1(_: Path) -> Workload:
    from PIL import Image
    from torchvision import transforms

    photos = _jpegs(128)
    change = transforms.Compose(
        [
            transforms.RandomResizedCrop(64),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )
    return _loaded(lambda i: change(Image.open(io.BytesIO(photos[i % 8])).convert("RGB")))


def torchvision_v2(_: Path) -> Workload:
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms import v2

    photos = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in _jpegs(128)]
    change = v2.Compose(
        [v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    )
    return _loaded(lambda i: change(decode_jpeg(photos[i % 8])))


def opencv(_: Path) -> Workload:
    import cv2

    photos = [np.frombuffer(each, np.uint8) for each in _jpegs(256)]
    return _loaded(lambda i: cv2.resize(cv2.imdecode(photos[i % 8], 1), (64, 64)))


def albumentations(_: Path) -> Workload:
    import albumentations
    import cv2

    cv2.setNumThreads(1)
    photos = np.repeat(np.repeat(PIXELS, 4, 1), 4, 2)
    crop = albumentations.RandomResizedCrop((64, 64))
    change = albumentations.Compose(
        [crop, albumentations.HorizontalFlip(), albumentations.Normalize()]
    )
    return _loaded(lambda i: change(image=photos[i % 8])["image"])


def timm_rand_augment(_: Path) -> Workload:
    from PIL import Image
    from timm.data import create_transform

    photos = [Image.fromarray(pixels).resize((96, 96)) for pixels in PIXELS]
    change = create_transform(64, is_training=True, auto_augment="rand-m9-mstd0.5")
    return _loaded(lambda i: change(photos[i % 8]))


def kornia(_: Path) -> Workload:
    import torch
    from kornia import augmentation

    photos = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255
    change = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(), augmentation.ColorJitter(0.2, 0.2, 0.2, 0.2)
    )
    return _loaded(lambda i: change(photos[i % 8]))


def torchaudio_mel(_: Path) -> Workload:
    import torch
    import torchaudio

    sound = torch.sin(torch.arange(32_000) / 20)
    change = torchaudio.transforms.MelSpectrogram(16_000, n_mels=64)
    return _loaded(lambda i: change(sound * (i % 8 + 1)))


def librosa(_: Path) -> Workload:
    import librosa

    sound = np.sin(np.arange(16_000, dtype=np.float32) / 20)
    return _loaded(lambda i: librosa.feature.mfcc(y=sound * (i % 8 + 1), sr=16_000))


def nibabel(folder: Path) -> Workload:
    import nibabel

    volume = np.repeat(PIXELS[..., 0].transpose(1, 2, 0), 4, 2).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / "it.nii.gz")
    return _loaded(lambda i: np.asarray(nibabel.load(folder / "it.nii.gz").dataobj[..., i % 32]))


def monai(_: Path) -> Workload:
    from monai.transforms import Compose, RandFlip, RandGaussianNoise, ScaleIntensity

    volumes = np.random.default_rng(0).random((8, 1, 24, 24, 24), np.float32)
    change = Compose([ScaleIntensity(), RandFlip(0.5, 0), RandGaussianNoise(0.5)])
    return _loaded(lambda i: change(volumes[i % 8]), batch_size=4)


def h5py(folder: Path) -> Workload:
    import h5py

    with h5py.File(folder / "it.h5", "w") as file:
        file.create_dataset(
            "x", data=np.tile(PIXELS, (50, 1, 1, 1)), chunks=(1, 32, 32, 3), compression="gzip"
        )
    rows = h5py.File(folder / "it.h5")["x"]
    return _loaded(lambda i: rows[i])


def zarr(folder: Path) -> Workload:
    import zarr

    rows = zarr.create_array(
        str(folder / "it.zarr"), shape=(SIZE, 32, 32, 3), chunks=(1, 32, 32, 3), dtype="u1"
    )
    rows[:] = np.tile(PIXELS, (SIZE // 8, 1, 1, 1))
    opened = zarr.open_array(str(folder / "it.zarr"), mode="r")
    return _loaded(lambda i: opened[i])


def sqlite(folder: Path) -> Workload:
    import sqlite3

    path = folder / "it.db"
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, pixels BLOB)")
        rows = ((number, PIXELS[number % 8].tobytes()) for number in range(SIZE))
        writer.executemany("INSERT INTO rows VALUES (?, ?)", rows)
    writer.close()

    def read(index: int) -> Any:  # as the module asks: a thread opens what it reads from
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found = connection.execute("SELECT pixels FROM rows WHERE id = ?", [index])
            return np.frombuffer(found.fetchone()[0], np.uint8).copy()

    return _loaded(read)


def lmdb(folder: Path) -> Workload:
    import lmdb

    path = str(folder / "it.lmdb")
    with lmdb.open(path, map_size=1 << 26) as writer, writer.begin(write=True) as transaction:
        for number in range(SIZE):
            transaction.put(b"%03d" % number, PIXELS[number % 8].tobytes())
    environment = lmdb.open(path, readonly=True, lock=False)  # forked workers may use it

    def read(index: int) -> Any:
        with environment.begin(buffers=True) as transaction:
            return np.frombuffer(transaction.get(b"%03d" % index) or b"", np.uint8).copy()

    return _loaded(read)


def parquet(folder: Path) -> Workload:
    import pyarrow as pa
    from pyarrow import parquet as files

    table = pa.table({"x": np.arange(100 * SIZE), "y": np.random.default_rng(0).random(100 * SIZE)})
    files.write_table(table, folder / "it.parquet", row_group_size=100)
    file = files.ParquetFile(folder / "it.parquet")
    return _loaded(lambda i: file.read_row_group(i)["y"].to_numpy())


def pandas(_: Path) -> Workload:
    import pandas as pd

    frame = pd.DataFrame(np.random.default_rng(0).random((SIZE, 16), np.float32))
    return _loaded(lambda i: frame.iloc[i].to_numpy())


def polars(_: Path) -> Workload:
    import polars as pl

    frame = pl.DataFrame(np.random.default_rng(0).random((SIZE, 16), np.float32))
    return _loaded(lambda i: np.array(frame.row(i), np.float32))


def duckdb(_: Path) -> Workload:
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("CREATE TABLE rows AS SELECT range AS a, range * 0.5 AS b FROM range(400)")
    query = "SELECT a, b::DOUBLE FROM rows WHERE a = ?"
    return _loaded(lambda i: connection.execute(query, [i]).fetchone())


def soundfile(folder: Path) -> Workload:
    import soundfile

    sound = np.sin(np.arange(32_000) / 20)
    for number in range(8):
        soundfile.write(folder / f"{number}.flac", sound, 16_000)
    return _loaded(lambda i: soundfile.read(folder / f"{i % 8}.flac", dtype="float32")[0])


def tifffile(folder: Path) -> Workload:
    import tifffile

    for number, pixels in enumerate(PIXELS):
        tifffile.imwrite(folder / f"{number}.tif", np.tile(pixels, (4, 4, 1)), compression="zlib")
    return _loaded(lambda i: tifffile.imread(folder / f"{i % 8}.tif"))


def rasterio(folder: Path) -> Workload:
    import rasterio

    profile = {"width": 256, "height": 256, "count": 3, "dtype": "uint8", "compress": "deflate"}
    with rasterio.open(folder / "it.tif", "w", driver="GTiff", tiled=True, **profile) as file:
        file.write(np.tile(PIXELS[0], (8, 8, 1)).transpose(2, 0, 1))
    opened = rasterio.open(folder / "it.tif")
    return _loaded(lambda i: opened.read(window=((i % 128, i % 128 + 64), (0, 64))))


def video(folder: Path) -> Workload:
    import av

    with av.open(str(folder / "it.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = 128, 96
        for number in range(64):
            frame = av.VideoFrame.from_ndarray(np.full((96, 128, 3), 3 * number, np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())

    def read(index: int) -> Any:
        with av.open(str(folder / "it.mp4")) as container:
            frames = container.decode(video=0)
            return [next(frames).to_ndarray(format="rgb24") for _ in range(1 + index % 8)][-1]

    return _loaded(read, batch_size=4)


def _texts() -> tuple[Any, list[str]]:
    """Return a fast tokenizer, and texts of 5 to 64 words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["[PAD]", "[UNK]", "[MASK]"]
    words = [*special, *(f"w{number}" for number in range(3000))]
    ids = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, unk_token=special[1]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "mask_token"), special, strict=True))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)
    texts = [
        " ".join(f"w{(i * 7 + k) % 2900}" for k in range(5 + i * 13 % 60)) for i in range(SIZE)
    ]
    return tokenizer, texts


def tokenizer_in_samples(_: Path) -> Workload:
    tokenizer, texts = _texts()
    options = {"padding": "max_length", "truncation": True, "max_length": 32}
    return _loaded(lambda i: np.array(tokenizer(texts[i], **options)["input_ids"]))


def _collated(name: str, **options: Any) -> Workload:
    import transformers

    tokenizer, texts = _texts()
    rows = [dict(tokenizer(text)) for text in texts]
    collator = getattr(transformers, name)(tokenizer, **options)
    return _loaded(rows.__getitem__, collate_fn=collator)


def padding_collator(_: Path) -> Workload:
    return _collated("DataCollatorWithPadding")


def masking_collator(_: Path) -> Workload:
    return _collated("DataCollatorForLanguageModeling", mlm=True)


def _hub_rows() -> Any:
    import datasets

    return datasets.Dataset.from_dict(
        {"x": [[i, i + 0.5, i * 2.0] for i in range(SIZE)], "y": list(range(SIZE))}
    )


def speechbrain(_: Path) -> Workload:
    import torch
    from speechbrain.dataio.batch import PaddedBatch
    from speechbrain.dataio.dataset import DynamicItemDataset

    sounds = [torch.randn(4000 + 500 * number) for number in range(8)]
    rows = DynamicItemDataset({str(number): {"number": number} for number in range(SIZE)})
    rows.add_dynamic_item(lambda i: sounds[i % 8] * 0.5, takes="number", provides="sound")
    rows.set_output_keys(["id", "sound"])
    return Workload(rows, {"batch_size": 16, "shuffle": True, "collate_fn": PaddedBatch})


def hugging_face_rows(_: Path) -> Workload:
    return Workload(_hub_rows().with_format("torch"), {"batch_size": 16, "shuffle": True})


def hugging_face_images(_: Path) -> Workload:
    import datasets
    import torch

    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": each, "path": None} for each in _jpegs(64) * 50]},
        datasets.Features({"image": datasets.Image()}),
    )

    def changed(batch: Any) -> Any:
        made = [torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in batch["image"]]
        return {"pixels": made}

    return Workload(rows.with_transform(changed), {"batch_size": 16, "shuffle": True})


def hugging_face_stream(_: Path) -> Workload:
    return Workload(
        _hub_rows().to_iterable_dataset(num_shards=4).with_format("torch"), {"batch_size": 16}
    )


def graphs(_: Path) -> Workload:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader.dataloader import Collater

    made = [
        Data(
            x=torch.full((i % 5 + 2, 3), float(i)),
            edge_index=torch.zeros(2, 6).long(),
            y=torch.tensor([i]),
        )
        for i in range(SIZE)
    ]
    return Workload(made, {"batch_size": 16, "shuffle": True, "collate_fn": Collater(made)})


def tensordict_rows(_: Path) -> Workload:
    import torch
    from tensordict import TensorDict

    rows = TensorDict({"x": torch.rand(SIZE, 16), "y": torch.arange(SIZE)}, [SIZE])
    return Workload(rows, {"batch_size": 16, "shuffle": True, "collate_fn": _itself})


def _itself(batch: Any) -> Any:
    return batch


def tensor_rows(_: Path) -> Workload:
    import torch
    from torch.utils.data import TensorDataset

    rows = TensorDataset(torch.rand(50 * SIZE, 16), torch.arange(50 * SIZE))
    return Workload(rows, {"batch_size": 64, "shuffle": True})


WORKLOADS: dict[str, Callable[[Path], Workload]] = {
    name.replace("_", " "): made
    for name, made in list(globals().items())
    if name.islower() and name[0] != "_" and getattr(made, "__module__", "") == __name__
}
