"""What NumPy takes by position tapejit takes by position, in the same place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tapejit as tj

MODULES: dict[str, tuple[Any, ModuleType]] = {
    "": (tj, np),
    "linalg": (tj.linalg, np.linalg),
    "fft": (tj.fft, np.fft),
}
# NumPy's parameters that tapejit has by name only, and why.
BY_NAME = {
    ("all", "keepdims"): "after NumPy's out",
    ("any", "keepdims"): "after NumPy's out",
    ("cross", "axis"): "after NumPy's axisa, axisb and axisc",
    ("isin", "invert"): "after NumPy's assume_unique",
    ("linspace", "dtype"): "after NumPy's retstep",
    ("max", "keepdims"): "after NumPy's out",
    ("mean", "keepdims"): "after NumPy's out",
    ("median", "keepdims"): "after NumPy's out",
    ("min", "keepdims"): "after NumPy's out",
    ("nan_to_num", "nan"): "after NumPy's copy",
    ("nan_to_num", "neginf"): "after NumPy's copy",
    ("nan_to_num", "posinf"): "after NumPy's copy",
    ("nanmax", "keepdims"): "after NumPy's out",
    ("nanmean", "keepdims"): "after NumPy's out",
    ("nanmin", "keepdims"): "after NumPy's out",
    ("nansum", "keepdims"): "after NumPy's out",
    **{
        (name, "keepdims"): "after NumPy's out"
        for name in ("amax", "amin", "nanmedian", "nanprod", "nanstd", "nanvar")
    },
    ("percentile", "keepdims"): "after NumPy's out",
    ("percentile", "method"): "after NumPy's out",
    ("prod", "keepdims"): "after NumPy's out",
    ("ptp", "keepdims"): "after NumPy's out",
    ("quantile", "keepdims"): "after NumPy's out",
    ("quantile", "method"): "after NumPy's out",
    ("std", "keepdims"): "after NumPy's out",
    ("sum", "keepdims"): "after NumPy's out",
    ("var", "keepdims"): "after NumPy's out",
    ("fft.fftfreq", "device"): "after tapejit's dtype, which comes first as for eye",
    ("fft.rfftfreq", "device"): "after tapejit's dtype, which comes first as for eye",
}
NOT_TWINS = {"load": "reads checkpoints", "save": "writes checkpoints"}


def by_position(function: Callable[..., Any]) -> list[str]:
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    parameters = inspect.signature(function).parameters.values()
    return [x.name for x in parameters if x.kind in kinds]


def twins() -> list[tuple[str, Any, Any]]:
    """The functions that both have, by name."""
    found = []
    for module, (ours, theirs) in MODULES.items():
        for name in dir(ours):
            function, other = getattr(ours, name), getattr(theirs, name, None)
            is_class = isinstance(function, type) or isinstance(other, type)
            if name.startswith("_") or is_class or not callable(other):
                continue
            if name in NOT_TWINS or not callable(function):
                continue
            try:
                inspect.signature(other)
            except ValueError:  # written in C without one
                continue
            found.append((f"{module}.{name}".lstrip("."), function, other))
    return found


def out_of_place() -> set[tuple[str, str]]:
    """NumPy's parameters that tapejit has in another place, or by name only."""
    found = set()
    for name, ours, theirs in twins():
        names = list(inspect.signature(ours).parameters)
        places = by_position(ours)
        for at, parameter in enumerate(by_position(theirs)):
            if parameter in names and places[at : at + 1] != [parameter]:
                found.add((name, parameter))
    return found


def test_positions_are_numpys() -> None:
    assert len(twins()) > 150
    assert out_of_place() <= set(BY_NAME)  # a NumPy may have fewer signatures


