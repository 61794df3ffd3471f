"""Functions as Python objects: caches, warnings, methods, what is decorated (49)."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import tapejit as tj
from tapejit.tracing.cache import MAX_ENTRIES

X = tj.asarray([1.0, 2.0])


# Tracing too often


def test_s49_a_warning_says_what_changed_and_comes_once() -> None:
    @tj.function
    def f(x: Any, n: int) -> Any:
        return x * n

    for n in range(5):
        f(X, n)
    with pytest.warns(UserWarning, match=r"argument n: now int 5, before int \d") as w:
        f(X, 5)
    assert len(w) == 1
    assert "f was traced 6 times in its last 10 calls" in str(w[0].message)
    assert w[0].filename == __file__, "the warning points at the call"
    for n in range(6, 20):
        f(X, n)


def test_s49_the_warning_names_the_shape_that_changed() -> None:
    @tj.function
    def f(x: Any, y: Any) -> Any:
        return tj.sum(x) + tj.sum(y)

    for n in range(1, 6):
        f(X, tj.ones(n))
    with pytest.warns(UserWarning, match=r"argument y: now f32\[6\], before f32\[\d\]"):
        f(X, tj.ones(6))


def test_s49_few_traces_among_many_calls_do_not_warn() -> None:
    @tj.function
    def f(x: Any, n: int) -> Any:
        return x * n

    for n in range(12):
        f(X, n)
        f(X, n)
    assert f.trace_count == 12


def test_s49_the_warning_tells_of_structures_and_of_the_default_float() -> None:
    @tj.function
    def f(xs: Any) -> Any:
        return sum(xs)

    for n in range(1, 6):
        f([X] * n)
    with pytest.warns(UserWarning, match="the structure of the arguments"):
        f([X] * 6)


# The cache


def test_s49_the_cache_is_bounded_and_drops_what_was_not_used_for_longest() -> None:
    @tj.function
    def f(x: Any, n: int) -> Any:
        return x * n

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(MAX_ENTRIES):
            f(X, n)
        assert len(f.signatures()) == MAX_ENTRIES
        f(X, 0)
        f(X, MAX_ENTRIES)
    shown = f.signatures()
    assert len(shown) == MAX_ENTRIES
    assert shown[-2:] == ["(x: f32[2], n: int 0)", f"(x: f32[2], n: int {MAX_ENTRIES})"]
    assert "(x: f32[2], n: int 1)" not in shown
    before = f.trace_count
    f(X, 0)
    assert f.trace_count == before
    assert f(X, 1).numpy()[0] == 1.0
    assert f.trace_count == before + 1


def test_s49_what_is_called_again_is_kept_whatever_it_is_called_with() -> None:
    @tj.function
    def f(x: Any) -> Any:
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(MAX_ENTRIES):
            f(tj.ones(n))
            f(tj.ones(0))
        f(tj.ones(MAX_ENTRIES))
        before = f.trace_count
        f(tj.ones(0))
    assert f.trace_count == before
    assert len(f.signatures()) == MAX_ENTRIES


def test_s49_clear_cache_traces_again_and_lets_go() -> None:
    class Key:
        pass

    f = tj.function(lambda x, key: x * 2)
    key = Key()
    f(X, key)
    held = weakref.ref(key)
    del key
    assert held() is not None, "an object in a key is held"
    f.clear_cache()
    assert held() is None
    assert f.signatures() == []
    assert f.trace_count == 0
    f(X, 1)
    assert f.trace_count == 1


def test_s49_signatures_show_types_and_values() -> None:
    @tj.function
    def f(x: Any, params: Any, rate: float = 0.5, mode: str = "a") -> Any:
        return x * params["w"] * rate

    v = tj.Variable([[1.0], [2.0]])
    f(tj.ones((1, 2), dtype="float64"), {"w": v})
    assert f.signatures() == [
        "(x: f64[1,2], params['w']: variable f32[2,1], rate: float 0.5, mode: 'a')"
    ]
    f(tj.ones((1, 2), dtype="float64"), {"w": v}, 0.25)
    assert "rate: any float" in f.signatures()[-1]


# What is kept of the Python function


def test_s49_name_doc_signature_and_function_are_kept() -> None:
    def body(x: Any, *, rate: float = 0.5) -> Any:
        """Scale."""
        return x * rate

    f = tj.function(body)
    assert f.python_function is body
    assert f.__wrapped__ is body
    assert (f.__name__, f.__doc__, f.__module__) == ("body", "Scale.", __name__)
    assert f.__qualname__ == body.__qualname__
    assert inspect.signature(f) == inspect.signature(body)
    assert "body" in repr(f)
    assert callable(f)


def test_s49_with_and_without_parentheses() -> None:
    @tj.function
    def a(x: Any) -> Any:
        return x + 1

    @tj.function()
    def b(x: Any) -> Any:
        return x + 1

    @tj.function(jit_compile=True, autograph=False)
    def c(x: Any) -> Any:
        return x + 1

    for f in (a, b, c, tj.function(lambda x: x + 1)):
        np.testing.assert_array_equal(f(X), [2.0, 3.0])
        assert f.trace_count == 1


def test_s49_decorating_twice_traces_once() -> None:
    runs = []

    @tj.function
    @tj.function
    def f(x: Any) -> Any:
        runs.append(1)
        return x * 2

    f(X)
    f(X)
    assert len(runs) == 1


# What can be decorated


def test_s49_partials() -> None:
    def body(x: Any, factor: Any, *, shift: Any) -> Any:
        return x * factor + shift

    f = tj.function(functools.partial(body, factor=3, shift=1.0))
    np.testing.assert_array_equal(f(X), [4.0, 7.0])
    np.testing.assert_array_equal(f(X, shift=2.0), [5.0, 8.0])
    of_function = functools.partial(tj.function(body), X)
    np.testing.assert_array_equal(of_function(2, shift=0.0), [2.0, 4.0])


def test_s49_callable_objects() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = tj.Variable(w)

        def __call__(self, x: Any) -> Any:
            return x * self.w

    model = Model(3.0)
    f = tj.function(model)
    np.testing.assert_array_equal(f(X), [3.0, 6.0])
    model.w.assign(4.0)
    np.testing.assert_array_equal(f(X), [4.0, 8.0])
    assert f.__name__ == "Model"
    assert f.trace_count == 1


def test_s49_builtins_and_library_functions() -> None:
    np.testing.assert_array_equal(tj.function(abs)(-X), X)
    np.testing.assert_array_equal(tj.function(tj.exp)(X), tj.exp(X))
    np.testing.assert_array_equal(tj.function(np.square)(X), [1.0, 4.0])


def test_s49_args_and_kwargs() -> None:
    @tj.function
    def f(first: Any, *rest: Any, scale: float = 1.0, **named: Any) -> Any:
        total = first + sum(rest)
        for name in sorted(named):
            total = total * 10 + named[name]
        return total * scale

    one = tj.asarray(1.0)
    assert float(f(one)) == 1.0
    assert float(f(one, one, 2)) == 4.0
    assert float(f(one, b=2, a=one)) == 112.0
    assert float(f(one, a=one, b=2)) == 112.0
    assert f.trace_count == 3
    assert float(f(one, one, 2, scale=3.0)) == 12.0


def test_s49_positional_only_parameters_and_defaults() -> None:
    @tj.function
    def f(x: Any, /, y: Any = 2, *, z: Any = None) -> Any:
        return x * y if z is None else x * y + z

    assert float(f(tj.asarray(3.0))) == 6.0
    assert float(f(tj.asarray(3.0), z=tj.asarray(1.0))) == 7.0
    with pytest.raises(TypeError, match="positional"):
        f(x=X)


def test_s49_a_default_that_is_a_tensor_or_a_variable_works() -> None:
    w, two = tj.Variable(5.0), tj.asarray(2.0)

    @tj.function
    def f(x: Any, scale: Any = two, v: Any = w) -> Any:
        return x * scale + v

    assert float(f(tj.asarray(1.0))) == 7.0
    w.assign(6.0)
    assert float(f(tj.asarray(1.0))) == 8.0
    assert f.trace_count == 1


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda: (yield), "generator"),
        (type("Model", (), {}), "class"),
        (3, "int"),
        (X, "Tensor"),
        (tj.Variable(1.0), "Variable"),
    ],
)
def test_s49_what_is_no_function_is_refused(what: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        tj.function(what)
    with pytest.raises(TypeError, match=named):
        tj.function(static=())(what)


def test_s49_coroutines_and_asynchronous_generators_are_refused() -> None:
    async def coroutine(x: Any) -> Any:
        return x

    async def generator(x: Any) -> Any:
        yield x

    class Caller:
        async def __call__(self, x: Any) -> Any:
            return x

    for bad in (coroutine, generator, functools.partial(coroutine, X), Caller()):
        with pytest.raises(TypeError, match="coroutine"):
            tj.function(bad)


def test_s49_a_body_that_returns_a_generator_is_refused() -> None:
    with pytest.raises(TypeError, match="returned a generator"):
        tj.function(lambda x: (y for y in [x]))(X)


# Methods


class Dense:
    def __init__(self, w: float) -> None:
        self.w = tj.Variable(w)
        self.bias = 1.0
        self.runs = 0

    @tj.function
    def apply(self, x: Any, times: int = 1) -> Any:
        """Apply."""
        self.runs += 1
        return x * self.w * times + self.bias

    @staticmethod
    @tj.function
    def static_inside(x: Any) -> Any:
        return x * 2

    @tj.function
    @staticmethod
    def static_outside(x: Any) -> Any:
        return x * 2

    @classmethod
    @tj.function
    def made(cls, x: Any) -> Any:
        return x * len(cls.__name__)

    @tj.function
    @classmethod
    def made_outside(cls, x: Any) -> Any:
        return x * len(cls.__name__)

    @property
    @tj.function
    def doubled(self) -> Any:
        return self.w * 2


class Wider(Dense):
    pass


def test_s49_a_method_traces_once_per_instance() -> None:
    a, b = Dense(2.0), Dense(3.0)
    for _ in range(3):
        np.testing.assert_array_equal(a.apply(X), [3.0, 5.0])
        np.testing.assert_array_equal(b.apply(x=X), [4.0, 7.0])
    assert (a.runs, b.runs) == (1, 1)
    assert a.apply.trace_count == 1
    assert a.apply.signatures() == ["(x: f32[2], times: int 1)"]
    assert a.apply.__doc__ == "Apply."
    assert list(inspect.signature(a.apply).parameters) == ["x", "times"]


def test_s49_a_method_through_its_class() -> None:
    a = Dense(2.0)
    np.testing.assert_array_equal(Dense.apply(a, X), [3.0, 5.0])
    np.testing.assert_array_equal(Dense.apply(a, X), [3.0, 5.0])
    assert a.runs == 1
    assert isinstance(Dense.apply, type(tj.function(abs)))


def test_s49_bound_methods_can_be_decorated() -> None:
    class Plain:
        def __init__(self) -> None:
            self.w = tj.Variable(2.0)

        def apply(self, x: Any) -> Any:
            return x * self.w

    plain = Plain()
    f = tj.function(plain.apply)
    np.testing.assert_array_equal(f(X), [2.0, 4.0])
    plain.w.assign(3.0)
    np.testing.assert_array_equal(f(X), [3.0, 6.0])


def test_s49_static_class_and_property_methods() -> None:
    for of in (Dense, Dense(2.0), Wider):
        np.testing.assert_array_equal(of.static_inside(X), [2.0, 4.0])
        np.testing.assert_array_equal(of.made(X), X * 5)
        np.testing.assert_array_equal(of.static_outside(X), [2.0, 4.0])
        np.testing.assert_array_equal(of.made_outside(X), X * 5)
    assert Dense.static_outside.trace_count == Dense.static_inside.trace_count == 1
    assert float(Dense(2.0).doubled) == 4.0


def test_s49_instances_that_are_equal_keep_their_own_traces() -> None:
    class Same(Dense):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # what is tested

    a, b = Same(2.0), Same(3.0)
    np.testing.assert_array_equal(a.apply(X), [3.0, 5.0])
    np.testing.assert_array_equal(b.apply(X), [4.0, 7.0])


def test_s49_instances_that_cannot_be_referred_to_weakly_work() -> None:
    class Slotted:
        __slots__ = ("w",)

        def __init__(self, w: float) -> None:
            self.w = tj.Variable(w)

        @tj.function
        def apply(self, x: Any) -> Any:
            return x * self.w

    a, b = Slotted(2.0), Slotted(3.0)
    np.testing.assert_array_equal(a.apply(X), [2.0, 4.0])
    np.testing.assert_array_equal(b.apply(X), [3.0, 6.0])
    a.w.assign(5.0)
    np.testing.assert_array_equal(a.apply(x=X), [5.0, 10.0])
    assert Slotted.apply.trace_count == 2


@pytest.mark.usefixtures("without_collector")
def test_s49_an_instance_goes_with_its_traces() -> None:
    a = Dense(2.0)
    a.apply(X)
    with tj.GradientTape() as tape:
        y = tj.sum(a.apply(X))
    tape.gradient(y, a.w)
    instance, w = weakref.ref(a), weakref.ref(a.w)
    del a, y, tape
    assert instance() is None
    assert w() is None


@pytest.mark.usefixtures("without_collector")
def test_s49_many_instances_leave_nothing_behind() -> None:
    alive = []
    for n in range(20):
        layer = Dense(float(n))
        assert float(layer.apply(tj.asarray(1.0))) == n + 1.0
        alive.append(weakref.ref(layer))
    del layer
    assert not any(made() for made in alive)
    assert len(vars(Dense)["apply"]._caches) == 0
