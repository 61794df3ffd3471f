"""Public names whose modules are imported when they are first asked for.

The package's `__getattr__` looks here. A name that is neither here nor imported by the
package does not exist.

Start reading at `MODULES`, then `FUNCTIONS`.
"""

from __future__ import annotations

from typing import Final

# Namespaces that a program may do without are imported when asked for.
MODULES: Final[dict[str, str]] = {
    "callbacks": "tapejit.training.callbacks",
    "data": "tapejit.training.data",
    "debug": "tapejit.debug",
    "fft": "tapejit.array.fft",
    "image": "tapejit.array.image",
    "linalg": "tapejit.array.linalg",
    "metrics": "tapejit.training.metrics",
    "mixed_precision": "tapejit.tensor.mixed_precision",
    "nn": "tapejit.nn",
    "optimizers": "tapejit.optimizers",
    "random": "tapejit.tape.random",
    "special": "tapejit.array.special",
    "testing": "tapejit.testing",
}

# So are the modules of functions that a training step seldom needs, each with its
# names, so that asking for one loads no other.
FUNCTIONS: Final[dict[str, str]] = {
    "tapejit.tracing.function": "Function function",
    "tapejit.runtime.threads": "get_num_threads set_num_threads",
    "tapejit.tape.functional": "grad hessian hvp jacobian jvp value_and_grad vjp vmap",
    "tapejit.tape.accumulator": "ForwardAccumulator",
    "tapejit.array.arrangement": (
        "append array_split atleast_1d atleast_2d atleast_3d broadcast_arrays "
        "broadcast_shapes column_stack dsplit dstack hsplit hstack meshgrid moveaxis "
        "ravel repeat roll rot90 split swapaxes tile unstack vsplit vstack"
    ),
    "tapejit.array.clipping": (
        "clip_by_average_norm clip_by_global_norm clip_by_norm clip_by_value "
        "global_norm"
    ),
    "tapejit.array.comparison": "allclose array_equal isclose",
    "tapejit.array.contraction": (
        "cross einsum inner matvec outer tensordot trace vdot vecdot vecmat"
    ),
    "tapejit.array.histogram": "bincount digitize histogram",
    "tapejit.tape.custom": "custom_gradient grad_pass_through",
    "tapejit.tracing.numba_operation": "numba_function",
    "tapejit.tensor.device": "MemoryInfo device devices memory_info synchronize",
    "tapejit.tensor.eager_mode": "functions_run_eagerly run_functions_eagerly",
    "tapejit.array.effects": "print",
    "tapejit.array.exponentials": (
        "cbrt exp2 log2 log10 logaddexp logaddexp2 reciprocal rsqrt xlogy"
    ),
    "tapejit.array.float_bits": (
        "copysign divmod fmod frexp heaviside ldexp modf nan_to_num nextafter signbit"
    ),
    "tapejit.array.folding": "foldl",
    "tapejit.array.nan_statistics": (
        "nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum "
        "nanvar"
    ),
    "tapejit.array.no_nan": "divide_no_nan multiply_no_nan",
    "tapejit.array.numpy.names": (
        "absolute amax amin arccos arccosh arcsin arcsinh arctan arctan2 arctanh array "
        "bitwise_not concatenate conjugate cumprod cumsum degrees dot fix invert "
        "left_shift mod power radians right_shift transpose true_divide"
    ),
    "tapejit.array.padded": "reverse_sequence sequence_mask",
    "tapejit.array.positions": "ravel_multi_index unravel_index",
    "tapejit.tracing.recompute": "recompute_grad",
    "tapejit.array.scans": "cumulative_prod cumulative_sum logcumsumexp",
    "tapejit.array.segments": (
        "dynamic_partition dynamic_stitch segment_max segment_mean segment_min "
        "segment_prod segment_sum"
    ),
    "tapejit.array.selection": (
        "compress delete diag diagflat diagonal insert one_hot put_along_axis select "
        "take_along_axis tril triu"
    ),
    "tapejit.array.sequences": "convolve correlate diff ediff1d interp kron trapezoid",
    "tapejit.array.sorting": (
        "argpartition argsort argwhere isin nonzero partition searchsorted sort top_k "
        "unique_all unique_counts unique_inverse unique_values"
    ),
    "tapejit.array.array_api": (
        "__array_api_version__ __array_namespace_info__ can_cast finfo iinfo isdtype "
        "result_type"
    ),
    "tapejit.array.statistics": (
        "average count_nonzero median percentile ptp quantile std var"
    ),
    "tapejit.array.trigonometry": (
        "acos acosh asin asinh atan atan2 atanh cosh deg2rad hypot rad2deg sinc sinh "
        "tan"
    ),
    "tapejit.training.checkpoint": "load save",
    "tapejit.training.fit": "History fit",
}