X = np.arange(6.0).reshape(2, 3)
ORDER = np.array([[1, 0, 2], [0, 2, 1]])
CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["sum", "prod"], (X, 0, "float64")),
    **dict.fromkeys(["median", "ptp", "nanmax", "nanmin", "nanmean", "nansum"], (X, 0)),
    **dict.fromkeys(["sort", "argsort", "flip", "count_nonzero"], (X, 0)),
    **dict.fromkeys(["concat", "stack"], ([X, X], 1)),
    **dict.fromkeys(["tril", "triu"], (X, 1)),
    **dict.fromkeys(["zeros", "ones", "empty"], ((2, 3), int)),
    **dict.fromkeys(["zeros_like", "ones_like"], (X, int)),
    **dict.fromkeys(["quantile"], (X, 0.5, 0)),
    "percentile": (X, 50.0, 0),
    "full": ((2, 3), 7, float),
    "full_like": (X, 7, int),
    "asarray": ([1, 2], float),
    "arange": (0, 6, 2, float),
    "linspace": (0, 1, 4, False),
    "eye": (3, 4, 1, int),
    "average": (X, 1, np.array([1.0, 2.0, 3.0])),
    "roll": (X, 1, 1),
    "repeat": (X, 2, 1),
    "take": (X, np.array([1, 0]), 1),
    "take_along_axis": (X, ORDER, 1),
    "tensordot": (X, X, ([1], [1])),
    "diff": (X, 1, 0),
    "digitize": (X[0], np.array([0.5, 1.5]), True),
    "bincount": (ORDER[0], np.array([1.0, 2.0, 3.0]), 5),
    "searchsorted": (X[0], X[1], "right"),
    "cumulative_sum": (X, 1),
    "fft.fft": (X, 4, 0, "ortho"),
    "fft.irfft": (X, 4, 1),
    "fft.fftn": (X, (2, 2), (0, 1)),
    "fft.fftfreq": (5, 0.5),
    "fft.fftshift": (X, 1),
    "linalg.svd": (X, False),
    "linalg.qr": (X, "reduced"),
}
BY_NAME_IN_NUMPY = {"cumulative_sum": ("axis",)}


@pytest.mark.parametrize("name", CALLS)
def test_calls_by_position(name: str) -> None:
    module, _, function = name.rpartition(".")
    ours, theirs = (getattr(namespace, function) for namespace in MODULES[module])
    args = CALLS[name]
    names = BY_NAME_IN_NUMPY.get(name, ())
    first = len(args) - len(names)
    expected = theirs(*args[:first], **dict(zip(names, args[first:], strict=True)))
    traced = tj.function(lambda: ours(*args))
    for found in (ours(*args), traced()):
        for ours_, theirs_ in zip(*map(as_parts, (found, expected)), strict=True):
            if name != "empty":
                np.testing.assert_allclose(ours_, theirs_, rtol=1e-6, atol=1e-6)
            assert ours_.shape == theirs_.shape


def as_parts(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


METHODS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ["sum", "prod", "max", "min", "all", "any", "argmax", "argmin", "mean"], (0,)
    ),
    **dict.fromkeys(["std", "var", "cumsum", "cumprod", "argsort"], (1,)),
    "take": (np.array([1, 0]), 1),
    "repeat": (2, 1),
    "swapaxes": (0, 1),
    "transpose": (1, 0),
    "reshape": (3, 2),
    "squeeze": (),
    "clip": (1.0, 4.0),
    "astype": (int,),
    "diagonal": (1,),
    "trace": (1,),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_by_position(name: str) -> None:
    found = getattr(tj.asarray(X), name)(*METHODS[name])
    np.testing.assert_allclose(found, getattr(X, name)(*METHODS[name]), rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tj.random.normal(2, 3),
        lambda: tj.random.uniform(2, 3),
        lambda: tj.random.exponential(2, 3),
        lambda: tj.random.laplace(2, 3),
        lambda: tj.random.gumbel(2, 3),
        lambda: tj.random.Generator(0).normal(2, 3),
        lambda: tj.random.Generator(0).uniform(2, 3, 4),
        lambda: tj.zeros(2, 3),
        lambda: tj.ones(2, 3),
        lambda: tj.empty(2, 3),
    ],
)
def test_sizes_one_by_one_are_an_error_that_says_how(call: Callable[[], Any]) -> None:
    for run in (call, tj.function(call)):
        with pytest.raises(TypeError, match=r"shape=\(2, 3"):
            run()


def test_a_shape_and_other_numbers_are_no_error() -> None:
    for shape in (2, (2,), [2]):
        assert tj.random.normal(shape, 3.0).shape == (2,)
        assert tj.random.normal(shape=shape, mean=3).shape == (2,)
        assert tj.random.uniform(shape, minval=0, maxval=2).shape == (2,)
        assert tj.random.uniform(shape, 0, 2).shape == (2,)  # no array has a size 0
