"""ThreadLoader on a CUDA device: is every batch right, and how close are copies to the machine's.

``python -m benches.gpu``, or ``--quick``

First `benches.gpu_checks` verifies batches on the device.  Then, in interleaved rounds: loops that
only copy, against a bare loop over two pinned buffers; and loops that compute as long as copying
and decoding take, against the same loop on one resident batch.  Rivals are torch's DataLoader at
its best number of workers, and the usual prefetcher on top of it.  Times are the device's: events
in the consumer's stream, the loader running on past the last one, so that no batch that was ready
before the first counts for more than it should.

``--quick`` is for a first look.  Exit code 1: a batch was wrong or a target was
missed; 2: a wrong option; 3: there is no GPU.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from benches.gpu_checks import (
    DEVICE,
    ENDLESS,
    ON_DEVICE,
    Outcome,
    Samples,
    run_checks,
    run_mutants,
)
from benches.harness import blocks
from benches.harness.command import command_line, kept_in, write
from benches.harness.machine import describe, machine_lines, python_label, usable_cores
from benches.harness.tables import Spread, align, show_ratio
from benches.harness.targets import Verdict
from threadloader import ThreadLoader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

MIB = 1 << 20
SIZES = (1, 16, 64)  # MiB a batch
DECODED = (32, 128 << 10)  # samples of a batch that has to be decoded, and bytes of each
COVER = 1.5  # times as long as copying and decoding, what is computed takes
OURS = (1, 2, 3, 4, 6, 8, 12, 16)  # threads of ours that are tried
WARM = 24  # batches before the first that counts: more than any loader has ready by then
LEAST = 16  # batches that count
_cuda: Any = torch.cuda  # much of it has no types


def main() -> int:
    """Check, measure, print; return the exit code."""
    options = _options()
    if not _cuda.is_available():
        version = f"no GPU found: this torch ({torch.__version__}) is built"
        built = f"for CUDA {torch.version.cuda}, but sees no device, or no driver"
        print(version, built if torch.version.cuda else "without CUDA", file=sys.stderr)
        return 3
    machine = describe()
    print(machine_lines())
    gpu = f"{_cuda.get_device_name()}, CUDA {torch.version.cuda}"
    print(f"{gpu}; threads tried: {options.tried}, torch's workers: {options.workers}", flush=True)
    if options.mutants:
        return _mutants(options.batches)
    outcomes = _checked(options.batches)
    wrong = [outcome for outcome in outcomes if outcome.problem]
    bench = Bench(options)
    if options.rounds and not wrong:
        for size in SIZES:
            bench.copying(size * MIB)
        bench.computing()
    machine |= {"gpu": gpu, "threads": options.tried}
    figures = {
        "machine": machine,
        "lanes": bench.kept,
        "checks": [asdict(outcome) for outcome in outcomes],
        "targets": [asdict(verdict) for verdict in bench.verdicts],
    }
    print(f"\n{blocks.gpu({python_label(): figures})}\n\n{_checklist(bench.verdicts)}")
    if options.json:
        told = kept_in(options.json)
        told[python_label()] = figures
        write(options.json, told)
    if wrong:
        print(f"\nwrong: {', '.join(each.name for each in wrong)}; not measured", file=sys.stderr)
    return int(bool(wrong) or any(each.outcome == "missed" for each in bench.verdicts))


def _checked(batches: int) -> list[Outcome]:
    """Verify so many batches, and print what came of it."""
    outcomes = []
    if batches:
        print(f"\n{batches:,} batches, verified on the device", flush=True)
        for outcome in run_checks(batches):
            outcomes.append(outcome)
            rate = outcome.batches / outcome.seconds
            told = f"{outcome.batches:,} in {outcome.slots} slots, {rate:,.0f}/s"
            print(f"{outcome.name}: {told}: {outcome.problem or 'right'}", flush=True)
    return outcomes


def _mutants(batches: int) -> int:
    """Print which checks notice that a rule is broken; return 1 if none does."""
    unnoticed = 0
    for rule, noticed in run_mutants(batches):
        unnoticed += not noticed
        print(
            f"{rule}: {'noticed: ' + '; '.join(noticed) if noticed else 'NOT NOTICED'}", flush=True
        )
    return int(unnoticed > 0)


def _options() -> argparse.Namespace:
    """Read the command line."""
    cores = usable_cores()
    parser = command_line(
        "gpu",
        __doc__,
        "exit code 1: a wrong batch, a missed target, or a broken rule that is not noticed; "
        "2: a wrong option; 3: no GPU",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few batches and rounds, rough figures"
    )
    parser.add_argument("--batches", type=int, help="to verify, 0 for none (100,000; quick 4,000)")
    parser.add_argument("--rounds", type=int, help="0 to verify alone (5; quick 2)")
    parser.add_argument("--seconds", type=float, help="of one measurement (0.8; quick 0.2)")
    parser.add_argument("--threads", type=int, help="of ours (the best of several)")
    parser.add_argument(
        "--mutants", action="store_true", help="break each rule: the checks must notice"
    )
    parser.add_argument("--json", type=Path, help="file for all figures, of each Python")
    options = parser.parse_args()
    quick = {"batches": 4000, "rounds": 2, "seconds": 0.2}
    defaults = quick if options.quick else {"batches": 100_000, "rounds": 5, "seconds": 0.8}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    for name, least in (("threads", 1), ("batches", 0), ("rounds", 0)):
        if getattr(options, name) is not None and getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    tried = (cores // 2, cores) if options.quick else (2, 4, cores // 2, cores)
    options.workers = sorted({max(1, min(workers, cores)) for workers in tried})
    # Under one GIL a row that is copied by another thread costs a wake-up.
    ours = [options.threads] if options.threads else (2, 4, 16) if options.quick else OURS
    options.tried = sorted({options.threads or min(threads, cores) for threads in ours})
    return options


def with_threads(data: Samples, threads: int | None) -> Iterator[Any]:
    """Yield batches on the device, from a ThreadLoader; None: it finds the number of threads."""
    with ThreadLoader(data, data.rows, **ON_DEVICE, threads=threads) as loader:
        yield from loader


def with_copier(batch: Any) -> Iterator[Any]:
    """Yield copies by a ThreadLoader whose batches need no work: what its copier can do."""
    with ThreadLoader(range(ENDLESS), **ON_DEVICE, threads=1, collate_fn=lambda _: batch) as loader:
        yield from loader


def with_torch(data: Samples, workers: int) -> Iterator[Any]:
    """Yield batches from torch's DataLoader, copied as its documentation says."""
    for batch in _dataloader(data, workers):
        yield batch.to(DEVICE, non_blocking=True)


