"""What holds no numbers: the errors for strings, dates, objects and mixed tables.

Start reading at `not_a_tensor`.
"""

from __future__ import annotations

from typing import Any

from tapejit.base.errors import ArgumentTypeError


def not_a_tensor(value: Any, name: str) -> ArgumentTypeError:
    """The error for what holds no numbers: strings, dates, objects, mixed columns."""
    columns = getattr(value, "columns", None)
    dtypes = getattr(value, "dtypes", None)
    if columns is not None and dtypes is not None:
        kinds = dict(zip(columns, dtypes, strict=False))
        wrong = [f"{c!r} ({kind})" for c, kind in kinds.items() if not _is_number(kind)]
        if wrong:
            noun = "columns" if len(wrong) > 1 else "column"
            return ArgumentTypeError(
                f"{name} takes numbers, arrays and tensors, got a "
                f"{type(value).__name__} whose {noun} {', '.join(wrong)} "
                f"{'are' if len(wrong) > 1 else 'is'} not of numbers",
                help="leave them out, df.select_dtypes('number'), or encode them, "
                "pd.get_dummies(df)",
            )
    kind = getattr(value, "dtype", None)
    if kind is None:
        return ArgumentTypeError(
            f"{name} takes numbers, arrays and tensors, got {type(value).__name__}",
            help="convert it to a NumPy array of numbers first",
        )
    label = getattr(value, "name", None)
    of = "" if label is None else f" {label!r}"
    return ArgumentTypeError(
        f"{name} takes numbers, arrays and tensors, got {type(value).__name__}{of} "
        f"of {kind}",
        help="convert it to numbers first: a.astype('float32') parses texts that are "
        "numbers, np.unique(a, return_inverse=True)[1] numbers others",
    )


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biufc"
