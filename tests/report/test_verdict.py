"""The verdict on figures that are made up: each kind, its figure and its advice."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from threadloader._report.interval import Interval
from threadloader._report.verdict import Setup, Verdict, verdict_of

DOCS = Path(__file__).parents[2] / "docs" / "observing.md"

# Four cores, and four threads that the user chose.
GIL = Setup(cores=4, gil=True, running=4, most=4, tuned=False)
NO_GIL = GIL._replace(gil=False)
# The number of threads is found while the loop runs.
TUNED = GIL._replace(tuned=True, most=256)
ALONE = GIL._replace(running=0, most=0)
FIRST = GIL._replace(first=True)

# Ten seconds in which a loop waited for six, and four threads were busy with fetching.
SLOW = Interval(
    seconds=10.0,
    threads=4,
    process_seconds=38.0,
    samples=1000,
    fetch_seconds=38.0,
    write_seconds=1.0,
    timed_seconds=1.0,
    timed_cpu_seconds=0.95,
    batches=100,
    nbytes=1000 * 1000,
    loading_seconds=6.01,
    wait_seconds=6.0,
    late_seconds=0.001,
    waits=100,
)


def changed(
    fetch: float = 38.0, write: float = 1.0, collate: float = 0.0, copy: float = 0.0, **fields: Any
) -> Interval:
    """Return the figures above with other ones, and other seconds in the stages."""
    if "delay" in fields:
        fields |= {"watched_seconds": 1.0, "watched_delay_seconds": fields.pop("delay")}
    if "cpu" in fields:
        fields["timed_cpu_seconds"] = fields.pop("cpu")
    stages = {"fetch_seconds": fetch, "write_seconds": write, "copy_seconds": copy}
    return replace(SLOW, collate_seconds=collate, **stages, **fields)


ONE_THREAD = changed(9.5, 0.1)
IN_PROCESS = changed(5.9, 0.1, wait_seconds=0.0, inline_seconds=6.0)
READING = changed(cpu=0.01)
# Batches of 10 samples that the calling thread made in 20 us each; nearly all the loop does.
CHEAP = changed(
    0.5,
    0.1,
    seconds=1.0,
    batches=30_000,
    samples=300_000,
    loading_seconds=0.8,
    wait_seconds=0.0,
    inline_seconds=0.6,
    waits=0,
    late_seconds=0.0,
)

CASES: dict[str, tuple[Interval, Setup, str]] = {
    "the loop is slower": (changed(loading_seconds=0.3, wait_seconds=0.3), GIL, "consumer-bound"),
    "decoding": (SLOW, GIL, "cpu-bound"),
    "decoding on a busy machine": (
        changed(cpu=0.4, delay=0.55, late_seconds=0.5),
        GIL,
        "cpu-bound",
    ),
    "decoding without threads": (IN_PROCESS, ALONE, "cpu-bound"),
    "cheap samples in the calling thread": (CHEAP, TUNED._replace(running=2), "cpu-bound"),
    "reading": (READING, GIL, "waiting"),
    "reading for the first time": (changed(cpu=0.01, read_nbytes=9_000_000), FIRST, "cold-cache"),
    "reading the program for the first time": (
        changed(cpu=0.01, read_nbytes=900_000),
        FIRST,
        "waiting",
    ),
    "a lock without GIL": (changed(cpu=0.25, late_seconds=0.5), NO_GIL, "waiting"),
    "data loaded in each epoch": (changed(first_use_seconds=30.0), GIL, "start-bound"),
    "data loaded in the first epoch": (changed(first_use_seconds=30.0), FIRST, "cpu-bound"),
    "pure Python": (changed(cpu=0.25, late_seconds=0.5), GIL, "gil-bound"),
    "pure Python, one thread is found": (ONE_THREAD, TUNED._replace(running=1), "gil-bound"),
    "pure Python in the calling thread": (IN_PROCESS, TUNED._replace(running=1), "gil-bound"),
    "half computing, half waiting": (changed(cpu=0.6), NO_GIL, "unknown"),
    "large samples": (changed(2.0, 36.0, nbytes=10**11), GIL, "memory-bound"),
    "many small parts": (changed(2.0, 36.0), GIL, "write-bound"),
    "a slow collate_fn": (changed(2.0, 1.0, 35.0), GIL, "collate-bound"),
    "a slow sampler": (changed(1.0, 0.0, wait_seconds=0.1), GIL, "sampler-bound"),
    "threads that start for each of many short epochs": (
        changed(seconds=2e-3, loading_seconds=1.5e-3, start_seconds=1e-3, wait_seconds=1e-4),
        GIL,
        "start-bound",
    ),
    "slow ranks": (changed(wait_seconds=0.1, rank_wait_seconds=5.0), GIL, "rank-bound"),
    "a slow device": (changed(copy_wait_seconds=5.0), GIL, "copy-bound"),
    "the first batch alone": (
        changed(batches=1, loading_seconds=0.4, first_seconds=0.4, seconds=0.5, wait_seconds=0.4),
        GIL,
        "unknown",
    ),
    "nothing measured": (changed(timed_seconds=0.0), GIL, "unknown"),
    "no batch yet": (changed(batches=0), GIL, "unknown"),
}


def judge(name: str) -> Verdict:
    return verdict_of(*CASES[name][:2])


@pytest.mark.parametrize("name", CASES)
def test_figures_lead_to_the_kind_a_sentence_with_its_figure_and_an_advice(name: str) -> None:
    interval, _, kind = CASES[name]
    verdict = judge(name)
    assert verdict.kind == kind
    assert verdict.sentence.endswith(".")
    assert str(verdict) == f"{verdict.sentence} {verdict.advice}".strip()
    if interval.batches:
        assert "%" in verdict.sentence
        first = interval.batches == 1
        assert verdict.share == (interval.loading_share if first else interval.steady_share)
    assert bool(verdict.advice) == (kind not in {"consumer-bound", "unknown"})


def test_every_kind_that_is_documented_has_a_case_and_no_other() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("| kind |") : text.index("## Statistics")]
    documented = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert {case[2] for case in CASES.values()} == {*documented}


SAID = {
    "decoding": "a sample takes 36.1 ms of CPU time, and samples used 3.7 of 4 cores.",
    "decoding on a busy machine": "for 55% of their time other programs or threads had the cores.",
    "pure Python, one thread is found": "samples hold the GIL, so 1 thread used 0.9 of 4 cores.",
    "pure Python": "samples hold the GIL, so 4 threads used 1.0 of 4 cores.",
    "slow ranks": "whose batches came later, takes 50.0 ms a batch, 83% of that.",
    "many small parts": "takes 360.0 ms a batch, 95% of the time in which batches are made.",
    "half computing, half waiting": "waits in 40% of its 38.0 ms, and computes in the rest.",
}


@pytest.mark.parametrize("name", SAID)
def test_the_figures_are_those_that_were_counted(name: str) -> None:
    assert judge(name).sentence.endswith(SAID[name])


def test_of_batches_made_by_the_calling_thread_that_is_said() -> None:
    assert judge("cheap samples in the calling thread").sentence.startswith(
        "Loading took 80% of the loop's time, as the calling thread makes the batches itself ("
        "20 us each): "
    )
    assert judge("decoding").sentence.startswith("Loading took 60% of the loop's time: ")


PROCESSES = (
    "Use a free-threaded Python, a decoder that releases the GIL, or processes. torch's DataLoader "
    "with num_workers=4 would load up to {} times as many samples a second."
)
NO_NUMBER = "Leave out the number of threads: the loader finds it."
ADVICE: list[tuple[Interval, Setup, str]] = [
    (READING, GIL, NO_NUMBER),
    (READING, ALONE, NO_NUMBER),
    (
        READING,
        TUNED,
        "More than 4 threads were not faster: keep the data nearer, or",
    ),
    (READING, TUNED._replace(running=0), "Threads were not faster: keep the data"),
    (READING, TUNED._replace(running=256), "All 256 threads run: raise max_threads to 1024."),
    (READING, GIL._replace(shared_out="replicas"), "Use more replicas, each with a thread: thr"),
    (READING, GIL._replace(shared_out="samples"), "Try more threads: threads=16."),
    (READING, ALONE._replace(shared_out="one"), "One thread reads an iterable: move slow work"),
    (IN_PROCESS, ALONE, NO_NUMBER),
    (IN_PROCESS, ALONE._replace(shared_out="replicas"), "Use more replicas, each with a thread: "),
    (IN_PROCESS, ALONE._replace(shared_out="one"), "One thread reads an iterable: move slow work"),
    (IN_PROCESS, ALONE._replace(shared_out="replicas", cores=1), "Make samples cheaper"),
    (ONE_THREAD, GIL._replace(running=1, most=1), "Try more threads: threads=4."),
    (ONE_THREAD, GIL._replace(running=1, most=4), "Make samples cheaper"),  # not those there are
    (changed(cpu=0.4, delay=0.55, process_seconds=20.0), GIL, "Leave more cores to this program"),
    # Which others are the loader's own threads.
    (changed(cpu=0.4, delay=0.55), NO_GIL._replace(cores=4), "Make samples cheaper"),
    (CHEAP, TUNED, "Threads would not be faster: use larger batches"),
    (replace(CHEAP, batches=1000), TUNED._replace(running=1), "Threads would not be faster: use"),
    (replace(CHEAP, batches=300), TUNED._replace(running=1), PROCESSES.format("4.0")),
    (*CASES["pure Python, one thread is found"][:2], PROCESSES.format("4.0")),
    (*CASES["pure Python in the calling thread"][:2], PROCESSES.format("4.0")),
]


@pytest.mark.parametrize(("interval", "setup", "advice"), ADVICE)
def test_the_advice_is_by_what_was_found(interval: Interval, setup: Setup, advice: str) -> None:
    assert verdict_of(interval, setup).advice.startswith(advice)
