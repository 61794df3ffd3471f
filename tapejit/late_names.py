"""Public names whose modules are imported when they are first asked for.

The package's `__getattr__` looks here. A name that is neither here nor imported by the
package does not exist.

Start reading at `MODULES`, then `FUNCTIONS`.
"""

from __future__ import annotations

from typing import Final

# Namespaces that a program may do without are imported when asked for.
MODULES: Final[dict[str, str]] = {
    "callbacks": "tapejit.kits.callbacks",
    "data": "tapejit.kits.data",
    "debug": "tapejit.debug",
    "fft": "tapejit.api.fft",
    "image": "tapejit.api.image",
    "linalg": "tapejit.api.linalg",
    "metrics": "tapejit.kits.metrics",
    "nn": "tapejit.kits.nn",
    "optimizers": "tapejit.kits.optimizers",
    "random": "tapejit.api.random",
    "special": "tapejit.api.special",
    "testing": "tapejit.testing",
}

# So are the modules of functions that a training step seldom needs, each with its
# names, so that asking for one loads no other.
FUNCTIONS: Final[dict[str, str]] = {
    "tapejit.api.function": "Function function",
    "tapejit.runtime.threads": "get_num_threads set_num_threads",
    "tapejit.api.functional": "grad hessian hvp jacobian jvp value_and_grad vjp vmap",
    "tapejit.api.accumulator": "ForwardAccumulator",
    "tapejit.api.arrangement": (
        "append array_split atleast_1d atleast_2d atleast_3d broadcast_arrays "
        "broadcast_shapes column_stack dsplit dstack hsplit hstack meshgrid moveaxis "
        "ravel repeat roll rot90 split swapaxes tile unstack vsplit vstack"
    ),
    "tapejit.api.clipping": (
        "clip_by_average_norm clip_by_global_norm clip_by_norm clip_by_value "
        "global_norm"
    ),
    "tapejit.api.closeness": "allclose array_equal isclose",
    "tapejit.api.contraction": (
        "cross einsum inner matvec outer tensordot trace vdot vecdot vecmat"
    ),
    "tapejit.api.counting": "bincount digitize histogram",
    "tapejit.api.custom_gradient": "custom_gradient grad_pass_through",
    "tapejit.api.eager_mode": "functions_run_eagerly run_functions_eagerly",
    "tapejit.api.effects": "print",
    "tapejit.api.exponentials": (
        "cbrt exp2 log2 log10 logaddexp logaddexp2 reciprocal rsqrt xlogy"
    ),
    "tapejit.api.float_bits": (
        "copysign divmod fmod frexp heaviside ldexp modf nan_to_num nextafter signbit"
    ),
    "tapejit.api.folding": "foldl",
    "tapejit.api.nan_statistics": (
        "nancumprod nancumsum nanmedian nanprod nanstd nanvar"
    ),
    "tapejit.api.no_nan": "divide_no_nan multiply_no_nan",
    "tapejit.api.numpy_names": (
        "absolute amax amin arccos arccosh arcsin arcsinh arctan arctan2 arctanh array "
        "bitwise_not concatenate conjugate cumprod cumsum degrees dot fix invert "
        "left_shift mod power radians right_shift transpose true_divide"
    ),
    "tapejit.api.padded": "reverse_sequence sequence_mask",
    "tapejit.api.positions": "ravel_multi_index unravel_index",
    "tapejit.api.recompute": "recompute_grad",
    "tapejit.api.scans": "cumulative_prod cumulative_sum logcumsumexp",
    "tapejit.api.segments": (
        "dynamic_partition dynamic_stitch segment_max segment_mean segment_min "
        "segment_prod segment_sum"
    ),
    "tapejit.api.selection": (
        "compress delete diag diagflat diagonal insert one_hot put_along_axis select "
        "take_along_axis tril triu"
    ),
    "tapejit.api.sequences": "convolve correlate diff ediff1d interp kron trapezoid",
    "tapejit.api.sorting": (
        "argpartition argsort argwhere isin nonzero partition searchsorted sort top_k "
        "unique_all unique_counts unique_inverse unique_values"
    ),
    "tapejit.api.standard": (
        "__array_api_version__ __array_namespace_info__ can_cast finfo iinfo isdtype "
        "result_type"
    ),
    "tapejit.api.statistics": (
        "average count_nonzero median nanmax nanmean nanmin nansum percentile ptp "
        "quantile std var"
    ),
    "tapejit.api.trigonometry": (
        "acos acosh asin asinh atan atan2 atanh cosh deg2rad hypot rad2deg sinc sinh "
        "tan"
    ),
    "tapejit.kits.checkpoint": "load save",
    "tapejit.kits.fit": "History fit",
}
