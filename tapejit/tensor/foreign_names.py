"""Names from TensorFlow, PyTorch, JAX and NumPy, and how tapejit spells them.

None of these is an attribute of tapejit. Asking for one raises AttributeError, and
`hint` gives the package's `__getattr__` the spelling to put into the message.

The data structure is one table from the foreign name to a line of Python. It is written
from a line to its names. The tests run every line, with `x` and `y` as tensors, `v` a
Variable, `a` an array, `f` a function and `tape` a tape that is recording, so no
suggestion can go stale.

Start reading at `SPELLINGS`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final


def by_name(lines: Mapping[str, str]) -> dict[str, str]:
    """The line to write for each name, from a table of lines and names in one text.

    >>> by_name({"x @ y": "mm bmm"})
    {'mm': 'x @ y', 'bmm': 'x @ y'}
    """
    return {name: line for line, names in lines.items() for name in names.split()}


def alike(line: str, name: str, parts: str) -> dict[str, str]:
    """Lines and names that differ in one part.

    >>> alike("x.{}()", "reduce_{}", "max min")
    {'x.max()': 'reduce_max', 'x.min()': 'reduce_min'}
    """
    return {line.format(part): name.format(part) for part in parts.split()}


SPELLINGS: Final = by_name(
    {
        # Making tensors and variables
        "tj.asarray(a)": (
            "as_tensor asanyarray ascontiguousarray convert_to_tensor device_put "
            "from_numpy tensor"
        ),
        "tj.full((2, 3), 1.0)": "fill",
        "tj.Variable(a)": "get_variable Parameter",
        "tj.eye(3)": "identity",
        "isinstance(x, tj.Tensor)": "is_tensor",
        "tj.Tensor": "ndarray",
        "tj.TensorSpec([None, 3])": "placeholder",
        "tj.arange(3)": "range",
        "tj.random.integers(0, 10, (2, 3))": "randint",
        "tj.random.uniform((2, 3))": "rand",
        "tj.random.normal((2, 3))": "randn",
        # Dtypes
        "tj.bool": "bool_",
        "x.astype(tj.float32)": "cast",
        "tj.complex128": "cdouble",
        "tj.complex64": "cfloat",
        "tj.float64": "double",
        "tj.float32": "float",
        "tj.float16": "half",
        "tj.int32": "int",
        "tj.int64": "long",
        # Reductions
        "sum([x, y])": "add_n",
        **alike(
            "tj.{}(x, axis=0)",
            "reduce_{}",
            "all any logsumexp max mean min prod sum std",
        ),
        "tj.var(x, axis=0)": "reduce_variance",
        **alike(
            "tj.segment_{}(x, [0, 2], num_segments=3)",
            "unsorted_segment_{}",
            "max mean min prod sum",
        ),
        # Scans and sorting
        "tj.foldl(lambda total, row: total + row, tj.flip(x, axis=0))": "foldr",
        "tj.searchsorted(x[0], y)": "bucketize",
        "tj.top_k(x, 1)": "topk",
        "tj.unique_values(x)": "unique",
        # Arithmetic and functions of elements
        "tj.round(x)": "around rint",
        "tj.clip(x, 0, 1)": "clamp",
        "tj.divide(x, y)": "div truediv",
        "tj.sigmoid(x)": "expit logistic",
        "tj.divide_no_nan(x, y)": "div_no_nan",
        "tj.abs(x)": "fabs",
        "tj.floor_divide(x, y)": "floordiv",
        "tj.remainder(x, y)": "floormod",
        "tj.multiply(x, y)": "mul",
        "tj.negative(x)": "neg",
        "tj.sign(x)": "sgn",
        "tj.square(x - y)": "squared_difference",
        "tj.subtract(x, y)": "sub",
        # Special functions and draws
        "tj.special.betainc(2.0, 3.0, x / 5)": "betainc",
        "tj.special.betaln(x, y)": "betaln lbeta",
        "tj.special.digamma(x)": "digamma",
        "tj.special.erfc(x)": "erfc",
        "tj.special.erfinv(x / 5)": "erfinv",
        "tj.special.gammaln(x)": "gammaln lgamma",
        "tj.special.gammainc(x, y)": "igamma",
        "tj.special.gammaincc(x, y)": "igammac",
        "tj.special.logit(x / 5)": "logit",
        "tj.random.categorical(x, (9, 1))": "multinomial",
        "tj.special.ndtri(x / 5)": "ndtri",
        "tj.special.polygamma(1, x)": "polygamma",
        "tj.special.xlog1py(x, y)": "xlog1py",
        "tj.special.zeta(x + 1, y)": "zeta",
        # Comparison
        "tj.equal(x, y)": "eq",
        "tj.greater_equal(x, y)": "ge",
        "tj.greater(x, y)": "gt",
        "tj.less_equal(x, y)": "le",
        "tj.less(x, y)": "lt",
        "tj.not_equal(x, y)": "ne",
        # Shapes, joining, indexing
        "tj.take(x, [[0], [1]], batch_dims=1)": "batch_gather",
        "x[x > 0]": "boolean_mask masked_select",
        "tj.concat([x, y], axis=0)": "cat",
        "x.flatten()": "flatten",
        "tj.take(x, [0, 1], axis=0)": "gather index_select",
        "tj.scatter_add(x, [0], y[:1])": "index_add",
        "x.at[0].set(y[0])": "index_put",
        "x.ndim": "ndim rank",
        "x.size": "numel size",
        "tj.permute_dims(x, (1, 0))": "permute",
        "tj.flip(x, axis=0)": "reverse",
        "x.shape": "shape",
        "x.at[[0]].add(y[:1])": "tensor_scatter_nd_add",
        "x.at[[0]].max(y[:1])": "tensor_scatter_nd_max",
        "x.at[[0]].min(y[:1])": "tensor_scatter_nd_min",
        "x.at[[0]].subtract(y[:1])": "tensor_scatter_nd_sub",
        "x.at[[0]].set(y[:1])": "tensor_scatter_nd_update",
        "tj.expand_dims(x, axis=0)": "unsqueeze",
        "tj.reshape(x, (-1,))": "view",
        # Products
        "x @ y": "bmm mm",
        "x @ y + v": "linear",
        "x @ y[0]": "mv",
        "tj.linalg.norm(x)": "norm",
        "tj.linalg.vector_norm(x)": "vector_norm",
        # Neural networks
        "tj.nn.dropout(x, 0.5)": "dropout",
        **alike(
            "tj.nn.{}(x)",
            "{}",
            "elu gelu layer_norm leaky_relu log_softmax relu selu silu softmax",
        ),
        "tj.nn.log_sigmoid(x)": "logsigmoid",
        "tj.nn.softplus(x)": "softplus",
        # Training
        "tj.clip_by_global_norm([x, y], 1.0)": "clip_grad_norm_",
        "tj.clip_by_value(x, -1, 1)": "clip_grad_value_",
        "tj.optimizers.Adam()": "optim",
        "with tj.config.override(default_float='float64'): f(x)": "set_default_dtype",
        "tj.random.set_seed(0)": "manual_seed",
        "with tj.mixed_precision.policy('float32'): f(x)": "amp autocast",
        "tj.optimizers.LossScaleOptimizer(tj.optimizers.SGD())": "GradScaler",
        # Decisions and loops
        "tj.where(x > 0, x, y) or x if x[0, 0] > 0 else y": "cond",
        "for i in range(3): x = f(x)": "fori_loop",
        "tj.foldl(lambda state, row: row + state, x)": "scan",
        "while tj.any(x < 9): x = x + 1": "while_loop",
        # Derivatives and structures
        "tj.recompute_grad(f)": "checkpoint",
        "with tj.GradientTape() as tape: f(x)": "autograd",
        "tape.gradient(y, v)": "backward gradients",
        "tj.stop_gradient(x)": "detach",
        "tj.jacobian(f)": "jacfwd jacrev",
        "tj.function(f)": "jit",
        "class Model: weights = tj.Variable(0.0)": "Module",
        "tj.tree.map(f, [x, y])": "nest tree_map tree_util",
        "with tape.stop_recording(): f(x)": "no_grad stop_recording",
        "tape.watch(x)": "requires_grad",
        "tj.tree.flatten([x, y])": "tree_flatten",
    }
)


# Of tj.random; the same names as above in the lines.
RANDOM: Final = by_name(
    {
        "tj.random.Generator(0)": "default_rng RandomState",
        "tj.random.key(0)": "key_data PRNGKey",
        "tj.random.set_seed(0)": "manual_seed seed",
        "tj.random.uniform((2, 3))": "rand random random_sample",
        "tj.random.integers(0, 10, (2, 3))": "randint random_integers",
        "tj.random.normal((2, 3))": "randn standard_normal",
        "tj.random.permutation(5)": "randperm",
        "tj.random.normal((2, 3), key=tj.random.key(0))": "stateless_normal",
        "tj.random.uniform((2, 3), key=tj.random.key(0))": "stateless_uniform",
    }
)

# Of tj.mixed_precision.
MIXED_PRECISION: Final = by_name(
    {
        "tj.mixed_precision.get_policy()": "global_policy get_autocast_dtype",
        "tj.mixed_precision.set_policy('float32')": "set_global_policy",
        "with tj.mixed_precision.policy('float32'): f(x)": "autocast Policy",
        "tj.optimizers.LossScaleOptimizer(tj.optimizers.SGD())": (
            "GradScaler LossScaleOptimizer"
        ),
    }
)

# Of tensors and variables.
ATTRIBUTES: Final = by_name(
    {
        "tape.gradient(y, v)": "backward grad",
        "tj.synchronize(x.device)": "block_until_ready",
        "x.astype(tj.bool)": "bool",
        "tj.clip(x, 0, 1)": "clamp",
        "x.copy()": "clone",
        "x  # rows may lie anyhow": "contiguous",
        'x.to("cpu")': "cpu cuda",
        "tj.stop_gradient(x)": "detach",
        "x.ndim": "dim",
        "x.astype(tj.float64)": "double",
        "tj.broadcast_to(x, (3, 2, 2))": "expand",
        "x.astype(tj.float32)": "float type",
        "tj.take(x, [0, 1], axis=0)": "gather index_select",
        "x.shape": "get_shape",
        "x.astype(tj.float16)": "half",
        "x.astype(tj.int32)": "int",
        "x.astype(tj.int64)": "long",
        "tj.where(x > 0, 0.0, x)": "masked_fill",
        "x @ y": "matmul mm",
        "x * y": "mul",
        "tj.linalg.norm(x)": "norm",
        "x.size": "numel",
        "tj.permute_dims(x, (1, 0))": "permute",
        "x**2": "pow",
        "tape.watch(x)": "requires_grad requires_grad_",
        "tj.reshape(x, (2, 2))": "set_shape",
        "tj.nn.softmax(x)": "softmax",
        "x - y": "sub",
        "tj.sort(x)": "sort",
        "x.T": "t",
        "tj.top_k(x, 1)": "topk",
        "tj.expand_dims(x, axis=0)": "unsqueeze",
        "tj.reshape(x, (-1,))": "view",
        "v.assign(tj.zeros_like(v))": "zero_",
    }
)


def attribute_error(
    owner: str, name: str, spellings: Mapping[str, str]
) -> AttributeError:
    """The error of a name that is not there, with the spelling if it is known."""
    spelling = spellings.get(name) or SPELLINGS.get(name)
    tail = f"; write {spelling}" if spelling else ""
    package = sys.modules["tapejit"]
    if not spelling and name in package.__all__ and callable(getattr(package, name)):
        tail = f"; there is the function tj.{name}"
    return AttributeError(f"{owner} has no attribute {name!r}{tail}", name=name)


def hint(name: str) -> str | None:
    """What to write for a name that other libraries have, None if it is unknown.

    >>> hint("reduce_mean")
    'write tj.mean(x, axis=0)'
    """
    spelling = SPELLINGS.get(name)
    return None if spelling is None else f"write {spelling}"
