"""The state of optimizers: its names, copies of it, and steps in functions."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.optimizers import SGD, Adam, AdamW, Lion, Optimizer, RMSprop

MODES = {"eager": lambda f: f, "traced": tj.function}
Decorate = Callable[[Any], Any]


@pytest.fixture(params=MODES)
def decorate(request: pytest.FixtureRequest) -> Decorate:
    return MODES[request.param]


def pair() -> list[tj.Variable]:
    return [tj.Variable([1.0, 2.0], name=name) for name in "ab"]


def test_state_has_stable_names_in_the_order_of_building() -> None:
    a, b = pair()
    optimizer = Adam(amsgrad=True)
    optimizer.build([b])
    optimizer.build([a, b])
    assert list(optimizer.state()) == [
        "iterations",
        "learning_rate",
        *("0/b/momentum", "0/b/velocity", "0/b/velocity_hat"),
        *("1/a/momentum", "1/a/velocity", "1/a/velocity_hat"),
    ]
    assert not any(v.trainable for v in optimizer.variables)
    assert list(SGD(lambda step: 0.1).state()) == ["iterations"]
    assert optimizer.iterations is optimizer.state()["iterations"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(0.05, 0.9, nesterov=True),
        lambda: Adam(tj.optimizers.schedules.CosineDecay(0.1, 15), amsgrad=True),
        lambda: RMSprop(0.01, momentum=0.5, centered=True),
        lambda: Lion(0.01, weight_decay=0.1),
    ],
)
def test_a_run_goes_on_from_copied_state_bit_for_bit(
    make: Callable[[], Optimizer], decorate: Decorate
) -> None:
    gradients = np.random.default_rng(1).normal(size=(20, 2)).astype("float32")

    def stepper(optimizer: Optimizer, v: tj.Variable) -> Any:
        return decorate(lambda g: optimizer.apply_gradients([(g, v)]))

    v, whole = tj.Variable([1.0, 2.0]), make()
    step = stepper(whole, v)
    for g in gradients[:10]:
        step(tj.asarray(g))
    w, resumed = tj.Variable(v), make()
    resumed.build([w])
    for key, value in whole.state().items():
        resumed.state()[key].assign(value.numpy())
    again = stepper(resumed, w)
    for g in gradients[10:]:
        step(tj.asarray(g))
        again(tj.asarray(g))
        assert v.numpy().tobytes() == w.numpy().tobytes()
    assert int(resumed.iterations) == 20


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_goes_with_the_copies_of_its_variables(copied: Any) -> None:
    a, b = pair()
    optimizer = AdamW(0.1)
    optimizer.exclude_from_weight_decay([b])
    optimizer.apply_gradients([(tj.ones(2), a), (tj.ones(2), b)])
    other, (c, d) = copied((optimizer, [a, b]))
    assert list(other.state()) == list(optimizer.state())
    for each, (x, y) in ((optimizer, (a, b)), (other, (c, d))):
        each.apply_gradients([(tj.asarray([2.0, -1.0]), v) for v in (x, y)])
    assert a.numpy().tobytes() == c.numpy().tobytes() != b.numpy().tobytes()
    assert b.numpy().tobytes() == d.numpy().tobytes()
    other.apply_gradients([(tj.ones(2), c)])
    assert int(optimizer.iterations) == 2


# In functions and under tapes


@pytest.mark.parametrize("eager", [False, True])
def test_a_failing_function_leaves_the_state(eager: bool) -> None:
    v = tj.Variable(1.0)
    optimizer = SGD(0.5, momentum=0.9)

    @tj.function
    def step(limit: Any) -> None:
        optimizer.apply_gradients([(tj.ones(()), v)])
        tj.debug.assert_less(v, limit, "too far")

    tj.run_functions_eagerly(eager)
    try:
        with pytest.raises(tj.CheckFailed):
            step(tj.asarray(0.0))
        assert float(v) == 1.0
        assert int(optimizer.iterations) == 0
        assert not any(slot.numpy() for slot in optimizer.variables[2:])
        step(tj.asarray(2.0))
        assert float(v) == 0.5
    finally:
        tj.run_functions_eagerly(False)


def test_an_optimizer_may_be_an_argument_of_a_function() -> None:
    v = tj.Variable(0.0)

    @tj.function
    def step(optimizer: Any) -> None:
        optimizer.apply_gradients([(tj.ones(()), v)])

    slow, fast = SGD(1.0), SGD(10.0)
    for optimizer in (slow, fast, slow):
        step(optimizer)
    assert float(v) == -12.0
    assert (int(slow.iterations), int(fast.iterations)) == (2, 1)


def test_two_optimizers_share_a_variable_and_one_serves_two_models(
    decorate: Decorate,
) -> None:
    a, b = pair()
    first, second = SGD(1.0, momentum=0.5), SGD(0.5, momentum=0.5)

    @decorate
    def step(g: Any) -> None:
        first.apply_gradients([(g, a)])
        second.apply_gradients([(g, a)])
        first.apply_gradients([(g, b)])

    for _ in range(2):
        step(tj.ones(2))
    np.testing.assert_array_equal(a.numpy(), [-2.75, -1.75])
    np.testing.assert_array_equal(b.numpy(), [-1.5, -0.5])
    assert int(first.iterations) == 4


def test_a_step_between_two_gradients_of_a_tape_does_not_disturb_it(
    decorate: Decorate,
) -> None:
    v = tj.Variable(3.0)
    optimizer = Adam(0.5)

    @decorate
    def step() -> Any:
        with tj.GradientTape(persistent=True) as tape:
            y = v * v
            z = y * v
        optimizer.apply_gradients([(tape.gradient(y, v), v)])
        return tape.gradient(z, v)

    assert float(step()) == 27.0


def test_a_rule_of_ones_own_works_in_both_modes(decorate: Decorate) -> None:
    class Averaged(Optimizer):
        """Descent along the mean of all gradients so far."""

        slot_names = ("total",)

        def coefficients(self, rate: Any, step: Any) -> Any:
            return (rate / step,)

        def update(self, gradient: Any, value: Any, slots: Any, scale: Any) -> Any:
            total = slots["total"] + gradient
            return value - scale * total, {"total": total}

    v = tj.Variable(0.0)
    optimizer = Averaged(1.0)
    step = decorate(lambda g: optimizer.apply_gradients([(g, v)]))
    for g in (2.0, 4.0, 6.0):
        step(tj.asarray(g))
    assert float(v) == -9.0
    with pytest.raises(NotImplementedError, match="Optimizer defines no update"):
        Optimizer().apply_gradients([(tj.ones(()), v)])


def test_variables_made_in_the_first_step_are_trained_alike() -> None:
    """A lazily made model, a learning rate given as a float: as programs have it."""

    def train(decorate: Decorate) -> list[bytes]:
        generator = tj.random.Generator(3)
        made: list[tj.Variable] = []
        optimizer = Adam(1.0)

        @decorate
        def step(x: Any, rate: Any) -> Any:
            if not made:
                made.append(tj.Variable(generator.normal((3,))))
            optimizer.learning_rate = rate
            return optimizer.minimize(
                lambda: tj.sum((x * made[0] - 1) ** 2), lambda: made
            )

        rates = [0.1 * 0.9**at for at in range(20)]
        losses = [step(tj.ones(3), rate).numpy() for rate in rates]
        assert float(optimizer.learning_rate) == rates[-1]
        assert losses[-1] < losses[0]
        assert len(optimizer.variables) == 4
        return [x.tobytes() for x in (*losses, made[0].numpy())]

    assert train(MODES["eager"]) == train(MODES["traced"])
