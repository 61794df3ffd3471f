"""Python's own control flow on traced values (line 58).

`if`, `while`, `and`, `assert` and the like ask for values; a function is traced once
for each way they lead, and a call takes the way its values say. Functions that need
more than a choice run as plain Python. Results never differ.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tracing.cache import MAX_PATHS

from .both_modes import assert_modes


def assert_same(body: Any, *inputs: Any, most: int | None = None) -> Any:
    """A function that did, twice for each input, what the body does."""
    f = tj.function(body)
    for _ in range(2):
        for given in inputs:
            args = given if isinstance(given, tuple) else (given,)
            tensors = [tj.asarray(x) for x in args]
            mine, plain = f(*tensors), body(*tensors)
            found = [tj.tree.flatten(x)[0] for x in (mine, plain)]
            for a, b in zip(*found, strict=True):
                assert a.dtype == tj.asarray(b).dtype
                np.testing.assert_array_equal(a, tj.asarray(b))
    assert most is None or f.trace_count <= most, f.trace_count
    return f


# One question


def test_s58_if() -> None:
    def body(x: Any) -> Any:
        if x > 0:
            return x * 2
        return -x

    assert_same(body, 1.0, -1.0, 0.0, 5.0, np.nan, most=2)


def test_s58_elif_chains() -> None:
    def body(x: Any) -> Any:
        if x > 10:
            y = x - 10
        elif x > 5:
            y = x * 5
        elif x == 0:
            y = tj.ones(())
        else:
            y = -x
        return y

    assert_same(body, 11.0, 7.0, 0.0, -3.0, 8.0, 100.0, most=4)


def test_s58_while() -> None:
    def body(x: Any) -> Any:
        steps = 0
        while x < 100:
            x = x * 2
            steps += 1
        return x, steps

    assert_same(body, 60.0, 30.0, 200.0, 3.0, most=4)


def test_s58_for_over_a_range_and_over_a_tensor() -> None:
    def body(n: Any, x: Any) -> Any:
        total = x[0] * 0
        for _ in range(n):
            total = total + 1
        for row in x:
            if row > 0:
                total = total + row
                continue
            break
        else:
            total = total + 100
        return total

    assert_same(
        body,
        (3, [1.0, 2.0]),
        (0, [1.0, -2.0]),
        (3, [-1.0, 5.0]),
        (2, [1.0, 2.0]),
        most=4,
    )


def test_s58_and_or_not() -> None:
    def body(x: Any, y: Any) -> Any:
        if (x > 0 and y > 0) or not (x < 5):
            return x and y
        return x or y

    assert_same(body, (1.0, 1.0), (-1.0, 2.0), (0.0, 2.0), (7.0, 0.0), (1.0, 0.0))


def test_s58_chained_comparisons_and_conditional_expressions() -> None:
    assert_same(lambda x: x if 0 < x < 10 else x * 0, 5.0, 50.0, -5.0, most=3)


def test_s58_assert() -> None:
    @tj.function
    def f(x: Any) -> Any:
        assert x > 0, "positive"
        return tj.log(x)

    assert float(f(tj.asarray(1.0))) == 0.0
    for _ in range(2):
        with pytest.raises(AssertionError, match="positive"):
            f(tj.asarray(-1.0))
    assert float(f(tj.asarray(1.0))) == 0.0


def test_s58_raise_on_a_value_leaves_variables() -> None:
    def program(v: Any, x: Any) -> Any:
        v.assign_add(x)
        if v > 10:
            raise ValueError("too large")
        return v * 1

    def small() -> Any:
        return tj.Variable(1.0), tj.asarray(2.0)

    def large() -> Any:
        return tj.Variable(9.0), tj.asarray(2.0)

    assert_modes(program, small, expected=3.0, also=[large, small, large])
    assert_modes(program, large, raises=(ValueError, "too large"), also=[small])


def test_s58_int_index_and_len() -> None:
    table = ["a", "bb", "ccc"]

    def body(n: Any, x: Any) -> Any:
        y = x[: int(n)] * len(table[n])
        return tj.sum(y), y.shape[0], tj.ones(int(n) + 1)

    assert_same(
        body, (1, [1.0, 2.0, 3.0]), (2, [1.0, 2.0, 3.0]), (0, [3.0, 2.0, 1.0]), most=3
    )


def test_s58_an_int_of_a_float_is_cut_as_python_cuts_it() -> None:
    assert_same(lambda x: int(x) + x * 0, 2.7, -2.7, 0.3, -0.3, 2.1, most=3)


def test_s58_an_int_that_is_none_does_not_answer_the_next_question() -> None:
    def body(x: Any, y: Any) -> Any:
        try:
            n = int(x) % 7
        except (ValueError, OverflowError):
            n = 0
        if y > 0:
            raise KeyError("y is positive")
        return y - n

    for x in (np.nan, np.inf, 1e30):
        f = tj.function(body)
        assert float(f(tj.asarray(2.0), tj.asarray(-1.0))) == -3.0
        args = tj.asarray(x), tj.asarray(-1.0)
        with pytest.warns(UserWarning, match=r"needs a value .*int\(\)"):
            assert float(f(*args)) == float(body(*args))


@pytest.mark.filterwarnings("ignore:.*needs a value:UserWarning")
def test_s58_a_path_for_the_lowest_integer_is_not_taken_by_what_is_none() -> None:
    def body(x: Any) -> Any:
        try:
            return x * 0 + int(x) % 7
        except (ValueError, OverflowError):
            return tj.zeros(())

    assert_same(body, -(2.0**63), np.nan, 1e30, -np.inf)


def test_s58_match() -> None:
    def body(n: Any, x: Any) -> Any:
        match int(n):
            case 0:
                return x
            case 1 | 2:
                return x * 2
            case k if k > 10:
                return x * k
            case _:
                return -x

    assert_same(body, *[(n, 3.0) for n in (0, 1, 2, 11, 5)])


def test_s58_in_and_any_and_sorted() -> None:
    def body(x: Any, y: Any) -> Any:
        low, high = sorted([x, y])
        return high - low, max(x, y), min(x, y), any([x > 3, y > 3]), x in [y, 2.0]

    assert_same(body, (1.0, 5.0), (5.0, 1.0), (2.0, 2.0), (4.0, 4.0))


def test_s58_a_tensor_with_several_elements_is_neither_true_nor_false() -> None:
    def program(x: Any) -> Any:
        return x if x > 0 else -x

    assert_modes(program, lambda: tj.asarray([1.0, 2.0]), raises=(ValueError, ""))
    assert_same(lambda x: x if x > 0 else -x, [1.0], [-1.0])


def test_s58_one_question_asked_twice_is_one_guard() -> None:
    def body(x: Any) -> Any:
        is_large = x > 3
        y = x + 1 if is_large else x - 1
        return y * 2 if is_large else y

    assert_same(body, 1.0, 5.0, most=2)


def test_s58_a_question_on_a_constant_is_no_question() -> None:
    flag = tj.asarray(True)
    f = assert_same(lambda x: x * 2 if flag else x, 1.0, 2.0, most=1)
    assert f.trace_count == 1


# With state, effects and gradients


def test_s58_branches_on_variables() -> None:
    v = tj.Variable(0.0)

    @tj.function
    def step(x: Any) -> Any:
        if v >= 3:
            v.assign(0.0)
            return x * 0
        v.assign_add(1.0)
        return x * v

    found = [float(step(tj.asarray(2.0))) for _ in range(9)]
    assert found == [2.0, 4.0, 6.0, 0.0, 2.0, 4.0, 6.0, 0.0, 2.0]
    assert step.trace_count == 2


def test_s58_a_question_after_an_assignment_sees_the_new_value() -> None:
    def program(v: Any, x: Any) -> Any:
        v.assign_add(x)
        if v > 5:
            v.assign(x)
        return v * 1

    def start(at: float) -> Any:
        return lambda: (tj.Variable(at), tj.asarray(2.0))

    assert_modes(program, start(1.0), expected=3.0, also=[start(4.0), start(1.0)])


def test_s58_effects_happen_once_per_call_also_when_a_guard_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    v = tj.Variable(0.0)

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add(1.0)
        tj.print("start", x)
        if x > 0:
            tj.print("plus")
            x = x * 2
        if x > 10:
            tj.print("large")
        tj.print("end", v)
        return x

    expected = []
    for call, x in enumerate((1.0, -1.0, 8.0, 1.0, 8.0, -1.0, 1.0), 1):
        f(tj.asarray(x))
        texts = [f"start {x}"]
        texts += ["plus"] if x > 0 else []
        texts += ["large"] if x > 5 else []
        texts += [f"end {float(call)}"]
        expected += texts
    assert capsys.readouterr().out.splitlines() == expected
    assert float(v) == 7.0


def test_s58_random_numbers_are_drawn_once_per_call() -> None:
    @tj.function
    def f(x: Any) -> Any:
        u = tj.random.uniform(())
        if u > 0.5:
            return u + x
        return tj.random.uniform(()) - x

    zero = tj.asarray(0.0)
    tj.random.set_seed(7)
    traced = [float(f(zero)) for _ in range(20)]
    tj.random.set_seed(7)
    with tj.config.override(eager=True):
        plain = [float(f(zero)) for _ in range(20)]
    assert traced == plain
    assert f.trace_count == 2


def test_s58_checks_after_a_question_belong_to_their_branch() -> None:
    @tj.function
    def f(x: Any) -> Any:
        if x > 0:
            tj.debug.assert_less(x, 10.0, "small")
        else:
            tj.debug.assert_greater(x, -10.0, "not too small")
        return x

    for value in (1.0, -1.0, 1.0):
        f(tj.asarray(value))
    with pytest.raises(AssertionError, match="small"):
        f(tj.asarray(11.0))
    with pytest.raises(AssertionError, match="not too small"):
        f(tj.asarray(-11.0))


def test_s58_a_branch_that_indexes_out_of_range_is_not_taken_by_mistake() -> None:
    def body(n: Any, x: Any) -> Any:
        if n < 3:
            return x[n]
        return x[0] * 0

    assert_same(body, (1, [1.0, 2.0, 3.0]), (7, [1.0, 2.0, 3.0]), (2, [1.0, 2.0, 3.0]))


def test_s58_a_division_guarded_by_a_question_is_not_performed() -> None:
    def body(n: Any, x: Any) -> Any:
        return x // n if n != 0 else x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(body, (2, 7), (0, 7), (3, 7), most=2)


def test_s58_gradients_follow_the_branch_that_ran() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = x * x * v if x > 0 else v * 3
            while y < 50:
                y = y * 2
        return y, tape.gradient(y, [v, x])

    def at(x: float) -> Any:
        return lambda: (tj.Variable(2.0), tj.asarray(x))

    assert_modes(
        program,
        at(3.0),
        expected=(72.0, [36.0, 48.0]),
        also=[at(-1.0), at(10.0), at(3.0), at(-1.0)],
    )


def test_s58_a_tape_around_the_call_follows_too() -> None:
    v = tj.Variable(2.0)

    @tj.function
    def f(x: Any) -> Any:
        if x > 0:
            return x * x * v
        return v * 3

    for x, dx, dv in ((3.0, 12.0, 9.0), (-1.0, None, 3.0), (4.0, 16.0, 16.0)) * 2:
        source = tj.asarray(x)
        with tj.GradientTape() as tape:
            tape.watch(source)
            y = f(source)
        got = tape.gradient(y, [source, v])
        assert [None if g is None else float(g) for g in got] == [dx, dv]
    assert f.trace_count == 2


def test_s58_questions_about_gradients() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = (v - x) ** 2
        g = tape.gradient(loss, v)
        norm = tj.abs(g)
        if norm > 1:
            g = g / norm
        v.assign_sub(g)
        return loss

    def at(v: float) -> Any:
        return lambda: (tj.Variable(v), tj.asarray(1.0))

    assert_modes(program, at(5.0), variables=[4.0], also=[at(1.25), at(-3.0), at(1.25)])


def test_s58_questions_in_nested_functions() -> None:
    @tj.function
    def clip(x: Any) -> Any:
        return x if x < 2 else tj.ones(()) * 2

    assert_same(
        lambda x, y: clip(x) + clip(y), (1.0, 1.0), (1.0, 5.0), (5.0, 1.0), (5.0, 5.0)
    )


def test_s58_other_paths_and_other_shapes_do_not_mix() -> None:
    def body(x: Any) -> Any:
        return tj.sum(x) if tj.any(x > 1) else tj.prod(x)

    assert_same(body, [0.5, 0.5], [2.0, 3.0], [0.5], [4.0, 4.0, 4.0], [0.5, 0.5, 0.5])


def test_s58_the_path_taken_last_is_tried_first() -> None:
    f = tj.function(lambda x: x * 2 if x > 0 else x)
    for x in (1.0, -1.0, -2.0, 3.0, -3.0):
        f(tj.asarray(x))
    (entry,) = f._cache.entries.values()
    assert entry.last.answers == (False,)
    assert len(entry.paths) == 2


# Values that are no choice


NEEDS = [
    lambda x: x * float(x),
    lambda x: x * x.item(),
    lambda x: x + np.asarray(x).max(),
    lambda x: x + x.numpy(),
    lambda x: x * len(str(float(x))),
    lambda x: x * complex(x).real,
    lambda x: x * np.float64(x.tolist()),
]


@pytest.mark.parametrize("body", NEEDS)
def test_s58_a_function_that_needs_a_value_runs_eagerly_and_says_so_once(
    body: Any,
) -> None:
    runs = []

    @tj.function
    def f(x: Any) -> Any:
        runs.append(1)
        return body(x)

    with pytest.warns(UserWarning, match="f needs a value while it is traced") as said:
        assert float(f(tj.asarray(2.0))) == float(body(tj.asarray(2.0)))
    assert len(said) == 1
    assert "test_function_paths.py" in str(said[0].message)
    assert "tj.print" in str(said[0].message)
    assert len(runs) == 1, "the body ran once"
    for x in (3.0, 2.0, -5.0):
        assert float(f(tj.asarray(x))) == float(body(tj.asarray(x)))
    assert len(runs) == 4


def test_s58_needing_a_value_changes_no_result_in_any_mode() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape() as tape:
            y = v * v * x
        g = tape.gradient(y, v)
        v.assign_sub(g * (0.5 / float(y)))
        return y, g

    def setup() -> Any:
        return tj.Variable(3.0), tj.asarray(2.0)

    modes = ("decorated", "nested", "eagerly")
    assert_modes(program, setup, expected=(18.0, 12.0), runs_eagerly=True, modes=modes)


def test_s58_a_value_needed_on_one_path_only() -> None:
    v = tj.Variable(0.0)

    @tj.function
    def f(x: Any) -> Any:
        v.assign_add(1.0)
        if x > 0:
            return x * 2
        return x * float(x)

    assert float(f(tj.asarray(1.0))) == 2.0
    with pytest.warns(UserWarning, match="needs a value"):
        assert float(f(tj.asarray(-3.0))) == 9.0
    for x, expected in ((1.0, 2.0), (-2.0, 4.0), (2.0, 4.0)):
        assert float(f(tj.asarray(x))) == expected
    assert float(v) == 5.0


def test_s58_needing_a_value_under_a_tape_cuts_only_what_python_does() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x * float(x)

    x = tj.asarray(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            with tj.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            assert float(tape.gradient(y, x)) == 3.0


# Many ways


def test_s58_more_than_16_ways_give_one_warning_and_right_results() -> None:
    runs = []

    @tj.function
    def f(n: Any) -> Any:
        runs.append(1)
        return n * int(n)

    said = []
    for n in range(MAX_PATHS + 10):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert float(f(tj.asarray(n))) == n * n
        said += [str(w.message) for w in caught]
    said = [text for text in said if "was traced" not in text]
    assert len(said) == 1
    assert f"f takes more than {MAX_PATHS} different ways at" in said[0]
    assert "test_function_paths.py" in said[0]
    before = len(runs)
    assert float(f(tj.asarray(3))) == 9.0
    assert len(runs) == before + 1, "it runs as plain Python"


def test_s58_many_ways_at_many_places_are_no_reason_to_give_up() -> None:
    def body(x: Any) -> Any:
        total = x[0] * 0
        if x[0] > 0:
            total = total + x[0]
        if x[1] > 0:
            total = total + x[1]
        if x[2] > 0:
            total = total + x[2]
        if x[3] > 0:
            total = total + x[3]
        return total

    f = tj.function(body)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was traced")
        for bits in [*range(16), *range(16)]:
            x = tj.asarray([1.0 if bits >> k & 1 else -1.0 for k in range(4)])
            assert float(f(x)) == bits.bit_count()
    assert f.trace_count == 16


def test_s58_a_long_loop_on_values() -> None:
    def body(x: Any) -> Any:
        steps = 0
        while x > 1:
            x = x / 2 if steps % 2 else x - 1
            steps += 1
        return x + steps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(body, *[float(n) for n in range(1, 60, 3)])


def test_s58_the_retrace_warning_names_the_place_that_branches() -> None:
    @tj.function
    def f(n: Any) -> Any:
        return n * int(n)

    for n in range(5):
        f(tj.asarray(n))
    with pytest.warns(UserWarning, match="another way is taken at test_function_paths"):
        f(tj.asarray(5))