def with_prefetcher(data: Samples, workers: int) -> Iterator[Any]:
    """Yield batches from torch's DataLoader, each copied a step ahead in a stream of its own."""
    host, own = iter(_dataloader(data, workers)), _cuda.Stream()

    def fetch() -> Any:
        with _cuda.stream(own):
            return next(host).to(DEVICE, non_blocking=True)

    ahead = fetch()
    while True:
        current = _cuda.current_stream()
        current.wait_stream(own)
        batch = ahead
        batch.record_stream(current)
        ahead = fetch()
        yield batch


def _dataloader(data: Samples, workers: int) -> Any:
    dataset: Any = data  # any map-style object is accepted
    return DataLoader(dataset, data.rows, num_workers=workers, pin_memory=True)


@dataclass(frozen=True, slots=True)
class Timing:
    """A step of a loop, in one round."""

    step_ms: float  # from one batch to the next, in the consumer's stream
    wait_ms: float = 0.0  # of these, it waited for a batch
    peak: float = 0.0  # bytes of device memory at most, beyond what there was


def drive(
    batches: Iterator[Any], compute: Callable[[Any], None], seconds: float, warm_s: float
) -> Timing:
    """Loop over batches in the current stream, and time the steps there.

    Args:
        batches: On the device; they never end.
        compute: The step.
        seconds: Least time that the host loops.
        warm_s: Least time before, in seconds.
    """
    _cuda.synchronize()
    _cuda.reset_peak_memory_stats()
    # Not memory_allocated(), which leaves out what a stream has yet to finish with.
    before = _cuda.memory_stats().get("active_bytes.all.current", 0)
    marks: list[tuple[Any, Any]] = []  # where a step begins, and where it has its batch
    deadline, count, batch = time.perf_counter() + warm_s, 0, None
    try:
        while count < WARM or time.perf_counter() < deadline:
            batch = next(batches)
            compute(batch)
            count += 1
        deadline = time.perf_counter() + seconds
        while len(marks) <= LEAST or time.perf_counter() < deadline:
            begins = _mark()
            batch = next(batches)
            marks.append((begins, _mark()))
            compute(batch)
        _cuda.synchronize()
        peak = _cuda.memory_stats().get("active_bytes.all.peak", 0) - before
    finally:
        del batch
        batches.close()  # type: ignore[attr-defined]  # a generator: it closes its loader
    steps = [first[0].elapsed_time(second[0]) for first, second in pairwise(marks)]
    waits = [begins.elapsed_time(has) for begins, has in marks]
    return Timing(sum(steps) / len(steps), sum(waits) / len(waits), peak)


