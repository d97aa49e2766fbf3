"""What objects of another thread cost: a worker's own copies, and a vocabulary that all read.

``python -m benches.objects_of_threads``

On a free-threaded build an object is cheapest in the thread that made it.  First a dataset that
is all attributes of ``self``, copied by ``iter()`` or by the worker itself.  Then a dataset that
looks words up in a dict of 30,000, which all workers share or each has for itself, next to a loop
without a loader.  CPU time a sample, least of the rounds' epochs, which are loaded turn by turn.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.tables import align, machine_lines
from threadloader import ThreadLoader, get_worker_info
from threadloader.datasets import PerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WORDS, IN_A_TEXT = 30_000, 50
MICRO = 1e6


def main() -> int:
    """Run the rounds, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.objects_of_threads", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048, help="in one epoch")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(machine_lines([(python_label(), describe())]))
    for title, lanes in (("attributes", _attributes()), ("vocabulary", _vocabularies())):
        print(f"\n{title}: CPU us a sample, {options.threads} threads")
        best = dict.fromkeys(lanes, float("inf"))
        for _ in range(options.rounds):
            for name, load in lanes.items():
                before = time.process_time()
                load(options.samples, options.threads)
                spent = (time.process_time() - before) / options.samples * MICRO
                best[name] = min(best[name], spent)
        loop = best["a loop"]
        rows = [[name, f"{cost:.1f}", f"{cost / loop:.2f}"] for name, cost in best.items()]
        print(align(["", "us", "of a loop's"], rows))
    return 0


class Attributes:
    """A dataset whose samples are made of attributes of ``self``."""

    def __init__(self) -> None:
        self.scale, self.shift, self.modulus = 3, 7, 1009
        self.names = ["a", "b"]

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        value = index
        for _ in range(200):
            value = value * self.scale % self.modulus + self.shift + len(self.names)
        return value


class Texts:
    """A dataset of texts, as the numbers of their words.

    Args:
        vocabulary: The number of each word.
    """

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.vocabulary: Any = vocabulary
        rng, words = random.Random(0), list(vocabulary)
        self.texts = [" ".join(rng.choices(words, k=IN_A_TEXT)) for _ in range(256)]

    def __len__(self) -> int:
        return 1 << 20

    def words(self, index: int) -> list[str]:
        """Return the words of a text."""
        return self.texts[index % len(self.texts)].split()

    def __getitem__(self, index: int) -> Any:
        get = self.vocabulary.get
        return np.array([get(word, 0) for word in self.words(index)])


class BySubscript(Texts):
    """Looks words up by ``[]``."""

    def __getitem__(self, index: int) -> Any:
        known = self.vocabulary
        numbers = [
            known[word] if word in known else 0  # noqa: SIM401  # `[]` is what is measured
            for word in self.words(index)
        ]
        return np.array(numbers)


class OfThread(Texts):
    """Has a dict for each thread."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        super().__init__(vocabulary)
        self.vocabulary = PerThread(partial(dict, vocabulary))

    def __getitem__(self, index: int) -> Any:
        get = self.vocabulary().get
        return np.array([get(word, 0) for word in self.words(index)])


def _own_vocabulary(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.vocabulary = dict(info.dataset.vocabulary)


def _attributes() -> dict[str, Callable[[int, int], None]]:
    dataset = Attributes()
    return {
        "a loop": partial(_loop, dataset),
        "copied by the worker (auto)": _load(dataset),
        "not copied (shared)": _load(dataset, dataset_copy="shared"),
    }


def _vocabularies() -> dict[str, Callable[[int, int], None]]:
    def vocabulary() -> dict[str, int]:
        # New words each time: what one thread does to a word lasts, for all dicts that have it.
        return {f"word{number}": number for number in range(WORDS)}

    shared = Texts(vocabulary())
    return {
        "a loop": partial(_loop, Texts(vocabulary())),
        "shared dict, .get": _load(shared),
        'dataset_copy="deep", .get': _load(Texts(vocabulary()), dataset_copy="deep"),
        "shared dict, []": _load(BySubscript(vocabulary())),
        "PerThread(partial(dict, ...)), .get": _load(OfThread(vocabulary())),
        "dict(...) in worker_init_fn, .get": _load(
            Texts(vocabulary()), worker_init_fn=_own_vocabulary
        ),
    }


def _loop(dataset: Any, samples: int, _: int) -> None:
    for index in range(samples):
        dataset[index]


def _load(dataset: Any, **options: Any) -> Callable[[int, int], None]:
    loaders: dict[int, Any] = {}  # workers are kept: what is set up once an epoch is left out

    def load(samples: int, threads: int) -> None:
        if threads not in loaders:
            loaders[threads] = ThreadLoader(
                dataset,
                16,
                sampler=range(samples),
                threads=threads,
                persistent_workers=True,
                **options,
            )
        for _ in loaders[threads]:
            pass

    return load


if __name__ == "__main__":
    raise SystemExit(main())
