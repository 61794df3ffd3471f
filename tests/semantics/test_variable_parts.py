"""Parts and copies of variables (line 35), and their buffers.

A tensor never changes: what was read of a variable keeps its numbers, whoever holds
them, when a function assigns.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import tapejit as tj

from .both_modes import assert_modes, assert_taped, note_error

TRACKED = "no gradient flows through an assignment"


def matrix() -> Any:
    return tj.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], name="v")


def vector_and_tensor() -> Any:
    return tj.Variable([1.0, 2.0, 3.0], name="v"), tj.asarray([10.0, 20.0, 30.0])


# 35: parts


ASSIGNMENTS = ["assign", "assign_add", "assign_sub"]

KEYS: dict[str, Any] = {
    "row": 1,
    "last": -1,
    "element": (0, 2),
    "slice": slice(None, 1),
    "column": (slice(None), 1),
    "rows and columns": (slice(1, 2), slice(0, 2)),
    "steps": (slice(None), slice(None, None, 2)),
    "backwards": (Ellipsis, slice(None, None, -1)),
    "everything": Ellipsis,
    "list": [1, 0],
    "tensor": tj.asarray([1, 0]),
    "repeated": [0, 0, 1],
    "two lists": ([0, 1, 1], [2, 0, 0]),
    "mask": np.array([[True, False, True], [False, False, True]]),
    "row mask": np.array([False, True]),
    "nothing": slice(0, 0),
}


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize("name", KEYS)
def test_s35_a_part_can_be_assigned(method: str, name: str) -> None:
    key = KEYS[name]
    place = key.numpy() if isinstance(key, tj.Tensor) else key
    data = np.float32([[1, 2, 3], [4, 5, 6]])
    array = -1 - np.arange(data[place].size, dtype=np.float32)
    array = array.reshape(data[place].shape)
    values = [np.float32(7), array]
    if name in ("repeated", "two lists"):
        values = values[:1]  # one of several values would have to win

    def program(v: Any, *values: Any) -> Any:
        before = v.value()
        results = [getattr(v[key], method)(x) for x in values]
        return results, v * 2.0, before

    wanted, expected = data.copy(), []
    for value in values:
        if method == "assign":
            wanted[place] = value
        else:
            update = np.add if method == "assign_add" else np.subtract
            update.at(wanted, place, value)
        expected.append(wanted.copy())
    assert_modes(
        program,
        lambda: (matrix(), *map(tj.asarray, values)),
        expected=(expected, wanted * 2, data),
        variables=[wanted],
    )


SCATTERS: dict[str, Any] = {
    "scatter_add": np.add,
    "scatter_sub": np.subtract,
    "scatter_mul": np.multiply,
    "scatter_div": np.divide,
    "scatter_min": np.minimum,
    "scatter_max": np.maximum,
    "scatter_update": None,
}


@pytest.mark.parametrize("method", SCATTERS)
@pytest.mark.parametrize(
    ("indices", "updates"),
    [
        ([0, 1], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        ([1, 1, 0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]),
        ([-1], [[1.0, 2.0, 3.0]]),
        (1, [1.0, 2.0, 3.0]),
        ([0, 1, 1], 0.5),
        ([], np.zeros((0, 3), np.float32)),
        (np.int64([[0], [1]]), 2.0),
    ],
    ids=str,
)
def test_s35_scatters(method: str, indices: Any, updates: Any) -> None:
    def program(v: Any) -> Any:
        return getattr(v, method)(indices, updates)

    expected = np.float32([[1, 2, 3], [4, 5, 6]])
    at = np.asarray(indices, dtype=np.int64)
    update = SCATTERS[method]
    if update is None:
        expected[at] = updates
    else:
        update.at(expected, at, np.float32(updates))
    plain = assert_modes(program, matrix, expected=expected, variables=[expected])
    assert type(plain.result) is tj.Tensor


@pytest.mark.parametrize("method", ["scatter_add", "scatter_update"])
def test_s35_scatters_at_places_that_are_computed(method: str) -> None:
    def program(v: Any, at: Any, x: Any) -> Any:
        getattr(v, method)(at, x)
        getattr(v, method)((at + 1) % 3, x * 2.0)
        return v * 1.0

    def given(*at: int) -> Any:
        def setup() -> Any:
            v = tj.Variable([1.0, 2.0, 3.0])
            return v, tj.asarray(at), tj.asarray([0.1, 0.2, 0.3])

        return setup

    assert_modes(program, given(0, 1, 2), also=[given(2, 2, 2), given(0, -1, 0)])


@pytest.mark.parametrize("method", ASSIGNMENTS)
def test_s35_parts_at_places_that_are_computed(method: str) -> None:
    def program(v: Any, at: Any, x: Any) -> Any:
        getattr(v[at], method)(x)
        getattr(v[at, 1:], method)(x * 2.0)
        getattr(v[[at, 1 - at], 0], method)(x * 3.0)
        return v * 1.0

    def given(at: int) -> Any:
        return lambda: (matrix(), tj.asarray(at), tj.asarray(0.1))

    assert_modes(program, given(0), also=[given(1), given(0)])


def test_s35_a_mask_that_is_computed() -> None:
    def program(v: Any, x: Any) -> Any:
        v[v > x].assign(0.0)
        v[v < x].assign_add(x)
        v[v == x].assign_sub(1.0)
        return v * 1.0

    def given(x: float) -> Any:
        return lambda: (matrix(), tj.asarray(x))

    assert_modes(
        program,
        given(4.0),
        variables=[[[5.0, 6.0, 7.0], [3.0, 3.0, 3.0]]],
        also=[given(2.0), given(-1.0), given(100.0)],
    )


@pytest.mark.parametrize("at", [3, -4, 100])
@pytest.mark.parametrize("way", ["part", "scatter_add", "scatter_max", "scatter_div"])
def test_s35_a_computed_place_out_of_range_changes_nothing(at: int, way: str) -> None:
    def program(v: Any, index: Any, x: Any) -> Any:
        v.assign_add(x)
        if way == "part":
            v[index].assign(x[0])
        else:
            getattr(v, way)(index, x)
        v.assign_add(x)
        return v * 1.0

    def given(at: int) -> Any:
        def setup() -> Any:
            index = tj.asarray(at) if way == "part" else tj.asarray([0, at, 0])
            return (*vector_and_tensor()[:1], index, tj.asarray([1.0, 2.0, 3.0]))

        return setup

    step = tj.function(program)
    v, index, x = given(at)()
    for call in (step, step, tj.function(lambda: program(v, index, x))):
        with pytest.raises(IndexError, match=str(at)):
            call(*(() if call is not step else (v, index, x)))
        assert v.tolist() == [1.0, 2.0, 3.0]
    with tj.config.override(eager=True), pytest.raises(IndexError, match=str(at)):
        step(v, index, x)
    assert v.tolist() == [1.0, 2.0, 3.0]
    step = tj.function(program)
    v, index, x = given(1)()
    step(v, index, x)
    before = v.numpy()
    with pytest.raises(IndexError, match=str(at)):
        step(v, given(at)()[1], x)
    assert v.numpy().tolist() == before.tolist()
    assert step.trace_count == 1
    step(v, index, x)
    assert v.numpy().tolist() != before.tolist()


@pytest.mark.parametrize("method", SCATTERS)
def test_s35_any_number_of_repetitions(method: str) -> None:
    """In order, in every dtype, and but for quotients without a trace for each."""
    rng = np.random.default_rng(5)
    dtypes = ["float32", "float16", "bfloat16"]
    if method != "scatter_div":
        dtypes += ["int8", "uint32"]
    for dtype in dtypes:
        one, other = (tj.Variable(tj.full((3, 2), 3, dtype=dtype)) for _ in range(2))
        step = tj.function(lambda i, x, v=one: getattr(v, method)(i, x))
        for at in ([0, 0, 0, 2], [1, 0, 2, 2], [1, 1, 1, 1]):
            index = tj.asarray(np.int32(at))
            x = tj.asarray(rng.uniform(1, 6, (4, 2))).astype(dtype)
            found = step(index, x)
            getattr(other, method)(index, x)
            assert found.numpy().tolist() == other.numpy().tolist()
        if method != "scatter_div":
            assert step.trace_count == 1


def test_s35_what_has_no_quotient_and_no_order_is_refused() -> None:
    integers = tj.Variable([1, 2])
    assert_modes(
        lambda v: v.scatter_div([0], [1]),
        lambda: tj.Variable(integers),
        raises=(TypeError, "cannot hold quotients"),
    )
    for method in ("scatter_min", "scatter_max"):
        assert_modes(
            lambda v, method=method: getattr(v, method)([0], [1.0]),
            lambda: tj.Variable([1j, 2.0]),
            raises=(TypeError, "no order"),
        )


REFUSED: dict[str, Any] = {
    "too many": (slice(1, None), [1.0, 2.0, 3.0], ValueError),
    "too few": (slice(None), [1.0, 2.0], ValueError),
    "another axis": (slice(1, None), tj.asarray([[1.0, 2.0]]), ValueError),
    "complex": (0, 1j, TypeError),
    "complex numbers": (slice(1, None), [1j, 2j], TypeError),
    "no number": (slice(1, None), "ab", TypeError),
    "out of range": (3, 1.0, IndexError),
    "one of them": ([0, 7], 1.0, IndexError),
    "two axes": ((0, 0), 1.0, IndexError),
    "a new axis": (None, 1.0, TypeError),
    "text": ("a", 1.0, Exception),
}


@pytest.mark.parametrize("method", ASSIGNMENTS)
@pytest.mark.parametrize("name", REFUSED)
def test_s35_a_part_checks_shape_dtype_and_range(method: str, name: str) -> None:
    key, value, error = REFUSED[name]

    def program(v: Any, x: Any) -> Any:
        v.assign(x)
        return getattr(v[key], method)(value)

    unchanged = [[10.0, 20.0, 30.0]]
    raises = (error, "")
    assert_modes(program, vector_and_tensor, raises=raises, variables=unchanged)


REFUSED_SCATTERS: list[Any] = [
    ([0, 1], [1.0, 2.0, 3.0], ValueError),
    ([3], [1.0], IndexError),
    ([-4], [1.0], IndexError),
    ([0, 9], 1.0, IndexError),
    ([0.5], 1.0, TypeError),
    ([True, False, True], 1.0, TypeError),
    ([0], 1j, TypeError),
    ([0], "text", TypeError),
    ([0], ["a"], TypeError),
]


@pytest.mark.parametrize("method", ["scatter_add", "scatter_min", "scatter_update"])
@pytest.mark.parametrize(("indices", "updates", "error"), REFUSED_SCATTERS, ids=str)
def test_s35_scatters_check_their_arguments(
    method: str, indices: Any, updates: Any, error: Any
) -> None:
    def program(v: Any, x: Any) -> Any:
        v.assign(x)
        return getattr(v, method)(indices, updates)

    unchanged = [[10.0, 20.0, 30.0]]
    raises = (error, "")
    assert_modes(program, vector_and_tensor, raises=raises, variables=unchanged)


@pytest.mark.parametrize("method", ["scatter_add", "scatter_update"])
def test_s35_after_a_refused_scatter_a_retry_works(method: str) -> None:
    def program(v: Any, x: Any) -> Any:
        scatter = getattr(v, method)
        for indices, updates, _ in REFUSED_SCATTERS:
            note_error(lambda i=indices, u=updates: scatter(i, u))
        return scatter([0], [4.0])

    errors = [(error, "") for _, _, error in REFUSED_SCATTERS]
    first = 5.0 if method == "scatter_add" else 4.0
    expected = [first, 2.0, 3.0]
    assert_modes(program, vector_and_tensor, expected=expected, errors=errors)


def test_s35_what_has_no_part_to_assign_to() -> None:
    def program(v: Any, x: Any) -> Any:
        def item() -> None:
            v[0] = 1.0

        note_error(lambda: x[0].assign(1.0))
        note_error(lambda: (v * 2.0)[0].assign_add(1.0))
        note_error(lambda: (v[1:] * 2.0).assign([3.0, 4.0]))
        note_error(lambda: v.value()[0].assign_sub(1.0))
        note_error(item)
        return v * 1.0

    errors = [(tj.ArgumentTypeError, "Variable")] * 4
    errors += [(tj.ArgumentTypeError, r"v\[i\]\.assign\(x\)")]
    unchanged = [[1.0, 2.0, 3.0]]
    assert_modes(program, vector_and_tensor, variables=unchanged, errors=errors)


def test_s35_a_part_is_a_read_from_before() -> None:
    def program(v: Any, x: Any) -> Any:
        part = v[1:]
        result = part.assign(x[:2])
        return part * part, result * v, v[1:] * 1.0

    assert_modes(
        program,
        vector_and_tensor,
        expected=([4.0, 9.0], [1.0, 100.0, 400.0], [10.0, 20.0]),
        variables=[[1.0, 10.0, 20.0]],
    )
    assert_taped(
        program,
        vector_and_tensor,
        expected=[[2.0, 4.0 + 20.0 + 1.0, 6.0 + 40.0 + 1.0], None],
        warns=[TRACKED],
    )


def test_s35_parts_under_tapes_inside() -> None:
    def program(v: Any, x: Any) -> Any:
        with tj.GradientTape(persistent=True) as tape:
            before = v[1:] * v[1:]
            v[1:].assign([5.0, 6.0])
            v.scatter_add([0, 0], [1.0, 1.0])
            after = v * v
        return [tape.gradient(y, v) for y in (before, after, [before, after])]

    assert_modes(
        program,
        vector_and_tensor,
        expected=[[0.0, 4.0, 6.0], [6.0, 10.0, 12.0], [6.0, 14.0, 18.0]],
        variables=[[3.0, 5.0, 6.0]],
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "uint8"])
def test_s35_repeated_places_add_up_alike_in_every_dtype(dtype: str) -> None:
    def program(v: Any, x: Any) -> Any:
        v.scatter_add([0] * 40 + [1] * 3, x[:43])
        v[[0] * 20].assign_sub(x[20:40])
        return v * 1

    def setup() -> Any:
        x = tj.asarray(np.linspace(0.1, 3.0, 50), dtype=dtype)
        return tj.Variable([100, 1, 2], dtype=dtype), x

    assert_modes(program, setup)


# 35: copies and pickles, which need values: there is nothing to trace


def halved(x: Any) -> Any:
    """A constraint that can be pickled."""
    return x * 0.5


def test_s35_a_copy_shares() -> None:
    v = tj.Variable([1.0, 2.0], name="w")
    other = copy.copy(v)
    other.assign([3.0, 4.0])
    assert v.tolist() == [3.0, 4.0]
    v.assign_add([1.0, 1.0])
    assert other.tolist() == [4.0, 5.0]
    with tj.GradientTape() as tape:
        y = other * other
    assert tape.gradient(y, v).tolist() == [8.0, 10.0]


INDEPENDENT = {
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": lambda v, n=n: pickle.loads(pickle.dumps(v, protocol=n))
        for n in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("duplicate", INDEPENDENT.values(), ids=INDEPENDENT)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_s35_a_deep_copy_and_a_pickle_are_independent(
    duplicate: Any, dtype: str
) -> None:
    v = tj.Variable([1, 2], False, dtype, "w", halved)
    other = duplicate(v)
    assert isinstance(other, tj.Variable)
    assert other is not v
    assert (other.dtype, other.shape) == (v.dtype, v.shape)
    assert (other.name, other.trainable) == ("w", False)
    assert other.constraint is halved
    v.assign([3, 4])
    assert other.tolist() == [1, 2]
    other.assign([5, 6])
    assert v.tolist() == [3, 4]


@pytest.mark.parametrize("duplicate", INDEPENDENT.values(), ids=INDEPENDENT)
def test_s35_one_variable_in_two_places_stays_one(duplicate: Any) -> None:
    v = tj.Variable([1.0, 2.0])
    model = duplicate({"tied": [v, v], "other": tj.Variable([1.0, 2.0])})
    first, second = model["tied"]
    assert first is second
    assert model["other"] is not first


def test_s35_an_independent_copy_has_its_own_gradient() -> None:
    v = tj.Variable(3.0)
    other = copy.deepcopy(v)
    with tj.GradientTape() as tape:
        y = v * v * other
    assert [float(g) for g in tape.gradient(y, [v, other])] == [18.0, 9.0]


@pytest.mark.parametrize("duplicate", INDEPENDENT.values(), ids=INDEPENDENT)
def test_s35_tensors_can_be_copied_and_pickled_tapes_cannot(duplicate: Any) -> None:
    x = tj.asarray([[1.0, 2.0]], dtype="bfloat16")
    again = duplicate(x)
    assert (again.dtype, again.tolist()) == (x.dtype, x.tolist())
    tape = tj.GradientTape()
    with pytest.raises(TypeError, match="GradientTape"):
        duplicate(tape)
    with pytest.raises(TypeError, match="GradientTape"):
        copy.copy(tape)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_s35_copies_and_what_functions_reach(duplicate: Any) -> None:
    v = tj.Variable([1.0, 2.0], name="v")
    step = tj.function(lambda w, x: (w.assign_add(x), v * 1.0))
    assert step(copy.copy(v), tj.ones(2))[1].tolist() == [2.0, 3.0], "a copy shares"
    other = duplicate(v)
    results = step(other, tj.ones(2))
    assert results[0].tolist() == [3.0, 4.0]
    assert results[1].tolist() == v.tolist() == [2.0, 3.0]
    step(v, tj.ones(2))
    assert (v.tolist(), other.tolist()) == ([3.0, 4.0], [3.0, 4.0])


def test_s35_a_constraint_is_left_to_optimizers() -> None:
    positive = lambda x: tj.maximum(x, 0.0)

    def program(v: Any, x: Any) -> Any:
        assigned = v.assign(x), v.assign_add(x), v.scatter_add([0], [-3.0])
        return assigned, v.assign(v.constraint(x))

    def setup() -> Any:
        clip = tj.Variable([-1.0, 2.0], constraint=positive)
        return clip, tj.asarray([-1.0, -2.0])

    assert setup()[0].tolist() == [-1.0, 2.0]
    assert setup()[0].constraint is positive
    expected = ([-1.0, -2.0], [-2.0, -4.0], [-5.0, -4.0]), [0.0, 0.0]
    assert_modes(program, setup, expected=expected, variables=[[0.0, 0.0]])


# Buffers


HOLDERS: dict[str, Any] = {
    "a tensor": lambda v: v.value(),
    "an array": lambda v: np.asarray(v),
    "DLPack": lambda v: np.from_dlpack(v),
    "a part": lambda v: v[:],
    "a view": lambda v: np.asarray(v.value())[1:],
    "a result": lambda v: tj.function(lambda: v)(),
    "what assign returned": lambda v: v.assign_add([0.0, 0.0, 0.0]),
    "what assign in a function returned": lambda v: tj.function(
        lambda: v.assign_add([0.0, 0.0, 0.0])
    )(),
    "the value of another": lambda v: tj.Variable(v),
    "assigned to another": lambda v: _assigned(v),
}


def _assigned(v: Any) -> Any:
    other = tj.Variable([0.0, 0.0, 0.0])
    tj.function(lambda: other.assign(v))()
    return other


UPDATES: dict[str, Any] = {
    "assign": lambda v, x: v.assign(x),
    "assign_add": lambda v, x: v.assign_add(x),
    "assign_sub": lambda v, x: v.assign_sub(x),
    "part": lambda v, x: v[1:].assign(x[1:]),
    "scatter_add": lambda v, x: v.scatter_add([0, 2], x[:2]),
    "scatter_mul": lambda v, x: v.scatter_mul([0, 2], x[:2]),
    "twice": lambda v, x: (v.assign(x), v.assign_add(x)),
    "of itself": lambda v, x: v.assign(v * 2.0),
    "reversed": lambda v, x: v.assign(v[::-1]),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("update", UPDATES)
def test_d1_what_was_read_never_changes(holder: str, update: str) -> None:
    v, x = vector_and_tensor()
    step = tj.function(UPDATES[update])
    held = []
    for k in range(4):
        kept = HOLDERS[holder](v)
        held.append((kept, np.array(kept).tolist()))
        step(v, x * float(k + 1))
        if holder != "a view":
            assert v.tolist() != held[-1][1]
    for kept, numbers in held:
        assert np.array(kept).tolist() == numbers
    assert x.tolist() == [10.0, 20.0, 30.0]


def test_d1_an_array_that_was_assigned_stays_the_users() -> None:
    v = tj.Variable(np.zeros(3))
    step = tj.function(lambda x: v.assign(x))
    array = np.ones(3)
    result = step(array)
    array[:] = 5.0
    assert (v.tolist(), result.tolist()) == ([1.0] * 3, [1.0] * 3)
    step(array)
    tj.function(lambda: v.assign_add([1.0, 1.0, 1.0]))()
    assert array.tolist() == [5.0] * 3
    assert v.tolist() == [6.0] * 3
    view = tj.function(lambda x: v.assign(x[::-1]))
    view(array)
    array[:] = 7.0
    assert v.tolist() == [5.0] * 3


def test_d1_a_tape_keeps_the_values_that_were_there() -> None:
    v, x = tj.Variable([1.0, 2.0, 3.0]), tj.asarray([10.0, 20.0, 30.0])
    square = tj.function(lambda: v * v * x)
    step = tj.function(lambda: v.assign_add(x))
    with tj.GradientTape(persistent=True) as tape:
        y, z = v * v * x, square()
    for _ in range(3):
        step()
        for target in (y, z):
            assert tape.gradient(target, v).tolist() == [20.0, 80.0, 180.0]
    with tj.GradientTape() as tape:
        z = square()
        step()
        z = z * square()
    first = np.float32([31, 62, 93])
    second = first + np.float32([10, 20, 30])
    numbers = 2 * first * second * (first + second) * np.float32([100, 400, 900])
    np.testing.assert_array_equal(tape.gradient(z, v), numbers)


def test_d1_two_variables_that_share_a_buffer_do_not_share_changes() -> None:
    def program(v: Any, w: Any, x: Any) -> Any:
        w.assign(v)
        v.assign_add(x)
        first = w * 1.0
        w[0].assign(100.0)
        return first, v * 1.0, w * 1.0

    assert_modes(
        program,
        lambda: (*vector_and_tensor()[:1], tj.Variable([0.0] * 3), tj.ones(3)),
        expected=([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [100.0, 2.0, 3.0]),
        variables=[[2.0, 3.0, 4.0], [100.0, 2.0, 3.0]],
    )


def test_d3_a_result_keeps_no_tape_and_no_trace_alive() -> None:

    v = tj.Variable([1.0, 2.0, 3.0])
    step = tj.function(lambda x: (v.assign_add(x), tj.sum(v * x))[1])
    losses, seen = [], []
    for k in range(3):
        x = tj.ones(3) * float(k)
        seen.append(weakref.ref(x))
        with tj.GradientTape() as tape:
            losses.append(step(x))
        seen.append(weakref.ref(tape))
        del x, tape
    gc.collect()
    assert [ref() for ref in seen] == [None] * 6
    assert [float(x) for x in losses] == [0.0, 9.0, 30.0]
