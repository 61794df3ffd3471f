"""By which numbers the neutral passes choose; they fix bits, on every target alike.

A pass that knows no target decides what an operation is written out as, what is fused,
and in which loops. All that decides on the order of additions, also through the work of
a Kernel, by which a target cuts it into tasks. And it is asked where no target is
known: `segments` has to know what is native. So these numbers are one set for all
targets, and none of them is about speed alone. What is, a pass is given by its target.

Passes read them as `numerics.LOOPS` when they need one, so that a test can put a
`dataclasses.replace` there.

Start reading at `Numerics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Numerics:
    """The numbers that fix bits; "most" and "least" are limits."""

    # What an operation is written out as

    # Masked ones that take the time of an element that is written and read again.
    placed_element_loads: int = 4
    # That are joined as a condition on positions, as many as a filter of 3 × 3 has
    # elements.
    joined_arrays: int = 9
    # Of a row that a loop goes along.
    looped_row_elements: int = 16
    # Of the smallest side of a matmul that is better a loop among loops than a kernel.
    looped_matmul_elements: int = 256

    # Convolutions: of a group, products of a channel with a feature, and terms that are
    # written out. With 7 by 7 entries a step is 0.5 s of compilation.
    written_conv_products: int = 4
    written_conv_terms: int = 64
    # Of a group; for fewer, all groups are better done at once.
    conv_matmul_features: int = 4
    # Which are that many kernels.
    conv_matmul_phases: int = 16

    # What is computed again

    # So much work is less than a store and a load in the cache,
    recomputed_instructions: float = 7.0
    # and so much in main memory,
    far_recomputed_instructions: float = 45.0
    # where arrays are that are larger: they do not stay in the nearest caches.
    near_elements: int = 1 << 15
    # Of the most work: an axis that is as good as the one with it.
    equal_work_share: float = 0.95

    # Sums that the epilogue of a matmul begins

    # Of a column of a unit: packed, its rows fit a task's memory,
    sum_unit_most_bytes: int = 512
    # and tiles of rows are full enough.
    sum_unit_least_bytes: int = 128
    # Of a row whose elements add up together.
    sum_group_bytes: int = 64
    # Of a matmul, at least.
    sum_least_rows: int = 5
    sum_least_columns: int = 16
    # Of all units: four tasks of the widest vectors.
    sum_units_columns: int = 128
    # Of a result that does not stay in the nearest caches.
    sum_groups_bytes: int = 1 << 20


LOOPS: Final = Numerics()
