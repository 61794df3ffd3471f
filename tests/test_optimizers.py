"""What optimizers do around their rules: pairs, slots, learning rates, minimize.

Where it makes sense a test runs for each of MODES: plain Python and `tj.function`.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.optimizers import SGD, Adam, AdamW, Lion, Optimizer, RMSprop

MODES = {"eager": lambda f: f, "traced": tj.function}
Decorate = Callable[[Any], Any]

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: SGD(0.05),
    "momentum": lambda: SGD(0.05, 0.9, nesterov=True, clipnorm=0.5),
    "adam": lambda: Adam(0.02, global_clipnorm=1.0),
    "amsgrad": lambda: Adam(tj.optimizers.schedules.CosineDecay(0.1, 15), amsgrad=True),
    "adamw": lambda: AdamW(0.1, clipvalue=0.1),
    "rmsprop": lambda: RMSprop(momentum=0.5, centered=True),
    "adagrad": lambda: tj.optimizers.Adagrad(0.1),
    "lion": lambda: Lion(lambda step: 0.1 / (1 + step), weight_decay=0.1),
}


@pytest.fixture(params=MODES)
def decorate(request: pytest.FixtureRequest) -> Decorate:
    return MODES[request.param]


def train(
    decorate: Decorate, make: Callable[[], Optimizer], dtype: str, steps: int = 25
) -> list[Any]:
    """Losses, then variables and state, of a small regression."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4)) + 1j * rng.normal(size=(8, 4))
    y = rng.normal(size=(8, 3)).astype("float32")
    x = x.astype(dtype) if dtype.startswith("complex") else x.real.astype("float32")
    x, y = (tj.astype(tj.asarray(a), dtype) for a in (x, y))
    start = tj.astype(tj.asarray(rng.normal(size=(4, 3))), dtype)
    is_real = not dtype.startswith("complex")
    limit = (lambda v: tj.clip(v, -0.05, 0.05)) if is_real else None
    w = tj.Variable(start, name="w")
    b = tj.Variable(tj.zeros(3, dtype=dtype), name="b", constraint=limit)
    optimizer = make()

    @decorate
    def step(x: Any, y: Any) -> Any:
        with tj.GradientTape() as tape:
            loss = tj.mean(tj.abs(x @ w + b - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
        return loss

    losses = [step(x, y).numpy() for _ in range(steps)]
    assert losses[-1] < losses[0]
    if decorate is tj.function:
        assert step.trace_count == 1
    return [*losses, *(v.numpy() for v in (w, b, *optimizer.variables))]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "complex64"]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_is_the_same_in_both_modes(name: str, dtype: str) -> None:
    eager = train(MODES["eager"], OPTIMIZERS[name], dtype)
    traced = train(MODES["traced"], OPTIMIZERS[name], dtype)
    assert len(eager) == len(traced)
    for x, y in zip(eager, traced, strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


# Pairs and missing gradients


def pair(names: str = "ab") -> list[tj.Variable]:
    return [tj.Variable([1.0, 2.0], name=name) for name in names]


def test_a_missing_gradient_warns_once_per_place_and_names_it(
    decorate: Decorate,
) -> None:
    a, b = pair()
    optimizer = SGD(0.5)
    g = tj.ones(2)

    def first() -> None:
        optimizer.apply_gradients([(g, a), (None, b)])

    def second() -> None:
        optimizer.apply_gradients([(None, a), (g, b)])

    first, second = decorate(first), decorate(second)
    with pytest.warns(UserWarning, match="variable 'b'") as caught:
        first()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    first()  # warnings are errors in the tests: a second one would raise
    with pytest.warns(UserWarning, match="variable 'a'"):
        second()
    second()
    np.testing.assert_array_equal(a.numpy(), [0.0, 1.0])
    np.testing.assert_array_equal(b.numpy(), [0.0, 1.0])


def test_missing_gradients_can_be_ignored_or_refused(decorate: Decorate) -> None:
    a, b = pair()
    optimizer = SGD(0.5)
    gradients = [tj.ones(2), None]

    def apply(on_missing: Any) -> None:
        pairs = zip(gradients, [a, b], strict=True)
        optimizer.apply_gradients(pairs, on_missing=on_missing)

    apply = decorate(apply)
    apply("ignore")
    np.testing.assert_array_equal(a.numpy(), [0.5, 1.5])
    with pytest.raises(ValueError, match="no gradient for variable 'b'"):
        apply("raise")
    with pytest.raises(ValueError, match="on_missing is 'warn', 'raise' or 'ignore'"):
        apply("error")
    np.testing.assert_array_equal(a.numpy(), [0.5, 1.5])
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("on_missing", ["warn", "raise", "ignore"])
def test_no_gradient_at_all_is_an_error(on_missing: Any) -> None:
    a, b = pair()
    with pytest.raises(ValueError, match=r"no gradient for any variable.*'a'.*'b'"):
        SGD().apply_gradients([(None, a), (None, b)], on_missing=on_missing)
    with pytest.raises(ValueError, match="no variables"):
        SGD().apply_gradients([], on_missing=on_missing)


def test_a_long_list_of_missing_variables_is_cut() -> None:
    variables = pair("abcdefghijklmn")
    with pytest.raises(ValueError, match="'j' and 4 more"):
        SGD().apply_gradients([(None, v) for v in variables])


@pytest.mark.parametrize(
    ("pairs", "error", "text"),
    [
        (lambda a, b: [(tj.ones(2), a), (tj.ones(3), b)], ValueError, "'b'.*shape"),
        (lambda a, b: [(tj.ones(2), a), (tj.ones(2), a)], ValueError, "'a'.*twice"),
        (lambda a, b: [(tj.ones(2), a), (None, a)], ValueError, "'a'.*twice"),
        (lambda a, b: [(tj.ones(2), a), (b, tj.ones(2))], TypeError, "in this order"),
        (lambda a, b: [(tj.ones(2), a), b], TypeError, "zip"),
        (lambda a, b: [tj.ones(2), a], TypeError, "zip"),
        (lambda a, b: [(tj.ones(2), a), (1j * tj.ones(2), b)], TypeError, "'b' is rea"),
        (lambda a, b: [(tj.ones(2), a), ("x", b)], TypeError, "apply_gradients"),
    ],
)
def test_pairs_that_do_not_fit_change_nothing(
    pairs: Any, error: Any, text: str, decorate: Decorate
) -> None:
    a, b = pair()
    optimizer = SGD(0.5, momentum=0.9)
    with pytest.raises(error, match=f"(?s){text}"):
        decorate(lambda: optimizer.apply_gradients(pairs(a, b)))()
    np.testing.assert_array_equal(a.numpy(), [1.0, 2.0])
    assert int(optimizer.iterations) == 0


def test_an_error_of_the_iterable_passes() -> None:
    with pytest.raises(ValueError, match="zip"):
        SGD().apply_gradients(zip([tj.ones(2)], pair(), strict=True))


def test_integer_variables_are_refused() -> None:
    count = tj.Variable([1, 2], name="count")
    with pytest.raises(TypeError, match="'count' is no floating point"):
        SGD().apply_gradients([(tj.ones(2), count)])
    with pytest.raises(TypeError, match="'count' is no floating point"):
        Adam().build([count])


def test_gradients_may_be_arrays_lists_and_other_floats() -> None:
    a, b = pair()
    optimizer = SGD(0.5)
    optimizer.apply_gradients([(np.array([1.0, 2.0]), a), ([1, 2], b)])
    assert a.dtype == b.dtype == tj.float32
    np.testing.assert_array_equal(a.numpy(), [0.5, 1.0])
    np.testing.assert_array_equal(b.numpy(), [0.5, 1.0])


# Slots


def test_two_variables_through_one_traced_update_have_their_own_slots() -> None:
    optimizer = SGD(0.5, momentum=0.5)
    update = tj.function(lambda g, v: optimizer.apply_gradients([(g, v)]))
    expected = SGD(0.5, momentum=0.5)
    left, right = pair(), pair()
    for at, (x, y) in enumerate(zip(left * 4, right * 4, strict=True)):
        g = tj.asarray([1.0, at])
        update(g, x)
        expected.apply_gradients([(g, y)])
    for x, y in zip(left, right, strict=True):
        assert x.numpy().tobytes() == y.numpy().tobytes()
    slots = [v.numpy() for v in optimizer.variables[2:]]
    assert len(slots) == 2
    assert not np.array_equal(*slots)
    assert update.trace_count == 2


def test_a_constraint_is_not_shared_by_a_traced_update() -> None:
    free = tj.Variable(1.0)
    bounded = tj.Variable(1.0, constraint=lambda x: tj.maximum(x, 0.0))
    optimizer = SGD(1.0)
    update = tj.function(lambda v: optimizer.apply_gradients([(tj.ones(()), v)]))
    for v in (free, bounded, free, bounded):
        update(v)
    assert float(free) == -1.0
    assert float(bounded) == 0.0


def test_variables_may_join_after_the_first_step(decorate: Decorate) -> None:
    a, b = pair()
    optimizer = Adam(0.1)
    both = decorate(lambda g: optimizer.apply_gradients([(g, a), (g, b)]))
    one = decorate(lambda g: optimizer.apply_gradients([(g, a)]))
    one(tj.ones(2))
    both(tj.ones(2))
    assert len(optimizer.variables) == 2 + 4
    assert not np.array_equal(b.numpy(), [1.0, 2.0])
    assert int(optimizer.iterations) == 2


def test_a_variable_that_is_gone_takes_its_slots_along() -> None:
    optimizer = Adam()
    kept, dropped = pair()
    optimizer.apply_gradients([(tj.ones(2), kept), (tj.ones(2), dropped)])
    assert len(optimizer.variables) == 6
    del dropped
    gc.collect()
    assert len(optimizer.variables) == 4
    assert list(optimizer.state())[2:] == ["0/a/momentum", "0/a/velocity"]
    for _ in range(50):  # a new variable at an old address starts from nothing
        fresh = tj.Variable([1.0, 2.0])
        optimizer.build([fresh])
        slots = [v.numpy() for v in optimizer.variables[4:]]
        assert len(slots) == 2
        assert not np.any(slots)
        optimizer.apply_gradients([(tj.ones(2), fresh)])
        del fresh


def test_one_optimizer_does_not_keep_a_variable_alive() -> None:
    optimizer = SGD(momentum=0.9)
    v = tj.Variable(1.0)
    optimizer.exclude_from_weight_decay([v])
    optimizer.apply_gradients([(tj.ones(()), v)])
    assert len(optimizer._slots) == len(optimizer._undecayed) == 1
    del v
    gc.collect()
    assert len(optimizer._slots) == len(optimizer._undecayed) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_slots_in_single(dtype: str, decorate: Decorate) -> None:
    v = tj.Variable(tj.ones(2, dtype=dtype))
    optimizer = Adam(0.25)
    step = decorate(lambda g: optimizer.apply_gradients([(g, v)]))
    step(tj.asarray(np.array([1e-4, 4.0]).astype(v.dtype)))
    assert v.dtype.name == dtype
    assert all(slot.dtype == tj.float32 for slot in optimizer.variables[2:])
    # In float16 the square 1e-8 is 0, and the step would be a division by 0.
    np.testing.assert_allclose(v.numpy().astype("float32"), [0.75, 0.75], atol=2e-2)


def test_variables_of_several_dtypes_share_an_optimizer(decorate: Decorate) -> None:
    kinds = ("float32", "float64", "float16", "complex64", "complex128")
    variables = [tj.Variable(tj.ones((), dtype=kind)) for kind in kinds]
    optimizer = SGD(0.1, global_clipnorm=5**0.5 / 2)
    step = decorate(
        lambda: optimizer.apply_gradients(
            [(tj.ones((), dtype=v.dtype), v) for v in variables]
        )
    )
    step()
    for v in variables:
        np.testing.assert_allclose(v.numpy(), 0.95, rtol=np.finfo(v.dtype).eps)
    assert variables[1].numpy() == pytest.approx(0.95, rel=1e-15)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 2, 3)])