def bare_copies(nbytes: int, seconds: float) -> Timing:
    """Copy two pinned buffers in turn, in a stream of its own: as fast as it goes."""
    own = _cuda.Stream()
    pinned = [torch.ones(nbytes, dtype=torch.uint8).pin_memory() for _ in range(2)]
    there = [torch.empty(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    marks: list[Any] = []
    _cuda.synchronize()
    deadline = time.perf_counter() + seconds
    with _cuda.stream(own):
        while len(marks) <= LEAST or time.perf_counter() < deadline:
            which = len(marks) % 2
            there[which].copy_(pinned[which], non_blocking=True)
            marks.append(_mark())
            if len(marks) > 1:
                marks[-2].synchronize()  # its buffer is the next one's
    _cuda.synchronize()
    warm = LEAST // 2
    return Timing(marks[warm].elapsed_time(marks[-1]) / (len(marks) - 1 - warm))


def _mark() -> Any:
    event = _cuda.Event(enable_timing=True)
    event.record()
    return event


class Bench:
    """The rounds, their tables, and what became of the targets.

    Args:
        options: From the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._warm_s = options.seconds / 2
        self.verdicts: list[Verdict] = []
        self.kept: dict[str, Any] = {}  # all timings, for JSON

    def copying(self, nbytes: int) -> None:
        """Measure loops that only copy, with batches of ``nbytes``."""
        sample = min(MIB, nbytes // 4)
        data = Samples(nbytes // sample, sample)
        ready = torch.ones(data.rows, sample, dtype=torch.uint8).pin_memory()
        sink = torch.zeros((), dtype=torch.int64, device=DEVICE)

        def touch(batch: Any) -> None:
            sink.add_(batch[0, 0])

        title = f"{nbytes // MIB} MiB"
        bare_loop = partial(bare_copies, nbytes, self._options.seconds)
        lanes: dict[str, Callable[[], Timing]] = {"bare pinned copies": bare_loop}
        lanes |= self._lanes(title, data, touch)
        lanes["threadloader, no rows to write"] = self._lane(partial(with_copier, ready), touch)
        found = self._run(title, lanes)
        bare = found["bare pinned copies"]
        if nbytes < 16 * MIB:
            return
        mine = found["threadloader"]
        self._judge(title, "GB/s / bare copies'", "at least", 0.95, _ratio(bare, mine))
        self._judge(title, "GB/s / torch's", "at least", 1.5, _ratio(found["torch"], mine))

    def computing(self) -> None:
        """Measure loops whose computing covers copying and decoding."""
        data = Samples(DECODED[0], DECODED[1], packed=True)
        nbytes = data.rows * data.nbytes
        left, right = (torch.randn(4096, 4096, device=DEVICE).half() for _ in range(2))
        product = torch.empty_like(left)
        sink = torch.zeros((), dtype=torch.int64, device=DEVICE)
        times = 0

        def step(batch: Any) -> None:
            sink.add_(batch[0, 0])
            for _ in range(times):
                torch.mm(left, right, out=product)

        resident = torch.ones(data.rows, data.nbytes, dtype=torch.uint8, device=DEVICE)
        stay = self._lane(lambda: (batch for batch in repeat(resident)), step)
        loading = self._lane(partial(with_threads, data, self._options.tried[-1]), step)().step_ms
        times = 20
        matmul = stay().step_ms / times
        times = max(1, math.ceil(COVER * loading / matmul))
        title = f"{nbytes // MIB} MiB, decoded"
        found = self._run(title, {"a resident batch": stay} | self._lanes(title, data, step))
        resting = found["a resident batch"]
        steps = f"{loading:.3g} ms to load; {times} x {matmul:.3g} ms a step"
        print(f"batches of {title}: {steps}", file=sys.stderr)
        ratio = _ratio(found["threadloader"], resting)
        self._judge(title, "step / resident batch's", "at most", 1.02, ratio)

    def _lanes(
        self, title: str, data: Samples, step: Callable[[Any], None]
    ) -> dict[str, Callable[[], Timing]]:
        """Return ThreadLoader, torch and the prefetcher, each with its best number of workers."""
        threads = self._best(f"{title} threadloader", self._options.tried, with_threads, data, step)
        workers = self._best(f"{title} torch", self._options.workers, with_torch, data, step)
        makes = {
            "threadloader, by default": partial(with_threads, data, None),
            "threadloader": partial(with_threads, data, threads),
            "torch": partial(with_torch, data, workers),
            "prefetcher on torch": partial(with_prefetcher, data, workers),
        }
        return {name: self._lane(make, step) for name, make in makes.items()}

    def _best(
        self,
        title: str,
        numbers: Sequence[int],
        loop: Callable[[Samples, int], Iterator[Any]],
        data: Samples,
        step: Callable[[Any], None],
    ) -> int:
        """Return the number of workers whose steps are the shortest, in one trial of each."""
        tried = {}
        for workers in numbers if len(numbers) > 1 else ():
            lane = self._lane(partial(loop, data, workers), step)
            if timing := _attempt(f"trial: {title} x{workers}", lane):
                tried[workers] = timing.step_ms
        best = min(tried, key=tried.__getitem__, default=numbers[0])
        self.kept[f"trials: {title}"] = tried
        print(f"  {title}: the best number of workers is {best}", file=sys.stderr)
        return best

    def _lane(
        self, make: Callable[[], Iterator[Any]], step: Callable[[Any], None]
    ) -> Callable[[], Timing]:
        return lambda: drive(make(), step, self._options.seconds, self._warm_s)

    def _run(
        self, title: str, lanes: dict[str, Callable[[], Timing]]
    ) -> dict[str, list[Timing | None]]:
        """Run each lane once a round, in an order that rotates."""
        found: dict[str, list[Timing | None]] = {name: [] for name in lanes}
        for number in range(self._options.rounds):
            names = list(lanes)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                label = f"round {number + 1}/{self._options.rounds}: {title} {name}"
                found[name].append(_attempt(label, lanes[name]))
        self.kept[title] = {name: [each and asdict(each) for each in found[name]] for name in found}
        return found

    def _judge(
        self, title: str, claim: str, sense: str, bound: float, found: Spread | None
    ) -> None:
        outcome: Any = "not measured"
        if None in self.kept[title]["threadloader"]:
            outcome = "missed"
        elif found is not None:
            good = found.median >= bound if sense == "at least" else found.median <= bound
            outcome = "met" if good else "missed"
        self.verdicts.append(Verdict(python_label(), title, claim, sense, bound, found, outcome))


def _attempt(label: str, lane: Callable[[], Timing]) -> Timing | None:
    """Run a lane; what goes wrong is told, and the rest goes on."""
    try:
        timing = lane()
    except Exception as error:  # noqa: BLE001  # too little shared memory for workers, say
        print(f"! {label} failed: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    print(f"  {label}: {timing.step_ms:.3g} ms/step", file=sys.stderr)
    return timing


def _ratio(above: Sequence[Timing | None], below: Sequence[Timing | None]) -> Spread | None:
    """Return the ratio of two lanes' steps within each round."""
    pairs = zip(above, below, strict=True)
    return Spread.of([mine.step_ms / its.step_ms for mine, its in pairs if mine and its])


def _checklist(verdicts: Sequence[Verdict]) -> str:
    rows = [
        [
            f"{verdict.workload}: {verdict.claim}",
            f"{verdict.sense} {verdict.bound:g}",
            show_ratio(verdict.figure, decimals=3),
            verdict.outcome,
        ]
        for verdict in verdicts
    ]
    return align(["target", "asked", "found", "outcome"], rows)


if __name__ == "__main__":
    sys.exit(main())
