"""Padding and balance of batches by cost, next to other ways to make batches of texts.

``python -m benches.token_batches``

Nothing is loaded: each way only says which samples make a batch.  Lengths are drawn from two kinds
of data.  Ranks take batches in turn, and a step takes as long as its most expensive batch:
``useful`` is the share of that time, over all ranks, that is not padding and not waiting; once if
time follows the padded tokens, and once with attention, which grows with their square.  Those of
transformers are measured themselves, where it is installed; fairseq's is written here after its
documentation.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness import blocks
from benches.harness.asking import ROOT
from benches.harness.command import command_line, write
from benches.harness.machine import describe, machine_lines
from threadloader import TokenBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Lengths = NDArray[Any]
    Batches = list[list[int]]

SAMPLES, RANKS = 100_000, 8
ACCUMULATED = 4  # steps of transformers' batch_rebalance
RESULTS = ROOT / "benches" / "results" / "token_batches.json"


def main() -> int:
    """Measure, print and write; return the exit code."""
    parser = command_line("token_batches", __doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(machine_lines())
    batching = {
        name: {way: figures_of(make, *data, rounds) for way, make in _ways(*data).items()}
        for name, data in _kinds().items()
    }
    told = {"machine": describe(), "samples": SAMPLES, "batching": batching}
    print(blocks.batching(told))
    write(RESULTS, told)
    return 0


def _kinds() -> dict[str, tuple[Lengths, int]]:
    """Return lengths, and what a batch may cost.

    Source: instructions as in the benchmark of transformers' pull request 47340; speech has the
    mean of LibriSpeech's 960.9 hours in 281,241 utterances, 12.3 s, most of them near 15 s.
    """
    rng = np.random.default_rng(17)
    instructions = np.clip(rng.lognormal(5, 1, SAMPLES), 16, 1024).astype(np.int32)
    most, few = rng.normal(14.8, 0.8, SAMPLES), rng.uniform(1.5, 14, SAMPLES)
    speech = np.clip(np.where(rng.random(SAMPLES) < 0.65, most, few), 1.5, 24.5)
    return {"instructions": (instructions, 8192), "speech": (speech.astype(np.float32), 240)}


def _ways(lengths: Lengths, max_tokens: int) -> dict[str, Callable[[], Batches]]:
    """Return what makes the batches of all ranks, in turn."""
    rows = max(1, round(max_tokens / float(lengths.mean())))
    shuffled = np.random.default_rng(0).permutation(len(lengths))
    ways: dict[str, Callable[[], Batches]] = {
        "a fixed number, shuffled": lambda: _cut(shuffled.tolist(), rows),
        "fairseq: sorted, any rows": lambda: _fairseq(lengths, max_tokens),
        "TokenBatches": lambda: list(TokenBatches(lengths, max_tokens)),
        "TokenBatches, group_size=1": lambda: list(TokenBatches(lengths, max_tokens, group_size=1)),
    }
    if importlib.util.find_spec("transformers"):
        ways["transformers: group_by_length"] = lambda: _grouped(lengths, rows)
        ways["transformers: batch_rebalance"] = lambda: _rebalanced(lengths, rows)
    return ways


def figures_of(
    make: Callable[[], Batches], lengths: Lengths, max_tokens: int, rounds: int
) -> dict[str, float]:
    """Return what a way costs and wastes.

    Args:
        make: Returns the batches of all ranks, in turn.
        lengths: Of the samples.
        max_tokens: What a batch should cost.
        rounds: The least time of so many is kept.
    """
    seconds, batches = [], list[list[int]]()
    for _ in range(rounds):
        start = time.thread_time()
        batches = make()
        seconds.append((time.thread_time() - start) / len(batches))
    batches = batches[: len(batches) // RANKS * RANKS]
    told = lengths.astype(np.float64)
    attention = 1 / told.max()  # for the longest sample it takes as long as all else
    longest = np.array([told[batch].max() for batch in batches])
    real = np.array([told[batch].sum() for batch in batches])
    squares = np.array([(told[batch] ** 2).sum() for batch in batches])
    cost = longest * [len(batch) for batch in batches]
    return {
        "padding": float(1 - real.sum() / cost.sum()),
        "largest batch": float(cost.max() / max_tokens),
        "useful, 8 ranks": _useful(real, cost),
        "with attention, 8 ranks": _useful(
            real + attention * squares, cost * (1 + attention * longest)
        ),
        "us a batch": min(seconds) * 1e6,
    }


def _useful(real: NDArray[Any], cost: NDArray[Any]) -> float:
    """Return the share of all ranks' time that is needed; the slowest batch decides on a step."""
    return float(real.sum() / (cost.reshape(-1, RANKS).max(1).sum() * RANKS))


def _fairseq(lengths: Lengths, max_tokens: int) -> Batches:
    """Return batches of the sorted dataset, in a random order.

    Source: ``ordered_indices`` and ``batch_by_size`` of fairseq, with
    ``required_batch_size_multiple=1``.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    batches: Batches = [[]]
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if batches[-1] and (len(batches[-1]) + 1) * length > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return [batches[place] for place in rng.permutation(len(batches)).tolist()]


def _grouped(lengths: Lengths, rows: int) -> Batches:
    """Return the batches that ranks take in turn, as `accelerate` gives them out."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    return _cut(LengthGroupedSampler(rows, lengths=lengths.tolist()), rows)


def _rebalanced(lengths: Lengths, rows: int) -> Batches:
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    told, size = lengths.tolist(), rows * RANKS * ACCUMULATED
    of_ranks = [
        list(BatchRebalanceSampler(told, size, RANKS, ACCUMULATED, rank=rank))
        for rank in range(RANKS)
    ]
    return [batch for step in zip(*of_ranks, strict=True) for batch in step]


def _cut(indices: Iterable[int], rows: int) -> Batches:
    order = list(indices)
    return [order[start : start + rows] for start in range(0, len(order), rows)]


if __name__ == "__main__":
    raise SystemExit(main())
