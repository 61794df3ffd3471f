"""What people try in their first hour: it works, or says what to write instead."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import tapejit as tj

# A variable as an array


def test_a_variable_gives_its_value() -> None:
    v = tj.Variable([1.0, 2.0])
    value = v.value()
    assert type(value) is tj.Tensor
    assert value.tolist() == [1.0, 2.0]
    array = v.numpy()
    assert type(array) is np.ndarray
    array[0] = 5.0
    assert v.tolist() == [1.0, 2.0]
    assert np.asarray(v).tolist() == [1.0, 2.0]
    assert len(v) == 2
    assert [float(x) for x in v] == [1.0, 2.0]


def test_a_variable_without_axes_is_a_number() -> None:
    v = tj.Variable(2.5)
    assert float(v) == 2.5
    assert int(v) == 2
    assert bool(v)
    assert math.isclose(math.sqrt(v), math.sqrt(2.5))
    assert f"{v:.1f}" == "2.5"
    assert isinstance(v.numpy(), (np.ndarray, np.floating))
    assert v.item() == 2.5


def test_a_variable_multiplies_matrices() -> None:
    v, x = tj.Variable([[1.0, 2.0], [3.0, 4.0]]), tj.asarray([1.0, 10.0])
    assert (v @ x).tolist() == [21.0, 43.0]
    assert (x @ v).tolist() == [31.0, 42.0]
    assert (v @ v).tolist() == [[7.0, 10.0], [15.0, 22.0]]
    array = np.float32([1, 10])
    assert (v @ array).tolist() == [21.0, 43.0]
    assert (array @ v).tolist() == [31.0, 42.0]
    assert isinstance(array @ v, tj.Tensor)


def test_arithmetic_and_comparison_of_variables() -> None:
    v = tj.Variable([1.0, 2.0])
    assert (v + v).tolist() == [2.0, 4.0]
    assert (1.0 - v).tolist() == [0.0, -1.0]
    assert (v**2).tolist() == [1.0, 4.0]
    assert (2.0 / v).tolist() == [2.0, 1.0]
    assert (-v).tolist() == [-1.0, -2.0]
    assert (v > 1.5).tolist() == [False, True]
    assert v.T.shape == (2,)
    assert v.reshape((2, 1)).shape == (2, 1)
    assert float(v.mean()) == 1.5


# Python's and NumPy's functions


def test_sum_of_a_list_of_tensors() -> None:
    a, b = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape() as tape:
        total = sum([a * a, b, a * b])
    assert float(total) == 25.0
    assert [float(g) for g in tape.gradient(total, [a, b])] == [10.0, 4.0]


def test_max_and_min_of_two_tensors() -> None:
    a, b = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape(persistent=True) as tape:
        high, low = max(a * 2.0, b), min(a * 2.0, b)
    assert (float(high), float(low)) == (6.0, 4.0)
    assert float(tape.gradient(high, a)) == 2.0
    assert tape.gradient(high, b) is None
    assert max([tj.asarray(1.0), tj.asarray(3.0), tj.asarray(2.0)]).item() == 3.0
    assert [t.item() for t in sorted([tj.asarray(2.0), tj.asarray(1.0)])] == [1.0, 2.0]
    with pytest.raises(ValueError, match="2 elements"):
        max(tj.ones(2), tj.zeros(2))


def test_np_array_of_a_list_of_tensors() -> None:
    for make in (tj.asarray, tj.Variable):
        a, b = make(1.0), make(2.0)
        stacked = np.array([a, b])
        assert type(stacked) is np.ndarray
        assert stacked.dtype != object
        assert stacked.tolist() == [1.0, 2.0]
        rows = np.array([make([1.0, 2.0]), make([3.0, 4.0])])
        assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert rows.dtype == np.float32


def test_statistics_of_collected_losses() -> None:
    losses = [tj.asarray(x) for x in (1.0, 2.0, 6.0)]
    assert float(np.mean(losses)) == 3.0
    assert float(sum(losses) / len(losses)) == 3.0
    assert [round(float(x), 2) for x in losses] == [1.0, 2.0, 6.0]
    assert min(losses).item() == 1.0
    assert tj.stack(losses).mean().item() == 3.0


def test_asarray_stacks_a_list_of_tensors_and_is_recorded() -> None:
    a, b = tj.Variable(3.0), tj.Variable(4.0)
    with tj.GradientTape() as tape:
        y = tj.asarray([a * a, b]) * tj.asarray([1.0, 10.0])
    assert [float(g) for g in tape.gradient(y, [a, b])] == [6.0, 10.0]


def test_printing() -> None:
    x, v = tj.asarray([1.0, 2.0]), tj.Variable(3.0, name="w")
    assert str(x) == "[1. 2.]"
    assert repr(x) == "<tj.Tensor f32[2] [1. 2.]>"
    assert "w" in repr(v)
    assert "3.0" in repr(v)
    assert f"{tj.asarray(1.23456):.2f} {tj.asarray(7):03d}" == "1.23 007"
    assert f"{x}" == "[1. 2.]"
    template = "loss {:.2f}"
    assert template.format(tj.asarray(1.5)) == "loss 1.50"


# value_and_grad and vmap


class Params(NamedTuple):
    w: Any
    b: Any


def loss(params: Params, x: Any, y: Any) -> Any:
    return tj.mean((x @ params.w + params.b - y) ** 2)


def test_value_and_grad_of_the_first_argument() -> None:
    value, g = tj.value_and_grad(lambda x: tj.sum(x * x))(tj.asarray([1.0, 2.0]))
    assert float(value) == 5.0
    assert g.tolist() == [2.0, 4.0]
    value, g = tj.value_and_grad(lambda x: x * x)(3.0)
    assert (float(value), float(g)) == (9.0, 6.0)


def test_value_and_grad_argnums() -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        return x * y * z

    for argnums, expected in (
        (0, 12.0),
        (1, 8.0),
        (-1, 6.0),
        ((0, 2), (12.0, 6.0)),
        ([1], (8.0,)),
        ((2, 0), (6.0, 12.0)),
    ):
        value, g = tj.value_and_grad(function, argnums=argnums)(2.0, 3.0, 4.0)
        assert float(value) == 24.0
        assert tj.tree.map(float, g) == expected
    with pytest.raises(ValueError, match="argument 3"):
        tj.value_and_grad(function, argnums=3)(2.0, 3.0, 4.0)


def test_value_and_grad_has_aux() -> None:
    def function(x: Any) -> Any:
        return tj.sum(x * x), {"seen": x * 2.0, "note": "text"}

    x = tj.asarray([1.0, 2.0])
    (value, aux), g = tj.value_and_grad(function, has_aux=True)(x)
    assert float(value) == 5.0
    assert aux["note"] == "text"
    assert aux["seen"].tolist() == [2.0, 4.0]
    assert g.tolist() == [2.0, 4.0]
    g, aux = tj.grad(function, has_aux=True)(x)
    assert g.tolist() == [2.0, 4.0]
    assert aux["note"] == "text"
    with pytest.raises(TypeError, match="pair"):
        tj.value_and_grad(lambda x: x * x, has_aux=True)(1.0)


def test_value_and_grad_of_structures_with_keywords() -> None:
    params = Params(tj.asarray([1.0, 2.0]), tj.asarray(0.5))
    x = tj.asarray([[1.0, 0.0], [0.0, 1.0]])
    value, g = tj.value_and_grad(loss)(params, x, y=tj.asarray([1.0, 1.0]))
    assert float(value) == (0.25 + 2.25) / 2
    assert isinstance(g, Params)
    assert g.w.tolist() == [0.5, 1.5]
    assert float(g.b) == 2.0


def test_a_missing_parameter_is_an_empty_place() -> None:
    def function(params: Params) -> Any:
        assert params.b is None
        return tj.sum(params.w * params.w)

    params = Params(tj.asarray([1.0, 2.0]), None)
    value, g = tj.value_and_grad(function)(params)
    assert float(value) == 5.0
    assert g.w.tolist() == [2.0, 4.0]
    assert g.b is None
    assert tj.grad(function)(params).b is None
    assert tj.jacobian(function)(params).w.tolist() == [2.0, 4.0]
    assert tj.vjp(function, params)[1](1.0)[0].w.tolist() == [2.0, 4.0]
    assert float(tj.jvp(function, (params,), (params,))[1]) == 10.0


def test_value_and_grad_takes_arrays_variables_and_numbers() -> None:
    def function(x: Any) -> Any:
        return tj.sum(x * x)

    for x in (np.float32([1, 2]), tj.Variable([1.0, 2.0]), np.array([1.0, 2.0])):
        _, g = tj.value_and_grad(function)(x)
        assert g.tolist() == [2.0, 4.0]
        assert g.dtype == x.dtype


def test_value_and_grad_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="scalar"):
        tj.value_and_grad(lambda x: x * x)(tj.ones(2))
    with pytest.raises(TypeError, match="float"):
        tj.grad(lambda x: float(x) ** 2)(1.0)
    with pytest.raises(TypeError, match="i32"):
        tj.grad(lambda x: x * x)(3)
    assert float(tj.grad(lambda x: tj.asarray(2.0))(1.0)) == 0.0, "unused: zeros"


def test_decorated_functions_keep_their_names() -> None:
    def objective(x: Any) -> Any:
        """What is minimised."""
        return x * x

    for transform in (tj.grad, tj.value_and_grad, tj.jacobian, tj.hessian, tj.vmap):
        made = transform(objective)
        assert made.__name__ == "objective"
        assert made.__doc__ == "What is minimised."


def test_vmap_in_axes() -> None:
    x = tj.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    w = tj.asarray([1.0, 10.0])

    def dot(a: Any, b: Any) -> Any:
        return tj.sum(a * b)

    assert tj.vmap(tj.sum)(x).tolist() == [6.0, 15.0]
    assert tj.vmap(tj.sum, in_axes=1)(x).tolist() == [5.0, 7.0, 9.0]
    assert tj.vmap(tj.sum, in_axes=-1)(x).tolist() == [5.0, 7.0, 9.0]
    assert tj.vmap(dot, in_axes=(1, None))(x, w).tolist() == [41.0, 52.0, 63.0]
    assert tj.vmap(dot, in_axes=(0, 0))(x, w).tolist() == [6.0, 150.0]
    pairs = tj.vmap(lambda p: p["x"] * p["w"], in_axes=({"x": 0, "w": None},))
    assert pairs({"x": w, "w": 2.0}).tolist() == [2.0, 20.0]


def test_vmap_out_axes() -> None:
    x = tj.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert tj.vmap(lambda row: row * 2.0, out_axes=1)(x).shape == (3, 2)
    assert tj.vmap(lambda row: row * 2.0, out_axes=-1)(x).shape == (3, 2)
    both = tj.vmap(lambda row: (row, tj.sum(row)), out_axes=(1, 0))(x)
    assert [y.shape for y in both] == [(3, 2), (2,)]
    same = tj.vmap(lambda row: (row, tj.asarray(7.0)), out_axes=(0, None))(x)
    assert same[1].shape == ()
    with pytest.raises(ValueError, match="out_axes"):
        tj.vmap(lambda row: row, out_axes=None)(x)


def test_vmap_says_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"rows.*2.*3"):
        tj.vmap(tj.add)(tj.ones(2), tj.ones(3))
    with pytest.raises(ValueError, match="in_axes"):
        tj.vmap(tj.add, in_axes=(0,))(tj.ones(2), tj.ones(2))
    with pytest.raises(ValueError, match="at least one"):
        tj.vmap(tj.add, in_axes=None)(tj.ones(2), tj.ones(2))
    with pytest.raises((ValueError, IndexError)):
        tj.vmap(tj.sum, in_axes=2)(tj.ones((2, 2)))


def test_vmap_nests_and_meets_grad() -> None:
    a, b = tj.asarray([1.0, 2.0]), tj.asarray([10.0, 20.0, 30.0])
    outer = tj.vmap(lambda x: tj.vmap(lambda y: x * y)(b))(a)
    assert outer.tolist() == [[10.0, 20.0, 30.0], [20.0, 40.0, 60.0]]
    per_example = tj.vmap(tj.grad(lambda x: x**3))(a)
    assert per_example.tolist() == [3.0, 12.0]
    total = tj.grad(lambda x: tj.sum(tj.vmap(lambda y: y * y)(x)))(b)
    assert total.tolist() == [20.0, 40.0, 60.0]


def test_vmap_takes_an_array_and_a_series() -> None:
    double = tj.vmap(lambda x: x * 2.0)
    assert double(np.float32([1, 2])).tolist() == [2.0, 4.0]
    assert double(pd.Series([1.0, 2.0])).tolist() == [2.0, 4.0]


# Notebooks


def test_a_notebook_shows_a_table() -> None:
    html = tj.asarray([[1.5, 2.0], [3.0, 4.25]])._repr_html_()
    assert "f32[2,2]" in html
    for cell in ("1.5", "2", "3", "4.25"):
        assert f"<td>{cell}</td>" in html
    assert html.count("<tr>") == 2


def test_a_notebook_shows_a_variables_name_safely() -> None:
    html = tj.Variable([1.0], name="<script>w</script>")._repr_html_()
    assert "&lt;script&gt;w" in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    "value",
    [
        3.5,
        7,
        True,
        1 + 2j,
        [],
        [[True, False]],
        [1 + 2j, 3j],
        np.zeros((2, 3, 4)),
        np.zeros((0, 3)),
        np.zeros(1000),
        [float("nan"), float("inf")],
    ],
    ids=str,
)
def test_a_notebook_shows_anything(value: Any) -> None:
    for x in (tj.asarray(value), tj.Variable(value)):
        html = x._repr_html_()
        assert str(x.dtype.name)[0] in html
        assert len(html) < 10_000


def test_a_notebook_shows_integers_exactly() -> None:
    html = tj.asarray([123456789, 3])._repr_html_()
    assert "<td>123456789</td>" in html


def test_a_notebook_shows_bfloat16() -> None:
    assert "1.5" in tj.asarray([1.5], dtype="bfloat16")._repr_html_()


# pandas


SERIES = pd.Series([1.0, 2.0], index=["a", "b"], name="s")
FRAME = pd.DataFrame({"p": [1.0, 2.0], "q": [3.0, 4.0]})

PANDAS = {
    "tensor times series": (lambda v: v * SERIES, [1.0, 2.0]),
    "series times tensor": (lambda v: SERIES * v, [1.0, 2.0]),
    "series minus tensor": (lambda v: SERIES - v, [-1.0, -1.0]),
    "series over tensor": (lambda v: SERIES / v, [-1.0, -2.0]),
    "index times tensor": (lambda v: pd.Index([1.0, 2.0]) * v, [1.0, 2.0]),
    "tensor times frame": (lambda v: v * FRAME, [3.0, 7.0]),
    "frame times tensor": (lambda v: FRAME * v, [3.0, 7.0]),
    "tensor matmul frame": (lambda v: v @ FRAME, [4.0, 6.0]),
    "matmul of frame and tensor": (lambda v: tj.matmul(FRAME, v), [3.0, 7.0]),
    "function": (lambda v: tj.multiply(SERIES, v), [1.0, 2.0]),
    "where": (lambda v: tj.where(SERIES > 1.5, v, 0.0), [0.0, 1.0]),
    "index": (lambda v: v[SERIES > 1.5], [0.0, 1.0]),
    "column": (lambda v: v * FRAME["q"], [3.0, 4.0]),
    "np function": (lambda v: np.multiply(SERIES, v), [1.0, 2.0]),
}


@pytest.mark.parametrize("name", PANDAS)
@pytest.mark.parametrize("kind", ["tensor", "variable"])
def test_pandas_data_as_operands(name: str, kind: str) -> None:
    function, expected = PANDAS[name]
    v = tj.Variable(np.ones(2))
    with tj.GradientTape() as tape:
        y = function(v if kind == "variable" else v.value())
    assert isinstance(y, tj.Tensor)
    if name.startswith(("tensor times frame", "frame times")):
        expected = FRAME.to_numpy().sum(axis=0).tolist()
    assert tape.gradient(y, v).tolist() == expected


def test_pandas_own_matmul_is_explained() -> None:
    """`frame @ v` asks nobody: pandas turns v into an array, and the path ends."""
    v = tj.Variable(np.ones(2))
    with tj.GradientTape(persistent=True) as tape:
        taken = FRAME @ v
        y = tj.sum(tj.asarray(taken) * v)
        z = tj.sum(tj.asarray(taken))
    assert isinstance(taken, pd.Series)
    assert tape.gradient(y, v).tolist() == [4.0, 6.0]
    assert tape.gradient(z, v) is None
    assert "NumPy" in tape.why_none(z, v)


def test_comparing_with_pandas_data() -> None:
    x = tj.asarray([1.0, 3.0])
    assert (x > SERIES).tolist() == [False, True]
    compared = operator.lt(SERIES, x)
    assert isinstance(compared, tj.Tensor)
    assert compared.tolist() == [False, True]
    assert (x == SERIES).tolist() == [True, False]


@pytest.mark.parametrize("data", [SERIES, FRAME, FRAME["p"], FRAME[["q"]]], ids=str)
def test_pandas_data_becomes_a_tensor_or_variable(data: Any) -> None:
    for make in (tj.asarray, tj.constant, tj.Variable):
        made = make(data)
        assert made.dtype == np.float64
        assert made.tolist() == data.to_numpy().tolist()
    v = tj.Variable(tj.zeros(data.shape))
    v.assign(data)
    assert v.dtype == np.float32
    assert v.tolist() == data.to_numpy().tolist()


def test_pandas_data_is_copied() -> None:
    series, frame = SERIES.copy(), FRAME.copy()
    x, y = tj.asarray(series), tj.asarray(frame)
    v = tj.Variable(np.ones(2))
    with tj.GradientTape() as tape:
        z = v * series
    series.iloc[0] = 100.0
    frame.iloc[0, 0] = 100.0
    series.array[:] = -1.0
    assert x.tolist() == [1.0, 2.0]
    assert y.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert tape.gradient(z, v).tolist() == [1.0, 2.0]


def test_pandas_data_as_arguments_of_a_loss() -> None:
    params = Params(tj.asarray([1.0, 2.0]), tj.asarray(0.5))
    value, g = tj.value_and_grad(loss)(params, FRAME, FRAME["q"])
    assert isinstance(g, Params)
    assert g.w.shape == (2,)
    assert g.w.dtype == np.float32
    residual = FRAME.to_numpy() @ [1.0, 2.0] + 0.5 - FRAME["q"].to_numpy()
    np.testing.assert_allclose(float(value), np.mean(residual**2), rtol=1e-6)


def test_a_column_of_text_is_a_type_error() -> None:
    for text in (pd.Series(["a", "b"]), pd.DataFrame({"x": [1.0], "y": ["b"]})):
        with pytest.raises(TypeError, match=r"numbers.*(Series|DataFrame)"):
            tj.asarray(text)
    table = pd.DataFrame({"x": [1.0], "y": ["b"], "z": [None]})
    with pytest.raises(TypeError, match=r"columns 'y' \(\w+\), 'z' \(object\) are"):
        tj.asarray(table)
    with pytest.raises(TypeError, match=r"column 'y' \(\w+\) is not of numbers"):
        tj.function(tj.sum)(table[["x", "y"]])
    with pytest.raises(TypeError, match="got Series 'y' of"):
        tj.exp(table["y"])
    for array in (np.array(["a"]), np.array([1, "a"], object), np.array([None])):
        with pytest.raises(tj.TapejitError, match=r"numbers.*got ndarray of"):
            tj.asarray(array)


# Memory, names from elsewhere, NumPy's warnings


def test_out_of_memory_names_the_sizes() -> None:
    row = tj.broadcast_to(tj.asarray(1.0), (1, 1 << 26))
    column = tj.broadcast_to(tj.asarray(1.0), (1 << 26, 1))
    with pytest.raises(MemoryError, match=r"mul.*67108864"):
        row * column
    with pytest.raises(MemoryError, match=r"1125899906842624"):
        tj.zeros((1 << 50,))
    assert (row[0, :1] * 2.0).item() == 2.0, "and everything goes on"


def test_out_of_memory_in_a_tape_leaves_it_usable() -> None:
    v = tj.Variable(1.0)
    with tj.GradientTape() as tape:
        y = v * 3.0
        with pytest.raises(MemoryError):
            v * tj.broadcast_to(tj.asarray(1.0), (1 << 26, 1 << 26))
    assert float(tape.gradient(y, v)) == 3.0


ELSEWHERE = {
    "reduce_mean": "tj.mean",
    "reduce_sum": "tj.sum",
    "convert_to_tensor": "tj.asarray",
    "cast": ".astype(",
    "cat": "tj.concat",
    "tensor": "tj.asarray",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_from_elsewhere_gives_our_spelling(name: str) -> None:
    with pytest.raises(AttributeError, match=name) as caught:
        getattr(tj, name)
    assert ELSEWHERE[name] in str(caught.value)
    assert not hasattr(tj, name)


def test_an_unknown_name_is_a_plain_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_like_it'"):
        tj.nothing_like_it


def test_copying_a_model_that_is_a_plain_object() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = tj.Variable([1.0, 2.0])
            self.tied = self.w
            self.scale = tj.asarray(2.0)

        def __call__(self, x: Any) -> Any:
            return tj.sum(self.w * x) * self.scale

    model = Model()
    other = copy.deepcopy(model)
    assert other.w is other.tied
    model.w.assign([5.0, 5.0])
    assert float(other([1.0, 1.0])) == 6.0


def test_a_training_loop_as_people_write_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype("float32")
    y = x @ np.float32([1, -2, 3]) + 0.5
    w, b = tj.Variable(tj.zeros(3), name="w"), tj.Variable(0.0, name="b")
    losses = []
    for _ in range(200):
        with tj.GradientTape() as tape:
            error = x @ w + b - y
            mse = tj.mean(error**2)
        dw, db = tape.gradient(mse, [w, b])
        w.assign_sub(0.1 * dw)
        b.assign_sub(0.1 * db)
        losses.append(mse)
    assert losses[-1] < losses[0]
    assert float(losses[-1]) < 1e-6
    np.testing.assert_allclose(w.numpy(), [1, -2, 3], atol=1e-3)
    np.testing.assert_allclose(float(b), 0.5, atol=1e-3)
