"""Functions written out in arithmetic: what their records have to agree with.

Both modes have their derivatives from one record, so a fault in it is no difference
between them. A program whose functions are written out is another opinion.

Start reading at `SPELLED`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tapejit as tj


def x_times_log(
    function: Callable[[Any, Any], Any], log: Callable[[Any], Any], origin: float
) -> Callable[[Any, Any], Any]:
    """x log(y), which is 0 at x = 0, and all of whose slopes are 0 if y = 0, too.

    Elsewhere, where one of them is infinite or the product is, `function` is right.
    """

    def spelled(x: Any, y: Any) -> Any:
        dtype = function(x, y).dtype
        x, y = tj.astype(x, dtype), tj.astype(y, dtype)
        is_void = tj.logical_and(x == 0, y == origin)
        is_regular = tj.logical_or(y > origin, is_void)
        is_regular = tj.logical_and(is_regular, tj.isfinite(x) & tj.isfinite(y))
        own_x, own_y = (tj.where(is_regular, v, 1) for v in (x, y))
        product = own_x * log(tj.where(is_void, 1, own_y))
        product = tj.where(is_void, 0, product)
        other = function(*(tj.where(is_regular, 1, v) for v in (x, y)))
        return tj.where(is_regular, product, other)

    return spelled


SPELLED: dict[str, Callable[..., Any]] = {
    "tj.xlogy": x_times_log(tj.xlogy, tj.log, 0.0),
    "tj.special.xlog1py": x_times_log(tj.special.xlog1py, tj.log1p, -1.0),
}


def with_spelled(source: str) -> tuple[str, dict[str, Any]]:
    """A program in which functions are written out, and the names it has then."""
    names = {}
    for name, function in SPELLED.items():
        other = f"spelled_{name.rpartition('.')[2]}"
        if f"{name}(" in source:
            source = source.replace(f"{name}(", f"{other}(")
            names[other] = function
    return source, names
