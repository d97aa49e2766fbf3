"""A worker's copy of any graph of objects has its shape, and is written by nobody else."""

from __future__ import annotations

import array
import collections
import functools
import operator
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.in_workers import THREADS, in_workers

EXAMPLES = int(os.environ.get("THREADLOADER_OWN_EXAMPLES", "100"))
BEFORE = 99
MANY = 20_000


class Plain:
    def __init__(self, **parts: Any) -> None:
        self.now = BEFORE
        vars(self).update(parts)

    def method(self) -> Any:
        return self.now


class Slots:
    __slots__ = ("__weakref__", "link", "now", "parts")

    def __init__(self, parts: Any) -> None:
        self.now, self.parts, self.link = BEFORE, parts, None


class List(list[Any]):
    now = BEFORE


class Dict(dict[Any, Any]):
    now = BEFORE


def function(parts: list[Any]) -> Any:
    now, first, rest = BEFORE, parts[0], parts[1:]

    def read(value: int | None = None, rest: Any = rest, *, last: Any = parts[-1]) -> Any:
        nonlocal now
        now = now if value is None else value
        return now, first, rest, last

    return read


def cached(parts: list[Any]) -> Any:
    return functools.lru_cache(maxsize=8)(function(parts))


def weakly(make: Callable[[Plain], Any]) -> Callable[[list[Any]], Plain]:
    def made(parts: list[Any]) -> Plain:
        helper = Plain(parts=parts)
        return Plain(weak=make(helper), helper=helper)

    return made


def objects(parts: list[Any]) -> Any:
    made = np.empty(len(parts) + 1, object)
    for place, part in enumerate([BEFORE, *parts]):
        made[place] = part
    return made


def views(_: list[Any]) -> Any:
    whole = np.full(4, BEFORE)
    return Plain(whole=whole, view=whole[::2], reversed=whole[::-1])


NODES: dict[str, Callable[[list[Any]], Any]] = {
    "plain": lambda parts: Plain(parts=parts),
    "attributes": lambda parts: Plain(**{f"part{k}": part for k, part in enumerate(parts)}),
    "slots": Slots,
    "list": lambda parts: [BEFORE, *parts],
    "list subclass": lambda parts: List([BEFORE, *parts]),
    "user list": lambda parts: collections.UserList([BEFORE, *parts]),
    "deque": lambda parts: collections.deque([BEFORE, *parts]),
    "dict": lambda parts: {"now": BEFORE, **dict(enumerate(parts))},
    "dict subclass": lambda parts: Dict(enumerate([BEFORE, *parts])),
    "ordered": lambda parts: collections.OrderedDict(enumerate([BEFORE, *parts])),
    "default": lambda parts: collections.defaultdict(list, enumerate([BEFORE, *parts])),
    "keys": lambda parts: {Plain(part=part): 1 for part in parts},
    "tuple": tuple,
    "frozenset": lambda parts: frozenset([Plain(parts=parts)]),
    "set": lambda parts: {Plain(parts=parts)},
    "namespace": lambda parts: types.SimpleNamespace(now=BEFORE, parts=parts),
    "mapping": lambda parts: types.MappingProxyType(dict(enumerate(parts))),
    "function": function,
    "cached": cached,
    "partial": lambda parts: functools.partial(max, *parts, key=parts[0]),
    "method": lambda parts: Plain(parts=parts).method,
    "append": lambda parts: [BEFORE, *parts].append,
    "ref": weakly(weakref.ref),
    "weak method": weakly(lambda helper: weakref.WeakMethod(helper.method)),
    "weak keys": weakly(lambda helper: weakref.WeakKeyDictionary({helper: [BEFORE]})),
    "weak values": weakly(lambda helper: weakref.WeakValueDictionary(now=helper)),
    "array": lambda _: np.full(3, BEFORE),
    "objects": objects,
    "views": views,
    "bytes": lambda _: bytearray([BEFORE]),
    "numbers": lambda _: array.array("i", [BEFORE]),
}
SEQUENCES = (list, collections.deque, collections.UserList, np.ndarray, bytearray, array.array)
FUNCTIONS = (types.FunctionType, type(functools.cache(len)))
LEAVES = (type(None), int, str, type, types.ModuleType)


def put(node: Any, value: int) -> None:
    """Write to a node, if it can be written to."""
    if isinstance(node, SEQUENCES):
        node[0] = value
    elif isinstance(node, dict):
        node["now"] = value
    elif isinstance(node, FUNCTIONS):
        getattr(node, "__wrapped__", node)(value)
    elif hasattr(node, "now"):
        node.now = value
    if hasattr(node, "whole"):
        node.whole[...] = value


def get(node: Any) -> Any:
    """Return what `put` has written."""
    if isinstance(node, SEQUENCES):
        return int(node[0])
    if isinstance(node, dict):
        return node.get("now")
    if isinstance(node, FUNCTIONS):
        return getattr(node, "__wrapped__", node)()[0]
    if hasattr(node, "whole"):
        return node.now, int(node.view[1]), int(node.reversed[0])
    return getattr(node, "now", None)


