"""Derivatives where calculus has none: kinks, ties, poles, the ends of the line.

The choices are those a user of TensorFlow expects, and better where it gives NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from differentiation import adjoint_of, as_arrays, pulled_back, pushed_forward
from op_cases.case import Array

import tapejit as tj
from tapejit.base.types import TensorType
from tapejit.ir import OPS, Graph, Node, param

INF, NAN = np.inf, np.nan


class Kink(NamedTuple):
    """An op at a point, and the gradient of the sum of its result by each operand."""

    name: str
    op: str
    operands: list[Any]
    gradients: list[Any]
    attrs: dict[str, Any] = {}

    def graph(self) -> Graph:
        arrays = self.arrays()
        inputs = [param(f"x{at}", TensorType.of(x)) for at, x in enumerate(arrays)]
        return Graph(self.op, inputs, (OPS[self.op](*inputs, **self.attrs),))

    def arrays(self) -> list[Array]:
        return [np.asarray(x) for x in self.operands]


def along(*axes: int) -> dict[str, Any]:
    return {"axes": axes, "keepdims": False}


KINKS = [
    Kink("abs", "abs", [[0.0, -0.0, 2.0, -3.0]], [[0, 0, 1, -1]]),
    Kink("complex abs", "abs", [[0j, 3 + 4j]], [[0, 0.6 + 0.8j]]),
    Kink("sign", "sign", [[0j, 2j]], [[0, 0.5]]),
    Kink("angle", "angle", [[0j, 2j]], [[0, -0.5]]),
    Kink("sqrt at 0", "sqrt", [[0.0, 4.0]], [[INF, 0.25]]),
    Kink("log at 0", "log", [[0.0, 2.0]], [[INF, 0.5]]),
    Kink("log1p at -1", "log1p", [[-1.0, 1.0]], [[INF, 0.5]]),
    Kink("exp", "exp", [[-INF, 0.0, INF]], [[0, 1, INF]]),
    Kink("expm1", "expm1", [[-INF, 0.0]], [[0, 1]]),
    Kink("tanh", "tanh", [[-INF, -40.0, 0.0, INF]], [[0, 0, 1, 0]]),
    Kink("sigmoid", "sigmoid", [[-INF, -800.0, 0.0, INF]], [[0, 0, 0.25, 0]]),
    Kink("erf", "erf", [[-INF, 0.0, 30.0]], [[0, 2 / np.sqrt(np.pi), 0]]),
    Kink("square", "square", [[1 + 2j]], [[2 - 4j]]),
    # All of x = 0 has the product 0; only y = 0 itself has no logarithm.
    Kink(
        "xlogy",
        "xlogy",
        [[0.0, -0.0, 0.0, 2.0, 0.0], [0.0, 0.0, np.e, 0.0, INF]],
        [[0, 0, 1, -INF, INF], [0, 0, 0, INF, 0]],
    ),
    Kink(
        "xlog1py",
        "xlog1py",
        [[0.0, -0.0, 0.0, 2.0, 0.0], [-1.0, -1.0, np.e - 1, -1.0, INF]],
        [[0, 0, 1, -INF, INF], [0, 0, 0, INF, 0]],
    ),
    # The first operand gets all of a tie.
    Kink(
        "maximum",
        "maximum",
        [[1.0, 2.0, 2.0, 0.0], [2.0, 1.0, 2.0, -0.0]],
        [[0, 1, 1, 1], [1, 0, 0, 0]],
    ),
    Kink(
        "minimum",
        "minimum",
        [[1.0, 2.0, 2.0, 0.0], [2.0, 1.0, 2.0, -0.0]],
        [[1, 0, 1, 1], [0, 1, 0, 0]],
    ),
    Kink("infinite tie", "maximum", [[INF, -INF], [INF, -INF]], [[1, 1], [0, 0]]),
    # In a reduction the winners share.
    Kink("max", "max", [[1.0, 3.0, 3.0, 2.0]], [[0, 0.5, 0.5, 0]], along(0)),
    Kink("min", "min", [[2.0, 1.0, 1.0, 1.0]], [[0, *[1 / 3] * 3]], along(0)),
    Kink("max of inf", "max", [[INF, 1.0, INF]], [[0.5, 0, 0.5]], along(0)),
    Kink("max of zeros", "max", [[0.0, -0.0]], [[0.5, 0.5]], along(0)),
    Kink("max of NaN", "max", [[NAN, 1.0]], [[NAN, NAN]], along(0)),
    # A product's slope is the product of the other factors, zeros or not.
    Kink("prod, one zero", "prod", [[2.0, 0.0, 3.0]], [[0, 6, 0]], along(0)),
    Kink("prod, two zeros", "prod", [[0.0, 0.0, 3.0]], [[0, 0, 0]], along(0)),
    Kink(
        "prod of rows",
        "prod",
        [[[2.0, 0.0], [5.0, 4.0]]],
        [[[0, 2], [4, 5]]],
        along(1),
    ),
    # Powers: x^0 is constant, 0^p and negative bases have no slope in p.
    Kink(
        "x^0", "pow", [[0.0, 3.0, -2.0], [0.0, 0.0, 0.0]], [[0] * 3, [0, np.log(3), 0]]
    ),
    Kink(
        "0^p",
        "pow",
        [[0.0, 0.0, 0.0], [2.0, 1.0, 0.5]],
        [[0, 1, INF], [0, 0, 0]],
    ),
    Kink("negative base", "pow", [[-2.0, -2.0], [3.0, 2.0]], [[12, -4], [0, 0]]),
    # Infinities are kept from meeting.
    Kink("logsumexp", "logsumexp", [[0.0, -INF]], [[1, 0]], along(0)),
    Kink("logsumexp of -inf", "logsumexp", [[-INF, -INF]], [[0, 0]], along(0)),
    Kink("logsumexp of inf", "logsumexp", [[INF, 1.0, INF]], [[0.5, 0, 0.5]], along(0)),
    Kink("softmax", "softmax", [[0.0, -INF]], [[0, 0]], {"axes": (0,)}),
    Kink("softmax of -inf", "softmax", [[-INF, -INF]], [[0, 0]], {"axes": (0,)}),
    Kink("softmax, far", "softmax", [[1e4, 0.0]], [[0, 0]], {"axes": (0,)}),
    Kink("logsumexp, far", "logsumexp", [[1e4, 0.0, 1e4]], [[0.5, 0, 0.5]], along(0)),
    # A step has slope zero on both sides and at the edge.
    Kink("floor", "floor", [[1.0, 1.5]], [[0, 0]]),
    Kink("round", "round", [[0.5, 1.5]], [[0, 0]]),
    Kink("floor_divide", "floor_divide", [[4.0], [2.0]], [[0], [0]]),
    Kink("remainder", "remainder", [[4.0, 5.0], [2.0, 2.0]], [[1, 1], [-2, -2]]),
    # A choice passes the cotangent to one operand; the other's part is not 0 · inf.
    Kink(
        "where",
        "where",
        [np.array([True, False]), [1.0, 2.0], [3.0, 4.0]],
        [[1, 0], [0, 1]],
    ),
    Kink(
        "gather, repeated",
        "gather",
        [[1.0, 2.0, 3.0], np.array([2, -1, 0])],
        [[1, 0, 2]],
        {"axes": (0,)},
    ),
]


@pytest.mark.parametrize("kink", KINKS, ids=[kink.name for kink in KINKS])
def test_the_gradient_at_a_kink(kink: Kink) -> None:
    graph, arrays = kink.graph(), kink.arrays()
    (out,) = graph.outputs
    kinds = [x.type for x in graph.inputs if x.dtype.kind in "fc"]
    pulled = pulled_back(graph, arrays, [np.ones(out.shape, out.dtype)])
    assert all(part is not None for part in pulled)
    found = as_arrays(pulled, kinds)
    for got, expected in zip(found, kink.gradients, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("kink", KINKS, ids=[kink.name for kink in KINKS])
def test_forward_mode_takes_the_same_side_of_a_kink(kink: Kink) -> None:
    """One operand's element moves at a time: its slope is the gradient's element."""
    graph, arrays = kink.graph(), kink.arrays()
    (out,) = graph.outputs
    moving = [at for at, x in enumerate(arrays) if x.dtype.kind in "fc"]
    for at, gradient in zip(moving, kink.gradients, strict=True):
        x = arrays[at]
        for where in np.ndindex(x.shape):
            tangent = np.zeros_like(x)
            tangent[where] = 1
            pushed = pushed_forward(graph, arrays, [at], [tangent])
            (moved,) = as_arrays(pushed, [out.type])
            slope = np.real(moved).sum()
            expected = np.real(np.asarray(gradient)[where])
            if np.isnan(expected):
                assert np.isnan(slope)
            elif np.isfinite(expected) and np.isfinite(moved).all():
                np.testing.assert_allclose(slope, expected, rtol=1e-15, atol=1e-16)
            else:
                # A resting element beside an infinite slope moves by 0 · inf.
                assert np.isnan(moved).any() or slope == expected


def second(op: str, operands: list[Any], **attrs: Any) -> tuple[list[Array], Graph]:
    kink = Kink("second", op, operands, [], attrs)
    adjoint = adjoint_of(kink.graph())
    assert adjoint is not None
    return kink.arrays(), adjoint


def test_second_derivatives_of_powers_at_zero() -> None:
    arrays, adjoint = second("pow", [[0.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0]])
    ones, zeros = np.ones(5), np.zeros(5)
    by_base, by_exponent, _ = pulled_back(adjoint, [*arrays, ones], [ones, zeros])
    np.testing.assert_array_equal(by_base, [0, 0, 2, 0, 0])
    np.testing.assert_array_equal(by_exponent[2:], [0, 0, 0])


def test_second_derivatives_of_a_product_with_zeros() -> None:
    arrays, adjoint = second("prod", [[0.0, 0.0, 3.0]], **along(0))
    weights = np.array([1.0, 0.0, 0.0])
    by_factors, _ = pulled_back(adjoint, [*arrays, np.ones(())], [weights])
    np.testing.assert_array_equal(by_factors, [0, 3, 0])


def test_an_infinite_cotangent_does_not_reach_what_was_not_chosen() -> None:
    inf = np.array([INF, INF])
    for op, operands, expected in (
        (
            "where",
            [np.array([True, False]), [1.0, 1.0], [1.0, 1.0]],
            [[INF, 0], [0, INF]],
        ),
        ("maximum", [[1.0, 2.0], [2.0, 1.0]], [[0, INF], [INF, 0]]),
        ("minimum", [[1.0, 2.0], [2.0, 1.0]], [[INF, 0], [0, INF]]),
    ):
        kink = Kink(op, op, operands, expected)
        for got, want in zip(
            pulled_back(kink.graph(), kink.arrays(), [inf]), expected, strict=True
        ):
            np.testing.assert_array_equal(got, want)


def composed(build: Any, x: Any) -> Array:
    """The gradient of a composition at a point."""
    array = np.asarray(x, np.float64)
    node = param("x", TensorType.of(array))
    graph = Graph("composed", (node,), (build(node),))
    (found,) = pulled_back(graph, [array], [np.ones(array.shape)])
    assert isinstance(found, np.ndarray)
    return found


def test_clipping_passes_the_cotangent_at_its_bounds() -> None:
    def clip(x: Node) -> Node:
        return OPS["minimum"](OPS["maximum"](x, -1), 1)

    np.testing.assert_array_equal(composed(clip, [-2, -1, 0, 1, 2]), [0, 1, 1, 1, 0])


def test_a_nan_born_in_the_branch_not_taken_shows() -> None:
    def guarded_root(x: Node) -> Node:
        return OPS["where"](OPS["greater"](x, 0), OPS["sqrt"](x), 0)

    np.testing.assert_array_equal(composed(guarded_root, [4.0, 0.0]), [0.25, NAN])


@pytest.mark.parametrize(("function", "origin"), [("xlogy", 0.0), ("xlog1py", -1.0)])
@pytest.mark.parametrize("is_traced", [False, True])
def test_second_derivatives_of_products_with_a_logarithm(
    function: str, origin: float, is_traced: bool
) -> None:
    """By both operands: 0 where the first ones are, 1 / y on the rest of x = 0."""
    f = getattr(tj.special, function)

    def mixed(x: Any, y: Any) -> Any:
        by_x = tj.grad(tj.grad(f), argnums=(0, 1))(x, y)
        by_y = tj.grad(tj.grad(f, argnums=1), argnums=(0, 1))(x, y)
        return (*(0.0 * x if g is None else g for g in by_x), *by_y)

    run = tj.function(mixed) if is_traced else mixed
    for x, y, expected in [
        (0.0, 0.0, (0.0, 0.0, 0.0, 0.0)),
        (0.0, 4.0, (0.0, 0.25, 0.25, 0.0)),
        (2.0, 4.0, (0.0, 0.25, 0.25, -0.125)),
    ]:
        at = tj.asarray(x, dtype="float64"), tj.asarray(y + origin, dtype="float64")
        np.testing.assert_allclose(np.array(run(*at)), expected, rtol=1e-15)
        _, tangent = tj.jvp(f, at, (at[0] * 0 + 1, at[1] * 0 + 1))
        if y == 0.0:
            assert tangent.numpy() == 0.0
