"""The benchmarks of matmul-bound programs: their references, steps and threads.

Nothing here asserts a time. The adjoints that references are made of are differentiated
numerically; tapejit's answer is checked where a program is small, and in all of them
under `--full`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks import adjoints, measure
from benchmarks.case import OURS, Case, Leads, Program, WrongAnswer
from benchmarks.cases import digits_mlp, find_case, gemm, mlp, mlp_small, pinn, select
from benchmarks.measure import PeerFailed, Settings
from benchmarks.training import ADDED_LATER, SGD, Adam, training_peers
from benchmarks.worker import Session

pytestmark = pytest.mark.usefixtures("others_stay_frozen")
SMALL = {"mlp_small", "digits_mlp", "mlp", "pinn", "gemm/small"}
IN_PROCESS = [
    case
    for cases in select(["dense"]).values()
    for case in cases
    if case.name != "attention_memory"
    and not case.name.startswith("gemm_serial")  # the same programs as gemm's
]


def silent(text: str) -> None:
    """Progress that nobody watches."""


def randn(*shape: int) -> np.ndarray:
    """The same normal numbers for the same shape."""
    return np.random.default_rng(sum(shape)).standard_normal(shape)


LAYERS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "dense": (adjoints.dense, (randn(2, 3, 4), randn(4, 5), randn(5))),
    "dense without bias": (adjoints.dense, (randn(3, 4), randn(4, 5))),
    "relu": (adjoints.relu, (randn(3, 4),)),
    "tanh": (adjoints.tanh, (randn(3, 4),)),
    "gelu": (adjoints.gelu, (randn(3, 4),)),
    "layer_norm": (
        partial(adjoints.layer_norm, epsilon=1e-5),
        (randn(2, 3, 6), randn(6), randn(6) + 1),
    ),
    "cross_entropy": (
        partial(adjoints.cross_entropy, labels=np.array([1, 0, 3])),
        (randn(3, 4),),
    ),
    "attention": (
        partial(adjoints.attention, heads=2),
        (randn(2, 5, 6), 2 * randn(2, 5, 6), randn(2, 6, 5).reshape(2, 5, 6)),
    ),
    "conv2d": (adjoints.conv2d, (randn(2, 5, 4, 3), randn(3, 3, 3, 2))),
    "max_pool": (adjoints.max_pool, (randn(2, 4, 6, 3),)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_adjoint_is_the_derivative_of_its_layer(name: str) -> None:
    layer, operands = LAYERS[name]
    y, pull = layer(*operands)
    g = np.random.default_rng(1).standard_normal(np.shape(y))
    pulled = pull(g)
    pulled = pulled if isinstance(pulled, tuple) else (pulled,)
    assert len(pulled) == len(operands)
    for i, (operand, cotangent) in enumerate(zip(operands, pulled, strict=True)):
        assert cotangent.shape == operand.shape
        direction = np.random.default_rng(2).standard_normal(operand.shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = [*operands]
            moved[i] = operand + step * direction
            ends.append(np.sum(layer(*moved)[0] * g))
        expected = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(np.sum(cotangent * direction), expected, rtol=1e-7)


@pytest.mark.parametrize("bend", [adjoints.relu, adjoints.tanh])
def test_a_network_pulls_back_to_each_weight(bend: Callable[..., Any]) -> None:
    weights = [randn(3, 5), randn(5), randn(5, 4), randn(4), randn(4, 2), randn(2)]
    x, g = randn(7, 3), randn(7, 2)
    gradients = adjoints.network(weights, x, bend)[1](g)
    assert [a.shape for a in gradients] == [w.shape for w in weights]
    for i, gradient in enumerate(gradients):
        direction = randn(*weights[i].shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = [*weights]
            moved[i] = weights[i] + step * direction
            ends.append(np.sum(adjoints.network(moved, x, bend)[0] * g))
        expected = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-7)


def test_the_gradients_of_pinn_are_derivatives_of_its_loss() -> None:
    arrays = [x.astype(np.float64) for x in find_case("pinn").inputs()]
    gradients = pinn.reference(*arrays)[1:]
    for i, gradient in enumerate(gradients[:-1]):
        direction = randn(*arrays[i].shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = [*arrays]
            moved[i] = arrays[i] + step * direction
            ends.append(pinn.reference(*moved)[0])
        expected = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-6)
    np.testing.assert_array_equal(gradients[-1], 0)  # the bias of u


def test_the_laplacian_of_pinn_is_that_of_its_network() -> None:
    *weights, x, y, f = (a.astype(np.float64) for a in find_case("pinn").inputs())
    step = 1e-4

    def u(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return adjoints.network(weights, np.hstack([x, y]), adjoints.tanh)[0]

    around = u(x + step, y) + u(x - step, y) + u(x, y + step) + u(x, y - step)
    residual = (around - 4 * u(x, y)) / step**2 - f
    value = pinn.reference(*weights, x, y, f)[0]
    np.testing.assert_allclose(np.mean(residual**2), value, rtol=1e-5)


@pytest.mark.parametrize("case", IN_PROCESS, ids=lambda case: case.name)
def test_tapejit_answers_right(case: Case, request: pytest.FixtureRequest) -> None:
    if case.name not in SMALL and not request.config.getoption("--full"):
        pytest.skip("a large program: --full")
    for label in (label for label in case.builders if label.startswith(OURS)):
        assert Session(label).prepare(case, round_seconds=0.0)["error"] <= 1e-5


@pytest.mark.parametrize("name", ["mlp", "mlp_adam", "mlp_small", "digits_mlp"])
def test_a_step_without_its_update_is_a_wrong_answer(name: str) -> None:
    case = find_case(name)
    *weights, _, _ = case.inputs()
    value = case.reference(*case.inputs())[0]

    def build(*arrays: np.ndarray) -> Callable[[], list[np.ndarray]]:
        return lambda: [value.astype(np.float32), *weights]

    idle = replace(case, builders={"numpy": build})
    with pytest.raises(WrongAnswer, match="off by"):
        Session("numpy").prepare(idle, round_seconds=0.0)


def test_adam_is_told_to_others_so_that_the_first_step_is_the_same() -> None:
    rule, g = Adam(0.1), np.array([1e-6, 1e-3, -2.0])
    m, v = 0.1 * g, 0.001 * g * g
    early = m * 0.1 * np.sqrt(0.001) / 0.1 / (np.sqrt(v) + ADDED_LATER * 0.001**0.5)
    np.testing.assert_allclose(rule.first_step(np.zeros(3), g), -early, rtol=1e-9)


def test_a_loss_may_be_a_packages_own() -> None:
    calls: list[str] = []

    def loss(tj: Any, weights: Any, x: Any) -> Any:
        calls.append("own")
        return tj.sum(weights[0] * x)

    def shared(m: Any, weights: Any, x: Any) -> Any:
        raise AssertionError("replaced")

    build = training_peers(shared, SGD(0.5), 1, own={OURS: loss})[OURS]
    program = build(np.array([1.0, 2.0]), np.array([4.0, 8.0]))
    assert isinstance(program, Program)
    value, weight = program.run()
    assert calls
    assert float(value) == 20.0
    np.testing.assert_array_equal(weight.numpy(), [-1.0, -2.0])


@pytest.mark.parametrize("module", [mlp, mlp_small, digits_mlp])
def test_a_training_case_checks_every_weight(module: Any) -> None:
    (case,) = module.CASES
    *weights, _, _ = case.inputs()
    _, *after = case.reference(*case.inputs())
    assert [a.shape for a in after] == [w.shape for w in weights]
    assert case.stateful


def test_the_grid_has_sixty_products_in_three_orders() -> None:
    shapes = {*gemm.SMALL, *gemm.LARGE}
    assert len(shapes) * len(gemm.ORDERS) == 60
    assert (min(map(min, shapes)), max(map(max, shapes))) == (10, 2048)
    assert all(max(shape) < 256 for shape in gemm.SMALL)
    assert all(max(shape) >= 256 for shape in gemm.LARGE)


@pytest.mark.parametrize("order", gemm.ORDERS)
def test_operands_multiply_to_the_shape_of_the_product(order: str) -> None:
    numbers, vector = gemm.make_inputs(np.random.default_rng(0))
    product = (order, (5, 7, 3))
    a, b = gemm.operands(product, numbers)
    found = gemm.multiplier(order)(a, b)
    assert found.shape == (5, 7)
    (expected,) = gemm.reference([product], numbers, vector)
    np.testing.assert_allclose(found.astype(np.float64) @ vector[:7], expected, 1e-5)


def test_a_wrong_entry_of_a_product_is_a_wrong_answer() -> None:
    case = find_case("gemm/small")

    def build(numbers: np.ndarray, vector: np.ndarray) -> Program:
        def call(order: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            product = gemm.multiplier(order)(a, b)
            product[-1, -1] += 0.01
            return product

        small = [(order, shape) for order in gemm.ORDERS for shape in gemm.SMALL]
        calls = [partial(call, p[0], *gemm.operands(p, numbers)) for p in small]
        return gemm.program_of(calls, np.asarray, vector)

    with pytest.raises(WrongAnswer, match="off by"):
        Session("numpy").prepare(replace(case, builders={"numpy": build}), 0.0)


def test_the_number_of_a_grid_is_a_geometric_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"a": 1e-6, "b": 4e-6}
    monkeypatch.setattr(gemm, "repeated", lambda run, seconds: 1)
    monkeypatch.setattr(gemm, "time_of", lambda run, count: times[run()])
    program = gemm.program_of([lambda: "a", lambda: "b"], np.asarray, np.ones(1))
    assert program.measure is not None
    assert program.measure() == pytest.approx(2e-6)


@pytest.mark.parametrize(("asked", "given"), [(None, 2), (1, 1), (4, 2)])
def test_a_case_may_ask_for_fewer_threads(
    asked: int | None, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Refused:
        """A worker that notes its threads and never starts."""

        def __init__(self, label: str, threads: int, python: str) -> None:
            self.label, self.version = label, ""
            started.append(threads)

        def greet(self) -> None:
            raise PeerFailed("not needed")

        def complaints(self) -> str:
            return ""

        def close(self) -> None:
            pass

    monkeypatch.setattr(measure, "Worker", Refused)
    case = replace(find_case("gemm/small"), threads=asked)
    measure.measure_group(
        [case], lambda label: label == "numpy", Settings(threads=2), silent
    )
    assert started == [given]


def test_goals_are_those_that_were_set() -> None:
    goals = {
        case.name: [g.ratio for g in case.goals if isinstance(g, Leads)]
        for case in IN_PROCESS
    }
    assert goals == {
        "mlp": [1.4],
        "mlp_adam": [1.4],
        "mlp_small": [5.0],
        "digits_mlp": [1.5],
        "attention": [1.5],
        "attention_long": [1.2],
        "cnn": [1.0],
        "pinn": [1.5],
        "gemm/small": [1.2],
        "gemm/nn": [0.95],
        "gemm/tn": [0.95],
        "gemm/nt": [0.95],
    }
