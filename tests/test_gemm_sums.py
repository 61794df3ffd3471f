"""Columns and rows of a product, added up in parts while tiles are handed over.

The order of additions is known, so the totals are compared bit by bit: with those of
plain loops over the result, for every cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_gemm import (
    F32,
    F64,
    ORDERS,
    PROCESSORS,
    Array,
    Product,
    gemm_of,
    laid_out,
    random,
    small_caches,
)

from tapejit.targets.cpu.llvm import ir
from tapejit.targets.cpu.matmul.tiling import Hooks, Registers, Spot, Sums

POINTER, INDEX = ir.PointerType(), ir.IntType(64)


def sums_of(unit: int, group: int, columns: int, is_brief: bool = False) -> Hooks:
    """Store the product; add up its columns, their doubles, and groups along rows.

    The fourth entry of the table points to the totals, one row for each unit, the fifth
    to those of the doubles, the sixth to those of groups, one row for each row.
    """

    def place(site: Any, spot: Spot, at: int) -> Any:
        b = site.builder
        entry = b.gep(site.table, [ir.Literal(INDEX, at)], source_etype=POINTER)
        row = b.mul(
            b.udiv(spot.row, ir.Literal(INDEX, unit)), ir.Literal(INDEX, columns)
        )
        where = b.load(entry, typ=POINTER)
        return b.gep(where, [b.add(row, spot.column)], source_etype=site.element)

    def begin(site: Any, spot: Spot) -> list[Any]:
        b = site.builder
        row = b.urem(spot.row, ir.Literal(INDEX, unit))
        is_first = b.icmp_signed("==", row, ir.Literal(INDEX, 0))
        before = [site.load(place(site, spot, at), spot.lanes) for at in (3, 4)]
        return [b.select(is_first, site.zeros(spot.lanes), x) for x in before]

    def add(site: Any, totals: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        each = zip(totals, values[:2], strict=True)
        return [site.builder.fadd(x, y) for x, y in each]

    def end(site: Any, spot: Spot, totals: Sequence[Any]) -> None:
        for at, x in zip((3, 4), totals, strict=True):
            site.builder.store(x, place(site, spot, at), align=site.nbytes)

    def along(site: Any, spot: Spot, vectors: Sequence[Sequence[Any]]) -> None:
        b, width = site.builder, site.tiling.width
        found = [site.widened(x[2], width) for x in vectors]
        found += [site.zeros(width)] * (group // width - len(found))
        entry = b.gep(site.table, [ir.Literal(INDEX, 5)], source_etype=POINTER)
        row = b.mul(spot.row, ir.Literal(INDEX, -(-columns // group)))
        at = b.add(row, b.udiv(spot.column, ir.Literal(INDEX, group)))
        where = b.gep(b.load(entry, typ=POINTER), [at], source_etype=site.element)
        b.store(site.folded(found), where, align=site.nbytes)

    def epilogue(site: Any, spot: Spot, value: Any) -> list[Any]:
        site.store(spot, value)
        return [value, site.builder.fadd(value, value), value]

    sums = Sums(unit, begin, add, end, group, along)
    return Hooks(epilogue=epilogue, sums=sums, is_brief=is_brief)


def chains(x: Array, unit: int) -> Array:
    """The sums of units of rows, one row after the other."""
    parts = x.reshape(-1, unit, x.shape[-1])
    total = np.zeros((len(parts), x.shape[-1]), x.dtype)
    for row in range(unit):
        total = total + parts[:, row]
    return total


def trees(x: Array, group: int) -> Array:
    """The sums of groups of columns: halves of a group are added until it is one."""
    room = np.zeros((x.shape[0], -(-x.shape[1] // group) * group), x.dtype)
    room[:, : x.shape[1]] = x
    parts = room.reshape(x.shape[0], -1, group)
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        parts = parts[..., :half] + parts[..., half:]
    return parts[..., 0]


SIZES = [  # m, n, k, unit
    *[(64, 128, 20, 64), (200, 75, 30, 100), (192, 16, 500, 32), (96, 37, 3, 48)],
    *[(256, 33, 1100, 128), (512, 48, 40, 32), (130, 200, 64, 65)],
]


def check(
    sizes: tuple[int, int, int, int],
    order: str,
    dtype: Any,
    registers: Registers,
    is_brief: bool = False,
) -> Product:
    m, n, k, unit = sizes
    rng = np.random.default_rng(m + n)
    a = laid_out(random(rng, (m, k), dtype), order[0])
    b = laid_out(random(rng, (k, n), dtype), order[1])
    out = np.empty((m, n), dtype)
    sums = [np.full((m // unit, n), np.nan, dtype) for _ in range(2)]
    group = 64 // out.itemsize
    rows = np.full((m, -(-n // group)), np.nan, dtype)
    made = Product(gemm_of(a, b, out), sums_of(unit, group, n, is_brief), registers)
    made(a, b, out, *sums, rows, order=range(made.tasks)[::-1])
    expected = chains(out, unit)
    assert sums[0].tobytes() == expected.tobytes()
    assert sums[1].tobytes() == (2 * expected).tobytes()
    assert rows.tobytes() == trees(out, group).tobytes()
    return made


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("registers", PROCESSORS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_columns_and_rows_add_up_in_one_order(
    sizes: tuple[int, int, int, int], order: str, registers: Registers
) -> None:
    for is_cramped in (False, True):
        with small_caches() if is_cramped else contextlib.nullcontext():
            check(sizes, order, F32 if is_cramped else F64, registers)


def test_they_add_up_where_tiles_end_in_registers() -> None:
    for sizes in ((2048, 512, 40, 128), (520, 1000, 64, 65)):
        made = check(sizes, "nn", F32, PROCESSORS[1], is_brief=True)
        assert made.tiling.ends_tiles


def test_a_task_has_whole_units() -> None:
    for sizes in ((2048, 64, 1000, 128), (1000, 16, 100, 125)):
        made = check(sizes, "tn", F32, PROCESSORS[1])
        assert 1 < made.tiling.row_blocks <= sizes[0] // sizes[3]
        assert made.tiling.stack < 1 << 19
