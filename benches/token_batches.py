"""Padding and balance of batches by cost, of packed rows, and how long it takes to go on.

``python -m benches.token_batches``

Nothing is loaded: each way only says which samples make a batch.  Samples are rounded to lengths of
three kinds of data.  Ranks take batches in turn, and a step takes as long as its most expensive
batch: `useful` is the share of that time, over all ranks, that is not padding and not waiting;
once if time follows the padded tokens, and once with attention, which grows with their square.
Those that are installed are measured themselves (transformers, Grain); the others are written here
after their documentation.  Packing is measured as it is used, arrays included.
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import json
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.tables import align, machine_lines
from threadloader import TokenBatches, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    Lengths = NDArray[Any]
    Batches = list[list[int]]

SAMPLES = 100_000
PACKED = 20_000
RANKS = (2, 4, 8)
ACCUMULATED = 4  # steps of transformers' batch_rebalance
BUFFER = 1000  # samples, torchdata's default
HUGE = 10**8
MICRO, MILLI = 1e6, 1e3
OUTPUT = Path(__file__).parent / "results" / "token_batches.json"


def main() -> int:
    """Measure, print and write; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.token_batches", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--samples", type=int, default=SAMPLES, help="that are batched")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    machine = describe()
    print(machine_lines([(python_label(), machine)]))
    batching = {
        name: batching_of(lengths, max_tokens, options.rounds)
        for name, (lengths, max_tokens) in workloads(options.samples).items()
    }
    packing = {
        name: packing_of(np.ceil(lengths).astype(np.int64), options.rounds)
        for name, (lengths, _) in workloads(PACKED).items()
        if name != "speech"
    }
    resuming = resume_times(options.rounds)
    _print("batches", batching)
    _print("rows of 2048", packing)
    _print("going on", {"": resuming})
    told = {
        "machine": machine,
        "samples": options.samples,
        "batching": batching,
        "packing": packing,
        "resuming": resuming,
    }
    options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def workloads(samples: int) -> dict[str, tuple[Lengths, int]]:
    """Return lengths, and what a batch may cost.

    Source: instructions as in the benchmark of transformers' pull request 47340; speech has the
    mean of LibriSpeech's 960.9 hours in 281,241 utterances, 12.3 s, most of them near 15 s.
    """
    rng = np.random.default_rng(17)
    instructions = np.clip(rng.lognormal(5, 1, samples), 16, 1024).astype(np.int32)
    short, long = rng.normal(120, 30, samples), rng.normal(1200, 250, samples)
    mixed = np.clip(np.where(rng.random(samples) < 0.8, short, long), 8, 2048).astype(np.int32)
    most, few = rng.normal(14.8, 0.8, samples), rng.uniform(1.5, 14, samples)
    speech = np.clip(np.where(rng.random(samples) < 0.65, most, few), 1.5, 24.5)
    return {
        "instructions": (instructions, 8192),
        "short and long": (mixed, 16_384),
        "speech": (speech.astype(np.float32), 240),
    }


# Batches by cost.


