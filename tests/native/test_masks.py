"""Masks in loops: by position, or computed where they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, EXACT, assert_agrees
from graph_properties import for_all
from hypothesis import strategies as st
from limits import set_limits

import tapejit as tj

from .compiled import needs_levels

Compare = Callable[[Any, Any], tj.Tensor]
COMPARISONS: dict[str, Compare] = {
    "greater_equal": lambda a, b: a >= b,
    "greater": lambda a, b: a > b,
    "less_equal": lambda a, b: a <= b,
    "less": lambda a, b: a < b,
}


def compiled(program: Callable[..., Any], *arguments: tj.Tensor) -> tuple[Any, Any]:
    """What a program gives as native code, and its function."""
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        return function(*arguments), function


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize(
    ("down", "along"),
    [
        ((0, 60, 1), (0, 120, 1)),
        ((5, 65, 1), (0, 120, 1)),
        ((-30, 30, 1), (100, -20, -1)),
        ((0, 600, 10), (3, 123, 1)),
        ((200, 260, 1), (0, 120, 1)),
        ((0, 60, 1), (100, 220, 1)),
        ((0, 60, 1), (0, -120, -1)),
    ],
    ids=str,
)
def test_positions_are_compared(
    name: str, down: tuple[int, ...], along: tuple[int, ...]
) -> None:
    compare = COMPARISONS[name]

    def program(x: tj.Tensor) -> list[tj.Tensor]:
        left = tj.reshape(tj.arange(*down), (-1, 1))
        right = tj.arange(*along)
        near = tj.where(compare(left, right), x, -1.0)
        far = tj.where(compare(right, left), 0.0, x)
        return [near, far, tj.sum(near, axis=-1), tj.max(far, axis=0)]

    x = tj.asarray(np.random.default_rng(0).standard_normal((3, 60, 120)).astype("f4"))
    got, function = compiled(program, x)
    for ours, theirs in zip(got, program(x), strict=True):
        kind = EXACT if ours.ndim != 2 else COMPOSED
        assert_agrees(kind, ours.numpy(), theirs.numpy())
    assert not any(name in str(kernel) for kernel in function.kernels(x))
    namespace: dict[str, Any] = {}
    exec(function.source(x), namespace)
    for ours, theirs in zip(namespace["run"](x.numpy()), program(x), strict=True):
        assert_agrees(COMPOSED, ours, theirs.numpy())


def test_what_does_not_count_is_compared_as_it_is() -> None:
    """Repeated and uneven numbers, floats, arguments."""

    def program(x: tj.Tensor, n: tj.Tensor) -> list[tj.Tensor]:
        column = tj.reshape(tj.asarray([0, 1, 1, 3, 4, 9, 16]), (-1, 1))
        floats = tj.arange(7.0)
        return [
            tj.where(column >= tj.arange(40), x, 0.0),
            tj.where(tj.reshape(floats, (-1, 1)) >= tj.arange(40), x, 0.0),
            tj.where(tj.reshape(n, (-1, 1)) < tj.arange(40), x, 0.0),
        ]

    x = tj.asarray(np.random.default_rng(0).standard_normal((2, 7, 40)).astype("f4"))
    n = tj.asarray([3, -1, 40, 7, 0, 39, 2])
    got, _ = compiled(program, x, n)
    for ours, theirs in zip(got, program(x, n), strict=True):
        assert_agrees(EXACT, ours.numpy(), theirs.numpy())


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        (np.array([[5], [2**64 - 1]], "u8"), np.arange(4000, dtype="u8")),
        (np.array([[128], [2**63 - 1]]), np.arange(4000) - 2000),
        (np.array([[0], [2**63 - 1]]), np.arange(4000) * -(2**51)),
        (np.array([[0], [-(2**63)]]), np.arange(4000) * 2**51),
        (np.array([[7], [9]]), np.arange(4000, dtype="u8") * 2**63),
        (np.array([[-(2**31)], [2**31]]), np.arange(4000) * 2**24),
    ],
    ids=["u8", "no limit", "far down", "far up", "in circles", "wide"],
)
def test_numbers_that_are_too_large_for_positions(limits: Any, numbers: Any) -> None:
    def program(x: tj.Tensor) -> list[tj.Tensor]:
        left, right = tj.asarray(limits.astype(numbers.dtype)), tj.asarray(numbers)
        return [tj.where(left >= right, x, 0.0), tj.where(left < right, x, 0.0)]

    x = tj.asarray(np.random.default_rng(0).standard_normal((3, 2, 4000)).astype("f4"))
    got, _ = compiled(program, x)
    for ours, theirs in zip(got, program(x), strict=True):
        assert_agrees(EXACT, ours.numpy(), theirs.numpy())


def attention(**options: Any) -> Callable[..., list[tj.Tensor]]:
    """Gradients of an attention."""

    def program(q: tj.Tensor, k: tj.Tensor, v: tj.Tensor) -> list[tj.Tensor]:
        with tj.GradientTape() as tape:
            tape.watch([q, k, v])
            y = tj.nn.scaled_dot_product_attention(q, k, v, **options)
            loss = tj.sum(y * y)
        return [y, *tape.gradient(loss, [q, k, v])]

    return program


TIME = 512
ALLOWED = np.random.default_rng(1).random((TIME, TIME)) > 0.4
BY_HEAD = np.random.default_rng(1).standard_normal((4, TIME, TIME)).astype("f4")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "masked": {"mask": tj.asarray(ALLOWED)},
    "both": {"mask": tj.asarray(ALLOWED), "is_causal": True},
    "added": {"mask": tj.asarray(BY_HEAD)},
}


@pytest.mark.parametrize("keys", [4, 2, 1], ids=lambda heads: f"{heads} key heads")
@pytest.mark.parametrize("name", OPTIONS)
def test_no_attention_has_a_matrix_of_all_pairs(
    name: str, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, row_tile_recomputed_bytes=1)
    program = attention(**OPTIONS[name])
    rng = np.random.default_rng(0)
    arrays = [
        (rng.standard_normal((2, heads, TIME, 16)) / 2).astype("f4")
        for heads in (4, keys, keys)
    ]
    tensors = [tj.asarray(x) for x in arrays]
    got, function = compiled(program, *tensors)
    for ours, theirs in zip(got, program(*tensors), strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())
    kernels = [str(x) for x in function.kernels(*tensors)]
    products = [x for x in kernels if "matmul" in x]
    assert all("in tiles" in x for x in products)
    assert sum("matmul 2" in x for x in products) == 1, "forward"


@pytest.mark.parametrize("keys", [4, 2, 1], ids=lambda heads: f"{heads} key heads")
def test_an_attention_reads_as_it_runs(
    keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, row_tile_least_elements=1, row_tile_recomputed_bytes=1)
    rng = np.random.default_rng(0)
    arrays = [
        (rng.standard_normal((2, heads, 32, 16)) / 2).astype("f4")
        for heads in (4, keys, keys)
    ]
    tensors = [tj.asarray(x) for x in arrays]
    got, function = compiled(attention(is_causal=True), *tensors)
    assert any("in tiles" in str(x) for x in function.kernels(*tensors))
    namespace: dict[str, Any] = {}
    exec(function.source(*tensors), namespace)
    for ours, theirs in zip(namespace["run"](*arrays), got, strict=True):
        assert_agrees(COMPOSED, ours, theirs.numpy())


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_a_mask_costs_nothing_where_powers_vanish(name: str) -> None:
    """Rows of which nothing may be attended to are zeros, in both modes."""
    options = dict(OPTIONS[name])
    if name == "masked":
        options["mask"] = tj.asarray(ALLOWED & (np.arange(TIME) % 3 > 0)[:, None])
    rng = np.random.default_rng(0)
    shape = (2, 4, TIME, 16)
    tensors = [tj.asarray(rng.standard_normal(shape).astype("f4")) for _ in range(3)]
    got, _ = compiled(attention(**options), *tensors)
    expected = attention(**options)(*tensors)
    for ours, theirs in zip(got, expected, strict=True):
        assert_agrees(COMPOSED, ours.numpy(), theirs.numpy())
    if name == "masked":
        assert not got[0][:, :, ::3].numpy().any()


# Conditions that are known for some lanes: LLVM took others for true


SLICES = [
    ((3, 40, 30), np.s_[:, 1:2, 3:24]),
    ((3, 29, 45), np.s_[:, 27:28, 18:24]),
    ((2, 24, 45), np.s_[:, 17:19, 29:33]),
    ((3, 13, 114), np.s_[:, 0:11, 26:97]),
    ((4, 25), np.s_[1:3, 17:24]),
]


def around(shape: tuple[int, ...], key: tuple[slice, ...]) -> list[Any]:
    """Programs that put a part of an array into zeros, with what they take."""

    def slope(x: tj.Tensor) -> Any:
        with tj.GradientTape() as tape:
            tape.watch(x)
            y = tj.sum(x[key] ** 2)
        return tape.gradient(y, x)

    bounds = [k.indices(size) for k, size in zip(key, shape, strict=True)]
    widths = [(low, n - high) for (low, high, _), n in zip(bounds, shape, strict=True)]
    return [slope, lambda x: 2 * tj.pad(x[key], widths)]


def assert_zeros_around(
    shape: tuple[int, ...], key: tuple[slice, ...], dtype: str
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    expected = np.zeros_like(x)
    expected[key] = 2 * x[key]
    for program in around(shape, key):
        got, _ = compiled(program, tj.asarray(x))
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("shape", "key"), SLICES, ids=str)
def test_a_part_of_an_array_has_zeros_around_it(
    shape: tuple[int, ...], key: tuple[slice, ...], dtype: str
) -> None:
    assert_zeros_around(shape, key, dtype)


@needs_levels
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_and_on_older_processors(level: str) -> None:
    with tj.config.override(cpu=level):
        for shape, key in SLICES[:3]:
            assert_zeros_around(shape, key, "f4")


def test_random_parts_of_arrays_have_zeros_around_them(full: bool) -> None:
    def part(size: int) -> st.SearchStrategy[slice]:
        ends = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
        return ends.map(lambda x: slice(min(x), max(x) + 1))

    def cases(shape: tuple[int, ...]) -> Any:
        return st.tuples(st.just(shape), st.tuples(*map(part, shape)))

    sizes = st.tuples(st.integers(2, 3), st.integers(2, 40), st.integers(3, 120))
    dtypes = st.sampled_from(["f4", "f8"])
    strategy = st.tuples(sizes.flatmap(cases), dtypes)
    for_all(strategy, full, 20)(lambda x: assert_zeros_around(*x[0], x[1]))


def test_a_load_of_nothing_far_away_is_made_where_the_array_begins() -> None:
    """Elsewhere memory may be missing, which takes a processor 200 cycles to find."""
    for shape, is_far in (((8, 16), False), ((512, 512), True)):
        x = np.random.default_rng(0).standard_normal(shape).astype("f4")
        found, f = compiled(lambda x: tj.roll(x, 3, 0), tj.asarray(x))
        np.testing.assert_array_equal(found, np.roll(x, 3, 0))
        assert ("select i1" in f.llvm(x)) == is_far


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i4", "?"])
@pytest.mark.parametrize("size", [40_000, 100_003])
def test_long_arrays_are_joined_rolled_and_padded(dtype: str, size: int) -> None:
    x = (np.random.default_rng(0).standard_normal(size) * 3).astype(dtype)
    half = size // 2

    def program(x: Any) -> Any:
        joined = tj.concat([x[half:], x])
        return tj.roll(x, half), tj.pad(x, (half, size)), joined

    found, _ = compiled(program, tj.asarray(x))
    expected = np.roll(x, half), np.pad(x, (half, size)), np.append(x[half:], x)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)
