"""The verdict on figures that are made up: each kind, its figure and its advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from threadloader._report.interval import Interval, Stages
from threadloader._report.verdict import Kind, Setup, Verdict, verdict_of
from threadloader._threads.inline_choice import Slower

# Four cores, and four threads that the user chose.
GIL = Setup(cores=4, gil=True, running=4, most=4, tuned=False)
NO_GIL = GIL._replace(gil=False)
# The number of threads is found while the loop runs.
TUNED = GIL._replace(tuned=True, most=256)
ALONE = GIL._replace(running=0, most=0)

# Ten seconds in which a loop waited for six, and four threads were busy with fetching.
SLOW = Interval(
    seconds=10.0,
    threads=4,
    batches=100,
    samples=1000,
    nbytes=1000 * 1000,
    loading_seconds=6.01,
    first_seconds=0.0,
    start_seconds=0.0,
    first_use_seconds=0.0,
    wait_seconds=6.0,
    inline_seconds=0.0,
    wait_p50=0.06,
    wait_p99=0.1,
    late_seconds=0.001,
    waits=100,
    copy_wait_seconds=0.0,
    rank_wait_seconds=0.0,
    stages=Stages(fetch=38.0, write=1.0, collate=0.0, copy=0.0),
    cpu_share=0.95,
    delay_share=None,
    window_share=0.1,
    cores=3.8,
    read_nbytes=0,
)


def changed(**fields: Any) -> Interval:
    return replace(SLOW, **fields)


# Batches of 10 samples that the calling thread made in 20 us each; nearly all the loop does.
INLINE = changed(
    seconds=1.0,
    batches=30_000,
    samples=300_000,
    loading_seconds=0.8,
    wait_seconds=0.0,
    inline_seconds=0.6,
    waits=0,
    late_seconds=0.0,
    stages=Stages(0.5, 0.1, 0.0, 0.0),
)

# Threads were tried, and took 300 us for a sample that takes the calling thread 20.
SLOWER = Slower(waited=3e-4, here=2e-5)

CASES: dict[str, tuple[Interval, Setup, str]] = {
    "the loop is slower": (changed(loading_seconds=0.3, wait_seconds=0.3), GIL, "consumer-bound"),
    "only the first batch is slow": (changed(first_seconds=5.9), GIL, "consumer-bound"),
    "decoding": (SLOW, GIL, "cpu-bound"),
    "decoding without GIL": (SLOW, NO_GIL, "cpu-bound"),
    "decoding by as many as are found": (SLOW, TUNED, "cpu-bound"),
    "decoding on a busy machine": (
        changed(cpu_share=0.4, delay_share=0.55, late_seconds=0.5),
        GIL,
        "cpu-bound",
    ),
    "decoding on a busy machine, one thread is found": (
        changed(cpu_share=0.4, delay_share=0.55),
        TUNED._replace(running=1),
        "cpu-bound",
    ),
    "reading": (changed(cpu_share=0.01), GIL, "waiting"),
    "reading without GIL": (changed(cpu_share=0.01), NO_GIL, "waiting"),
    "reading by as many as there may be": (
        changed(cpu_share=0.01),
        TUNED._replace(running=256),
        "waiting",
    ),
    "data loaded in each epoch": (changed(first_use_seconds=30.0), GIL, "start-bound"),
    "data loaded in the first epoch": (
        changed(first_use_seconds=30.0),
        GIL._replace(first=True),
        "cpu-bound",
    ),
    "reading for the first time": (
        changed(cpu_share=0.01, read_nbytes=1000 * 9000),
        GIL._replace(first=True),
        "cold-cache",
    ),
    "reading the program for the first time": (
        changed(cpu_share=0.01, read_nbytes=1000 * 900),
        GIL._replace(first=True),
        "waiting",
    ),
    "reading again": (changed(cpu_share=0.01, read_nbytes=1000 * 9000), GIL, "waiting"),
    "pure Python": (changed(cpu_share=0.25, late_seconds=0.5), GIL, "gil-bound"),
    "a lock without GIL": (changed(cpu_share=0.25, late_seconds=0.5), NO_GIL, "waiting"),
    "pure Python, one thread is enough": (
        changed(stages=Stages(9.5, 0.1, 0.0, 0.0), late_seconds=0.5),
        GIL._replace(running=1),
        "gil-bound",
    ),
    "pure Python, one thread is found": (
        changed(stages=Stages(9.5, 0.1, 0.0, 0.0)),
        TUNED._replace(running=1),
        "gil-bound",
    ),
    "pure Python in the calling thread": (
        changed(wait_seconds=0.0, inline_seconds=6.0, stages=Stages(5.9, 0.1, 0.0, 0.0)),
        TUNED._replace(running=1),
        "gil-bound",
    ),
    "one thread is found without GIL": (
        changed(stages=Stages(9.5, 0.1, 0.0, 0.0)),
        TUNED._replace(running=1, gil=False),
        "cpu-bound",
    ),
    "decoding, one thread is enough": (
        changed(stages=Stages(9.5, 0.1, 0.0, 0.0)),
        GIL._replace(running=1),
        "cpu-bound",
    ),
    "cheap samples in the calling thread": (INLINE, TUNED._replace(running=2), "cpu-bound"),
    "samples that threads make more slowly": (
        INLINE,
        TUNED._replace(running=2, gil=False, slower=SLOWER),
        "contention-bound",
    ),
    "cheap samples that threads make more slowly under the GIL": (
        INLINE,
        TUNED._replace(running=1, slower=SLOWER),
        "contention-bound",
    ),
    "pure Python that threads make more slowly": (
        changed(wait_seconds=0.0, inline_seconds=6.0, stages=Stages(5.9, 0.1, 0.0, 0.0)),
        TUNED._replace(running=1, slower=SLOWER),
        "gil-bound",
    ),
    "threads that were slower in an epoch before": (
        SLOW,
        TUNED._replace(gil=False, slower=SLOWER),
        "cpu-bound",
    ),
    "decoding without threads": (
        changed(wait_seconds=0.0, inline_seconds=6.0, stages=Stages(5.9, 0.1, 0.0, 0.0)),
        ALONE,
        "cpu-bound",
    ),
    "reading without threads": (
        changed(
            wait_seconds=0.0,
            inline_seconds=6.0,
            stages=Stages(5.9, 0.1, 0.0, 0.0),
            cpu_share=0.01,
        ),
        ALONE,
        "waiting",
    ),
    "a core's worth, and waiting": (changed(cpu_share=0.25), GIL, "unknown"),
    "half computing, half waiting": (changed(cpu_share=0.6), NO_GIL, "unknown"),
    "large samples": (
        changed(nbytes=10**11, stages=Stages(2.0, 36.0, 0.0, 0.0)),
        GIL,
        "memory-bound",
    ),
    "many small parts": (changed(stages=Stages(2.0, 36.0, 0.0, 0.0)), GIL, "write-bound"),
    "a slow collate_fn": (changed(stages=Stages(2.0, 1.0, 35.0, 0.0)), GIL, "collate-bound"),
    "a slow sampler": (
        changed(wait_seconds=0.1, stages=Stages(1.0, 0.0, 0.0, 0.0)),
        GIL,
        "sampler-bound",
    ),
    "a slow sampler without threads": (
        changed(wait_seconds=0.0, inline_seconds=1.1, stages=Stages(1.0, 0.1, 0.0, 0.0)),
        ALONE,
        "sampler-bound",
    ),
    "threads that start for each of many short epochs": (
        changed(seconds=2e-3, loading_seconds=1.5e-3, start_seconds=1e-3, wait_seconds=1e-4),
        GIL,
        "start-bound",
    ),
    "others have the cores": (
        changed(cpu_share=0.4, cores=0.4, stages=Stages(10.0, 0.0, 0.0, 0.0)),
        NO_GIL._replace(others=0.8),
        "unknown",
    ),
    "slow ranks": (changed(wait_seconds=0.1, rank_wait_seconds=5.0), GIL, "rank-bound"),
    "the first batch alone": (
        changed(batches=1, loading_seconds=0.4, first_seconds=0.4, seconds=0.5, wait_seconds=0.4),
        GIL,
        "unknown",
    ),
    "a slow device": (changed(copy_wait_seconds=5.0), GIL, "copy-bound"),
    "a slow device without streams": (
        changed(wait_seconds=0.1, stages=Stages(1.0, 0.0, 0.0, 5.0)),
        GIL,
        "copy-bound",
    ),
    "threads that do not begin": (changed(stages=Stages(0.1, 0.0, 0.0, 0.0)), GIL, "unknown"),
    "nothing measured": (changed(cpu_share=None), GIL, "unknown"),
    "no batch yet": (changed(batches=0), GIL, "unknown"),
}


def judge(name: str) -> Verdict:
    return verdict_of(*CASES[name][:2])


@pytest.mark.parametrize("name", CASES)
def test_figures_lead_to_the_kind(name: str) -> None:
    assert judge(name).kind == CASES[name][2]


def test_every_kind_has_a_case() -> None:
    assert {case[2] for case in CASES.values()} == set(get_args(Kind))


@pytest.mark.parametrize("name", CASES)
def test_a_verdict_is_a_sentence_with_its_figure_and_an_advice(name: str) -> None:
    interval, verdict = CASES[name][0], judge(name)
    assert verdict.sentence.endswith(".")
    assert str(verdict) == f"{verdict.sentence} {verdict.advice}".strip()
    if interval.batches:
        assert "%" in verdict.sentence
        first = interval.batches == 1
        assert verdict.share == (interval.loading_share if first else interval.steady_share)
    assert bool(verdict.advice) == (verdict.kind not in {"consumer-bound", "unknown"})


def test_the_figures_are_those_that_were_counted() -> None:
    assert judge("decoding").sentence == (
        "Loading took 60% of the loop's time: a sample takes 36.1 ms of CPU time, and samples used "
        "3.7 of 4 cores."
    )
    assert verdict_of(changed(cpu_share=0.0), GIL).sentence == (
        "Loading took 60% of the loop's time: a sample waits in 100% of its 38.0 ms, for a file, a "
        "network or a lock."
    )


def test_of_batches_made_by_the_calling_thread_that_is_said() -> None:
    verdict = judge("cheap samples in the calling thread")
    assert verdict.sentence.startswith(
        "Loading took 80% of the loop's time, as the calling thread makes the batches itself ("
        "20 us each): "
    )
    assert "use larger batches" in verdict.advice
    for name in ("decoding without threads", "reading without threads"):
        assert ", as the calling thread makes the batches itself (60.0 ms each)" in str(judge(name))
        assert judge(name).advice == (
            "Choose no number of threads: it is found while the loop runs."
        )


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("samples that threads make more slowly", "dataset_copy='deep', or PerThread."),
        ("pure Python that threads make more slowly", "or processes."),
    ],
)
def test_by_how_much_threads_were_slower_is_said_and_what_to_do(name: str, advice: str) -> None:
    verdict = judge(name)
    assert (
        "threads were tried, and the loop waited 300 us for a sample of theirs, 15.0 times as long "
        "as it takes to make one itself (20 us)."
    ) in verdict.sentence
    assert verdict.advice.endswith(advice)


def test_of_threads_that_were_not_tried_nothing_is_said() -> None:
    for name, (_, setup, _) in CASES.items():
        if setup.slower is None:
            assert "were tried" not in str(judge(name))


def test_on_a_busy_machine_that_is_said() -> None:
    verdict = judge("decoding on a busy machine")
    others = "; for 55% of their time other programs or threads had the cores."
    assert verdict.sentence.endswith(others)
    assert "busy with other work" in verdict.advice


@pytest.mark.parametrize(
    ("setup", "advice"),
    [
        (GIL, "Choose no number of threads: it is found while the loop runs."),
        (TUNED, "No more than 4 threads were found to be faster yet: keep the data nearer, or "),
        (TUNED._replace(running=256), "All 256 threads run: raise max_threads to 1024."),
        (GIL._replace(iterable=True), "Use more replicas, each with a thread: threads=16."),
    ],
)
def test_for_samples_that_wait_the_advice_is_by_what_was_found(setup: Setup, advice: str) -> None:
    assert verdict_of(changed(cpu_share=0.0), setup).advice.startswith(advice)


def test_no_more_replicas_are_advised_than_there_may_be_threads() -> None:
    many = GIL._replace(iterable=True, most=100, running=100)
    assert verdict_of(changed(cpu_share=0.0), many).advice.endswith(" threads=256.")


def test_threads_that_hold_the_gil_are_counted() -> None:
    found = str(judge("pure Python, one thread is found"))
    assert "samples hold the GIL, so 1 thread used 0.9 of 4 cores" in found
    assert "samples hold the GIL, so 4 threads used 1.0 of 4 cores" in str(judge("pure Python"))


def test_one_thread_that_computes_is_advised_to_have_company() -> None:
    alone = GIL._replace(running=1, most=1)
    interval = changed(stages=Stages(9.5, 0.1, 0.0, 0.0))
    assert verdict_of(interval, alone).advice == "Try more threads: threads=4."


def test_a_verdict_changes_nothing_and_never_changes() -> None:
    verdict = judge("decoding")
    assert verdict == judge("decoding")
    with pytest.raises(AttributeError):
        verdict.kind = "waiting"  # type: ignore[misc]
