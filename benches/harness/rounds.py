"""Interleaved rounds: every lane once a round, in an order that rotates.

Machines drift (other tenants, temperature, memory), so rivals are compared within a
round and a ratio is the median over the rounds, never a ratio of two lucky runs.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benches.harness.fresh_process import MeasurementError, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benches.harness.record import Answer, Question

__all__ = ["Lane", "Rounds", "Spread", "first_batch", "rate"]


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


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the extremes of the rounds that it is made of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread | None:
        """Return the spread of some figures, None without any."""
        if not figures:
            return None
        return cls(statistics.median(figures), min(figures), max(figures))


def rate(answer: Answer) -> float | None:
    """Return samples a second."""
    return answer.rate


def first_batch(answer: Answer) -> float | None:
    """Return milliseconds to the first batch."""
    return answer.first_batch_ms


class Rounds:
    """The answers of all lanes, round by round.

    Args:
        ask: Measures: in a fresh process, or in one that is kept.
        run: A name for what is measured now; rounds of two runs have nothing in common.
    """

    def __init__(self, ask: Callable[[str, Question], Answer] = ask, run: str = "") -> None:
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

    def spread(self, lane: Lane | None, figure: Callable[[Answer], float | None]) -> Spread | None:
        """Return a figure's spread over the rounds."""
        figures = [figure(answer) for answer in self.of(lane)] if lane is not None else []
        return Spread.of([value for value in figures if value is not None])

    def ratio(
        self, lane: Lane | None, other: Lane | None, figure: Callable[[Answer], float | None]
    ) -> Spread | None:
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
            above, below = figure(one), figure(another)
            if above is not None and below:
                ratios.append(above / below)
        return Spread.of(ratios)

    def best(
        self,
        lanes: Iterable[Lane],
        figure: Callable[[Answer], float | None],
        *,
        most: bool,
    ) -> Lane | None:
        """Return the lane with the best median.

        Args:
            lanes: Candidates.
            figure: What to compare.
            most: Whether more is better.
        """
        known = [(found.median, lane) for lane in lanes if (found := self.spread(lane, figure))]
        choose = max if most else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None
