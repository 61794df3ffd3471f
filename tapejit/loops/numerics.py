"""By which numbers the neutral passes choose: they fix bits, on every target alike.

A neutral pass decides what an operation is written out as, what is fused, and in which
loops. That decides on the order of additions: directly, or through the loops of a
Kernel, of which a target makes vectors and tiles. Some passes run where no target is
known yet: `segments` asks what is native at all. So these numbers are the same for all
targets. What is about speed alone, a pass is given by its target.

Passes read `numerics.LOOPS` when they need a number. So a test has other numbers by
putting a `dataclasses.replace` there.

Start reading at `LoopNumerics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class LoopNumerics:
    """The numbers that fix bits."""

    # What an operation is written out as

    # So many masked loads take the time of an element that is written and read again.
    placed_element_loads: int = 4
    # If there are more, joining them is an operation on whole arrays. A filter of 3 × 3
    # has as many elements.
    joined_arrays: int = 9
    # A row that a loop goes along is no shorter.
    looped_row_elements: int = 16
    # A matmul whose smallest matrix has no more is a loop among loops, not a kernel.
    looped_matmul_elements: int = 256

    # Convolutions

    # A convolution is written out if a group has no more products of a channel with a
    # feature,
    written_conv_products: int = 4
    # and no more terms: with 7 by 7 entries a step is 0.5 s of compilation.
    written_conv_terms: int = 64
    # With fewer in a group, all groups are better done at once, not as matmuls.
    conv_matmul_features: int = 4
    # A phase of spread input is a kernel; there are no more.
    conv_matmul_phases: int = 16

    # What is computed again, and in which loops

    # So much work is less than a store and a load in the cache,
    recomputed_instructions: float = 7.0
    # and so much is less than these in main memory,
    far_recomputed_instructions: float = 45.0
    # where larger arrays are: they do not stay in the nearest caches.
    near_elements: int = 1 << 15
    # An axis with so much of the most work is as good as the one with the most.
    equal_work_share: float = 0.95

    # Sums that the epilogue of a matmul begins

    # The matmul has so many at least.
    sum_least_rows: int = 5
    sum_least_columns: int = 16
    # A column of a unit takes no more: packed, its rows fit a task's memory.
    sum_unit_most_bytes: int = 512
    # It takes no less, so that tiles of rows are full enough.
    sum_unit_least_bytes: int = 128
    # All units together have so many: four tasks of the widest vectors.
    sum_units_columns: int = 128
    # The elements of so much of a row add up together,
    sum_group_bytes: int = 64
    # if the result does not stay in the nearest caches.
    sum_groups_bytes: int = 1 << 20


LOOPS: Final = LoopNumerics()
