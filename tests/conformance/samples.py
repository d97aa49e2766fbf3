"""Sample structures as trees, and hypothesis's ways to make them.

A tree makes any number of samples of one structure, told apart by a number.  Needs no torch.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

NAMES = "abcd"
ROWS = [namedtuple(f"Row{width}", list(NAMES[:width])) for width in range(len(NAMES))]  # noqa: PYI024


@dataclass(frozen=True)
class Leaf:
    """One part of a sample that has no parts itself."""

    name: str
    make: Callable[[int], Any] = field(repr=False)

    def __call__(self, number: int) -> Any:
        return self.make(number)


@dataclass(frozen=True)
class Branch:
    """A container of parts."""

    kind: str
    children: tuple[Tree, ...]

    def __call__(self, number: int) -> Any:
        return KINDS[self.kind]([child(number + 10 * k) for k, child in enumerate(self.children)])


Tree = Leaf | Branch

KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda parts: dict(zip(NAMES, parts, strict=False)),
    "dict backwards": lambda parts: dict(reversed(list(zip(NAMES, parts, strict=False)))),
    "namedtuple": lambda parts: ROWS[len(parts)](*parts),
    "OrderedDict": lambda parts: OrderedDict(zip(NAMES, parts, strict=False)),
}

NUMBERS = (
    Leaf("int", int),
    Leaf("float", lambda n: n / 4),
    Leaf("nan", lambda n: float("nan") if n % 2 else -0.0),
    Leaf("bool", lambda n: n % 2 == 0),
    Leaf("int16 scalar", np.int16),
    Leaf("float32 scalar", np.float32),
    Leaf("bool scalar", lambda n: np.bool_(n % 2)),
)
TEXT = (Leaf("str", str), Leaf("bytes", lambda n: str(n).encode()))
ARRAYS = (
    Leaf("int64 (2, 3)", lambda n: np.arange(n, n + 6).reshape(2, 3)),
    Leaf("int64 (3, 2)", lambda n: np.arange(n, n + 6).reshape(3, 2)),
    Leaf("int32 (2, 3) transposed", lambda n: np.arange(n, n + 6, dtype=np.int32).reshape(3, 2).T),
    Leaf("float32 (1,)", lambda n: np.full(1, n, np.float32)),
    Leaf("float32 (1, 1)", lambda n: np.full((1, 1), n, np.float32)),
    Leaf("float32 ()", lambda n: np.array(n, np.float32)),
    Leaf("float64 ()", lambda n: np.array(n, np.float64)),
    Leaf("uint8 (5,) strided", lambda n: np.arange(n, n + 10, dtype=np.uint8)[::2]),
    Leaf("complex64 (2,)", lambda n: np.array([n, 1j], np.complex64)),
)
PLAIN = (*NUMBERS, *TEXT, *ARRAYS)  # that have a layout
ODD = (  # that have none
    Leaf("None", lambda n: None),  # noqa: ARG005
    Leaf("complex", complex),
    Leaf("float32 (0,)", lambda n: np.empty(0, np.float32)),  # noqa: ARG005
    Leaf("object (1,)", lambda n: np.array([n], object)),
    Leaf("strings (1,)", lambda n: np.array([str(n)])),
    Leaf("range", lambda n: range(n, n + 2)),
)

# Its layout is that of any int: only writing it shows that it does not fit.
BEYOND = Leaf("int beyond 64 bits", lambda n: 2**64 + n)


def trees(leaves: Sequence[Leaf], kinds: Sequence[str] = tuple(KINDS)) -> st.SearchStrategy[Tree]:
    """Any structure of these leaves."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda parts: st.builds(
            Branch, st.sampled_from(kinds), st.lists(parts, max_size=3).map(tuple)
        ),
        max_leaves=5,
    )


@st.composite
def near_misses(draw: st.DrawFn, tree: Tree, leaves: Sequence[Leaf]) -> Tree:
    """A structure that differs from ``tree`` in one place, if at all."""
    if isinstance(tree, Leaf) or not tree.children:
        return draw(st.sampled_from(leaves))
    what = draw(st.sampled_from(["child", "kind", "fewer", "swapped"]))
    children = list(tree.children)
    if what == "kind":
        return Branch(draw(st.sampled_from(tuple(KINDS))), tree.children)
    if what == "fewer":
        children.pop()
    elif what == "swapped":
        children.reverse()
    else:
        at = draw(st.integers(0, len(children) - 1))
        children[at] = draw(near_misses(children[at], leaves))
    return Branch(tree.kind, tuple(children))


@st.composite
def samples(draw: st.DrawFn, leaves: Sequence[Leaf], min_size: int = 0) -> list[Any]:
    """The samples of a dataset: of one structure, or some of them of another."""
    tree = draw(trees(leaves))
    miss = draw(st.one_of(st.just(tree), near_misses(tree, leaves)))
    made = draw(st.lists(st.sampled_from([tree, tree, tree, miss]), min_size=min_size, max_size=9))
    return [make(number) for number, make in enumerate(made)]
