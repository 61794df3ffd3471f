"""The array API standard 2025.12 as a table: every name with its parameters.

`SIGNATURES` has one line per function, written as a call is defined; `CONSTANTS`,
`DTYPES`, `METHODS` and `ATTRIBUTES` are the rest of the namespace and of the array
object. `FIELDS` are the names of results with several parts.

Start reading at `signature`.
"""

from __future__ import annotations

import inspect
import math
import re


def words(text: str) -> list[str]:
    """Names in a text, in a list."""
    return text.split()


CONSTANTS = {"e": math.e, "inf": math.inf, "nan": math.nan, "pi": math.pi}
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
ATTRIBUTES = ("dtype", "device", "mT", "ndim", "shape", "size", "T")

ELEMENTWISE_ONE = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_invert",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "negative",
    "positive",
    "real",
    "reciprocal",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "square",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
ELEMENTWISE_TWO = [
    "add",
    "atan2",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "copysign",
    "divide",
    "equal",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "less",
    "less_equal",
    "logaddexp",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "not_equal",
    "pow",
    "remainder",
    "subtract",
]

OTHERS = """
all(x, /, *, axis=None, keepdims=False)
any(x, /, *, axis=None, keepdims=False)
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
argmax(x, /, *, axis=None, keepdims=False)
argmin(x, /, *, axis=None, keepdims=False)
argsort(x, /, *, axis=-1, descending=False, stable=True)
asarray(obj, /, *, dtype=None, device=None, copy=None)
astype(x, dtype, /, *, copy=True, device=None)
broadcast_arrays(*arrays)
broadcast_shapes(*shapes)
broadcast_to(x, /, shape)
can_cast(from_, to, /)
clip(x, /, min=None, max=None)
concat(arrays, /, *, axis=0)
count_nonzero(x, /, *, axis=None, keepdims=False)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
empty(shape, *, dtype=None, device=None)
empty_like(x, /, *, dtype=None, device=None)
expand_dims(x, /, *, axis=0)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
finfo(type, /)
flip(x, /, *, axis=None)
from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
iinfo(type, /)
isdtype(dtype, kind)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
matmul(x1, x2, /)
matrix_transpose(x, /)
max(x, /, *, axis=None, keepdims=False)
mean(x, /, *, axis=None, keepdims=False)
isin(x1, x2, /, *, invert=False)
meshgrid(*arrays, indexing='xy')
min(x, /, *, axis=None, keepdims=False)
moveaxis(x, source, destination, /)
nonzero(x, /)
ones(shape, *, dtype=None, device=None)
ones_like(x, /, *, dtype=None, device=None)
permute_dims(x, /, axes)
prod(x, /, *, axis=None, dtype=None, keepdims=False)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)
result_type(*arrays_and_dtypes)
roll(x, /, shift, *, axis=None)
searchsorted(x1, x2, /, *, side='left', sorter=None)
sort(x, /, *, axis=-1, descending=False, stable=True)
squeeze(x, /, axis)
stack(arrays, /, *, axis=0)
std(x, /, *, axis=None, correction=0.0, keepdims=False)
sum(x, /, *, axis=None, dtype=None, keepdims=False)
take(x, indices, /, *, axis=None)
take_along_axis(x, indices, /, *, axis=-1)
tensordot(x1, x2, /, *, axes=2)
tile(x, repetitions, /)
tril(x, /, *, k=0)
triu(x, /, *, k=0)
unique_all(x, /)
unique_counts(x, /)
unique_inverse(x, /)
unique_values(x, /)
unstack(x, /, *, axis=0)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
vecdot(x1, x2, /, *, axis=-1)
where(condition, x1, x2, /)
zeros(shape, *, dtype=None, device=None)
zeros_like(x, /, *, dtype=None, device=None)
__array_namespace_info__()

linalg.cholesky(x, /, *, upper=False)
linalg.cross(x1, x2, /, *, axis=-1)
linalg.det(x, /)
linalg.diagonal(x, /, *, offset=0)
linalg.eig(x, /)
linalg.eigh(x, /)
linalg.eigvals(x, /)
linalg.eigvalsh(x, /)
linalg.inv(x, /)
linalg.matmul(x1, x2, /)
linalg.matrix_norm(x, /, *, keepdims=False, ord='fro')
linalg.matrix_power(x, n, /)
linalg.matrix_rank(x, /, *, rtol=None)
linalg.matrix_transpose(x, /)
linalg.outer(x1, x2, /)
linalg.pinv(x, /, *, rtol=None)
linalg.qr(x, /, *, mode='reduced')
linalg.slogdet(x, /)
linalg.solve(x1, x2, /)
linalg.svd(x, /, *, full_matrices=True)
linalg.svdvals(x, /)
linalg.tensordot(x1, x2, /, *, axes=2)
linalg.trace(x, /, *, offset=0, dtype=None)
linalg.vecdot(x1, x2, /, *, axis=-1)
linalg.vector_norm(x, /, *, axis=None, keepdims=False, ord=2)

fft.fft(x, /, *, n=None, axis=-1, norm='backward')
fft.ifft(x, /, *, n=None, axis=-1, norm='backward')
fft.fftn(x, /, *, s=None, axes=None, norm='backward')
fft.ifftn(x, /, *, s=None, axes=None, norm='backward')
fft.rfft(x, /, *, n=None, axis=-1, norm='backward')
fft.irfft(x, /, *, n=None, axis=-1, norm='backward')
fft.rfftn(x, /, *, s=None, axes=None, norm='backward')
fft.irfftn(x, /, *, s=None, axes=None, norm='backward')
fft.hfft(x, /, *, n=None, axis=-1, norm='backward')
fft.ihfft(x, /, *, n=None, axis=-1, norm='backward')
fft.fftfreq(n, /, *, d=1.0, dtype=None, device=None)
fft.rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
fft.fftshift(x, /, *, axes=None)
fft.ifftshift(x, /, *, axes=None)
"""

