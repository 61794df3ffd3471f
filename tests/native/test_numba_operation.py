"""`tj.numba_function`: scalar functions that Numba compiles, as operations."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees
from elsewhere import run_interpreter

import tapejit as tj
from tapejit.ops.scalar_functions import LaneProgram, NotStraight
from tapejit.targets.cpu.machine.numba_host import scalar_function
from tapejit.tracing.reachable import reached_variables

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("with_native_code")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@numba.njit
def slope(x: Any) -> Any:
    return math.exp(-x) * (1 - x)


@tj.numba_function(derivative=lambda x: (x - 2) * tj.exp(-x))
@numba.njit
def bump_slope(x: Any) -> Any:
    return math.exp(-x) * (1 - x)


@tj.numba_function(derivative=bump_slope)
@numba.njit
def bump(x: Any) -> Any:
    return x * math.exp(-x)


@tj.numba_function(derivative=(lambda x, y: 2 * x * y, lambda x, y: x * x))
@numba.njit
def product(x: Any, y: Any) -> Any:
    return x * x * y


@numba.njit
def branches(x: Any, y: Any) -> Any:
    if x > y:
        if y > 0.1:
            return math.sqrt(abs(x))
        return math.cos(x) * y
    return max(x, 2 * y) - y**3


def same_in_both_modes(body: Callable[..., Any], *args: Any) -> Any:
    eager, compiled = body(*args), tj.function(body)(*args)
    assert eager.dtype == compiled.dtype
    assert_agrees(COMPOSED, compiled, np.asarray(eager))
    return compiled


# Values


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_values_in_both_modes(dtype: str, rng: np.random.Generator) -> None:
    x = tj.asarray(rng.normal(size=(4, 37)) * 2).astype(dtype)
    y = tj.asarray(rng.normal(size=37)).astype(dtype)
    one = tj.numba_function(branches)
    found = same_in_both_modes(lambda x, y: one(x, y) + bump(x) * 2, x, y)
    assert found.dtype == x.dtype
    if dtype == "float64":
        rows = zip(
            *map(np.ravel, np.broadcast_arrays(x.numpy(), y.numpy())), strict=True
        )
        expected = [branches.py_func(a, b) + 2 * bump_value(a) for a, b in rows]
        np.testing.assert_allclose(found.numpy().ravel(), expected, rtol=1e-13)


def bump_value(x: float) -> float:
    return x * math.exp(-x)


def test_numbers_and_arrays_are_operands() -> None:
    assert float(bump(1.0)) == pytest.approx(math.exp(-1))
    assert product(np.ones(3, np.float32), 2.0).dtype == tj.float32
    assert product(tj.ones((2, 1)), np.ones(3, np.float32)).shape == (2, 3)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": lambda x: math.exp(x) + math.expm1(x) + math.log1p(abs(x)),
    "log": lambda x: math.log(abs(x)) + math.log2(x * x) + math.log10(abs(x) + 1),
    "circle": lambda x: math.sin(x) * math.cos(x) + math.tan(x) + math.atan(x),
    "inverse": lambda x: math.asin(x / 9) + math.acos(x / 9) + math.atan2(x, 2.0),
    "hyperbolic": lambda x: math.sinh(x) + math.cosh(x) + math.tanh(x),
    "area": lambda x: math.asinh(x) + math.acosh(abs(x) + 1) + math.atanh(x / 9),
    "errors": lambda x: math.erf(x) + math.erfc(x) + math.lgamma(abs(x) + 1),
    "whole": lambda x: float(math.floor(x)) + np.ceil(x) * 3 + float(math.trunc(x)) * 7,
    "powers": lambda x: x**5 + 1 / x**3 + abs(x) ** 1.5 + 2**x + math.pow(abs(x), x),
    "roots": lambda x: math.sqrt(abs(x)) + np.cbrt(x) + math.hypot(x, 3.0),
    "rest": lambda x: np.fmod(x, 0.7) + math.copysign(2.0, x) + x % 0.3 + x // 0.7,
    "numpy": lambda x: np.exp(-np.square(x)) + np.maximum(x, 0.5) + np.sign(x),
    "logic": lambda x: 1.0 if (x > 0.1 and x < 2) or not x > -1 else x,
    "chained": lambda x: 1.0 if -1 < x <= 1 else (2.0 if x != 0.25 else 3.0),
    "constant": lambda x: 2.5,
    "itself": lambda x: x,
    "counted": lambda x: (x > 0) + (x > 1) * 2.0,
    "divided": lambda x: 1 / (x - x) if x > 1 else x / (1 + x * x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_lanes(name: str, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.normal(size=61) * 2, [0.25, 1.0, -1.0]])
    compiled = numba.njit(error_model="numpy")(FUNCTIONS[name])
    one = tj.numba_function(compiled)
    assert one._op.scalar is not None, "lanes have it"
    expected = np.array([compiled(value) for value in x])
    np.testing.assert_array_equal(one(tj.asarray(x)), expected)
    found = tj.function(lambda x: one(x) + 0)(tj.asarray(x))
    assert_agrees(COMPOSED, found, expected)
    same_in_both_modes(lambda x: one(x) * 2, tj.asarray(x.astype(np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_thresholds_that_small_floats_do_not_have(dtype: Any) -> None:
    @tj.numba_function
    @numba.njit
    def steps(x: float) -> float:
        less = 1.0 if x < 0.1 else 0.0
        most = 2.0 if x <= 0.3 else 0.0
        more = 4.0 if 0.1 < x else 0.0  # noqa: SIM300
        least = 8.0 if x >= 0.7 else 0.0
        return less + most + more + least + (16.0 if x == 0.1 else 0.0)

    near = np.array([0.1, 0.3, 0.7], dtype)
    x = np.concatenate(
        [near, np.nextafter(near, dtype(0)), np.nextafter(near, dtype(1))]
    )
    eager = steps(tj.asarray(x))
    np.testing.assert_array_equal(tj.function(lambda x: steps(x) + 0)(x), eager)


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    one = tj.numba_function(branches)
    y = np.array([0.0, 1.0, np.nan, np.inf, 2.0])
    for pair in ((x, y), (y, x)):
        expected = [branches(*each) for each in zip(*pair, strict=True)]
        found = tj.function(lambda x, y: one(x, y) + 0)(*pair)
        np.testing.assert_array_equal(one(*pair), expected)
        np.testing.assert_array_equal(found, expected)


def test_it_is_fused_with_its_neighbours(rng: np.random.Generator) -> None:
    x = tj.asarray(rng.normal(size=1000))
    body = tj.function(lambda x: tj.sum(bump(x * 2) + product(x, x)))
    assert len(body.kernels(x)) == 1
    assert "np.exp" in body.source(x)
    gradient = tj.function(tj.grad(lambda x: tj.sum(bump(x * 2) + product(x, x))))
    assert len(gradient.kernels(x)) == 1


def test_loops_run_between_kernels(rng: np.random.Generator) -> None:
    @numba.njit
    def steps(x: float) -> float:
        s = x
        for _ in range(int(abs(x) * 10)):
            s = math.sin(s) + 1
        return s

    one = tj.numba_function(derivative=lambda x: x)(steps)
    assert one._op.scalar is None
    x = rng.normal(size=(3, 5))
    found = same_in_both_modes(lambda x: one(x * 2) + 1, tj.asarray(x))
    expected = np.reshape([steps(value) for value in (x * 2).ravel()], x.shape) + 1
    np.testing.assert_array_equal(found, expected)


# On a device


def test_on_a_device_it_is_part_of_a_kernel(rng: np.random.Generator) -> None:
    x = rng.normal(size=50).astype(np.float32)
    y = x[::-1].copy()
    one = tj.numba_function(derivative=(lambda x, y: x, lambda x, y: y))(branches)
    both = tj.function(lambda x, y: one(x * 2, y) + bump(x))
    slope_of = tj.function(tj.grad(lambda x: tj.sum(bump(x) * x)))
    with tj.config.override(cuda="emulated"):
        on_gpu = [tj.asarray(value, device="cuda:0") for value in (x, y)]
        for body, given, alike in (
            (both, on_gpu, (x, y)),
            (one, on_gpu, (x, y)),
            (slope_of, on_gpu[:1], (x,)),
        ):
            found = body(*given)
            assert found.device == "cuda:0"
            assert_agrees(COMPOSED, np.asarray(found), body(*alike).numpy())
        assert both.ptx(*on_gpu).count(".entry") == 1


def test_on_a_device_a_loop_is_an_error() -> None:
    one = tj.numba_function(numba.njit(lambda x: math.gamma(x)))
    with tj.config.override(cuda="emulated"):
        x = tj.ones(3, device="cuda:0")
        for body in (one, tj.function(lambda x: one(x))):
            with pytest.raises(tj.UnsupportedError, match="a GPU cannot do this"):
                body(x)


# Derivatives


def test_first_and_second_derivatives(rng: np.random.Generator) -> None:
    x = tj.asarray(rng.normal(size=6))
    first = same_in_both_modes(tj.grad(lambda x: tj.sum(bump(x))), x)
    np.testing.assert_allclose(first, np.exp(-x.numpy()) * (1 - x.numpy()))
    tj.testing.check_grads(lambda x: tj.sum(bump(x) * x), (x,))
    tj.testing.check_grads(lambda x: tj.sum(product(x, tj.sin(x))), (x,))
    hessian = same_in_both_modes(tj.hessian(lambda x: tj.sum(bump(x))), x)
    expected = np.diag(np.exp(-x.numpy()) * (x.numpy() - 2))
    np.testing.assert_allclose(hessian, expected, atol=1e-15)


def test_derivatives_by_numba_and_broadcasting(rng: np.random.Generator) -> None:
    one = tj.numba_function(derivative=slope)(numba.njit(bump_value))
    x = tj.asarray(rng.normal(size=(3, 1)))
    y = tj.asarray(rng.normal(size=4))

    def body(x: Any, y: Any) -> Any:
        return tj.sum(product(one(x), y))

    for at in (0, 1):
        same_in_both_modes(tj.grad(body, at), x, y)
    tj.testing.check_grads(body, (x, y), order=1)


def test_vmap_jacobian_and_forward_mode(rng: np.random.Generator) -> None:
    x, y = tj.asarray(rng.normal(size=(4, 3))), tj.asarray(rng.normal(size=3))
    rows = same_in_both_modes(tj.vmap(product, in_axes=(0, None)), x, y)
    np.testing.assert_array_equal(rows, product(x, y))
    columns = tj.vmap(lambda x: product(x, y), in_axes=0)
    np.testing.assert_array_equal(columns(x), product(x, y))
    jacobian = same_in_both_modes(tj.jacobian(bump), y)
    np.testing.assert_allclose(jacobian, np.diag(bump_slope(y).numpy()))
    _, pushed = tj.jvp(lambda y: product(y, y), (y,), (tj.ones_like(y),))
    np.testing.assert_allclose(pushed, 3 * y.numpy() ** 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_derivatives_are_in_the_dtype_of_the_operands(dtype: str) -> None:
    x = tj.asarray([0.5, 1.5]).astype(dtype)
    for order in (lambda x: tj.sum(bump(x)), tj.grad(lambda x: tj.sum(bump(x)))):
        body = tj.grad(lambda x, f=order: tj.sum(f(x)))
        assert same_in_both_modes(body, x).dtype == x.dtype


def test_none_is_no_gradient() -> None:
    one = tj.numba_function(derivative=(lambda x, y: y, None))(
        numba.njit(lambda x, y: x * y)
    )
    x, y = tj.Variable(2.0), tj.Variable(3.0)
    for body in (one, tj.function(lambda x, y: one(x, y))):
        with tj.GradientTape() as tape:
            out = body(x, y)
        by_x, by_y = tape.gradient(out, [x, y])
        assert (float(by_x), by_y) == (3, None)


def test_no_derivative_is_an_error_that_says_how() -> None:
    one = tj.numba_function(numba.njit(lambda x: x * 2))
    x = tj.Variable([1.0, 2.0])
    body = tj.grad(lambda x: tj.sum(one(x)))
    for each in (body, tj.function(body)):
        with pytest.raises(tj.NotDifferentiableError, match=r"derivative=\.\.\."):
            each(x)
    second = tj.hessian(lambda x: tj.sum(twice(x)))
    twice = tj.numba_function(derivative=numba.njit(lambda x: x + x))(
        numba.njit(lambda x: x * x)
    )
    assert tj.grad(lambda x: tj.sum(twice(x)))(x).numpy().tolist() == [2, 4]
    with pytest.raises(tj.NotDifferentiableError, match="derivative="):
        second(x)
    with tj.GradientTape() as tape:
        loss = tj.sum(tj.stop_gradient(one(x)) * x)
    np.testing.assert_array_equal(tape.gradient(loss, x), [2, 4])


# Ufuncs


def test_ufuncs_of_numba(rng: np.random.Generator) -> None:
    ufunc = numba.vectorize(lambda x, y: x * x + y if x > 0 else y)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=4)
    expected = ufunc(x, y)
    found = same_in_both_modes(lambda x, y: ufunc(x, y), tj.asarray(x), tj.asarray(y))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ufunc(tj.asarray(x), y), expected)
    np.testing.assert_array_equal(ufunc(x, tj.Variable(y)), expected)
    with pytest.raises(tj.NotDifferentiableError, match=r"numba_function\(derivative"):
        tj.grad(lambda x: tj.sum(ufunc(x, y)))(tj.asarray(x))
    given = tj.numba_function(derivative=(lambda x, y: x, lambda x, y: y))(ufunc)
    np.testing.assert_array_equal(
        tj.grad(lambda x: tj.sum(given(x, y)))(tj.asarray(x)), x
    )


def test_variables_are_found_past_ufuncs_and_dead_proxies() -> None:
    ufunc = numba.vectorize(lambda x: x * 3)
    target = type("Target", (), {})()
    gone = weakref.proxy(target)
    del target
    held = [ufunc, gone, tj.Variable(2.0)]

    def body(v: tj.Variable) -> Any:
        return held[0](v) + held[2]

    reached = reached_variables([body])
    assert reached is not None
    assert reached.variables == {id(held[2])}
    assert float(tj.function(body)(tj.Variable(1.0))) == 5


# The store


PROGRAM = """
import sys, numba, tapejit as tj
tj.config.update(debug=0)
from tapejit.runtime.store.store import current_store
SCALE = float(sys.argv[1])
@tj.numba_function(derivative=lambda x: x)
@numba.njit
def scaled(x):
    return x * SCALE
