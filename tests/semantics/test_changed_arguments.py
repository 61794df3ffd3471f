"""Bodies that change their arguments, or are given what selects no trace (47, 51)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from source_lines import line_of

import tapejit as tj

from .both_modes import assert_modes, note


def value() -> Any:
    return tj.asarray([1.0, 2.0])


def appends(xs: Any) -> Any:
    xs.append(xs[0] * 2)  # here
    return xs[0]


def sets_an_item(xs: Any) -> Any:
    y = xs[0]
    xs[0] = y * 2  # here
    return y


def grows(xs: Any) -> Any:
    xs += [xs[0]]  # here
    return xs[0]


def deletes(xs: Any) -> Any:
    y = xs[0]
    del xs[0]  # here
    return y


def sets_a_key(xs: Any) -> Any:
    xs["b"] = xs["a"] * 2  # here
    return xs["a"]


def sets_inside(xs: Any) -> Any:
    xs["a"][0]["b"] = xs["c"]  # here
    return xs["c"]


def removes(xs: Any) -> Any:
    return xs["a"] + xs.pop("b")  # here


@dataclass
class State:
    x: Any


def sets_a_field(xs: Any) -> Any:
    xs.x = xs.x * 2  # here
    return xs.x


CHANGES: dict[Callable[[Any], Any], Callable[[], Any]] = {
    appends: lambda: [value()],
    sets_an_item: lambda: [value()],
    grows: lambda: [value()],
    deletes: lambda: [value(), value()],
    sets_a_key: lambda: {"a": value()},
    sets_inside: lambda: {"a": [{"b": value()}], "c": value()},
    removes: lambda: {"a": value(), "b": value()},
    sets_a_field: lambda: State(value()),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["traced", "inside", "eagerly", "mapped"])
def test_s51_a_body_that_changes_its_argument_is_refused(
    change: Any, mode: str
) -> None:
    f = tj.function(change)
    calls = {
        "traced": f,
        "inside": tj.function(lambda xs: f(xs)),
        "eagerly": f,
        "mapped": tj.vmap(change),
    }
    given = CHANGES[change]()
    before = repr(given)
    message = f"changes its argument xs, at .*:{line_of(f, '# here')} in"
    with (
        tj.config.override(eager=mode == "eagerly"),
        pytest.raises(tj.UnsupportedError, match=message),
    ):
        calls[mode](given)
    assert repr(given) == before
    assert f.signatures() == []


def test_s51_a_change_elsewhere_names_the_function() -> None:
    def change(xs: Any) -> None:
        xs.clear()

    @tj.function
    def f(xs: Any) -> Any:
        y = xs[0]
        change(xs)
        return y

    with pytest.raises(tj.UnsupportedError, match=r"f changes an argument, at .* in f"):
        f([value()])


def test_s54_a_body_that_changes_its_argument_changes_no_variable() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def f(xs: Any) -> Any:
        v.assign_add(1.0)
        xs.append(xs[0])

    for eager in (False, True):
        with tj.config.override(eager=eager), pytest.raises(tj.UnsupportedError):
            f([value()])
        assert float(v) == 1.0


def test_s51_copies_and_keywords_may_be_changed() -> None:
    def program(x: Any) -> Any:
        return of_copies([x, x * 3], {"a": x}, b=x, c=x)

    @tj.function
    def of_copies(xs: Any, d: Any, **rest: Any) -> Any:
        xs = [*xs, xs[0]]
        xs.pop(0)
        d = dict(d)
        d["b"] = rest.pop("b")
        xs += [d["a"], *rest.values()]
        return sum(xs)

    assert_modes(program, lambda: (value(),), expected=[6.0, 12.0], traces=None)


# What cannot be hashed


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize(
    "given", [{1, 2}, bytearray(b"ab"), Unhashable()], ids=["set", "bytes", "object"]
)
@pytest.mark.parametrize("mode", ["outside", "inside", "eagerly", "mapped"])
def test_s47_what_cannot_be_hashed_is_refused_everywhere(mode: str, given: Any) -> None:
    f = tj.function(lambda x, by=None: x * 2)
    calls: dict[str, Any] = {
        "outside": lambda x: f(x, given),
        "inside": tj.function(lambda x: f(x, by=given)),
        "eagerly": lambda x: f(x, by=given),
        "mapped": tj.vmap(lambda x: f(x, given)),
    }
    message = f"argument by is a {type(given).__name__}, which cannot be hashed"
    with (
        tj.config.override(eager=mode == "eagerly"),
        pytest.raises(TypeError, match=message),
    ):
        calls[mode](value())


# Tapes of others


@pytest.mark.parametrize("what", ["gradient", "watch", "reset", "jacobian"])
def test_s12_a_tape_from_outside_is_not_asked_in_a_mapped_function(what: str) -> None:
    def program(x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            actions: dict[str, Any] = {
                "gradient": lambda row: tape.gradient(y * row, x),
                "jacobian": lambda row: tape.jacobian(y * row, x),
                "watch": lambda row: tape.watch(row),
                "reset": lambda row: tape.reset(),
            }
            return tj.vmap(actions[what])(x)

    message = f"{what} on a tape that was opened .* does not belong"
    for call in (program, tj.function(program)):
        with pytest.raises(RuntimeError, match=message):
            call(value())


def test_s12_a_tape_of_a_mapped_function_is_its_own() -> None:
    def program(x: Any) -> Any:
        def slope(row: Any) -> Any:
            with tj.GradientTape() as tape:
                tape.watch(row)
                y = row**3
            return tape.gradient(y, row)

        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.vmap(slope)(x)
        return y, tape.gradient(y, x)

    expected = ([3.0, 12.0], [6.0, 12.0])
    assert_modes(program, lambda: (value(),), expected=expected)


def test_s07_variables_watched_by_hand_are_watched() -> None:
    def program(v: Any, w: Any, u: Any) -> Any:
        with tj.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(w)
            tape.watch([v, w])
            y = u * w
        note([x is y for x, y in zip(tape.watched_variables(), (v, w), strict=True)])
        g = tape.gradient(y, [v, w, u])
        note(len(tape.watched_variables()))
        return g

    def setup() -> Any:
        return tj.Variable(1.0), tj.Variable(2.0, trainable=False), tj.Variable(3.0)

    notes = [[True, True], 2]
    assert_modes(program, setup, expected=[None, 3.0, None], notes=notes)
