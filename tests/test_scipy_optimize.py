"""SciPy's optimizers take functions and derivatives made by tapejit as they are.

Each row runs one of SciPy's methods on tapejit's functions, undecorated and
decorated, and finds the known solution.

Start reading at `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import optimize

import tapejit as tj

START = np.array([1.3, 0.7, 0.8, 1.9])
FULL_HESSIAN = ("dogleg", "trust-exact", "trust-ncg", "trust-krylov", "trust-constr")

Decorator = Callable[[Any], Any]
both_modes = pytest.mark.parametrize(
    "decorate", [lambda f: f, tj.function], ids=["eager", "function"]
)


def bowl(x: Any) -> Any:
    """Convex, so that methods that need a positive Hessian get one; minimum at 1."""
    return tj.sum((x - 1.0) ** 4 + (x - 1.0) ** 2) + (x[0] - x[1]) ** 2


def residuals(x: Any) -> Any:
    return tj.stack([10 * (x[1] - x[0] ** 2), 1 - x[0], x[2] - x[1]])


def assert_solved(found: Any) -> None:
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, np.ones_like(found), atol=1e-3)


@both_modes
@pytest.mark.parametrize(
    "method", ["L-BFGS-B", "BFGS", "CG", "SLSQP", "TNC", "Newton-CG", *FULL_HESSIAN]
)
def test_minimize(method: str, decorate: Decorator) -> None:
    hessian = {"hess": decorate(tj.hessian(bowl))} if method in FULL_HESSIAN else {}
    together = decorate(tj.value_and_grad(bowl))
    assert_solved(
        optimize.minimize(together, START, jac=True, method=method, **hessian).x
    )
    value, gradient = decorate(bowl), decorate(tj.grad(bowl))
    assert_solved(
        optimize.minimize(value, START, jac=gradient, method=method, **hessian).x
    )


@both_modes
@pytest.mark.parametrize(
    "method", ["Newton-CG", "trust-ncg", "trust-krylov", "trust-constr"]
)
def test_minimize_with_products_of_the_hessian(
    method: str, decorate: Decorator
) -> None:
    together = decorate(tj.value_and_grad(bowl))
    product = decorate(lambda x, v: tj.hvp(bowl, x, v))
    found = optimize.minimize(together, START, jac=True, hessp=product, method=method)
    assert_solved(found.x)


@both_modes
@pytest.mark.parametrize("method", ["trf", "dogbox", "lm"])
def test_least_squares(method: str, decorate: Decorator) -> None:
    jacobian = decorate(tj.jacobian(residuals))
    bounds = {} if method == "lm" else {"bounds": (0.0, 3.0)}
    found = optimize.least_squares(
        decorate(residuals), np.full(3, 2.0), jac=jacobian, method=method, **bounds
    )
    assert_solved(found.x)


@both_modes
def test_systems_of_equations(decorate: Decorator) -> None:
    value, jacobian = decorate(residuals), decorate(tj.jacobian(residuals))
    start = np.full(3, 2.0)
    assert_solved(optimize.fsolve(value, start, fprime=jacobian))
    assert_solved(optimize.root(value, start, jac=jacobian).x)
    assert_solved(optimize.leastsq(value, start, Dfun=jacobian)[0])


@both_modes
def test_curve_fit(decorate: Decorator) -> None:
    def model(x: Any, scale: Any, rate: Any) -> Any:
        return scale * tj.exp(-rate * x)

    def jacobian(x: Any, scale: Any, rate: Any) -> Any:
        columns = tj.jacobian(model, argnums=(1, 2))(x, scale, rate)
        return tj.stack(list(columns), axis=-1)

    xs = np.linspace(0.0, 1.0, 20)
    ys = np.exp(-xs)
    for derivative in (None, decorate(jacobian)):
        found, _ = optimize.curve_fit(
            decorate(model), xs, ys, p0=(0.5, 0.5), jac=derivative
        )
        assert_solved(found)


@both_modes
@pytest.mark.parametrize("method", ["SLSQP", "trust-constr"])
def test_constraints(method: str, decorate: Decorator) -> None:
    together = decorate(tj.value_and_grad(lambda x: tj.sum((x - 2.0) ** 2)))

    def radius(x: Any) -> Any:  # of a disc: (1, 1) is its nearest point to (2, 2)
        return tj.stack([x[0] ** 2 + x[1] ** 2])

    constraint = optimize.NonlinearConstraint(
        decorate(radius), -np.inf, 2.0, jac=decorate(tj.jacobian(radius))
    )
    found = optimize.minimize(
        together, [0.5, 1.2], jac=True, method=method, constraints=[constraint]
    )
    assert_solved(found.x)


def test_what_a_tape_records_stays_a_tensor() -> None:
    names: dict[str, Any] = {"np": np, "__name__": "scipy.optimize.example"}
    exec("def cube(x): return np.sum(np.power(x, 3))", names)
    cube = names["cube"]
    x = tj.asarray(START)
    assert type(cube(x)) is np.float64
    for gradient in (tj.grad(cube), tj.function(tj.grad(cube))):
        np.testing.assert_allclose(gradient(x), 3 * START**2, rtol=1e-12)


def test_elsewhere_numpys_functions_give_tensors() -> None:
    assert type(np.atleast_1d(tj.asarray(1.0))) is tj.Tensor
