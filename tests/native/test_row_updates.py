"""Updates of a few rows of a table, in place: the bits of eager code, and no more work.

Also additions at positions, in one order.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from agreement import COMPOSED, assert_agrees

import tapejit as tj
from tapejit.base.errors import OutOfRangeError

F4 = np.float32


pytestmark = pytest.mark.usefixtures("with_native_code")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def descend(w: tj.Variable, *index: Any, y: Any, rate: Any) -> Any:
    with tj.GradientTape() as tape:
        loss = tj.sum((w[index] - y) ** 2)
    w.assign_sub(rate * tape.gradient(loss, w))
    return loss


def assert_same_bits(got: Any, expected: Any) -> None:
    """Equal to the last bit; one NaN is as good as another."""
    got, expected = np.asarray(got), np.asarray(expected)
    same = got.view(np.uint8) == expected.view(np.uint8)
    is_same = same.reshape(*got.shape, -1).all(-1) | (
        np.isnan(got) & np.isnan(expected)
    )
    assert is_same.all()


def ops_of(function: Any) -> list[str]:
    return [name for kernel in function.kernels() for name in kernel.ops]


# rows, further axes, how many indices
TABLES = {
    "few of many": (5000, (48,), 300),
    "most of few": (30, (20,), 900),
    "long rows": (64, (512,), 70),
    "numbers": (1000, (), 40),
    "matrices": (700, (3, 40), 200),
    "many": (20_000, (64,), 3000),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_step_touches_the_rows_that_were_read(
    name: str, rng: np.random.Generator
) -> None:
    count, shape, size = TABLES[name]
    start = rng.normal(size=(count, *shape)).astype(F4)
    start[rng.random(start.shape) < 0.2] = -0.0
    index = rng.integers(-count, count, size)
    index[: size // 3] = index[0]
    y = rng.normal(size=(size, *shape)).astype(F4)
    y[-1] = start[index[-1]]  # a gradient of zeros

    got, expected = tj.Variable(start), tj.Variable(start)

    @tj.function
    def traced(index: Any, y: Any) -> Any:
        return descend(got, index, y=y, rate=0.01)

    for _ in range(3):
        traced(tj.asarray(index), tj.asarray(y))
        descend(expected, tj.asarray(index), y=tj.asarray(y), rate=0.01)
        assert_same_bits(got.numpy(), expected.numpy())
    assert "subtract_rows" in ops_of(traced)
    assert "in place" in str(traced.explain())


@pytest.mark.parametrize("rate", [0.0, -0.0, -0.5, np.inf, np.nan])
def test_rates_that_change_rows_nobody_read(rate: float) -> None:
    """-0.0 - (-1 * 0.0) is 0.0, and infinity times 0 is NaN: eager code says so."""
    start = np.where(np.arange(400) % 3, -0.0, 1.5).astype(F4).reshape(50, 8)
    index = tj.asarray([3, 3, 49, 7])
    y, factor = tj.ones((4, 8)), tj.asarray(F4(rate))
    got, expected = tj.Variable(start), tj.Variable(start)
    traced = tj.function(lambda rate: descend(got, index, y=y, rate=rate))
    for _ in range(3):
        traced(factor)
        descend(expected, index, y=y, rate=factor)
        assert_same_bits(got.numpy(), expected.numpy())


def test_a_value_that_somebody_holds_does_not_change(rng: np.random.Generator) -> None:
    start = rng.normal(size=(3000, 32)).astype(F4)
    index, y = tj.asarray(rng.integers(0, 3000, 2000)), tj.ones((2000, 32))
    got, expected = tj.Variable(start), tj.Variable(start)
    traced = tj.function(lambda index, y: descend(got, index, y=y, rate=0.1))
    for _ in range(3):
        traced(index, y)
    held = got.value()
    before = held.numpy().copy()
    traced(index, y)
    np.testing.assert_array_equal(held, before)
    for _ in range(4):
        descend(expected, index, y=y, rate=0.1)
    assert_same_bits(got.numpy(), expected.numpy())


def test_two_indices_and_optimizers(rng: np.random.Generator) -> None:
    start = rng.normal(size=(20, 30, 16)).astype(F4)
    rows, columns = rng.integers(0, 20, 50), rng.integers(-30, 30, 50)
    y = tj.asarray(rng.normal(size=(50, 16)).astype(F4))
    made = {}
    for name, decorate in (("native", tj.function), ("eager", lambda f: f)):
        w, sgd = tj.Variable(start), tj.optimizers.SGD(0.1)

        def step(w: Any = w, sgd: Any = sgd) -> None:
            with tj.GradientTape() as tape:
                loss = tj.sum((w[rows, columns] - y) ** 2)
            sgd.apply_gradients([(tape.gradient(loss, w), w)])

        run = decorate(step)
        for _ in range(2):
            run()
        made[name] = w.numpy()
        if name == "native":
            assert "subtract_rows" in ops_of(run)
    assert_same_bits(made["native"], made["eager"])


def test_an_index_that_is_outside_changes_nothing(rng: np.random.Generator) -> None:
    start = rng.normal(size=(500, 16)).astype(F4)
    w, y = tj.Variable(start), tj.ones((100, 16))
    traced = tj.function(lambda index: descend(w, index, y=y, rate=0.1))
    good = np.arange(100)
    for _ in range(3):
        traced(tj.asarray(good))
    before = w.numpy().copy()
    bad = good.copy()
    bad[50] = 500
    with pytest.raises(OutOfRangeError, match="500"):
        traced(tj.asarray(bad))
    assert_same_bits(w.numpy(), before)


# Several reads of one table


def words_step(w: tj.Variable, c: tj.Variable) -> Any:
    """A step on words, words near them and others, from one table or two."""
    tables = list({id(x): x for x in (w, c)}.values())

    def step(i: Any, o: Any, n: Any) -> Any:
        with tj.GradientTape() as tape:
            e, p, q = tj.take(w, i, axis=0), tj.take(c, o, axis=0), c[n]
            near = tj.sum(e * p, axis=-1)
            far = tj.sum(e[:, None, :] * q, axis=-1)
            loss = tj.mean(tj.nn.softplus(-near)) + tj.mean(tj.nn.softplus(far))
        for x, g in zip(tables, tape.gradient(loss, tables), strict=True):
            x.assign_sub(0.5 * g)
        return loss

    return step


@pytest.mark.parametrize("count", [1, 2])
def test_several_reads_of_a_table_are_one_update(
    count: int, rng: np.random.Generator
) -> None:
    start = rng.normal(size=(2, 20_000, 64)).astype(F4)
    i, o = (tj.asarray(rng.integers(0, 200, 256)) for _ in range(2))
    n = tj.asarray(rng.integers(-20_000, 20_000, (256, 5)).astype("i4"))
    found = []
    for threads in (1, 2, 0):  # 0: eager
        tables = [tj.Variable(start[at]) for at in range(count)]
        step = words_step(tables[0], tables[-1])
        run = tj.function(step) if threads else step
        with tj.set_num_threads(threads or 1):
            for _ in range(3):
                run(i, o, n)
        if threads:
            names = ops_of(run)
            assert names.count("subtract_rows") == count
            assert "gather_add" not in names
            text = str(run.explain())
            (room,) = re.findall(r"(\d+) bytes to work in", text)
            assert int(room) < start[0].nbytes // 2
            assert text.count("read and written in place") == count
        found.append([x.numpy() for x in tables])
    one, two, eager = found
    for x, y, z in zip(one, two, eager, strict=True):
        assert_same_bits(x, y)
        assert_agrees(COMPOSED, x, z)


def test_rows_of_several_reads_are_added_in_one_order(rng: np.random.Generator) -> None:
    """A loop of look-ups, most of them of the same few rows: the bits of eager code."""
    start = rng.normal(size=(3000, 48)).astype(F4)
    index = tj.asarray(rng.integers(-5, 5, (12, 40)))
    y = tj.asarray(rng.normal(size=(12, 40, 48)).astype(F4))

    def step(w: tj.Variable, index: Any, y: Any) -> None:
        with tj.GradientTape() as tape:
            loss = 0.0
            for t in range(12):
                loss = loss + tj.sum((w[index[t]] - y[t]) ** 2)
            loss = loss + tj.sum(w[index[0, 0]] ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))

    got, expected = tj.Variable(start), tj.Variable(start)
    traced = tj.function(lambda index, y: step(got, index, y))
    for _ in range(3):
        traced(index, y)
        step(expected, index, y)
        assert_same_bits(got.numpy(), expected.numpy())
    assert ops_of(traced).count("subtract_rows") == 1
    before = got.numpy().copy()
    bad = index.numpy().copy()
    bad[7, 3] = 3000
    with pytest.raises(OutOfRangeError, match=r"3000.*at \[3\]"):
        traced(tj.asarray(bad), y)
    assert_same_bits(got.numpy(), before)


# Additions at positions


@pytest.mark.parametrize("name", TABLES)
def test_additions_in_place(name: str, rng: np.random.Generator) -> None:
    count, shape, size = TABLES[name]
    start = rng.normal(size=(count, *shape)).astype(F4)
    start[rng.random(start.shape) < 0.2] = -0.0
    index = tj.asarray(rng.integers(-count, count, size) // 2)
    y = tj.asarray(rng.normal(size=(size, *shape)).astype(F4))
    got, expected = tj.Variable(start), start

    @tj.function
    def add(index: Any, y: Any) -> None:
        got.assign(got.at[index].add(y))

    for _ in range(2):
        add(index, y)
        expected = tj.scatter_add(expected, index, y)
    assert_same_bits(got.numpy(), expected)
    assert "in place" in str(add.explain())


@pytest.mark.parametrize("sizes", [(1000, 64, 4000), (16, 1024, 300)])
def test_additions_are_one_task_and_updates_have_its_bits(
    sizes: tuple[int, int, int], rng: np.random.Generator
) -> None:
    """Tasks that share a table would all go through all updates of `scatter_add`."""
    count, width, size = sizes
    index = tj.asarray(rng.integers(0, count, size))
    y = tj.asarray(rng.normal(size=(size, width)).astype(F4))
    start = rng.normal(size=(count, width)).astype(F4)
    add = tj.function(tj.scatter_add)
    assert_same_bits(add(start, index, y), tj.scatter_add(start, index, y))
    (kernel,) = [k for k in add.kernels() if "gather_add" in k.ops]
    assert kernel.tasks == 1
    expected = tj.Variable(start)
    descend(expected, index, y=y, rate=0.1)
    for threads in (1, 2, 4):
        got = tj.Variable(start)
        traced = tj.function(lambda i, y, w=got: descend(w, i, y=y, rate=0.1))
        with tj.set_num_threads(threads):
            traced(index, y)
        assert_same_bits(got.numpy(), expected.numpy())
        (kernel,) = [k for k in traced.kernels() if "subtract_rows" in k.ops]
        assert kernel.tasks > 1