print(tj.function(lambda x: scaled(x) + 1)(tj.ones(3)), current_store().counts.puts)
"""


def test_code_on_disk_is_that_of_the_function(tmp_path: Any) -> None:
    settings = {"TAPEJIT_CACHE_DIR": str(tmp_path), "TAPEJIT_NATIVE": "1"}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    runs = [
        run_interpreter(str(program), scale, **settings)
        for scale in ("2.0", "2.0", "3.0")
    ]
    first, second, third = [run.stdout + run.stderr for run in runs]
    assert first == "[3. 3. 3.] 2\n", "its code and that of native entries"
    assert second == "[3. 3. 3.] 0\n", "the first one's code is found"
    assert third == "[4. 4. 4.] 1\n", "another number makes another function"


def test_equal_functions_share_a_record() -> None:
    first, second = (tj.numba_function(numba.njit(lambda x: x * 7)) for _ in range(2))
    assert first._op is second._op
    third = tj.numba_function(numba.njit(lambda x: x * 8))
    assert third._op is not first._op
    with_slope = tj.numba_function(derivative=lambda x: 7 + 0 * x)(
        numba.njit(lambda x: x * 7)
    )
    assert with_slope._op is not first._op


# Bad input


def raising(x: float) -> float:
    if x < 0:
        raise ValueError("negative")
    return x


def dividing(x: float) -> float:
    return x**-2


def allocating(x: float) -> float:
    return np.ones(int(abs(x)) + 3)[1:].sum() * x


def of_strings(x: float) -> float:
    return len("a" + x)


def of_arrays(x: Any) -> Any:
    return x[0]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raising, "raising cannot be an operation: it can raise"),
        (dividing, r"(?s)it can raise.*x \*\* -2 is 1 / x\*\*2"),
        (allocating, "allocating cannot be an operation: it "),
        (of_strings, "Numba does not compile of_strings for floats: "),
        (of_arrays, "Numba does not compile of_arrays for floats: "),
    ],
)
def test_functions_that_are_no_operations(function: Any, said: str) -> None:
    with pytest.raises(tj.ArgumentError, match=said):
        tj.numba_function(numba.njit(function))


def test_a_derivative_of_another_signature() -> None:
    decorate = tj.numba_function
    plus = numba.njit(lambda x, y: x + y)
    with pytest.raises(
        tj.ArgumentError, match="takes 2 arguments and has 1 derivatives"
    ):
        decorate(derivative=slope)(plus)
    with pytest.raises(tj.ArgumentTypeError, match=r"takes its arguments, \(x, y\)"):
        decorate(derivative=(slope, None))(plus)
    with pytest.raises(tj.ArgumentTypeError, match=r"takes its arguments, \(x, y\)"):
        decorate(derivative=(lambda x: x, None))(plus)
    with pytest.raises(tj.ArgumentTypeError, match="is a float"):
        decorate(derivative=1.0)(slope)
    with pytest.raises(tj.UnsupportedError, match="uses reshape, which is"):
        decorate(derivative=lambda x: tj.sum(tj.reshape(x, (1,))))(slope)
    weight = tj.Variable(2.0)
    with pytest.raises(tj.ArgumentError, match="of its arguments alone"):
        decorate(derivative=lambda x: x * weight.astype("float64"))(slope)


def test_wrong_operands() -> None:
    with pytest.raises(tj.ArgumentTypeError, match="got function"):
        tj.numba_function(lambda x: x)
    with pytest.raises(tj.ArgumentTypeError, match="no fixed number of scalars"):
        tj.numba_function(numba.njit(lambda *x: x[0]))
    with pytest.raises(tj.ArgumentTypeError, match="product takes 2 arguments, got 1"):
        product(tj.ones(3))
    for body in (bump, tj.function(lambda x: bump(x))):
        with pytest.raises(tj.DTypeError, match=r"takes float tensors, got int"):
            body(tj.asarray([1, 2]))
        with pytest.raises(tj.DTypeError, match=r"takes float tensors, got complex"):
            body(tj.asarray([1j, 2]))
    for call in (product, tj.function(lambda x, y: product(x, y))):
        with pytest.raises(tj.ShapeError):
            call(tj.ones(3), tj.ones(4))


def test_what_lanes_have_not_is_named() -> None:
    made = scalar_function(lambda x: math.gamma(x), 1)
    with pytest.raises(NotStraight):
        LaneProgram(made.text, made.name)
