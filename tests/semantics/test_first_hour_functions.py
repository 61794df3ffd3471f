"""What people try in their first hour, inside `@tj.function`.

It works as it does outside, or says what to write instead.
"""

from __future__ import annotations

import gc
import linecache
import math
import os
import signal
import threading
import traceback
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tapejit as tj

from .both_modes import assert_modes, note, note_error
from .test_first_hour import ELSEWHERE, FRAME, PANDAS, SERIES, Params, loss

# A variable as an array


def vector() -> Any:
    return tj.Variable([1.0, 2.0], name="v")


def test_a_variable_gives_its_value() -> None:
    def program(v: Any) -> Any:
        note(len(v))
        return v.value(), v.read_value(), [x * 2.0 for x in v], v + 0.0

    assert_modes(program, vector, notes=[2])


def test_a_variable_multiplies_matrices() -> None:
    array = np.float32([1, 10])

    def program(v: Any, x: Any) -> Any:
        return v @ x, x @ v, v @ v, v @ array, array @ v

    def setup() -> Any:
        return tj.Variable([[1.0, 2.0], [3.0, 4.0]]), tj.asarray([1.0, 10.0])

    outcome = assert_modes(program, setup)
    assert outcome.result[4].tolist() == [31.0, 42.0]


NEEDING: dict[str, Any] = {
    "numpy": lambda v: v.numpy() * 2,
    "np.asarray": lambda v: np.asarray(v),
    "np.array": lambda v: np.array([v, v]),
    "float": lambda v: float(v[0]),
    "item": lambda v: v[1].item() + 1.0,
    "tolist": lambda v: v.tolist()[1],
    "math.sqrt": lambda v: math.sqrt(v[1]),
    "mean of a list": lambda v: float(np.mean([v[0], v[1]])),
}


@pytest.mark.parametrize("name", NEEDING)
def test_what_needs_a_value_runs_eagerly_and_says_so(name: str) -> None:
    """With the same results, and the same updates."""

    def program(v: Any) -> Any:
        v.assign_add([1.0, 1.0])
        before = NEEDING[name](v)
        v.assign(v * 2.0)
        return before, NEEDING[name](v)

    assert_modes(program, vector, runs_eagerly=True, traces=None)


GUARDED: dict[str, Any] = {
    "int": lambda v: int(v[1] * 2.0),
    "bool": lambda v: 1 if v[0] > 0.5 else 2,
    "and, or": lambda v: 3 if v[0] > 5.0 or (v[1] < 3.0 and not v[0] < 0.0) else 4,
    "range": lambda v: sum(range(v[1].astype("int32"))),
    "max": lambda v: max(v[0], v[1]) - min(v[0], v[1]),
    "sorted": lambda v: sorted([v[1], v[0]])[0],
    "list index": lambda v: [10.0, 20.0, 30.0][v[1].astype("int32")],
    "in": lambda v: 1 if 2.0 in v else 0,
    "assert": lambda v: _asserted(v[0] > 0.0),
}


def _asserted(holds: Any) -> int:
    assert holds
    return 1


@pytest.mark.parametrize("name", GUARDED)
def test_what_python_decides_stays_a_function(name: str) -> None:
    decide = GUARDED[name]

    def program(v: Any) -> Any:
        result = decide(v)
        v.assign_add([result * 0.0 + 1.0, 1.0])
        return v * result

    assert_modes(program, vector)


def test_arithmetic_of_lists_of_tensors() -> None:
    def program(a: Any, b: Any) -> Any:
        with tj.GradientTape() as tape:
            tape.watch([a, b])
            total = sum([a * a, b, a * b])
            stacked = np.stack([a, b]) + tj.asarray([a * b, 1.0])
        return total, stacked, tape.gradient([total, stacked], [a, b])

    assert_modes(program, lambda: (tj.asarray(3.0), tj.asarray(4.0)))


def test_max_of_vectors_says_what_to_do() -> None:
    assert_modes(
        lambda x: max(x, x * 2.0),
        lambda: tj.ones(2),
        raises=(ValueError, "2 elements"),
    )


# value_and_grad and vmap


