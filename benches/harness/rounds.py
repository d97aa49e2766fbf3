"""Interleaved rounds: every lane once a round, in an order that rotates.

Machines drift (other tenants, temperature, memory), so rivals are compared within a
round and a ratio is the median over the rounds, never a ratio of two lucky runs.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.harness.asking import MeasurementError
from benches.harness.tables import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benches.harness.record import Answer, Question

__all__ = ["Lane", "Rounds", "reason"]

BUSY = 0.1  # cores that others used: beyond it a measurement was disturbed


@dataclass(frozen=True, slots=True)
class Lane:
    """One thing that is measured in every round.

    Args:
        build: The interpreter's label, ``3.13t``.
        python: Its path.
        question: What it is asked.
    """

    build: str
    python: str
    question: Question

    @property
    def name(self) -> str:
        """The lane in a few words, for progress and errors."""
        question = self.question
        return f"{question.workload} {self.build} {question.loader} x{question.workers}"


class Rounds:
    """The answers of all lanes, round by round.

    A figure is named by the field of an `Answer`, or by one of the loader's counters; of a rate
    more is better, of all others less.

    Args:
        ask: Measures; None where answers are only read.
        run: A name for what is measured now; rounds of two runs have nothing in common.
    """

    def __init__(self, ask: Callable[[str, Question], Answer] | None = None, run: str = "") -> None:
        self._measure = ask
        self._run = run
        self.runs: dict[Lane, str] = {}
        self.answers: dict[Lane, list[Answer | None]] = {}
        self.errors: dict[Lane, str] = {}

    def run(self, lanes: Sequence[Lane], rounds: int, done: int = 0) -> None:
        """Measure each lane once a round; a failure is kept and the rest goes on.

        Args:
            lanes: In the order of the first round.
            rounds: The last round's number, each of which starts one lane later than the one
                before.
            done: Rounds that were measured already.
        """
        for number in range(done, rounds):
            turn = number % max(1, len(lanes))
            order = (*lanes[turn:], *lanes[:turn])
            answers = {lane: self._ask(lane, number, rounds) for lane in order}
            for lane, answer in answers.items():
                self.answers.setdefault(lane, []).append(answer)
                self.runs[lane] = self._run

    def _ask(self, lane: Lane, number: int, rounds: int) -> Answer | None:
        """Measure one lane, telling what is going on."""
        if self._measure is None:
            raise ValueError("these rounds are only read: nothing measures")
        print(
            f"  round {number + 1}/{rounds}: {lane.name} ...", file=sys.stderr, end="", flush=True
        )
        try:
            answer = self._measure(lane.python, lane.question)
        except MeasurementError as error:
            self.errors.setdefault(lane, str(error))
            print(" failed", file=sys.stderr)
            return None
        print(f" {answer.rate:,.0f}/s", file=sys.stderr)
        return answer

    def of(self, lane: Lane) -> list[Answer]:
        """Return the lane's answers, failed rounds left out."""
        return [answer for answer in self.answers.get(lane, []) if answer is not None]

    def spread(self, lane: Lane | None, figure: str) -> Spread | None:
        """Return a figure's spread over the rounds."""
        figures = [_value(answer, figure) for answer in self.of(lane)] if lane is not None else []
        return Spread.of([value for value in figures if value is not None])

    def ratio(self, lane: Lane | None, other: Lane | None, figure: str) -> Spread | None:
        """Return the spread of the ratio of two lanes within each round.

        Of lanes that were measured in two runs, only the medians are compared.
        """
        if lane is None or other is None:
            return None
        if self.runs.get(lane) != self.runs.get(other):
            mine, its = self.spread(lane, figure), self.spread(other, figure)
            return Spread.of([mine.median / its.median]) if mine and its and its.median else None
        ratios = []
        pairs = zip(self.answers.get(lane, []), self.answers.get(other, []), strict=False)
        for one, another in pairs:
            if one is None or another is None:
                continue
            above, below = _value(one, figure), _value(another, figure)
            if above is not None and below:
                ratios.append(above / below)
        return Spread.of(ratios)

    def better(
        self, ours: Iterable[Lane], theirs: Iterable[Lane], figure: str
    ) -> tuple[Spread | None, Lane | None]:
        """Return how many times better our best is than theirs, and which is theirs."""
        mine, its = self.best(ours, figure), self.best(theirs, figure)
        pair = (mine, its) if figure == "rate" else (its, mine)
        return self.ratio(*pair, figure), its

    def best(self, lanes: Iterable[Lane], figure: str) -> Lane | None:
        """Return the lane with the best median."""
        known = [(found.median, lane) for lane in lanes if (found := self.spread(lane, figure))]
        choose = max if figure == "rate" else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None

    def disturbed(self, lanes: Iterable[Lane]) -> tuple[int, int]:
        """Return how many measurements others disturbed, and of how many that is known."""
        busy = [answer.other_cores_busy for lane in lanes for answer in self.of(lane)]
        known = [cores for cores in busy if cores is not None]
        return sum(cores > BUSY for cores in known), len(known)

    def remarks(self, lanes: Sequence[Lane]) -> str:
        """Return lines on what is wrong with the figures of some lanes."""
        text = []
        for lane in lanes:
            if lane in self.errors:
                text.append(f"! {lane.name} failed: {reason(self.errors[lane])}")
            text += [
                f"! {lane.name}: the GIL was turned on by an extension module"
                for answer in self.of(lane)[:1]
                if answer.machine.get("free_threaded") and answer.machine["gil_enabled"]
            ]
        disturbed, known = self.disturbed(lanes)
        if disturbed:
            text.append(f"! {disturbed} of {known} measurements shared the machine with others")
        return "\n".join(text)


def reason(traceback: str) -> str:
    """Return the line that names the error; notes of ours may follow it."""
    lines = traceback.strip().splitlines()
    named = (line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line))
    return next(named, lines[-1])


def _value(answer: Answer, figure: str) -> float | None:
    """Return a figure of an answer."""
    if figure in answer.counters:
        return answer.counters[figure]
    found: float | None = getattr(answer, figure, None)
    return found
