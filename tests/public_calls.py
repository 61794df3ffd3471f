"""Calls of every public function that takes tensors: arguments that suit it.

`CALLS` maps a name such as `"linalg.solve"` to its calls. Arrays among the arguments
are what a traced function takes as tensors; all else is Python. `EXEMPT` names what is
not called in both modes, with the reason.

Start reading at `CALLS`.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import tapejit as tj

# NumPy's names of functions that are called otherwise in the array API standard.
ALIASES = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "array": "asarray",
    "bitwise_not": "bitwise_invert",
    "concatenate": "concat",
    "conjugate": "conj",
    "degrees": "rad2deg",
    "fix": "trunc",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "mod": "remainder",
    "power": "pow",
    "radians": "deg2rad",
    "right_shift": "bitwise_right_shift",
    "true_divide": "divide",
}

NAMESPACES = ("", "linalg", "fft", "image", "nn", "special", "random")

rng = np.random.default_rng(21)
V = rng.uniform(0.2, 0.8, 4).astype(np.float32)
W = rng.uniform(0.2, 0.8, 4).astype(np.float32)
M = rng.uniform(0.2, 0.8, (3, 4)).astype(np.float32)
N = rng.uniform(0.2, 0.8, (3, 4)).astype(np.float32)
SIGNED = rng.uniform(-2, 2, (3, 4)).astype(np.float32)
CUBE = rng.uniform(-2, 2, (2, 3, 4)).astype(np.float32)
IMAGES = CUBE[..., None]
LARGE = M + 1
SQUARE = rng.normal(size=(3, 3)).astype(np.float32) + 3 * np.eye(3, dtype=np.float32)
SPD = (SQUARE @ SQUARE.T).astype(np.float32)
STACK = np.stack([SPD, 2 * SPD])
COMPLEX = (SIGNED + 1j * N).astype(np.complex64)
GAPS = np.array([[1, np.nan, 3], [np.nan, 5, 0]], np.float32)
INTEGERS = np.array([[3, 0, -2, 3], [1, 5, 7, 0], [2, 2, -9, 4]], np.int32)
SHIFTS = np.array([0, 1, 2, 3], np.int32)
LABELS = np.array([2, 0, 3], np.int32)
MASK = SIGNED > 0
ROW_MASK = np.array([True, False, True, True])
KEY = tj.random.key(5).numpy()
SORTED = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)


class Call(NamedTuple):
    """Arguments of one call."""

    args: tuple[Any, ...]
    options: dict[str, Any]


def call(*args: Any, **options: Any) -> Call:
    return Call(args, options)


CALLS: dict[str, list[Call]] = {}


def each(names: str, *calls: Call) -> None:
    """The same calls for several functions."""
    for name in names.split():
        assert name not in CALLS, f"{name} is there twice"
        CALLS[name] = list(calls)


each(
    "abs asinh atan cbrt cos cosh deg2rad erf exp exp2 expm1 negative positive rad2deg "
    "reciprocal sigmoid sign sin sinc sinh square tan tanh ceil floor round trunc "
    "stop_gradient real imag conj isfinite isinf isnan signbit frexp modf ravel "
    "nan_to_num zeros_like ones_like empty_like logical_not",
    call(SIGNED),
    call(CUBE[:, :0]),
)
each("acos asin atanh log log10 log1p log2 sqrt rsqrt", call(M))
each("acosh", call(LARGE))
each("angle", call(COMPLEX))
each(
    "add subtract multiply divide maximum minimum hypot atan2 copysign logaddexp "
    "logaddexp2 equal not_equal greater greater_equal less less_equal logical_and "
    "logical_or logical_xor nextafter floor_divide fmod remainder divmod",
    call(SIGNED, N),
    call(SIGNED, V),
    call(SIGNED, 0.75),
)
each("divide_no_nan multiply_no_nan", call(SIGNED, N), call(SIGNED, V * ROW_MASK))
each("pow xlogy", call(M, N), call(M, 2.0))
each("heaviside", call(SIGNED, V))
each("ldexp", call(V, SHIFTS))
each("bitwise_and bitwise_or bitwise_xor", call(INTEGERS, SHIFTS), call(MASK, ROW_MASK))
each("bitwise_left_shift bitwise_right_shift", call(INTEGERS, SHIFTS))
each("bitwise_invert", call(INTEGERS), call(MASK))
each("astype", call(SIGNED, "int32"), call(MASK, "float32"))
each("clip", call(SIGNED, -0.5, 0.5), call(SIGNED, V), call(SIGNED, None, V))
each("clip_by_norm", call(SIGNED, 0.5), call(CUBE, 1.5, axes=(1, 2)))
each("clip_by_average_norm", call(SIGNED, 0.05))
each("clip_by_value", call(SIGNED, -0.5, 0.5))
each("global_norm", call([SIGNED, V]))
each("clip_by_global_norm", call([SIGNED, V], 0.5), call([SIGNED, COMPLEX], 99.0))
each("where", call(MASK, SIGNED, N), call(MASK, V, 0.0))
each(
    "all any argmax argmin max min sum prod mean logsumexp count_nonzero median ptp "
    "nanmax nanmin nansum nanmean var std",
    call(SIGNED),
    call(CUBE, axis=1, keepdims=True),
)
each("average", call(M, axis=0), call(M, weights=N, returned=True))
each("quantile", call(M, 0.3), call(M, V, axis=1))
each("percentile", call(M, 30.0), call(M, V, axis=0))
each("cumulative_sum cumulative_prod", call(M, axis=1), call(V, include_initial=True))
each("logcumsumexp", call(M, axis=0), call(V))
each("cumsum cumprod nancumsum nancumprod", call(M), call(GAPS, 1))
each("nanprod nanvar nanstd nanmedian", call(GAPS), call(GAPS, 0), call(M, 1))
each("diff", call(M), call(V, n=2), call(M, prepend=M[:, :1]))
each("ediff1d", call(M), call(V, to_end=W))
each("trapezoid", call(M), call(M, x=V))
each("interp", call(SIGNED, SORTED, V), call(SIGNED, SORTED, V, period=2.5))
each("convolve correlate", call(V, W[:2]), call(V, W[:2], mode="same"))
each("allclose array_equal isclose", call(M, N), call(M, M))
# Shapes
each("reshape", call(M, (4, 3)), call(M, -1))
each("broadcast_to", call(V, (3, 4)))
each("broadcast_arrays meshgrid", call(V, W), call(V, W[:1]))
each("expand_dims", call(M, axis=1))
each("squeeze", call(M[None], axis=0), call(M[None]))
each("permute_dims", call(CUBE, (2, 0, 1)))
each("matrix_transpose", call(CUBE))
each("transpose", call(CUBE), call(CUBE, (1, 0, 2)))
each("dot", call(M, N.T), call(V, W), call(CUBE, CUBE.mT))
each("moveaxis", call(CUBE, 0, -1))
each("swapaxes", call(CUBE, 0, 2))
each("flip", call(CUBE), call(CUBE, axis=1))
each("roll", call(M, 1), call(M, (1, -2), axis=(0, 1)))
each("rot90", call(M), call(M, k=2))
each("tile", call(M, (2, 1)))
each(
    "repeat", call(M, 2, axis=1), call(V, SHIFTS), call(M, np.int32([1, 0, 2]), axis=0)
)
each("pad", call(M, ((1, 0), (0, 2))), call(M, 1, constant_values=0.5))
each("concat stack", call([M, N]), call([M, N, SIGNED], axis=1))
each("vstack hstack dstack column_stack", call([M, N]), call([V, W]))
each("atleast_1d atleast_2d atleast_3d", call(V), call(V, M))
each("append", call(V, W), call(M, N, axis=0))
each("split array_split", call(V, 2), call(M, [1, 3], axis=1))
each("vsplit", call(M, 3))
each("hsplit", call(M, 2))
each("dsplit", call(CUBE, 2))
each("unstack", call(M, axis=1))
each("tril triu", call(SIGNED), call(CUBE, k=1))
each("diag", call(V), call(M, k=1))
each("diagflat", call(V, 1))
each("diagonal", call(M), call(CUBE, 1, 0, 2))
each("trace", call(M), call(CUBE, 0, 1, 2))
# Positions
each(
    "take",
    call(M, LABELS, axis=1),
    call(M, [-1, 0], axis=0),
    call(CUBE, np.int32([[0, 2], [1, -1]]), batch_dims=1),
)
each("unravel_index", call(np.int32([[5, 0], [7, 11]]), (3, 4)), call(3, (2, 2), "F"))
each(
    "ravel_multi_index",
    call((LABELS, SHIFTS[:3]), (4, 5)),
    call((LABELS - 3, SHIFTS[:3]), (4, 2), mode=("wrap", "clip"), order="F"),
)
each("sequence_mask", call(SHIFTS, 3), call(SHIFTS, dtype="float32"))
each("reverse_sequence", call(CUBE, np.int32([2, 3])), call(CUBE, SHIFTS % 3, 0, 2))
each("take_along_axis", call(M, LABELS[:, None], axis=1))
each("put_along_axis", call(M, LABELS[:, None], 9.0, axis=1))
each("scatter_add", call(V, LABELS, M[0, :3]), call(M, [0, 0], N[:2]))
each(
    "segment_sum segment_mean segment_prod segment_max segment_min",
    call(SIGNED, LABELS, 4),
    call(SIGNED, np.int32([[0, -1, 2, 0], [1, 2, 2, 0], [1, 1, 1, 2]])),
)
each("dynamic_partition", call(SIGNED, np.int32([1, 0, 1]), 3))
each("dynamic_stitch", call([LABELS, SHIFTS[:2]], [M, N[:2]]))
each("compress", call(ROW_MASK, V), call(ROW_MASK, M, axis=1), call(SHIFTS, V))
each("delete", call(V, [0, -1]), call(M, 1, axis=0))
each("insert", call(V, 1, W[:1]), call(M, [0, 2], 9.0, axis=1))
each("select", call([MASK, SIGNED > 1], [SIGNED, N], 0.5))
each("one_hot", call(LABELS, 5))
each("nonzero argwhere", call(MASK), call(INTEGERS))
each(
    "unique_all unique_counts unique_inverse unique_values", call(INTEGERS), call(GAPS)
)
each("bincount", call(LABELS), call(LABELS, V[:3], minlength=6))
each(
    "histogram", call(SIGNED, [-1.0, 0.0, 1.0]), call(SIGNED, 4, (-1.0, 1.0), weights=M)
)
each("digitize", call(SIGNED, SORTED), call(SIGNED, SORTED[::-1].copy(), right=True))
each("searchsorted", call(SORTED, SIGNED), call(SORTED, 0.3, side="right"))
each("isin", call(INTEGERS, SHIFTS), call(SIGNED, SIGNED[0], invert=True))
each("sort argsort", call(SIGNED), call(SIGNED, axis=0, descending=True))
each("partition argpartition", call(SIGNED, 2), call(SIGNED, 1, axis=0))
each("top_k", call(SIGNED, 2), call(SIGNED, 2, axis=0, mode="smallest"))
# Products
each("matmul", call(M, N.T), call(CUBE, V))
each("inner", call(M, N), call(V, W))
each("vdot", call(V, W))
each("outer", call(V, W))
each("kron", call(V, W), call(M, N[:2, :2]))
each("vecdot", call(M, N), call(M, N, axis=0))
each("matvec", call(CUBE, V))
each("vecmat", call(V[:3], M))
each("tensordot", call(M, N), call(M, N, axes=([0], [0])))
each("einsum", call("ij,kj->ik", M, N), call("ii", SQUARE), call("i,i,i->", V, W, V))
each("cross", call(M[:, :3], N[:, :3]))
# Made from tensors
each("asarray", call(M), call([V[0], W[0]]), call(M, dtype="float64"))
each("constant", call(M), call(V[:1], shape=(3,)))
each("full_like", call(M, 2.0), call(M, V[0]))
each("full", call((2, 3), V[0]))
each("linspace", call(0.0, 1.0, 5))

each("linalg.cholesky", call(SPD), call(STACK, upper=True))
each("linalg.cond", call(SQUARE), call(SQUARE, p=1))
each("linalg.cross", call(M[:, :3], N[:, :3]))
each("linalg.det linalg.inv linalg.slogdet", call(SQUARE), call(STACK))
each("linalg.expm", call(SQUARE / 8))
each("linalg.diagonal", call(CUBE, offset=1))
each("linalg.eigh linalg.eigvalsh", call(SPD), call(STACK))
each("linalg.eig linalg.eigvals", call(SPD), call(STACK))
each("linalg.lstsq", call(N.T, V))
each("linalg.matmul", call(M, N.T))
each("linalg.matrix_norm", call(M), call(M, ord=1), call(M, ord="nuc"))
each("linalg.matrix_power", call(SQUARE, 3), call(SQUARE, -1))
each("linalg.matrix_rank", call(SQUARE), call(STACK))
each("linalg.matrix_transpose", call(CUBE))
each("linalg.multi_dot", call([M, N.T, SQUARE]))
each("linalg.norm", call(M), call(M, axis=1, ord=1), call(V, ord=3))
each("linalg.outer", call(V, W))
each("linalg.pinv", call(M), call(M, rtol=0.1))
each("linalg.qr", call(M.T))
each("linalg.solve", call(SQUARE, V[:3]), call(STACK, CUBE[:, :, :2]))
each("linalg.solve_triangular", call(SPD, V[:3], lower=True), call(SPD, M, trans=1))
each("linalg.svd", call(M, full_matrices=False))
each("linalg.svdvals", call(M))
each("linalg.tensordot", call(M, N, axes=([1], [1])))
each("linalg.trace", call(CUBE, offset=1))
each("linalg.vecdot", call(M, N))
each("linalg.vector_norm", call(M), call(M, axis=0, ord=3, keepdims=True))

each("fft.fft fft.ifft", call(COMPLEX), call(COMPLEX, n=6, axis=0, norm="ortho"))
each("fft.fftn fft.ifftn", call(COMPLEX), call(COMPLEX, s=(2, 3)))
each("fft.rfft fft.ihfft", call(SIGNED), call(SIGNED, n=3))
each("fft.rfftn", call(SIGNED))
each("fft.irfft fft.hfft", call(COMPLEX), call(COMPLEX, n=5))
each("fft.irfftn", call(COMPLEX))
each("fft.fftshift fft.ifftshift", call(SIGNED), call(SIGNED, axes=1))

each(
    "nn.celu nn.elu nn.gelu nn.glu nn.hard_sigmoid nn.hard_swish nn.hard_tanh "
    "nn.leaky_relu nn.log_sigmoid nn.log_softmax nn.logsumexp nn.mish nn.moments "
    "nn.normalize nn.relu nn.relu6 nn.selu nn.sigmoid nn.silu nn.softmax nn.softplus "
    "nn.softsign nn.standardize nn.swish nn.tanh",
    call(SIGNED),
)
each("nn.layer_norm", call(SIGNED), call(SIGNED, V, W))
each("nn.rms_norm", call(SIGNED), call(SIGNED, V))
each("nn.batch_norm", call(SIGNED, V, W), call(SIGNED, V, W, V, W))
each(
    "nn.absolute_error nn.squared_error nn.huber",
    call(M, N),
    call(M, N, reduction="none", weights=V),
)
each("nn.sigmoid_cross_entropy", call(SIGNED, M), call(SIGNED, M, label_smoothing=0.1))
each("nn.softmax_cross_entropy", call(SIGNED, M), call(SIGNED, M, reduction="sum"))
each("nn.categorical_hinge nn.kl_divergence", call(SIGNED, M), call(M, N, axis=0))
each("nn.hinge nn.squared_hinge", call(SIGNED, np.sign(N - 0.5)))
each("nn.sparse_softmax_cross_entropy", call(SIGNED, LABELS))
each("nn.embedding", call(M, np.int32([0, 2, 0])))
each("nn.one_hot", call(LABELS, 4))
each(
    "nn.conv1d",
    call(CUBE, IMAGES[0]),
    call(CUBE, IMAGES[0, :2], strides=2, padding="VALID", dilations=2),
    call(CUBE, IMAGES[0, :, :2].repeat(2, axis=-1), groups=2, data_format="NWC"),
)
each(
    "nn.conv2d",
    call(IMAGES, CUBE[:, :, None]),
    call(IMAGES, CUBE[:, :2, None, :1], 2, [(0, 1), 1]),
    call(IMAGES, IMAGES[:, :, :3], data_format="NCHW", dilations=2),
)
each(
    "nn.conv3d",
    call(IMAGES[None], CUBE[:, :, :2, None, None]),
    call(IMAGES[..., None], CUBE[:1, :2, :1, None, None], (1, 2, 1), "VALID"),
)
each(
    "nn.depthwise_conv2d",
    call(CUBE[None], IMAGES[:, :2]),
    call(CUBE[None], IMAGES[:1, :2], strides=2, padding=[0, (1, 0)]),
)
each(
    "nn.conv2d_transpose",
    call(IMAGES, CUBE[:, :, :, None]),
    call(IMAGES, CUBE[:, :2, :1, None], 2, "VALID"),
    call(IMAGES, CUBE[:, :2, None, :3], (1, 2), [(0, 1), 0], data_format="NCHW"),
)
each(
    "nn.max_pool nn.avg_pool",
    call(CUBE, 2),
    call(CUBE, 2, 1, "SAME"),
    call(IMAGES, (3, 2), (1, 2), padding=((1, 1), (0, 1))),
    call(IMAGES[..., None], (2, 3, 1)),
)
each(
    "nn.scaled_dot_product_attention",
    call(CUBE, CUBE, CUBE[..., :3]),
    call(CUBE, CUBE[:1, :2], CUBE[:1, 1:], MASK[:, :2], is_causal=True, scale=0.5),
    call(SIGNED, M, N, SIGNED[:, :3]),
)
each("nn.dropout", call(M, 0.3), call(M, training=False))

each(
    "image.resize",
    call(IMAGES, (5, 2)),
    call(CUBE, (4, 6), "nearest"),
)

each(
    "special.digamma special.psi special.entr special.erf special.erfc special.erfcx "
    "special.erfinv special.expit special.gammaln special.i0 special.i0e special.i1 "
    "special.i1e special.log1mexp special.log_ndtr special.log_softmax special.logit "
    "special.logsumexp special.ndtr special.ndtri special.softmax",
    call(M),
)
each(
    "special.betaln special.gammainc special.gammaincc special.kl_div special.rel_entr "
    "special.xlog1py special.xlogy",
    call(M, N),
    call(M, 0.5),
)
each("special.betainc", call(M, N, V))
each("special.polygamma", call(1, M))
each("special.zeta", call(LARGE + 1), call(LARGE + 1, V))

each("random.normal random.gumbel random.laplace", call((3,)), call((3, 4), V, W))
each("random.uniform", call((3,)), call((3, 4), V, V + 1))
each("random.exponential", call((3,)), call((3, 4), V))
each("random.truncated_normal", call(shape=(3,)), call(V - 1, V + 1))
each("random.bernoulli", call(0.5, (3,)), call(V))
each("random.beta", call(1.5, 2.5, (3,)), call(V, W))
each("random.gamma", call(1.5, (3,)), call(V))
each("random.poisson", call(3.0, (3,)), call(V))
each("random.integers", call(10, shape=(5,)), call(-3, 3, (4,)))
each("random.categorical", call(M), call(V, (5,)))
each("random.choice", call(V, (3,)), call(V, (3,), p=W), call(5, (2,), replace=False))
each("random.permutation random.shuffle", call(M), call(M, axis=1))
each("random.split", call(KEY))
each("random.fold_in", call(KEY, 3))

NO_TENSORS = "takes no tensors"
FUNCTIONS = "takes functions: see the tests of transforms"
EXEMPT: dict[str, str] = {
    **dict.fromkeys(["arange", "empty", "eye", "ones", "zeros"], NO_TENSORS),
    **dict.fromkeys(["fft.fftfreq", "fft.rfftfreq", "random.key"], NO_TENSORS),
    **dict.fromkeys(["broadcast_shapes", "can_cast", "finfo", "iinfo"], NO_TENSORS),
    **dict.fromkeys(["isdtype", "result_type", "register_structure"], NO_TENSORS),
    **dict.fromkeys(["functions_run_eagerly", "run_functions_eagerly"], NO_TENSORS),
    **dict.fromkeys(["devices", "memory_info", "synchronize"], NO_TENSORS),
    "foldl": FUNCTIONS,
    **dict.fromkeys(["grad", "value_and_grad", "jacobian", "hessian"], FUNCTIONS),
    **dict.fromkeys(["hvp", "jvp", "vjp", "vmap", "function"], FUNCTIONS),
    **dict.fromkeys(["custom_gradient", "grad_pass_through"], FUNCTIONS),
    **dict.fromkeys(["numba_function", "recompute_grad"], FUNCTIONS),
    **dict.fromkeys(["get_num_threads", "set_num_threads"], NO_TENSORS),
    "from_dlpack": "takes other libraries' arrays: see test_array_api.py",
    "print": "is an effect: see test_effects.py",
    "random.default_generator": "gives what the others draw from",
    "fit": "runs a loop of steps around functions",
    **dict.fromkeys(["load", "save"], "reads and writes files"),
    "random.set_seed": "is what the tests of random functions start with",
}


def public_functions() -> Iterator[tuple[str, Any]]:
    """Every public function with its name, `"fft.fft"` for those of a namespace."""
    for space in NAMESPACES:
        module = getattr(tj, space) if space else tj
        for name in builtins.sorted(set(getattr(module, "__all__", dir(module)))):
            found = getattr(module, name)
            is_function = callable(found) and not isinstance(found, type)
            if not space and name in ALIASES:
                continue  # another name of a function that is there
            if is_function and not name.startswith("_"):
                yield (f"{space}.{name}" if space else name), found