def test_value_and_grad_in_a_function_and_of_one() -> None:
    x = tj.asarray([[1.0, 0.0], [0.0, 1.0]])
    y = tj.asarray([1.0, 1.0])

    def setup() -> Any:
        return (Params(tj.asarray([1.0, 2.0]), tj.asarray(0.5)),)

    def program(params: Any) -> Any:
        return tj.value_and_grad(loss)(params, x, y=y)

    outcome = assert_modes(program, setup)
    of_one = tj.value_and_grad(tj.function(loss))
    for _ in range(2):
        value, g = of_one(*setup(), x, y=y)
        assert float(value) == float(outcome.result[0])
        assert isinstance(g, Params)
        assert g.w.tolist() == outcome.result[1].w.tolist()


def test_value_and_grad_with_argnums_and_aux() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return tj.sum(a * b * c), {"seen": a * 2.0}

    def program(a: Any, b: Any, c: Any) -> Any:
        pair = tj.value_and_grad(function, argnums=(0, -1), has_aux=True)(a, b, c)
        return pair, tj.grad(function, argnums=1, has_aux=True)(a, b, c)

    assert_modes(
        program, lambda: tuple(tj.asarray([k, k + 1.0]) for k in (1.0, 2.0, 3.0))
    )


def test_vmap_in_a_function_and_of_one() -> None:
    x, w = tj.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tj.asarray([1.0, 10.0])

    def dot(a: Any, b: Any) -> Any:
        return tj.sum(a * b)

    def program(x: Any, w: Any) -> Any:
        first = tj.vmap(dot, in_axes=(1, None))(x, w)
        second = tj.vmap(lambda row: row * 2.0, out_axes=1)(x)
        third = tj.vmap(lambda p: p["x"] * p["w"], in_axes=({"x": 0, "w": None},))
        return first, second, third({"x": x, "w": 2.0}), tj.vmap(tj.grad(tj.sum))(x)

    assert_modes(program, lambda: (x, w))
    of_one = tj.vmap(tj.function(dot), in_axes=(1, None))
    assert of_one(x, w).tolist() == of_one(x, w).tolist() == [41.0, 52.0, 63.0]


# pandas


@pytest.mark.parametrize("name", PANDAS)
def test_pandas_data_in_a_body(name: str) -> None:
    function, _ = PANDAS[name]

    def program(v: Any) -> Any:
        with tj.GradientTape() as tape:
            y = function(v)
        return y, tape.gradient(y, v)

    assert_modes(program, lambda: tj.Variable(np.ones(2)))


@pytest.mark.parametrize(
    "data", [SERIES, FRAME, FRAME["p"], FRAME[["q"]]], ids=lambda x: str(x.shape)
)
def test_pandas_data_as_arguments(data: Any) -> None:
    """They are tensors in the body, in every mode, and keyed as arrays."""
    call = tj.function(lambda x: (tj.sum(x * 2.0), isinstance(x, tj.Tensor)))
    for scale in (1.0, 3.0):
        for eager in (False, True):
            with tj.config.override(eager=eager):
                total, is_tensor = call(data * scale)
            assert bool(is_tensor)
            assert total.dtype == np.float64
            assert total.item() == 2.0 * scale * data.to_numpy().sum()
    assert call.trace_count == 1


def test_pandas_data_in_structures_and_a_loss() -> None:
    call = tj.function(lambda batch, params: loss(params, batch["x"], batch["y"]))
    params = Params(tj.Variable([1.0, 2.0]), tj.Variable(0.5))
    batch = {"x": FRAME.astype("float32"), "y": FRAME["q"].astype("float32")}
    residual = FRAME.to_numpy() @ [1.0, 2.0] + 0.5 - FRAME["q"].to_numpy()
    for _ in range(2):
        with tj.GradientTape() as tape:
            value = call(batch, params)
        np.testing.assert_allclose(value.item(), np.mean(residual**2), rtol=1e-6)
        assert tape.gradient(value, params.w).shape == (2,)
    assert call.trace_count == 1


def test_a_column_of_text_is_a_type_error() -> None:
    call = tj.function(lambda x: x)
    for text in (pd.Series(["a", "b"]), pd.DataFrame({"x": [1.0], "y": ["b"]})):
        for eager in (False, True):
            with (
                tj.config.override(eager=eager),
                pytest.raises(TypeError, match=r"numbers.*(Series|DataFrame)"),
            ):
                call(text)


# Looking inside


