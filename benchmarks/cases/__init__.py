"""The cases, one file each, found by looking: a new file here is a new benchmark.

A file defines `CASES`, a tuple of `Case`. Those of one file are variations of one
program and share the peers' processes, so where the first call matters (compiled
functions) a file holds one case. Names are `file` or `file/variation`.

Start reading at `eager_op.py`, the smallest.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from benchmarks.case import Case

SETS: dict[str, tuple[str, ...]] = {
    "native": (
        "black_scholes",
        "gmm",
        "logistic",
        "softmax_xent",
        "layernorm_gelu",
        "nbody",
        "hessian",
        "rosenbrock",
        "call_overhead",
        "call_structures",
        "digits_mlp",
        "mlp_gradients",
        "streaming",
        "compile_time",
        "cold",
        "warm_start",
        "memory",
    ),
    "dense": (
        "mlp",
        "mlp_adam",
        "mlp_small",
        "digits_mlp",
        "attention",
        "attention_long",
        "attention_memory",
        "cnn",
        "pinn",
        "gemm",
        "gemm_serial",
    ),
    "library": ("sorting", "spectral", "small_matrices", "shared_factors"),
}
"""Names that stand for several files; "native" is what compiled functions promise,
"dense" what they promise where products of matrices are most of the work, "library" has
what NumPy and SciPy perform, or performed."""


@cache
def load_groups() -> dict[str, tuple[Case, ...]]:
    """All cases by file, in alphabetical order of the files.

    >>> "eager_op" in load_groups()
    True
    """
    groups: dict[str, tuple[Case, ...]] = {}
    for module in pkgutil.iter_modules(__path__):
        cases = importlib.import_module(f"{__name__}.{module.name}").CASES
        for case in cases:
            if case.name.partition("/")[0] != module.name:
                raise ValueError(
                    f"case {case.name!r} in {module.name}.py: the name of a case is "
                    f"its file's, or begins with '{module.name}/'"
                )
        groups[module.name] = tuple(cases)
    return groups


def find_case(name: str) -> Case:
    """The case of that full name.

    >>> find_case("eager_op/mul").unit
    'µs'
    """
    for case in load_groups().get(name.partition("/")[0], ()):
        if case.name == name:
            return case
    raise KeyError(f"no case {name!r}")


def select(names: Sequence[str]) -> dict[str, tuple[Case, ...]]:
    """The groups, cut down to the sets, files and full names given; no names: all.

    >>> [case.name for case in select(["eager_op/mul"])["eager_op"]]
    ['eager_op/mul']
    >>> "gmm" in select(["native"])
    True
    >>> select(["nothing"])
    Traceback (most recent call last):
    ValueError: no case 'nothing'; --list shows them
    """
    groups = load_groups()
    names = [file for name in names for file in SETS.get(name, (name,))]
    known = {*groups, *(case.name for cases in groups.values() for case in cases)}
    for name in names:
        if name not in known:
            raise ValueError(f"no case {name!r}; --list shows them")
    chosen = {
        group: tuple(
            case for case in cases if not names or {group, case.name} & {*names}
        )
        for group, cases in groups.items()
    }
    return {group: cases for group, cases in chosen.items() if cases}