def test_any_shape_is_updated(shape: tuple[int, ...], decorate: Decorate) -> None:
    v = tj.Variable(tj.ones(shape))
    optimizer = Adam(0.5, clipnorm=100.0)
    decorate(lambda g: optimizer.apply_gradients([(g, v)]))(tj.ones(shape))
    np.testing.assert_allclose(v.numpy(), np.full(shape, 0.5), rtol=1e-5)


# The learning rate


def test_a_learning_rate_is_seen_by_what_is_traced() -> None:
    v = tj.Variable(0.0)
    optimizer = SGD(0.5)
    step = tj.function(lambda: optimizer.apply_gradients([(tj.ones(()), v)]))
    step()
    optimizer.learning_rate = 0.25
    step()
    optimizer.learning_rate.assign(2.0)
    step()
    optimizer.learning_rate = tj.asarray(4.0)
    step()
    assert float(v) == -6.75
    assert step.trace_count == 1


def test_a_learning_rate_may_be_set_inside_a_function(decorate: Decorate) -> None:
    v = tj.Variable(0.0)
    optimizer = SGD(1.0)

    @decorate
    def step() -> None:
        optimizer.apply_gradients([(tj.ones(()), v)])
        optimizer.learning_rate = optimizer.learning_rate * 0.5

    for _ in range(3):
        step()
    assert float(v) == -1.75
    assert float(optimizer.learning_rate) == 0.125