def test_printing_in_a_trace_shows_type_name_and_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    v = tj.Variable([1.0, 2.0], name="weights")

    @tj.function
    def scaled(x: Any) -> Any:
        y = x * v
        print(x)
        print(y, v)
        print(f"{y}", [y])
        return y

    for _ in range(2):
        scaled(tj.ones(2))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3, "once, when it is traced"
    assert "f32[2]" in lines[0]
    assert "argument x" in lines[0]
    assert "mul" in lines[1]
    assert "test_first_hour_functions.py:" in lines[1]
    assert "weights" in lines[1]
    assert lines[2].count("scaled") == 2


def test_a_notebook_shows_a_traced_tensor() -> None:
    shown = []

    @tj.function
    def body(x: Any) -> Any:
        shown.append(x._repr_html_())
        return x

    body(tj.ones(2))
    assert "f32[2]" in shown[0]


CELL = """
import tapejit as tj
@tj.function
def cell(x):
    y = x * {scale}
    return y[{index}]
"""


def run_cell(number: int, **values: Any) -> Any:
    """Define a function as a notebook does: the file is a cell."""
    source, name = CELL.format(**values), f"<ipython-input-{number}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), names)
    return names["cell"]


def test_cells_of_a_notebook_show_their_lines_and_can_be_run_again() -> None:
    x = tj.asarray([1.0, 2.0])
    first = run_cell(1, scale=2.0, index=0)
    assert first(x).item() == 2.0
    again = run_cell(1, scale=3.0, index=1)
    assert again(x).item() == 6.0
    assert first(x).item() == 2.0
    broken = run_cell(2, scale=3.0, index=7)
    with pytest.raises(IndexError, match=r"return y\[7\]") as caught:
        broken(x)
    assert "return y[7]" in "".join(traceback.format_exception(caught.value))
    computed = run_cell(3, scale=3.0, index='x[0].astype("int32") + 5')
    with pytest.raises(IndexError, match=r"return y\[x\[0\]"):
        computed(x)


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals reach the main thread",
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", ["traced", "tracing", "eager"])
def test_ctrl_c_stops_a_long_call_and_changes_nothing(mode: str) -> None:
    """Two variables change together: at the start of a call, and at its end."""
    first, last = tj.Variable(0.0), tj.Variable(0.0)
    x = tj.asarray(np.eye(60))

    def body(x: Any) -> Any:
        first.assign_add(1.0)
        y = x
        for _ in range(400):
            y = y @ x
        last.assign_add(1.0)
        return tj.sum(y)

    def calls() -> None:
        while True:
            (tj.function(body) if mode == "tracing" else call)(x)

    call = tj.function(body)
    call(x)
    for delay in (0.005, 0.013, 0.021, 0.034):
        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        # Again later: what arrives while Python frees an object is not raised.
        signal.setitimer(signal.ITIMER_REAL, delay, 0.3)
        try:
            with (
                tj.config.override(eager=mode == "eager"),
                pytest.raises(KeyboardInterrupt),
            ):
                calls()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        assert float(first) == float(last)
    before = float(first)
    call(x)
    assert (float(first), float(last)) == (before + 1.0, before + 1.0)


# The rest


def test_out_of_memory_names_the_sizes_and_changes_nothing() -> None:
    v = tj.Variable(1.0)

    @tj.function
    def body(x: Any) -> Any:
        v.assign_add(1.0)
        row = tj.broadcast_to(x, (1, 1 << 26))
        column = tj.broadcast_to(x, (1 << 26, 1))
        return tj.sum(row * column)

    for _ in range(2):
        with pytest.raises(MemoryError, match=r"mul.*67108864"):
            body(tj.asarray(1.0))
        assert float(v) == 1.0


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_from_elsewhere_gives_our_spelling(name: str) -> None:
    def program(x: Any) -> Any:
        return getattr(tj, name)(x)

    assert_modes(program, lambda: tj.ones(2), raises=(AttributeError, name))


def test_a_list_of_layers_that_grows_after_a_trace() -> None:
    """What the body looks up in Python is looked up when it is traced."""
    layers = [tj.Variable(2.0), tj.Variable(3.0)]

    @tj.function
    def model(x: Any) -> Any:
        for layer in layers:
            x = x * layer
        return x

    x = tj.asarray(1.0)
    assert model(x).item() == 6.0
    layers[0].assign(5.0)
    assert model(x).item() == 15.0, "variables are captured by reference"
    layers.append(tj.Variable(7.0))
    assert model(x).item() == 15.0, "the list is not"
    assert model(tj.asarray([1.0])).tolist() == [105.0], "a new trace sees it"
    model.clear_cache()
    assert model(x).item() == 105.0


