"""The operations: one record each, family by family.

A record says everything about its operation: the type of its result, its meaning in
NumPy, its derivative, how it batches, and its lane expression for code generation.
Records know nothing of tensors, tapes or compilers. Importing this package fills the
registry `tapejit.ir.OPS`, but for the `LAZY_FAMILIES`, which follow when asked for.

An op is called here what its record says: `ops.add` is the record named "add". So a
name is written once, in its record, and once more in `LAZY_FAMILIES` if its family is
one of those.

Elementwise families are tables of formulas (`arithmetic`, `functions`, `comparison`,
`complex`); structural ones (`reduction`, `movement`, `indexing`, `linalg`, `solving`,
`lu_factors`, `decompositions`, `random`) have their rules as named functions right
above the record.

Start reading at `elementwise.py`, then `arithmetic.py`, then `reduction.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from tapejit.ir import structural
from tapejit.ir.node import OPS, Op
from tapejit.ops import (
    arithmetic,
    comparison,
    complex,
    functions,
    indexing,
    linalg,
    movement,
    placing,
    reduction,
)

# Loaded with the package.
FAMILIES: Final = (
    *(structural, arithmetic, comparison, complex, functions),
    *(reduction, movement, indexing, placing, linalg),
)
# Families that most programs do without are imported when one of their ops is asked
# for: they would cost a tenth of `import tapejit`.
LAZY_FAMILIES: Final[dict[str, str]] = {
    "activations": "softmax softplus softsign",
    "convolution": "convolve",
    "custom_rules": "custom_call",
    "decompositions": "cholesky complement eigh qr svd",
    "effects": "check print_values warned",
    "eigenvalues": "eig",
    "exponentials": "cbrt exp2 log1mexp log2 log10 logaddexp logaddexp2 xlogy",
    "float_bits": "copysign exponent fmod ldexp nextafter signbit",
    "lu_factors": "lu lu_det lu_inv lu_slogdet lu_solve",
    "masks": "checked_categories true_positions",
    "overwriting": "written_from",
    "random": (
        "bits_to_integers bits_to_normal bits_to_permutation bits_to_uniform "
        "keyed_bits random_advance random_bits random_fold_in random_split"
    ),
    "resampling": "resample resample_adjoint",
    "row_updates": "subtract_rows",
    "sampling": (
        "beta_transport bits_to_beta bits_to_gamma bits_to_poisson gamma_transport"
    ),
    "scan": "cumulative_prod cumulative_sum linear_recurrence logcumsumexp",
    "segments": "segment_max segment_min segment_prod segment_sum",
    "solving": "cofactor det expm pinv slogdet solve solve_triangular",
    "sorting": "argsort put_along searchsorted sort_by take_along top unsort_by",
    "special": (
        "bessel_i beta_density betainc betainc_slope betaln digamma entr erfc erfcx "
        "erfinv gamma_density gammainc gammainc_slope gammaincc gammaln kl_div "
        "log_ndtr log_ndtr_slope logit ndtr ndtri polygamma rel_entr xlog1py zeta "
        "zeta_slope"
    ),
    "transfers": "to_device",
    "transforms": "fourier inverse_real_fourier real_fourier",
    "trigonometry": (
        "acos acosh asin asinh atan atan2 atanh cosh hypot sinc sinc_slope sinh tan"
    ),
    "windows": "conv window_max",
}
_family_of: Final = {
    name: family for family, names in LAZY_FAMILIES.items() for name in names.split()
}
# Marks of graphs, not operations that are applied.
_MARKS: Final = frozenset({"literal", "param", "start"})

globals().update({name: op for name, op in OPS.items() if name not in _MARKS})
__all__ = sorted({*OPS, *_family_of} - _MARKS)


def __getattr__(name: str) -> Op:
    if name not in _family_of:
        raise AttributeError(f"there is no op {name!r}", name=name)
    op: Op = getattr(import_module(f"tapejit.ops.{_family_of[name]}"), name)
    globals()[name] = op
    return op


def load_all() -> None:
    """Import every family, so that the registry is complete."""
    for family in LAZY_FAMILIES:
        import_module(f"tapejit.ops.{family}")


OPS.load_all = load_all
