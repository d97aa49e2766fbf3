"""What is called once an object is gone: once, or by hand, and never at the interpreter's exit."""

from __future__ import annotations

from support.child import run_child

from threadloader._lifetime import when_dropped


class Thing:
    pass


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_it_is_called_with_its_arguments_when_the_object_is_gone() -> None:
    for kind in (Thing, Unhashable):
        calls: list[int] = []
        things = [kind(), kind()]
        for number, thing in enumerate(things):
            when_dropped(thing, calls.append, number)
        assert calls == []
        del thing
        del things[0]
        assert calls == [0]
        del things[0]
        assert calls == [0, 1]


def test_it_is_called_once_when_it_is_called_by_hand() -> None:
    calls: list[int] = []
    thing = Thing()
    call = when_dropped(thing, calls.append, 1)
    call()
    call()
    del thing
    assert calls == [1]


def test_it_is_not_called_at_the_interpreters_exit() -> None:
    script = (
        "from threadloader._lifetime import when_dropped\n"
        "class Thing: pass\n"
        "thing = Thing()\n"
        "call = when_dropped(thing, print, 'called')\n"
    )
    assert run_child(script) == (0, "", "")