def test_a_model_that_is_a_plain_object() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = tj.Variable([1.0, 2.0])
            self.scale = tj.asarray(2.0)

        @tj.function
        def __call__(self, x: Any) -> Any:
            return tj.sum(self.w * x) * self.scale

        @tj.function
        def step(self, x: Any, rate: float = 0.5) -> Any:
            with tj.GradientTape() as tape:
                y = self(x)
            self.w.assign_sub(rate * tape.gradient(y, self.w))
            return y

    model, other = Model(), Model()
    for each, expected in ((model, 6.0), (other, 6.0), (model, 2.0)):
        assert each.step(tj.ones(2)).item() == expected
    assert other.w.tolist() == [0.0, 1.0]
    assert model.w.tolist() == [-1.0, 0.0]
    del model
    gc.collect()
    assert other.step(x=tj.ones(2), rate=1.0).item() == 2.0


def test_a_training_loop_as_people_write_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype("float32")
    y = x @ np.float32([1, -2, 3]) + 0.5

    def train(decorate: Any) -> Any:
        w, b = tj.Variable(tj.zeros(3), name="w"), tj.Variable(0.0, name="b")

        def step(x: Any, y: Any, rate: float) -> Any:
            with tj.GradientTape() as tape:
                error = x @ w + b - y
                mse = tj.mean(error**2)
            dw, db = tape.gradient(mse, [w, b])
            w.assign_sub(rate * dw)
            b.assign_sub(rate * db)
            return mse

        run = decorate(step)
        losses = [run(x, y, 0.2 * 0.99**k) for k in range(200)]
        return losses, w, b, run

    losses, w, b, run = train(tj.function)
    assert run.trace_count == 2, "the rate that decays becomes an input"
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(w.numpy(), [1, -2, 3], atol=1e-3)
    plain = train(lambda step: step)
    assert [float(x) for x in losses] == [float(x) for x in plain[0]]
    assert b.item() == plain[2].item()


def test_errors_in_the_body_keep_their_class_and_line() -> None:
    def program(x: Any) -> Any:
        note_error(lambda: x @ tj.ones(5))
        note_error(lambda: x.reshape((3, 3)))
        note_error(lambda: x[9])
        note_error(lambda: tj.sum(x, axis=4))
        note_error(lambda: x + tj.ones(3))
        return x

    assert_modes(program, lambda: tj.ones(2))


TYPED = """
import tapejit as tj

@tj.function
def scaled(x: tj.Tensor, times: int = 2) -> dict[str, tj.Tensor]:
    return {"y": x * times}

@tj.function(static="times")
def static(x: tj.Tensor, times: int) -> list[tj.Tensor]:
    return [x * times]

class Model:
    @tj.function
    def step(self, x: tj.Tensor) -> tuple[tj.Tensor, int]:
        return x, 1

reveal_type(scaled(tj.ones(2)))
reveal_type(static(tj.ones(2), 3))
reveal_type(Model().step(tj.ones(2)))
scaled("text")
scaled(tj.ones(2), "text")
Model().step()
"""


def test_decorated_functions_keep_their_types(tmp_path: Any, full: bool) -> None:
    if not full:
        import typing

        names: dict[str, Any] = {}
        exec(TYPED.split("reveal_type")[0], names)
        hints = typing.get_type_hints(names["scaled"].python_function)
        assert hints["return"] == dict[str, tj.Tensor]
        assert typing.get_type_hints(names["scaled"]) == hints
        return
    from mypy import api

    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    lines = api.run([str(path), "--no-error-summary", "--hide-error-context"])[0]
    revealed = [x.split('"')[1] for x in lines.splitlines() if "Revealed" in x]
    tensor = "tapejit.tensor.tensor.Tensor"
    assert revealed == [
        f"dict[str, {tensor}]",
        f"list[{tensor}]",
        f"tuple[{tensor}, int]",
    ]
    errors = [x.split(":")[1] for x in lines.splitlines() if " error: " in x]
    numbers = [k for k, line in enumerate(TYPED.splitlines(), 1) if '"text"' in line]
    assert [int(x) for x in errors] == [*numbers, numbers[-1] + 1]