def link(node: Any, other: Any, name: str) -> None:
    """Let a node lead to another, which may lead to it."""
    if isinstance(node, list | collections.deque | collections.UserList):
        node.append(other)
    elif isinstance(node, dict):
        node[name] = other
    elif isinstance(node, Slots):
        node.link = other
    elif isinstance(node, Plain | types.SimpleNamespace | types.FunctionType):
        setattr(node, name, other)


def parts_of(node: Any) -> list[Any]:  # noqa: C901  # a line for each type
    """Return what a node leads to at once."""
    found = list(vars(node).values()) if hasattr(node, "__dict__") else []
    match node:
        case weakref.WeakKeyDictionary() | weakref.WeakValueDictionary():
            return [*node.keys(), *node.values()]
        case dict() | types.MappingProxyType():
            return [*node.keys(), *node.values(), *found]
        case weakref.ref():
            target = node()
            return list(parts_of(target)) if isinstance(target, types.MethodType) else [target]
        case functools.partial():
            return [node.func, *node.args, *node.keywords.values()]
        case object(__wrapped__=function):
            return [function]
        case types.FunctionType():
            return [*node.__closure__, *node.__defaults__, *node.__kwdefaults__.values(), *found]
        case types.CellType():
            return [node.cell_contents]
        case types.MethodType() | types.BuiltinMethodType():
            return [node.__self__]
        case Slots():
            return [node.now, node.parts, node.link]
        case np.ndarray():
            return list(node.flat) if node.dtype.hasobject else []
        case list() | tuple() | set() | frozenset() | collections.deque():
            return [*node, *found]
    return found


def shape(root: Any) -> tuple[list[Any], list[Any]]:
    """Return what a graph looks like, objects by the order that they are met in; and those."""
    told: list[Any] = []
    met: dict[int, tuple[int, Any]] = {}
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, LEAVES) or node is max or id(node) in met:
            told.append(met.get(id(node), (type(node), None))[0])
            continue
        met[id(node)] = len(met), node
        parts = parts_of(node)
        told.append((type(node), len(parts)))
        todo.extend(parts)
    return told, [node for _, node in met.values()]


def write(graph: Any, index: int) -> None:
    for node in graph.nodes:
        put(node, index)


def read(graph: Any) -> Any:
    return [get(node) for node in graph.nodes], *shape(graph)


def graph_of(kinds: list[tuple[str, list[int]]], links: list[tuple[int, int]], root: int) -> Any:
    """Make nodes, each of which leads to some before it; then link them to any others."""
    nodes: list[Any] = [[BEFORE]]
    for kind, parts in kinds:
        nodes.append(NODES[kind]([nodes[part % len(nodes)] for part in parts]))
    for number, (node, other) in enumerate(links):
        link(nodes[node % len(nodes)], nodes[other % len(nodes)], f"link{number}")
    return Plain(root=nodes[root % len(nodes)], nodes=nodes)


ONE = st.integers(0, 15)
KINDS = st.tuples(st.sampled_from(sorted(NODES)), st.lists(ONE, min_size=1, max_size=3))


@settings(max_examples=EXAMPLES)
@given(
    kinds=st.lists(KINDS, min_size=1, max_size=12),
    links=st.lists(st.tuples(ONE, ONE), max_size=6),
    root=ONE,
    where=st.sampled_from(["dataset", "collate_fn"]),
)
def test_a_workers_copy_of_a_graph_is_its_own_and_has_its_shape(
    kinds: Any, links: Any, root: int, where: str
) -> None:
    graph = graph_of(kinds, links, root)
    write(graph, BEFORE)
    before, _, originals = read(graph)
    loaded = {threads: in_workers(graph, read, write, threads, where) for threads in (1, 4, None)}
    assert read(graph)[0] == before, "the user's objects were written"
    expected = in_workers(graph, read, write, 0, where)
    for threads, found in loaded.items():
        for (values, looks, _), (other, as_before, _) in zip(found, expected, strict=threads == 1):
            assert (values, looks) == (other, as_before)
        # Samples of one worker have one copy; of two, or of the user's, not one object in common.
        copies = {id(objects[0]): {id(each) for each in objects} for _, _, objects in found}
        copies[id(originals[0])] = {id(each) for each in originals}
        assert len(copies) == {1: 2, THREADS: THREADS + 1}.get(threads or 0, len(copies))
        assert len(set().union(*copies.values())) == sum(map(len, copies.values()))


LINKS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda other: Plain(next=other), operator.attrgetter("next")),
    (Slots, operator.attrgetter("parts")),
    (lambda other: [other], operator.itemgetter(0)),
    (lambda other: (other, []), operator.itemgetter(0)),
    (lambda other: {"k": other}, operator.itemgetter("k")),
]


def places(chain: Any) -> list[int]:
    found = []
    while chain is not None:
        for _, step in LINKS:
            found.append(id(chain))
            chain = step(chain)
    return found


def test_a_chain_of_20_000_objects_is_copied_link_by_link() -> None:
    chain = None
    for _ in range(MANY // len(LINKS)):
        for make, _ in reversed(LINKS):
            chain = make(chain)
    first, *_ = in_workers(chain, places, threads=1)
    assert len(first) == len(places(chain)) == MANY
    assert set(first).isdisjoint(places(chain))
