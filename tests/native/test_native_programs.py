"""Programs whose native code depends on values; random ones are in another file."""

from __future__ import annotations

import numpy as np

import tapejit as tj


def test_a_mask_that_selects_another_number_is_traced_again() -> None:
    def program(x: tj.Tensor, least: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
        kept = x[x > least]
        return tj.sum(kept * kept), kept

    x = tj.asarray(np.arange(24.0).reshape(2, 3, 4))
    with tj.config.override(native=True, cache=False):
        function = tj.function(program)
        for least in (20.5, -1.0, 22.5, 20.5, 23.0):
            total, kept = function(x, tj.asarray(least))
            expected = x.numpy()[x.numpy() > least]
            np.testing.assert_array_equal(kept.numpy(), expected)
            assert float(total) == np.sum(expected * expected)
