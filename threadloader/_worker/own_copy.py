"""What a worker owns: a copy of everything that Python code can write; data is shared.

    an object -> the rule of its class -> a twin, which gets the twins of its parts

It is what a forked worker has, without the memory.  Objects are copied by their attributes and
slots and by none of their own methods, so no class can refuse.  Only an object of a C class is
asked for what it is made of, by the protocol of `pickle`.  What was one object stays one object,
also in a cycle and behind a weak reference.

A rule may be a generator: it yields each part with its name, gets the part's twin, and returns the
twin of the whole.  So a chain of any length is followed without recursion.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from threadloader import _torch
from threadloader._batch.parts import ATOMS, is_flat, state_of
from threadloader._lifetime import AtomicWeakSet, Phase, at_exit, interrupt_later

Steps: TypeAlias = Generator[tuple[Any, Any], Any, Any]
# Returns a worker's own of an object; or, as a generator, yields what that is made of, with a name,
# gets the worker's own of it, and returns the whole.
Rule: TypeAlias = "Callable[[Any, Copier], Any]"

# A container with more entries is data.  So is a plain one with more below it: of what is shared,
# arrays and plain containers, where an array is ten entries, and each KiB of it one more; of
# several that lie in one another, the smallest.
LARGE, OF_ARRAY = 10_000, 10
MOST_DEEP = 99  # what lies deeper is copied
_PLAIN = frozenset({list, tuple, dict, set, frozenset, deque, Counter, OrderedDict, defaultdict})
_NOT_PLAIN = -1
# Of memory that can be written: what has more is data; and what is copied for a worker in all.
LARGE_BYTES, MOST_BYTES = 1 << 20, 1 << 26
_GENERATOR = type(_ for _ in ())


class Limits(NamedTuple):
    """Sizes above which workers share memory and containers."""

    entries: int  # of a container
    nbytes: int  # of an array, a tensor, a buffer
    nbytes_in_all: int


LIMITS = {
    "auto": Limits(LARGE, LARGE_BYTES, MOST_BYTES),
    # Of iterable datasets: a replica shuffles its own indices in place.
    "replica": Limits(sys.maxsize, MOST_BYTES, MOST_BYTES),
    "deep": Limits(sys.maxsize, sys.maxsize, sys.maxsize),
}


class Found(NamedTuple):
    """A generator, as a walk has found it."""

    generator: Any
    name: Any  # of the attribute; of an entry, a tuple of its key
    holders: tuple[Any, ...]  # the objects that lead to it, the root first
    names: tuple[Any, ...]  # of the holders

    @property
    def holder(self) -> Any:
        """The object that has it; None if it is the root itself."""
        return self.holders[-1] if self.holders else None


class SharedPart(NamedTuple):
    """An object that all workers share, as there is no way to give each its own."""

    path: str
    kind: type


class Copied(dict[int, tuple[Any, Any]]):
    """What was copied: the original and its twin, by the original's id, which it keeps.

    Where the two are the same object, it is shared.

    Args:
        notes_states: Whether to note what the originals hold, see `copy_rules.is_current`.

    Attributes:
        shared: Parts that are shared though somebody may write them, as no rule can copy them.
        shares_data: Whether something is shared that is large, or must not be had twice.
        generators: The random generators that were met, in the order of the walk.
        may_get_generators: Whether a function that sets up a worker may give objects some.
        meets: Whether there is an object at which samples may wait for one another.
    """

    def __init__(self, *, notes_states: bool = False) -> None:
        super().__init__()
        self.shared: list[SharedPart] = []
        self.shares_data = False
        self.generators: list[Found] = []
        self.may_get_generators = False
        self.meets = False
        self.states: dict[int, Any] | None = {} if notes_states else None
        self._silent: list[Any] = []

    __hash__ = object.__hash__  # type: ignore[assignment]  # each is another one
    __eq__ = object.__eq__

    def forget_from(self, size: int) -> None:
        """Forget what was copied after so many objects."""
        while len(self) > size:
            self.popitem()
        self.shared.clear()

    def shared_pairs(self) -> dict[int, tuple[Any, Any]]:
        """Return what was found to be shared."""
        return {key: pair for key, pair in self.items() if pair[0] is pair[1]}

    def silence(self, twin: Any) -> None:
        """Let the ``__del__`` of a twin not run when the twins are dropped.

        None runs in a forked worker, either: it would close or delete what the original needs.
        """
        if not self._silent:
            _silenced.add(self)
        self._silent.append(twin)

    def __del__(self) -> None:
        """Let no ``__del__`` of the twins run from now on.

        Not by `when_dropped`, which would keep the twins, and so a loader that one of them leads
        to, for ever.
        """
        try:
            if twins := getattr(self, "_silent", None):  # else modules may be gone by now
                _silence(twins)
        except KeyboardInterrupt:
            _silence(self._silent)
            interrupt_later()


class Rules(NamedTuple):
    """How objects are copied, see `copy_rules.RULES`."""

    rule_of: Callable[[type, bool], Rule | None]  # of a class; None to share its objects
    of_data: Rule  # that of what is shared
    of_tuples: Rule  # that of tuples with a class of their own
    # Gives a twin the twins of an object's attributes, and returns it.
    attributes: Callable[[Any, Copier, Any], Steps]


class Copier:
    """Copies graphs of objects; what is reached twice is copied once.

    Args:
        copied: What was copied before; gets what is copied now.
        rules: By which objects are copied.
        looks: Whether the copies are for looking at: nothing is opened, and no memory is copied.
        limits: Above which memory and containers are shared.

    Threads:
        all: one thread, and no other that copies from the same originals at the time.
    """

    def __init__(
        self, copied: Copied, rules: Rules, *, looks: bool = False, limits: Limits | None = None
    ) -> None:
        self.copied = copied
        self.attributes = rules.attributes
        self._rule_of, self._of_tuples = rules.rule_of, rules.of_tuples
        self._shares = frozenset({None, rules.of_data})
        self.looks = looks
        self.root: Any = None
        self.owner: Any = None  # of the method that was given as a collate function
        # What was copied, by its address, and the copies: of tensors, and as bytes of all memory.
        self.storages: dict[int, tuple[Any, Any]] = {}
        self.memories: dict[int, tuple[Any, Any]] = {}
        limits = LIMITS["auto"] if limits is None else limits
        self.most, self._most_bytes, self._bytes_left = limits
        self.shapes: dict[type, Any] = {}  # what the rules have found out about classes
        self._rules: dict[type, Rule | None] = {}
        # In entries, of plain containers and all else in them that is no atom.
        self._weights: dict[int, tuple[Any, int]] = {}
        # The rules that wait for a part: the steps, the part's name, and the part.
        self._stack: list[tuple[Steps, Any, Any]] = []
        self._unfilled: list[tuple[Any, Callable[[], object]]] = []

    def copy(self, name: str, value: Any) -> Any:
        """Return the twin of what the user gave to the loader; raises nothing.

        Args:
            name: Of the argument.
            value: The dataset, or a function.
        """
        self.root = value
        self.owner = getattr(value, "__self__", None) if name == "collate_fn" else None
        stack = self._stack
        stack.append((_steps_of(name, value), None, None))
        twin = None
        while stack:
            steps, _, whole = stack[-1]
            try:
                twin = self._twin_of(*steps.send(twin))
            except StopIteration as done:
                known = self.copied.get(id(whole))
                if known is None:
                    twin = done.value if whole is None else self.keep(whole, done.value)
                else:  # noted before its parts; or it has led to itself
                    twin = known[1]
                stack.pop()
            except Exception:  # noqa: BLE001  # whatever a class raises to refuse
                twin = self.name(whole)
                stack.pop()
        self.fill()
        for unhashable, _ in self._unfilled:
            self.copied.shared.append(SharedPart(f"keys in {name}", type(unhashable)))
        self._unfilled.clear()
        return twin

    def _twin_of(self, name: Any, part: Any) -> Any:
        """Return the twin of a part; or None, where its rule has parts to ask for."""
        kind = type(part)
        if kind in ATOMS:
            return part
        known = self.copied.get(id(part))
        if known is not None:
            return known[1]
        self._stack.append((None, name, part))  # type: ignore[arg-type]  # nobody sends it a twin
        try:
            rule = self._rule(kind)
            made = part if rule is None else rule(part, self)
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            made = self.name(part)
        if type(made) is _GENERATOR and made is not part:
            self._stack[-1] = made, name, part
            return None
        if id(part) not in self.copied:  # else its rule has noted it
            self.keep(part, made)
        self._stack.pop()
        return made

    def _rule(self, kind: type) -> Rule | None:
        if kind not in self._rules:
            self._rules[kind] = self._rule_of(kind, self.looks)
        return self._rules[kind]

    # For rules

    def keep(self, value: Any, twin: Any) -> Any:
        """Note a twin, and return it; the object itself is shared."""
        copied = self.copied
        copied[id(value)] = value, twin
        if copied.states is not None and twin is not value:
            copied.states[id(value)] = state_of(value)
        return twin

    def data(self, value: Any) -> Any:
        """Share data, and return it."""
        self.copied.shares_data = True
        return self.keep(value, value)

    def name(self, value: Any) -> Any:
        """Share the present part, which no rule knows how to copy, and note how it is reached."""
        self.copied.shared.append(SharedPart(self.path, type(value)))
        return self.keep(value, value)

    @property
    def path(self) -> str:
        """How the present part is reached: ``dataset.readers['train']``."""
        _, (_, root, _), *below = self._stack
        return "".join((root, *(name_of(name) for _, name, _ in below)))

    @property
    def holder(self) -> Any:
        """The object that leads to the present part; None for a root."""
        return self._stack[-2][2]

    def found(self, generator: Any) -> Found:
        """Return how a generator, the present part, is reached."""
        _, *above, (_, name, _) = self._stack
        return Found(
            generator,
            name,
            holders=tuple(part for _, _, part in above),
            names=tuple(name for _, name, _ in above),
        )

    def affords(self, nbytes: int) -> bool:
        """Whether memory is copied, as it is small enough; then it counts."""
        if self.looks or nbytes > min(self._most_bytes, self._bytes_left):
            return False
        self._bytes_left -= nbytes
        return True

    def fill_later(self, twin: Any, fill: Callable[[], object]) -> None:
        """Fill a container by keys that may hash themselves, once these have their attributes."""
        self._unfilled.append((twin, fill))

    def fill(self) -> None:
        """Fill containers now: their keys are ready, or somebody is going to look at them."""
        unfilled, self._unfilled = self._unfilled, []
        for twin, fill in unfilled:
            try:
                fill()
            except Exception:  # noqa: BLE001  # whatever a class raises to refuse
                self._unfilled.append((twin, fill))

    def flat_or_data(self, container: Any) -> Any:
        """Return a copy of a small list, dict or set that leads to nothing, or data itself.

        The copy is looked at: another thread may put something into the container meanwhile.

        Returns:
            None of a container whose parts are to be copied.
        """
        twin = container.copy() if len(container) <= self.most else None
        if twin is not None and is_flat(twin):
            return twin
        return self.data(container) if self.is_data(container) else None

    def is_data(self, container: Any) -> bool:
        """Whether a container is so large that it is shared."""
        if len(container) > self.most:
            return True
        try:
            return self._weight_of(container, MOST_DEEP) > self.most
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse: its part is named
            return False

    def _weight_of(self, part: Any, deep: int) -> int:
        """Return how many entries a part has in all, up to one that makes it data.

        Args:
            part: The part.
            deep: How deep to look into it.
        """
        kind = type(part)
        if kind is np.ndarray and not part.dtype.hasobject:
            return OF_ARRAY + int(part.nbytes >> 10)
        if kind is _torch.Tensor:
            return OF_ARRAY + int(_torch.dense_nbytes(part) >> 10)
        if id(part) not in self._weights:
            self._weights[id(part)] = part, _NOT_PLAIN  # if it leads to itself
            weight = self._weigh(part, deep) if deep else _NOT_PLAIN
            self._weights[id(part)] = part, weight
        return self._weights[id(part)][1]

    def _weigh(self, part: Any, deep: int) -> int:
        kind = type(part)
        if kind in _PLAIN and (len(part) > self.most or is_flat(part)):
            return len(part)
        rule = self._rule_of(kind, False)  # also while looking: data is the same with workers
        if kind not in _PLAIN and not (rule is self._of_tuples and not kind.__dictoffset__):
            return 0 if rule in self._shares else _NOT_PLAIN
        entries = len(part) if kind in _PLAIN else tuple.__len__(part)
        for entry in state_of(part):
            if entries > self.most:
                break
            if type(entry) not in ATOMS:
                weight = self._weight_of(entry, deep - 1)
                if weight == _NOT_PLAIN:
                    return _NOT_PLAIN
                entries += weight if weight <= self.most else 0  # data counts as nothing
        return entries


def name_of(name: Any) -> str:
    """Return how an attribute, or an entry by its key, is written; by no method of the user's."""
    if type(name) is not tuple:
        return f".{name}"
    key = name[0]
    return f"[{key!r}]" if type(key) in ATOMS else f"[{type(key).__name__}]"


