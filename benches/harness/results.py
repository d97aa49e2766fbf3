"""The file of results: what was measured, merged run by run, and read again for tables and plots.

A run replaces what it has measured anew and leaves the rest, so a single workload or rival can be
measured alone.  A figure is a list with a number for each round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benches.harness.contest import Build, Contest
from benches.harness.record import Answer, Question
from benches.harness.rounds import Lane, Rounds, reason
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Results"]

FIGURES = (
    *("rate", "first_batch_ms", "cpu_us_per_sample", "faults_per_batch"),
    *("pss_mib", "pss_added_mib", "other_cores_busy"),
)


@dataclass(slots=True)
class Results:
    """All that was measured.

    Args:
        builds: What `benches.harness.machine.describe` says of each interpreter, by its label.
        contests: By build and workload.
        rounds: The answers.
        runs: How each run was made, by the time of its start: rounds, seconds, and so on.
    """

    builds: dict[str, dict[str, Any]] = field(default_factory=dict)
    contests: dict[tuple[str, str], Contest] = field(default_factory=dict)
    rounds: Rounds = field(default_factory=Rounds)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ordered(self) -> list[Contest]:
        """Return the contests in the order of the catalogue, builds side by side."""
        names = [name for name in WORKLOADS if any(key[1] == name for key in self.contests)]
        return [
            self.contests[build, name]
            for name in names
            for build in self.builds
            if (build, name) in self.contests
        ]

    def merge(self, contests: Iterable[Contest], rounds: Rounds) -> None:
        """Take over what was measured, in place of what there was of the same workloads.

        Args:
            contests: That were measured.
            rounds: The answers.
        """
        for contest in contests:
            self.contests[contest.build.label, contest.workload] = contest
            for lane in contest.lanes:
                self.rounds.answers[lane] = rounds.answers.get(lane, [])
                self.rounds.runs[lane] = rounds.runs.get(lane, "")
                self.rounds.errors.pop(lane, None)
                if lane in rounds.errors:
                    self.rounds.errors[lane] = rounds.errors[lane]
        used = {
            self.rounds.runs.get(lane) for found in self.contests.values() for lane in found.lanes
        }
        self.runs = {run: how for run, how in self.runs.items() if run in used}

    def save(self, path: Path) -> None:
        """Write the file, a line for each lane."""
        lines = [
            '{"builds": ' + json.dumps(self.builds, sort_keys=True) + ",",
            '"runs": ' + json.dumps(self.runs) + ",",
            '"contests": [',
        ]
        for contest in self.ordered():
            told = {
                "build": contest.build.label,
                "workload": contest.workload,
                "threads": contest.threads,
                "left_out": contest.left_out,
                "compared": contest.compared,
            }
            lines += [json.dumps(told)[:-1] + ', "lanes": [']
            lines += [",\n".join(json.dumps(self._lane(lane)) for lane in contest.lanes), "]},"]
        lines[-1] = lines[-1].removesuffix(",")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, "]}"]) + "\n", encoding="utf-8")

    def _lane(self, lane: Lane) -> dict[str, Any]:
        """Return a lane as plain values."""
        question = lane.question
        answers = self.rounds.answers.get(lane, [])
        told: dict[str, Any] = {"loader": question.loader, "workers": question.workers}
        told["run"] = self.rounds.runs.get(lane, "")
        if question.spin:
            told["spin"] = question.spin
        for name in FIGURES:
            figures = [_short(getattr(answer, name, None)) for answer in answers]
            if any(figure is not None for figure in figures):
                told[name] = figures
        counters = [answer.counters for answer in answers if answer is not None]
        if any(counters):
            told["counters"] = counters
        if any(
            a.machine.get("gil_enabled") and a.machine.get("free_threaded") for a in answers if a
        ):
            told["gil_was_turned_on"] = True
        if lane in self.rounds.errors:
            told["error"] = reason(self.rounds.errors[lane])[:300]
        return told

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read the file; no results where there is none."""
        found = cls()
        if not path.exists():
            return found
        told = json.loads(path.read_text(encoding="utf-8"))
        found.builds, found.runs = told["builds"], told["runs"]
        for entry in told["contests"]:
            label = entry["build"]
            described = found.builds[label]
            packages = frozenset(name for name, there in described["importable"].items() if there)
            build = Build(label, "", bool(described["free_threaded"]), packages)
            lanes = tuple(found._read(entry, lane) for lane in entry["lanes"])
            contest = Contest(
                entry["workload"],
                build,
                entry["threads"],
                lanes,
                entry["left_out"],
                entry["compared"],
            )
            found.contests[label, entry["workload"]] = contest
        return found

    def _read(self, entry: Mapping[str, Any], told: Mapping[str, Any]) -> Lane:
        """Read a lane, and keep its answers."""
        question = Question(
            entry["workload"],
            told["loader"],
            told["workers"],
            seconds=0.0,
            spin=told.get("spin", 0),
        )
        lane = Lane(entry["build"], "", question)
        count = max((len(told[name]) for name in FIGURES if name in told), default=0)
        counters = iter(told.get("counters", []))
        machine = dict.fromkeys(("gil_enabled", "free_threaded"), "gil_was_turned_on" in told)
        answers: list[Answer | None] = []
        for number in range(count):
            figures = {name: told[name][number] for name in FIGURES if name in told}
            if figures.get("rate") is None:
                answers.append(None)
                continue
            answers.append(Answer(**figures, counters=next(counters, {}), machine=machine))
        self.rounds.answers[lane] = answers
        self.rounds.runs[lane] = told["run"]
        if "error" in told:
            self.rounds.errors[lane] = told["error"]
        return lane


def _short(figure: float | None) -> float | None:
    """Round to five digits."""
    return None if figure is None else float(f"{figure:.5g}")