def batching_of(lengths: Lengths, max_tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of each way."""
    rows = max(1, round(max_tokens / float(lengths.mean())))
    ways: dict[str, Callable[[int], Batches]] = {
        "a fixed number, shuffled": lambda _: _fixed(lengths, rows),
        "fairseq: sorted, 8 n rows": lambda _: _fairseq(lengths, max_tokens, 8),
        "fairseq: sorted, any rows": lambda _: _fairseq(lengths, max_tokens, 1),
        "torchdata: bucketbatch": lambda _: _bucketbatch(lengths, rows),
        "torchdata: max_token_bucketize": lambda _: _bucketize(lengths, max_tokens),
        "TokenBatches": lambda _: _ours(lengths, max_tokens),
        "TokenBatches, group_size=1": lambda _: _ours(lengths, max_tokens, group_size=1),
    }
    if importlib.util.find_spec("transformers"):
        ways["transformers: group_by_length"] = lambda _: _grouped(lengths, rows)
        ways["transformers: batch_rebalance"] = lambda ranks: _rebalanced(lengths, rows, ranks)
    return {name: _figures(way, lengths, max_tokens, rounds) for name, way in sorted(ways.items())}


def _figures(
    way: Callable[[int], Batches], lengths: Lengths, max_tokens: int, rounds: int
) -> dict[str, float]:
    """Return what a way costs and wastes.

    Args:
        way: Returns, for a number of ranks, the batches of all, in turn.
        lengths: Of the samples.
        max_tokens: What a batch should cost.
        rounds: The least time of so many is kept.
    """
    found: dict[str, float] = {}
    seconds, told = [], lengths.astype(np.float64)
    attention = 1 / told.max()  # for the longest sample it takes as long as all else
    for ranks in RANKS * rounds:
        start = time.thread_time()
        batches = way(ranks)
        seconds.append((time.thread_time() - start) / len(batches))
        batches = batches[: len(batches) // ranks * ranks]
        rows = np.array([len(batch) for batch in batches])
        longest = np.array([told[batch].max() for batch in batches])
        real = np.array([told[batch].sum() for batch in batches])
        squares = np.array([(told[batch] ** 2).sum() for batch in batches])
        cost, steps = rows * longest, (rows * longest).reshape(-1, ranks)
        slowest = (cost * (1 + attention * longest)).reshape(-1, ranks).max(1)
        found["padding"] = float(1 - real.sum() / cost.sum())
        found["largest batch"] = float(cost.max() / max_tokens)
        found[f"max/mean, {ranks} ranks"] = float((steps.max(1) / steps.mean(1)).mean())
        found[f"useful, {ranks} ranks"] = float(real.sum() / (steps.max(1).sum() * ranks))
        found[f"with attention, {ranks} ranks"] = float(
            (real + attention * squares).sum() / (slowest.sum() * ranks)
        )
    found["us a batch"] = min(seconds) * MICRO
    return found


def _fixed(lengths: Lengths, rows: int) -> Batches:
    order = np.random.default_rng(0).permutation(len(lengths)).tolist()
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def _fairseq(lengths: Lengths, max_tokens: int, multiple: int) -> Batches:
    """Return batches of the sorted dataset, in a random order.

    Source: ``ordered_indices`` and ``batch_by_size`` of fairseq; ``required_batch_size_multiple``
    is 8 by default.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    batches: Batches = []
    batch: list[int] = []
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if batch and (len(batch) + 1) * length > max_tokens:
            kept = max(multiple * (len(batch) // multiple), len(batch) % multiple)
            batches.append(batch[:kept])
            batch = batch[kept:]
        batch.append(index)
    batches.append(batch)
    return [batches[place] for place in rng.permutation(len(batches)).tolist()]


def _bucketbatch(lengths: Lengths, rows: int) -> Batches:
    """Return batches of one size, of a hundred batches' samples sorted.

    Source: ``bucketbatch`` of torchdata 0.9, with its defaults and a key to sort by.
    """
    order = np.random.default_rng(0).permutation(len(lengths)).tolist()
    told = lengths.tolist()
    buckets = _cut(order, 100 * rows)
    return [
        batch for bucket in buckets for batch in _cut(sorted(bucket, key=told.__getitem__), rows)
    ]


def _bucketize(lengths: Lengths, max_tokens: int) -> Batches:
    """Return batches of what is shortest in a buffer, one sample at a time.

    Source: ``max_token_bucketize`` of torchdata 0.9, with ``include_padding=True``.  While samples
    come, one short one comes for each that goes, so that the buffer keeps the long ones.
    """
    order = np.random.default_rng(0).permutation(len(lengths)).tolist()
    told = lengths.tolist()
    buffer: list[tuple[float, int]] = []
    batches: Batches = [[]]
    longest = 0.0

    def take() -> None:
        nonlocal longest
        length, index = heapq.heappop(buffer)
        longest = max(longest, length)
        if longest * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
            longest = length
        batches[-1].append(index)

    for index in order:
        heapq.heappush(buffer, (told[index], index))
        if len(buffer) == BUFFER:
            take()
    while buffer:
        take()
    return batches


def _ours(lengths: Lengths, max_tokens: int, **options: Any) -> Batches:
    return list(TokenBatches(lengths, max_tokens, **options))


def _grouped(lengths: Lengths, rows: int) -> Batches:
    """Return the batches that ranks take in turn, as `accelerate` gives them out."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    return _cut(LengthGroupedSampler(rows, lengths=lengths.tolist()), rows)


def _rebalanced(lengths: Lengths, rows: int, ranks: int) -> Batches:
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    told, size = lengths.tolist(), rows * ranks * ACCUMULATED
    of_ranks = [
        list(BatchRebalanceSampler(told, size, ranks, ACCUMULATED, rank=rank))
        for rank in range(ranks)
    ]
    return [batch for step in zip(*of_ranks, strict=True) for batch in step]


def _cut(indices: Iterable[int], rows: int) -> Batches:
    order = list(indices)
    return [order[start : start + rows] for start in range(0, len(order), rows)]


# Rows of packed sequences.


def packing_of(lengths: Lengths, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of each way."""
    ends = np.cumsum(lengths)
    tokens = np.arange(1, ends[-1] + 1, dtype=np.int32)
    samples = np.split(tokens, ends[:-1])
    length = 2048
    ways: dict[str, Callable[[], int]] = {
        f"pack, window={window}": _packed(samples, length, window) for window in (8, 32, 128)
    }
    ways["one row at a time (torchtune)"] = lambda: _next_fit(lengths.tolist(), length)
    ways["best fit decreasing (TRL), 1000 samples"] = lambda: _decreasing(lengths.tolist(), length)
    if importlib.util.find_spec("grain"):
        ways |= {f"Grain first fit, {bins} bins": _grain(samples, length, bins) for bins in (8, 32)}
    found = {}
    for name, way in sorted(ways.items()):
        rows, seconds = 0, []
        for _ in range(rounds):
            start = time.process_time()
            rows = way()
            seconds.append(time.process_time() - start)
        figures = {"padding": float(1 - lengths.sum() / (rows * length))}
        if "(" not in name:  # these make no arrays here
            figures["us a sample"] = min(seconds) / len(lengths) * MICRO
        found[name] = figures
    return found


def _packed(samples: list[Lengths], length: int, window: int) -> Callable[[], int]:
    return lambda: sum(1 for _ in pack(samples, length, window=window))


def _grain(samples: list[Lengths], length: int, bins: int) -> Callable[[], int]:
    import grain

    def run() -> int:
        source = grain.MapDataset.source([{"input_ids": one} for one in samples]).to_iter_dataset()
        packed = grain.experimental.FirstFitPackIterDataset(
            source, length_struct={"input_ids": length}, num_packing_bins=bins
        )
        return sum(1 for _ in packed)

    return run


def _next_fit(lengths: list[int], length: int) -> int:
    """Return the rows if each is closed by the first sample that has no room in it."""
    rows, room = 1, length
    for size in lengths:
        if size > room:
            rows, room = rows + 1, length
        room -= size
    return rows


def _decreasing(lengths: list[int], length: int) -> int:
    """Return the rows if samples of each 1000 are put, longest first, where least room is left.

    Source: ``pack_dataset(strategy="bfd")`` of TRL, which `datasets` maps over 1000 samples.
    """
    rows = 0
    for start in range(0, len(lengths), 1000):
        rooms: list[int] = []
        for size in sorted(lengths[start : start + 1000], reverse=True):
            best = min(
                (at for at, room in enumerate(rooms) if room >= size),
                key=rooms.__getitem__,
                default=None,
            )
            if best is None:
                rooms.append(length - size)
            else:
                rooms[best] -= size
        rows += len(rooms)
    return rows


# Going on.


def resume_times(rounds: int) -> dict[str, dict[str, float]]:
    """Return the time from the constructor to a batch in the middle, and the bytes of a state."""
    found = {}
    for samples in (10**6, HUGE):
        seconds, size = [], 0
        lengths = _lengths_of(samples)
        for number in range(rounds):
            start = time.perf_counter()
            sampler = TokenBatches(lengths, 8192)
            begun: Any = iter(sampler)
            pool = samples // (1 << 16) + number  # within the first half
            state = begun.state_dict() | {"pool": pool, "batch": 100}
            begun.load_state_dict(state)
            next(begun)
            seconds.append(time.perf_counter() - start)
            size = len(json.dumps(begun.state_dict()))
        found[f"TokenBatches, {samples:,} samples"] = {
            "ms": min(seconds) * MILLI,
            "bytes": float(size),
        }
    if importlib.util.find_spec("transformers"):
        from transformers.trainer_pt_utils import LengthGroupedSampler

        told = workloads(10**6)["instructions"][0].tolist()
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            deque(iter(LengthGroupedSampler(50, lengths=told)), maxlen=0)
            seconds.append(time.perf_counter() - start)
        found["transformers: group_by_length, 1,000,000 samples"] = {"ms": min(seconds) * MILLI}
    found["state_dict() after a batch"] = {"us": _state_cost()}
    return found


def _lengths_of(samples: int) -> NDArray[np.uint16]:
    """Return lengths from 16 to 271."""
    return np.random.default_rng(0).integers(16, 272, samples, np.uint16)


def _state_cost() -> float:
    begun: Any = iter(TokenBatches(_lengths_of(10**6), 8192))
    next(begun)
    start = time.thread_time()
    for _ in range(20_000):
        begun.state_dict()
    return (time.thread_time() - start) / 20_000 * MICRO


def _print(title: str, tables: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    for name, found in tables.items():
        header = list(dict.fromkeys(figure for figures in found.values() for figure in figures))
        rows = [[way, *_cells(figures, header)] for way, figures in found.items()]
        print(f"\n{title}: {name}\n{align(['', *header], rows)}")


def _cells(figures: Mapping[str, float], header: Iterable[str]) -> Iterator[str]:
    for name in header:
        value = figures.get(name)
        yield "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    raise SystemExit(main())