def test_a_learning_rate_is_exact_in_float64() -> None:
    v = tj.Variable(0.0, dtype="float64")
    optimizer = SGD(0.1)
    optimizer.apply_gradients([(1.0, v)])
    assert float(v) == -0.1
    optimizer.learning_rate = 0.3
    assert float(optimizer.learning_rate) == 0.3


def test_a_schedule_cannot_be_set_nor_replaced() -> None:
    with pytest.raises(TypeError, match="follows a schedule"):
        SGD(lambda step: 0.1).learning_rate = 0.5
    with pytest.raises(TypeError, match="schedule cannot take the place"):
        SGD(0.1).learning_rate = lambda step: 0.1


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: SGD("fast"), TypeError, "str"),
        (lambda: SGD([0.1, 0.2]), ValueError, "one real number"),
        (lambda: SGD(lambda step: tj.ones(2)).learning_rate, ValueError, "one real"),
        (lambda: SGD(momentum=-1), ValueError, "momentum is at least 0"),
        (lambda: Adam(beta_1=1.0), ValueError, "at least 0 and less than 1"),
        (lambda: Adam(epsilon=None), TypeError, "epsilon is a number"),
        (lambda: SGD(clipnorm=0.0), ValueError, "clipnorm is greater than 0"),
        (lambda: SGD(clipnorm=1.0, clipvalue=1.0), ValueError, "clipnorm and clipval"),
        (lambda: SGD(clipnorm=1.0, global_clipnorm=1.0), ValueError, "in one way"),
        (lambda: AdamW(clipvalue=1.0, global_clipnorm=1.0), ValueError, "in one way"),
        (lambda: SGD(weight_decay="a"), TypeError, "weight_decay is a number"),
        (lambda: SGD(speed=1.0), TypeError, "speed"),
    ],
)
def test_arguments_without_meaning_are_refused(
    make: Any, error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


# minimize


def test_minimize_takes_a_function_or_a_tensor_with_its_tape(
    decorate: Decorate,
) -> None:
    v = tj.Variable(3.0)
    optimizer = SGD(0.25)

    def with_function() -> Any:
        return optimizer.minimize(lambda: v * v, [v])

    def with_tape() -> Any:
        with tj.GradientTape() as tape:
            loss = v * v
        return optimizer.minimize(loss, {"v": v}, tape=tape)

    assert float(decorate(with_function)()) == 9.0
    assert float(v) == 1.5
    assert float(decorate(with_tape)()) == 2.25
    assert float(v) == 0.75


def test_minimize_takes_variables_that_the_loss_makes_and_frozen_ones() -> None:
    made: list[tj.Variable] = []

    def loss() -> Any:
        if not made:
            made.append(tj.Variable(1.0))
        return made[0] ** 2

    SGD(0.5).minimize(loss, lambda: made)
    assert float(made[0]) == 0.0
    frozen = tj.Variable(1.0, trainable=False)
    SGD(0.25).minimize(lambda: frozen**2, frozen)
    assert float(frozen) == 0.5


def test_minimize_reports_what_is_missing() -> None:
    a, b = pair()
    with pytest.raises(ValueError, match="comes with the tape"):
        SGD().minimize(tj.ones(()), [a])
    with pytest.raises(TypeError, match="a function or a tensor"):
        SGD().minimize(3.0, [a])
    optimizer = SGD(0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.minimize(lambda: tj.sum(a), [a, b])
    assert [str(w.message).partition(",")[0] for w in caught] == [
        "there is no gradient for variable 'b'"
    ]
    with pytest.raises(ValueError, match="'b'"):
        optimizer.minimize(lambda: tj.sum(a), [a, b], on_missing="raise")


# Clipping, decay, constraints


def test_decay_spares_excluded_variables(decorate: Decorate) -> None:
    names = ("dense/kernel", "dense/bias", "other", "scale")
    variables = [tj.Variable(1.0, name=name) for name in names]
    optimizer = SGD(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[variables[2]], var_names=["bias"])
    optimizer.exclude_from_weight_decay(var_names=["scale"])
    zero = tj.zeros(())
    decorate(lambda: optimizer.apply_gradients([(zero, v) for v in variables]))()
    assert [float(v) for v in variables] == [0.75, 1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="before the first step"):
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
    with pytest.raises(TypeError, match="list of texts"):
        SGD().exclude_from_weight_decay(var_names="bias")
    with pytest.raises(TypeError, match="updates variables, got str"):
        SGD().exclude_from_weight_decay(var_list=["bias"])


def test_what_has_no_gradient_does_not_decay() -> None:
    a, b = pair()
    SGD(0.5, weight_decay=0.5).apply_gradients(
        [(tj.zeros(2), a), (None, b)], on_missing="ignore"
    )
    np.testing.assert_array_equal(a.numpy(), [0.75, 1.5])
    np.testing.assert_array_equal(b.numpy(), [1.0, 2.0])


def test_clipping_by_all_norms_leaves_out_what_is_missing() -> None:
    a, b, c = pair("abc")
    optimizer = SGD(1.0, global_clipnorm=1.0)
    optimizer.apply_gradients(
        [(tj.asarray([3.0, 0.0]), a), (None, b), (tj.asarray([0.0, 4.0]), c)],
        on_missing="ignore",
    )
    np.testing.assert_allclose(a.numpy(), [0.4, 2.0], rtol=1e-6)
    np.testing.assert_allclose(c.numpy(), [1.0, 1.2], rtol=1e-6)


def test_a_constraint_holds_after_the_update(decorate: Decorate) -> None:
    v = tj.Variable([1.0, 1.0], constraint=lambda x: x / tj.sum(x))
    optimizer = Adam(0.5)
    step = decorate(lambda g: optimizer.apply_gradients([(g, v)]))
    for _ in range(3):
        step(tj.asarray([1.0, -1.0]))
        assert float(tj.sum(v)) == pytest.approx(1.0)
    assert v.numpy()[0] < 0 < v.numpy()[1]


def test_gradients_and_variables_come_as_pairs() -> None:
    w = tj.Variable(1.0)
    with pytest.raises(tj.ArgumentTypeError, match="takes pairs alone") as caught:
        tj.optimizers.SGD().apply_gradients([tj.ones(())], [w])
    assert "zip(gradients, variables)" in str(caught.value)
    assert float(w) == 1.0