def _steps_of(name: str, value: Any) -> Steps:
    """Ask for the twin of a root."""
    return (yield name, value)


class _Silent:
    """Takes ``__del__`` away from a class, and tells no other base that there is one more."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        pass

    def __del__(self) -> None:
        pass


def _silence(twins: list[Any]) -> None:
    """Exchange the classes of twins for such as are the same, but for their ``__del__``."""
    silent: dict[type, type] = {}
    while twins:
        twin = twins.pop()
        kind = type(twin)
        if kind not in silent:
            silent[kind] = _silent_class(kind)
        with suppress(TypeError):  # of a class of C, which was rebuilt, and owns what it closes
            object.__setattr__(twin, "__class__", silent[kind])


def _silent_class(kind: Any) -> type:
    """Return a class of the same layout, without a ``__del__``."""

    def mro(cls: type) -> list[type]:
        return [cls, _Silent, *kind.__mro__]

    # Not by the metaclass or the bases, which may keep a register of classes.
    meta = type.__new__(type, "_Silent", (type(kind),), {"mro": mro})
    names = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type.__new__(meta, kind.__name__, (kind,), names)


_silenced: AtomicWeakSet[Copied] = AtomicWeakSet()


@at_exit(Phase.END_COPIES)
def _end_copies() -> None:
    """Let no ``__del__`` of twins run when modules are dropped."""
    for copied in _silenced.all():
        _silence(copied._silent)  # noqa: SLF001  # of this module