INFO_METHODS = """
capabilities()
default_device()
default_dtypes(*, device=None)
devices()
dtypes(*, device=None, kind=None)
"""

BINARY_METHODS = [
    "add",
    "and",
    "eq",
    "floordiv",
    "ge",
    "gt",
    "le",
    "lshift",
    "lt",
    "matmul",
    "mod",
    "mul",
    "ne",
    "or",
    "pow",
    "rshift",
    "sub",
    "truediv",
    "xor",
]
REFLECTED_METHODS = [
    "add",
    "and",
    "floordiv",
    "lshift",
    "matmul",
    "mod",
    "mul",
    "or",
    "pow",
    "rshift",
    "sub",
    "truediv",
    "xor",
]

METHODS = """
__array_namespace__(*, api_version=None)
__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)
__dlpack_device__()
to_device(device, /, *, stream=None)
__abs__()
__bool__()
__complex__()
__float__()
__getitem__(key, /)
__index__()
__int__()
__invert__()
__neg__()
__pos__()
__setitem__(key, value, /)
"""

FIELDS = {
    "unique_all": ("values", "indices", "inverse_indices", "counts"),
    "unique_counts": ("values", "counts"),
    "unique_inverse": ("values", "inverse_indices"),
    "linalg.eig": ("eigenvalues", "eigenvectors"),
    "linalg.eigh": ("eigenvalues", "eigenvectors"),
    "linalg.qr": ("Q", "R"),
    "linalg.slogdet": ("sign", "logabsdet"),
    "linalg.svd": ("U", "S", "Vh"),
}


def signature(parameters: str) -> inspect.Signature:
    """The parameters between two parentheses, as Python understands them.

    >>> list(signature("x, /, *, axis=None").parameters)
    ['x', 'axis']
    """
    return inspect.signature(eval(f"lambda {parameters}: None"))


def parsed(lines: str) -> dict[str, inspect.Signature]:
    found = re.findall(r"^([\w.]+)\((.*)\)$", lines, re.MULTILINE)
    return {name: signature(parameters) for name, parameters in found}


SIGNATURES: dict[str, inspect.Signature] = {
    **{name: signature("x, /") for name in ELEMENTWISE_ONE},
    **{name: signature("x1, x2, /") for name in ELEMENTWISE_TWO},
    **parsed(OTHERS),
}
METHOD_SIGNATURES: dict[str, inspect.Signature] = {
    **{f"__{name}__": signature("other, /") for name in BINARY_METHODS},
    **{f"__r{name}__": signature("other, /") for name in REFLECTED_METHODS},
    **parsed(METHODS),
}
INFO_SIGNATURES = parsed(INFO_METHODS)
