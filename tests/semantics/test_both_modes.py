"""The harness itself: it must see every kind of difference between modes."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tensor.tensor import TracedTensor

from .both_modes import assert_modes, assert_taped, note, note_error, ways
from .native_sample import SAMPLE


def is_traced(x: Any) -> bool:
    """What no program should ask."""
    return isinstance(x * 1.0, TracedTensor)


def scalar() -> Any:
    return tj.asarray(3.0)


def variable() -> Any:
    return tj.Variable(3.0)


def raise_error(error: Exception) -> Any:
    raise error


DIFFERENT = {
    "value": lambda x: x * (2.0 if is_traced(x) else 3.0),
    "last bit": lambda x: x * (1.0000001 if is_traced(x) else 1.0),
    "sign of zero": lambda x: x * (-0.0 if is_traced(x) else 0.0),
    "dtype": lambda x: x.astype("float64" if is_traced(x) else "float32"),
    "shape": lambda x: x[None] if is_traced(x) else x * 1.0,
    "None": lambda x: None if is_traced(x) else x * 1.0,
    "structure": lambda x: [x * 1.0] if is_traced(x) else (x * 1.0,),
    "note": lambda x: note(is_traced(x)),
    "error": lambda x: raise_error(KeyError()) if is_traced(x) else x * 1.0,
    "no error": lambda x: x * 1.0 if is_traced(x) else raise_error(KeyError()),
    "class of error": lambda x: raise_error(KeyError() if is_traced(x) else OSError()),
    "text of error": lambda x: raise_error(KeyError(is_traced(x))),
    "warning": lambda x: warnings.warn(f"{is_traced(x)}", stacklevel=1),
    "needs a value": lambda x: x * float(x),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_between_modes_is_found(name: str) -> None:
    options: dict[str, Any] = {"modes": ["decorated"]}
    if name in ("no error", "class of error", "text of error"):
        options["raises"] = (Exception, "")
    if name == "warning":
        options["warns"] = ["False"]
    with pytest.raises(AssertionError):
        assert_modes(DIFFERENT[name], scalar, **options)


@pytest.mark.parametrize("mode", ["decorated", "captured", "nested"])
def test_in_each_mode(mode: str) -> None:
    program = DIFFERENT["value"]
    with pytest.raises(AssertionError, match=f"{mode}.*traces.* is not "):
        assert_modes(lambda v: program(v), variable, modes=[mode])
    assert_modes(lambda v: program(v), variable, modes=["eagerly"])


def is_native(x: Any) -> bool:
    """What no program should ask either."""
    return tj.config.native


IN_NATIVE_CODE = {
    "value": lambda x: x * (2.0 if is_native(x) else 3.0),
    "sign of zero": lambda x: x * (-0.0 if is_native(x) else 0.0),
    "NaN": lambda x: x * (np.nan if is_native(x) else 1.0),
    "dtype": lambda x: x.astype("float64" if is_native(x) else "float32"),
    "None": lambda x: None if is_native(x) else x * 1.0,
    "error": lambda x: raise_error(KeyError()) if is_native(x) else x * 1.0,
}


@pytest.mark.parametrize("name", IN_NATIVE_CODE)
def test_a_difference_in_native_code_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match="native code"):
        assert_modes(IN_NATIVE_CODE[name], scalar, modes=["natively"])


def test_a_difference_of_native_gradients_is_found() -> None:
    SAMPLE.begin("all of them", one_in=1)
    with pytest.raises(AssertionError, match="native code"):
        assert_taped(IN_NATIVE_CODE["value"], scalar)


def test_native_code_may_differ_in_last_bits() -> None:
    program = lambda x: x * (1.0000001 if is_native(x) else 1.0)
    assert_modes(program, scalar, expected=3.0, modes=["natively"])


def test_one_program_in_five_runs_natively_and_all_with_the_option(full: bool) -> None:
    seen: list[bool] = []

    def program(x: Any) -> Any:
        seen.append(tj.config.native)
        return x * 1.0

    for at in range(10):
        assert_modes(lambda x, at=at: program(x + at), scalar)
        seen.append(False)
    natively = sum(was and not before for before, was in itertools.pairwise(seen))
    assert natively == (10 if full else 2)
    assert not tj.config.native


def test_final_values_of_variables_are_compared() -> None:
    def program(v: Any) -> None:
        v.assign(5.0 if is_traced(v) else 4.0)

    with pytest.raises(AssertionError, match=r"a variable: 5\.0 is not 4\.0"):
        assert_modes(program, variable, modes=["decorated"])


def test_a_failed_call_must_put_variables_back() -> None:
    def program(v: Any) -> None:
        v._tensor = tj.asarray(5.0)  # behind the function's back
        raise KeyError

    with pytest.raises(AssertionError, match="a variable after the error"):
        assert_modes(program, variable, raises=(KeyError, ""))


def test_a_second_call_that_traces_or_runs_the_body_is_found() -> None:
    class Key:
        """Equal to nothing, so that every call is a new one."""

        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return False

    with pytest.raises(AssertionError, match=r"traces|ran again"):
        assert_modes(lambda x, key: x * 1.0, lambda: (scalar(), Key()))


def test_state_that_only_the_trace_sees_is_found() -> None:
    outside = [1.0]

    def program(x: Any) -> Any:
        outside[0] += 1.0
        return x * outside[0]

    with pytest.raises(AssertionError, match="is not"):
        assert_modes(program, scalar)


EXPECTATIONS = {
    "expected": {"expected": 4.0},
    "shape": {"expected": [3.0]},
    "dtype": {"expected": np.float64(3.0)},
    "None": {"expected": None},
    "structure": {"expected": (3.0,)},
    "variables": {"variables": [5.0]},
    "notes": {"notes": ["other"]},
    "warns": {"warns": ["careful"]},
    "raises": {"raises": (KeyError, "")},
}


@pytest.mark.parametrize("options", EXPECTATIONS.values(), ids=EXPECTATIONS)
def test_what_the_test_expects_is_compared(options: Any) -> None:
    def program(v: Any) -> Any:
        note("noted")
        return v * 1.0

    assert_modes(program, variable, expected=3.0, variables=[3.0], notes=["noted"])
    with pytest.raises(AssertionError):
        assert_modes(program, variable, **options)


@pytest.mark.parametrize(
    "errors", [[], [(ValueError, "k")], [(KeyError, "other")], [(KeyError, "k")] * 2]
)
def test_errors_that_the_body_asks_for_are_compared(errors: Any) -> None:
    def program(x: Any) -> Any:
        note_error(lambda: raise_error(KeyError("k")))
        note("no error")
        return x

    assert_modes(program, scalar, errors=[(LookupError, "k")])
    with pytest.raises(AssertionError):
        assert_modes(program, scalar, errors=errors)


def test_what_raises_nothing_is_no_noted_error() -> None:
    with pytest.raises(AssertionError, match="raises nothing"):
        assert_modes(lambda x: note_error(lambda: x * 1.0), scalar)


AROUND = {
    "value": lambda x: x * x * (2.0 if is_traced(x) else 1.0),
    "None": lambda x: tj.stop_gradient(x) if is_traced(x) else x * 1.0,
    "second order": lambda x: x * tj.stop_gradient(x) * 2.0 if is_traced(x) else x * x,
    "one of two results": lambda x: (x * 2.0, x) if is_traced(x) else (x, x * 2.0),
}


@pytest.mark.parametrize("program", AROUND.values(), ids=AROUND)
def test_a_difference_under_tapes_around_is_found(program: Any) -> None:
    with pytest.raises(AssertionError):
        assert_taped(program, scalar)


def test_what_tape_around_expects_is_compared() -> None:
    assert_taped(lambda x: x * x, scalar, expected=[6.0], second=[2.0])
    with pytest.raises(AssertionError):
        assert_taped(lambda x: x * x, scalar, expected=[5.0])
    with pytest.raises(AssertionError):
        assert_taped(lambda x: x * x, scalar, second=[None])


def test_ways_are_what_their_names_say() -> None:
    seen = {
        name: call(scalar()).item() for name, call in ways(DIFFERENT["value"], scalar)
    }
    assert seen == {
        "plain": 9.0,
        "decorated": 6.0,
        "traced before": 6.0,
        "run eagerly": 9.0,
    }
